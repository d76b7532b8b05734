/* Errors, buffers, UTF-8 and allocation: what is promised about text in messages and files. */
#include "test_core_tmp.h"

#include <errno.h>
#include <locale.h>

#include "core/buf.h"
#include "core/mem.h"
#include "core/utf8.h"

static void error_is_one_line(void **state) {
    ts_error err = {.code = 7, .position = 9, .message = "old"};
    char longish[3000];

    (void)state;
    assert_int_equal(ts_fail(&err, TS_ERR_ARG, "a\nb\tc\x1b[31m %s", "\xff\xc3\xa9"), TS_ERR_ARG);
    assert_string_equal(err.message, "a b c?[31m ?\xc3\xa9");
    assert_int_equal(err.position, -1);
    assert_int_equal(ts_fail_at(&err, TS_ERR_FORMAT, 12, "x"), TS_ERR_FORMAT);
    assert_int_equal(err.position, 12);
    assert_int_equal(ts_fail(NULL, TS_ERR_IO, "nobody listens"), TS_ERR_IO);
    errno = ENOSPC;
    assert_int_equal(ts_fail_errno(&err, TS_ERR_IO, "cannot write '%s'", "x"), TS_ERR_IO);
    assert_string_equal(err.message, "cannot write 'x': No space left on device");
    ts_error_prefix(&err, "capture of %d: ", 3);
    assert_string_equal(err.message, "capture of 3: cannot write 'x': No space left on device");
    assert_int_equal(err.code, TS_ERR_IO);
    ts_error_prefix(NULL, "x");

    /* too long: the reason stays, no character is cut in two */
    for (size_t i = 0; i + 2 < sizeof longish; i += 2)
        memcpy(longish + i, "\xc3\xa9", 3);
    for (int shift = 0; shift < 3; shift++) {
        errno = ENOSPC;
        ts_fail_errno(&err, TS_ERR_IO, "%.*s%s", shift, "abc", longish);
        assert_non_null(strstr(err.message, "\xc3\xa9...: No space left on device"));
        assert_null(strchr(err.message, '?'));
    }
    ts_fail(&err, TS_ERR_IO, "%s", longish);
    assert_int_equal(ts_utf8_valid(err.message, strlen(err.message)), strlen(err.message));
    ts_error_prefix(&err, "before: ");
    assert_memory_equal(err.message, "before: \xc3\xa9", 10);
}

static void options_are_checked(void **state) {
    struct newer {
        size_t size;
        int32_t a, b;
        int64_t added[2];
    } opts = {.size = sizeof opts, .a = 1};
    const size_t known = offsetof(struct newer, added);
    ts_error err;

    (void)state;
    assert_int_equal(ts_options_check(&opts, known, "f", NULL), TS_OK);
    opts.size = known;
    assert_int_equal(ts_options_check(&opts, known, "f", NULL), TS_OK);
    opts.size = sizeof opts;
    opts.added[1] = 1;
    assert_int_equal(ts_options_check(&opts, known, "f", &err), TS_ERR_ARG);
    assert_string_equal(err.message,
                        "f: byte 24 of the option struct is set, this version knows 16 bytes");
    opts.size = 0;
    assert_int_equal(ts_options_check(&opts, known, "f", &err), TS_ERR_ARG);
    assert_string_equal(err.message,
                        "f: expected an option struct of at least 16 bytes, got size 0");
    assert_int_equal(ts_options_check(NULL, known, "f", &err), TS_ERR_ARG);
}

static void buffer_grows(void **state) {
    ts_buf b = {0};
    char *text;

    (void)state;
    for (int i = 0; i < 2000; i++)
        ts_buf_printf(&b, "%d,", i % 10);
    assert_int_equal(b.length, 4000);
    assert_memory_equal(b.data + 3990, "5,6,7,8,9,", 11);
    text = ts_buf_take(&b);
    assert_int_equal(strlen(text), 4000);
    assert_null(b.data);
    ts_free(text);
    text = ts_buf_take(&b);
    assert_string_equal(text, "");
    ts_free(text);
    ts_buf_add(&b, "a", SIZE_MAX);
    assert_true(b.failed);
    ts_buf_text(&b, "more");
    assert_null(ts_buf_take(&b));
    assert_false(b.failed);
}

static void json_strings(void **state) {
    ts_buf b = {0};

    (void)state;
    ts_buf_json_string(&b, "a\"\\/\b\f\n\r\t\x01\x7f\0z", 13);
    assert_string_equal(b.data, "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\x7f\\u0000z\"");
    ts_buf_free(&b);
    ts_buf_json_string(&b, "\xf0\x9f\x98\x80\xff\xc3\"\xc3", 8);
    assert_string_equal(b.data, "\"\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd\\\"\xef\xbf\xbd\"");
    ts_buf_free(&b);
    ts_buf_json_string(&b, "", 0);
    assert_string_equal(b.data, "\"\"");
    ts_buf_free(&b);
}

