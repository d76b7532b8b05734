/* The safetensors container: what the writer renders the reader takes, and every damaged or hostile
 * file is one error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/file.h"
#include "store/safetensors.h"

#define FILE_NAME "test_safetensors.tmp"

static void put_file(const char *header, uint64_t length, size_t data) {
    FILE *f = fopen(FILE_NAME, "wb");
    assert_non_null(f);
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> 8 * i & 0xff), f);
    fputs(header, f);
    for (size_t i = 0; i < data; i++)
        fputc((int)(i & 0xff), f);
    assert_int_equal(fclose(f), 0);
}

/* Reading must fail with `code` and a message that holds `what` and the file's name. */
static void refuse(const char *header, size_t data, const char *what) {
    ts_st_index index;
    ts_error err = {0};
    put_file(header, strlen(header), data);
    assert_int_equal(ts_st_read_index(FILE_NAME, &index, &err), TS_ERR_FORMAT);
    if (strstr(err.message, what) == NULL)
        fail_msg("'%s' does not say '%s'", err.message, what);
    assert_non_null(strstr(err.message, FILE_NAME));
    assert_null(index.tensors);
}

static void round_trip(void **state) {
    (void)state;
    ts_st_tensor t[2] = {
        {.name = "a \"b\"", .dtype = "F32", .n_dims = 2, .shape = {2, 3}, .end = 24},
        {.name = "scalar", .dtype = "I64", .n_dims = 0, .begin = 24, .end = 32},
    };
    ts_buf b = {0};
    ts_st_index index;
    ts_error err = {0};
    assert_int_equal(ts_st_header(t, 2, "{\"k\":\"v\"}", 4096, &b, &err), TS_OK);
    assert_int_equal(b.length, 4096);
    assert_int_equal((unsigned char)b.data[0] + 256 * (unsigned char)b.data[1], 4088);
    for (int i = 0; i < 32; i++)
        ts_buf_add(&b, "x", 1);
    assert_int_equal(ts_file_put(FILE_NAME, b.data, b.length, &err), TS_OK);
    ts_buf_free(&b);
    assert_int_equal(ts_st_read_index(FILE_NAME, &index, &err), TS_OK);
    assert_int_equal(index.n, 2);
    const ts_st_tensor *a = ts_st_find(&index, "a \"b\"");
    assert_non_null(a);
    assert_int_equal(a->begin, 4096);
    assert_int_equal(a->end, 4120);
    assert_int_equal(a->shape[1], 3);
    assert_string_equal(index.metadata, "{\"k\":\"v\"}");
    assert_null(ts_st_find(&index, "b"));
    ts_st_index_free(&index);
}

static void header_space(void **state) {
    (void)state;
    ts_st_tensor t = {.name = "a", .dtype = "U8", .n_dims = 1, .shape = {0}};
    ts_buf b = {0};
    ts_error err = {0};
    assert_int_equal(ts_st_header(&t, 1, NULL, 24, &b, &err), TS_ERR_ARG);
    assert_int_equal(ts_st_header(&t, 1, NULL, 4, &b, &err), TS_ERR_ARG);
    assert_int_equal(ts_st_header(&t, 1, NULL, 63, &b, &err), TS_ERR_ARG);
    assert_int_equal(ts_st_header(&t, 1, NULL, 64, &b, &err), TS_OK);
    ts_buf_free(&b);
}

static void empty_files(void **state) {
    (void)state;
    ts_st_index index;
    ts_error err = {0};
    put_file("{}", 2, 0);
    assert_int_equal(ts_st_read_index(FILE_NAME, &index, &err), TS_OK);
    assert_int_equal(index.n, 0);
    ts_st_index_free(&index);
    assert_int_equal(ts_file_put(FILE_NAME, "abc", 3, &err), TS_OK);
    assert_int_equal(ts_st_read_index(FILE_NAME, &index, &err), TS_ERR_FORMAT);
    assert_int_equal(ts_st_read_index("no-such-file", &index, &err), TS_ERR_IO);
    assert_int_equal(ts_st_read_index(".", &index, &err), TS_ERR_IO);
}

static void lengths(void **state) {
    (void)state;
    const uint64_t bad[] = {3, 100000001, UINT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 7};
    ts_st_index index;
    ts_error err = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_file("{}", bad[i], 0);
        assert_int_equal(ts_st_read_index(FILE_NAME, &index, &err), TS_ERR_FORMAT);
    }
}

static void hostile(void **state) {
    (void)state;
    refuse("[]", 0, "JSON");
    refuse("{", 0, "not valid JSON");
    refuse("{\"a\":3}", 0, "'dtype'");
    refuse("{\"a\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
           "unknown dtype 'F99'");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "'shape'");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
           "'shape' element 0");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "real number");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}",
           4, "more elements");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4,
           "JSON");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
           "at most 8");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "take 8 bytes");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4,
           "'data_offsets' element 1");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 4,
           "'data_offsets' element 1");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
           "expected 2 elements");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "hole");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8, "end at byte");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
           "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
           6, "overlap");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
           "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
           4, "uplicate");
    refuse("{\"a\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
           "does not end on a byte");
    refuse("{\"__metadata__\":3}", 0, "not an object");
    refuse("{\"__metadata__\":{\"a\":3}}", 0, "strings only");
    refuse("{\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
           "aaaaaaaaaaaaaa"
           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
           "aaaaaaaaaaaaaaa\":"
           "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
           4, "the name has");
}

static void deep_nesting(void **state) {
    (void)state;
    enum { DEPTH = 200000 };
    char *text = malloc(DEPTH + 16);
    assert_non_null(text);
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', DEPTH);
    text[DEPTH + 5] = '\0';
    refuse(text, 0, "not valid JSON");
    free(text);
}

static int clean(void **state) {
    (void)state;
    unlink(FILE_NAME);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),  cmocka_unit_test(header_space),
        cmocka_unit_test(empty_files), cmocka_unit_test(lengths),
        cmocka_unit_test(hostile),     cmocka_unit_test(deep_nesting),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
