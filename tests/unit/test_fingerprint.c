/* xxh3-128: published values, files against bytes, prefixes. */
#include "test_core_tmp.h"

#include "store/fingerprint.h"

static void bytes(void **state) {
    char hex[33];

    (void)state;
    ts_fingerprint_bytes("", 0, hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    ts_fingerprint_bytes("abc", 3, hex);
    assert_string_equal(hex, "06b05ab6733a618578af5f94892f3950");
}

static void files(void **state) {
    const size_t n = 700001;
    unsigned char *data = malloc(n);
    char hex[33], want[33];
    uint64_t size = 0;
    ts_error err;

    (void)state;
    assert_non_null(data);
    for (size_t i = 0; i < n; i++)
        data[i] = (unsigned char)(i * i >> 3);
    tmp_write("f", data, n);
    ts_fingerprint_bytes(data, n, want);
    assert_int_equal(ts_fingerprint_file("f", hex, &size, &err), TS_OK);
    assert_string_equal(hex, want);
    assert_int_equal(size, n);
    for (size_t length = 0; length <= n; length += 140000) {
        ts_fingerprint_bytes(data, length, want);
        assert_int_equal(ts_fingerprint_prefix("f", length, hex, &err), TS_OK);
        assert_string_equal(hex, want);
    }
    assert_int_equal(ts_fingerprint_prefix("f", n + 1, hex, &err), TS_ERR_FORMAT);
    assert_string_equal(err.message,
                        "'f' is too short: expected at least 700002 bytes, got 700001");
    assert_int_equal(ts_fingerprint_file("none", hex, &size, &err), TS_ERR_IO);
    assert_int_equal(ts_fingerprint_file(".", hex, NULL, &err), TS_ERR_IO);
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes),
        cmocka_unit_test_setup_teardown(files, tmp_setup, tmp_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