/* Where the machine has a locale with a decimal comma, numbers still have a point. */
static void numbers_have_a_point(void **state) {
    ts_buf b = {0};
    ts_error err;

    (void)state;
    if (!setlocale(LC_ALL, "de_DE.UTF-8"))
        skip();
    ts_buf_printf(&b, "%.2f", 1.5);
    ts_fail(&err, TS_ERR_ARG, "%g", 0.5);
    setlocale(LC_ALL, "C");
    assert_string_equal(b.data, "1.50");
    assert_string_equal(err.message, "0.5");
    ts_buf_free(&b);
}

/* RFC 3629 decoded the slow way: code point or -1. */
static int64_t decode(const unsigned char *p, int n) {
    static const int64_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int64_t c = n == 1 ? p[0] : p[0] & (0xff >> (n + 1));

    if (n == 1)
        return p[0] < 0x80 ? c : -1;
    if ((p[0] & (0xff & ~(0xff >> (n + 1)))) != (0xff & ~(0xff >> n)))
        return -1;
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return -1;
        c = c << 6 | (p[i] & 0x3f);
    }
    return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) ? -1 : c;
}

static bool whole(const char *p, size_t n) {
    return ts_utf8_valid(p, n) == n;
}

static void utf8_all_short_sequences(void **state) {
    unsigned char p[4] = {0};

    (void)state;
    for (int a = 0; a < 256; a++) {
        for (int b = 0; b < 256; b++) {
            p[0] = (unsigned char)a;
            p[1] = (unsigned char)b;
            assert_int_equal(whole((char *)p, 2),
                             decode(p, 2) >= 0 || (decode(p, 1) >= 0 && decode(p + 1, 1) >= 0));
            for (int c = 0x70; c < 0xd0; c += 5) {
                p[2] = (unsigned char)c;
                p[3] = 0xbf;
                if (a >= 0xe0 && a < 0xf0)
                    assert_int_equal(whole((char *)p, 3), decode(p, 3) >= 0);
                if (a >= 0xf0)
                    assert_int_equal(whole((char *)p, 4), decode(p, 4) >= 0);
            }
        }
    }
    assert_int_equal(ts_utf8_valid("0123456789abcdef\xc3\xa9 01234567\xed\xa0\x80", 30), 27);
    assert_int_equal(ts_utf8_valid("", 0), 0);
}

static void utf8_complete_prefix(void **state) {
    static const struct {
        const char *bytes;
        size_t complete;
    } cases[] = {
        {"", 0},
        {"abc", 3},
        {"a\xc3", 1},
        {"a\xc3\xa9", 3},
        {"\xe2\x82", 0},
        {"\xe2\x82\xac", 3},
        {"\xf0\x9f\x98", 0},
        {"x\xf0", 1},
        {"\xe0\x80", 2}, /* overlong: invalid, so complete */
        {"\xed\xa0", 2}, /* surrogate */
        {"\x80\x80", 2},
        {"\xff", 1},
        {"\xf0\x9f\x98\x80\xf0\x9f", 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(ts_utf8_complete(cases[i].bytes, strlen(cases[i].bytes)),
                         cases[i].complete);
}

static void allocation_refuses_overflow(void **state) {
    char *p;

    (void)state;
    assert_null(ts_calloc(SIZE_MAX / 2, 3));
    assert_null(ts_realloc(NULL, SIZE_MAX, 2));
    assert_null(ts_malloc(SIZE_MAX));
    p = ts_malloc(0);
    assert_non_null(p);
    p = ts_realloc(p, 0, 8);
    assert_non_null(p);
    ts_free(p);
    p = ts_calloc(0, 8);
    assert_non_null(p);
    ts_free(p);
    p = ts_strndup("abcdef", 3);
    assert_string_equal(p, "abc");
    ts_free(p);
    p = ts_strndup("ab", 30);
    assert_string_equal(p, "ab");
    ts_free(p);
    ts_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_is_one_line),    cmocka_unit_test(options_are_checked),
        cmocka_unit_test(buffer_grows),         cmocka_unit_test(json_strings),
        cmocka_unit_test(numbers_have_a_point), cmocka_unit_test(utf8_all_short_sequences),
        cmocka_unit_test(utf8_complete_prefix), cmocka_unit_test(allocation_refuses_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
