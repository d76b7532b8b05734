/* Option numbers, ranges and positions: every accepted form and the text of every refusal. */
#include "test_core_tmp.h"

#include <float.h>
#include <locale.h>
#include <math.h>

#include <turbospark/turbospark.h>

static void whole_numbers(void **state) {
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"-0", 0},
                {"007", 7},
                {"-12", -12},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN}};
    static const char *bad[] = {"",
                                "-",
                                "+5",
                                " 5",
                                "5 ",
                                "5\n",
                                "3x2",
                                "1e3",
                                "0x10",
                                "1.0",
                                "--5",
                                "1,0",
                                "inf",
                                "five",
                                "- 5",
                                "\xd9\xa5",
                                "9223372036854775808",
                                "-9223372036854775809",
                                "99999999999999999999999999"};
    ts_error err;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int64_t value = 77;

        assert_int_equal(ts_parse_i64("-n", good[i].text, INT64_MIN, INT64_MAX, &value, &err),
                         TS_OK);
        assert_true(value == good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t value = 77;

        assert_int_equal(ts_parse_i64("-n", bad[i], INT64_MIN, INT64_MAX, &value, &err),
                         TS_ERR_ARG);
        assert_true(value == 77);
    }
    assert_int_equal(ts_parse_i64("-n", NULL, 0, 1, &(int64_t){0}, &err), TS_ERR_ARG);
}

static void whole_number_messages(void **state) {
    int64_t v;
    ts_error err;

    (void)state;
    ts_parse_i64("-ub", "3x2", 1, INT32_MAX, &v, &err);
    assert_string_equal(err.message,
                        "-ub: expected a whole number from 1 to 2147483647, got '3x2'");
    ts_parse_i64("-n", "-1", 0, INT32_MAX, &v, &err);
    assert_string_equal(err.message, "-n: expected a whole number from 0 to 2147483647, got '-1'");
    ts_parse_i64("-n", "", 1, INT64_MAX, &v, &err);
    assert_string_equal(err.message, "-n: expected a whole number of at least 1, got ''");
    ts_parse_i64("-n", "x", INT64_MIN, INT64_MAX, &v, &err);
    assert_string_equal(err.message, "-n: expected a whole number, got 'x'");
    assert_int_equal(err.position, -1);
}

static void reals(void **state) {
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0", 0.0},     {"-1.5", -1.5}, {".5", 0.5},     {"5.", 5.0}, {"1e3", 1000.0},
                {"1E-2", 0.01}, {"2e+1", 20.0}, {"1e-400", 0.0}, {"0.1", 0.1}};
    static const char *bad[] = {"",         ".",      "-",     "nan",  "inf", "-inf",
                                "infinity", "NAN(1)", "0x1p3", "0x10", "1,5", "1.5 ",
                                " 1.5",     "+1",     "1e",    "1e+",  "e5",  "1.2.3",
                                "1e999",    "1'000",  "1d3",   "1f",   "--1", "\n1"};

    (void)state;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1 && !setlocale(LC_ALL, "de_DE.UTF-8"))
            break;
        for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
            double value = 77;

            assert_int_equal(ts_parse_f64("-x", good[i].text, -DBL_MAX, DBL_MAX, &value, NULL),
                             TS_OK);
            assert_true(value == good[i].value);
        }
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            double value = 77;

            assert_int_equal(ts_parse_f64("-x", bad[i], -DBL_MAX, DBL_MAX, &value, NULL),
                             TS_ERR_ARG);
            assert_true(value == 77);
        }
    }
    setlocale(LC_ALL, "C");
}

static void real_messages(void **state) {
    double v;
    ts_error err;

    (void)state;
    ts_parse_f64("--top-p", "1.5", 0, 1, &v, &err);
    assert_string_equal(err.message, "--top-p: expected a number from 0 to 1, got '1.5'");
    ts_parse_f64("--temp", "-0.1", 0, DBL_MAX, &v, &err);
    assert_string_equal(err.message, "--temp: expected a number of at least 0, got '-0.1'");
    ts_parse_f64("--x", "2", -DBL_MAX, 1, &v, &err);
    assert_string_equal(err.message, "--x: expected a number of at most 1, got '2'");
    ts_parse_f64("--x", "nan", -INFINITY, INFINITY, &v, &err);
    assert_string_equal(err.message, "--x: expected a finite number, got 'nan'");
}

static void ranges(void **state) {
    static const char *bad[] = {"",     ":",   "1:",    ":2",  "1:2:3", "-1",   "-3:-1",
                                "0:-1", "a:b", "0x1:2", "1-2", "1,2",   " 1:2", "0:2147483648",
                                "1: 2", "all"};
    ts_range r = {5, 5};
    ts_error err;

    (void)state;
    assert_int_equal(ts_parse_range("--layers", "0:29", &r, &err), TS_OK);
    assert_true(r.first == 0 && r.last == 29);
    assert_int_equal(ts_parse_range("--layers", "7", &r, &err), TS_OK);
    assert_true(r.first == 7 && r.last == 7);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ts_parse_range("--layers", bad[i], &r, &err), TS_ERR_ARG);
    assert_true(r.first == 7 && r.last == 7);
    ts_parse_range("--layers", "5:2", &r, &err);
    assert_string_equal(err.message, "--layers: first block 5 is after last block 2");
    ts_parse_range("--layers", "a:b", &r, &err);
    assert_string_equal(err.message,
                        "--layers: expected a block or a range of blocks such as 0:29, got 'a:b'");
}

static void positions(void **state) {
    static const struct {
        const char *text;
        ts_positions p;
    } good[] = {
        {"last", {TS_POSITIONS_LAST, 0, 0}},     {"all", {TS_POSITIONS_ALL, 0, 0}},
        {"mean", {TS_POSITIONS_MEAN, 0, 0}},     {"7", {TS_POSITIONS_RANGE, 7, 7}},
        {"-2", {TS_POSITIONS_RANGE, -2, -2}},    {"0:3", {TS_POSITIONS_RANGE, 0, 3}},
        {"-4:-1", {TS_POSITIONS_RANGE, -4, -1}}, {"1:-1", {TS_POSITIONS_RANGE, 1, -1}},
        {"-4:9", {TS_POSITIONS_RANGE, -4, 9}},
    };
    static const char *bad[] = {
        "", "first", "Last", "last ", "1:", "+1", "1:2:3", "2:1", "-1:-4", "1e1"};
    ts_positions p;
    ts_error err;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(ts_parse_positions("--positions", good[i].text, &p, &err), TS_OK);
        assert_memory_equal(&p, &good[i].p, sizeof p);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ts_parse_positions("--positions", bad[i], &p, &err), TS_ERR_ARG);
    ts_parse_positions("--positions", "-1:-4", &p, &err);
    assert_string_equal(err.message, "--positions: first position -1 is after last position -4");
    ts_parse_positions("--positions", "x", &p, &err);
    assert_string_equal(err.message,
                        "--positions: expected last, all, mean, a position or a range such as "
                        "0:7 or -4:-1, got 'x'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers), cmocka_unit_test(whole_number_messages),
        cmocka_unit_test(reals),         cmocka_unit_test(real_messages),
        cmocka_unit_test(ranges),        cmocka_unit_test(positions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
