/* Steering arithmetic: each mode against its formula in f64 at points where no two modes agree,
 * identities to the bit, gates, rows that are not finite. TEST_STEER_BENCH=1 prints the time of a
 * row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "stats/steer.h"

enum { MAX = 4099 };
static const int widths[] = {1, 2, 7, 15, 16, 17, 64, 576, 577, 4096, MAX};
enum { N_WIDTHS = sizeof widths / sizeof *widths };

static uint64_t seed = 0x9e3779b97f4a7c15;

static float draw(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (float)((double)(int64_t)seed * 0x1p-62);
}

static void fill(float *x, int n) {
    for (int i = 0; i < n; i++)
        x[i] = draw() + (i % 5 == 0 ? 3.0f : 0);
}

static double dot(const float *x, const float *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* The row that the formula gives, in f64 throughout. */
static void expected(enum ts_steer_mode mode, double s, double target, const float *x,
                     const float *d, int n, double *y) {
    double norm = sqrt(dot(d, d, n)), c = dot(x, d, n) / norm, before = 0, after = 0;
    for (int i = 0; i < n; i++) {
        double u = (double)d[i] / norm, v = (double)x[i];
        if (mode == TS_STEER_ABLATE || mode == TS_STEER_RENORM)
            y[i] = v - s * c * u;
        else if (mode == TS_STEER_ADD)
            y[i] = v + s * (double)d[i];
        else
            y[i] = v + s * (target - c) * u;
        before += v * v;
        after += y[i] * y[i];
    }
    for (int i = 0; mode == TS_STEER_RENORM && i < n; i++)
        y[i] *= sqrt(before / after);
}

static void modes(void **state) {
    (void)state;
    static const double scales[] = {0.37, 1, -0.8, 2.5};
    static float x[MAX], d[MAX], y[MAX];
    static double want[MAX];
    for (int w = 0; w < N_WIDTHS; w++) {
        int n = widths[w];
        ts_steer_axis axis;
        fill(x, n);
        fill(d, n);
        assert_int_equal(ts_steer_axis_init(&axis, d, n, NULL), TS_OK);
        for (int m = 0; m < TS_STEER_MODE_COUNT; m++) {
            for (int k = 0; k < 4; k++) {
                ts_steer_rule rule = {(enum ts_steer_mode)m, scales[k],
                                      m == TS_STEER_CLAMP ? 1.7 : 0, 0};
                double c, size = sqrt(dot(x, x, n)) + sqrt(dot(d, d, n)) * fabs(scales[k]);
                if (m == TS_STEER_RENORM && n == 1)
                    continue; /* nothing but the axis: see parallel() */
                assert_int_equal(ts_steer_rule_check(&rule, NULL), TS_OK);
                memcpy(y, x, sizeof y);
                assert_int_equal(ts_steer_row(&axis, &rule, y, &c), TS_STEER_EDITED);
                assert_true(fabs(c - dot(x, d, n) / axis.norm) <= 1e-12 * size);
                expected(rule.mode, rule.scale, rule.target, x, d, n, want);
                for (int i = 0; i < n; i++)
                    if (!(fabs((double)y[i] - want[i]) <= 3e-7 * size))
                        fail_msg("%s, width %d, value %d: %g, expected %g",
                                 ts_steer_mode_name(rule.mode), n, i, (double)y[i], want[i]);
            }
        }
        ts_steer_axis_free(&axis);
    }
}

/* What the modes are for. */
static void effects(void **state) {
    (void)state;
    static float x[MAX], d[MAX], y[MAX];
    for (int w = 2; w < N_WIDTHS; w++) {
        int n = widths[w];
        ts_steer_axis axis;
        double c, after;
        fill(x, n);
        fill(d, n);
        assert_int_equal(ts_steer_axis_init(&axis, d, n, NULL), TS_OK);

        memcpy(y, x, sizeof y);
        ts_steer_row(&axis, &(ts_steer_rule){TS_STEER_ABLATE, 1, 0, 0}, y, &c);
        assert_true(fabs(ts_steer_coefficient(&axis, y)) < 1e-6 * sqrt(dot(y, y, n)));
        ts_steer_row(&axis, &(ts_steer_rule){TS_STEER_ABLATE, 1, 0, 0}, y, &after);
        assert_true(fabs(after) < 1e-6 * sqrt(dot(y, y, n)));

        memcpy(y, x, sizeof y);
        ts_steer_row(&axis, &(ts_steer_rule){TS_STEER_ABLATE, 0.37, 0, 0}, y, &c);
        assert_true(fabs(ts_steer_coefficient(&axis, y) - 0.63 * c) < 1e-6 * sqrt(dot(x, x, n)));

        memcpy(y, x, sizeof y);
        ts_steer_row(&axis, &(ts_steer_rule){TS_STEER_RENORM, 0.37, 0, 0}, y, &c);
        assert_true(fabs(sqrt(dot(y, y, n) / dot(x, x, n)) - 1) < 1e-6);
        ts_steer_row(&axis, &(ts_steer_rule){TS_STEER_RENORM, 1, 0, 0}, y, &c);
        assert_true(fabs(sqrt(dot(y, y, n) / dot(x, x, n)) - 1) < 1e-6);
        assert_true(fabs(ts_steer_coefficient(&axis, y)) < 1e-5 * sqrt(dot(y, y, n)));

        memcpy(y, x, sizeof y);
        ts_steer_row(&axis, &(ts_steer_rule){TS_STEER_CLAMP, 1, -2.25, 0}, y, &c);
        assert_true(fabs(ts_steer_coefficient(&axis, y) + 2.25) < 1e-6 * sqrt(dot(x, x, n)));
        ts_steer_axis_free(&axis);
    }
}

static void untouched(void **state) {
    (void)state;
    static float x[MAX], d[MAX], y[MAX];
    ts_steer_axis axis;
    double c, want;
    fill(x, 577);
    fill(d, 577);
    x[3] = -0.0f;
    x[4] = 1e-42f; /* a denormal */
    assert_int_equal(ts_steer_axis_init(&axis, d, 577, NULL), TS_OK);
    want = ts_steer_coefficient(&axis, x);
    memcpy(y, x, sizeof y);
    for (int m = 0; m < TS_STEER_MODE_COUNT; m++) {
        ts_steer_rule rule = {(enum ts_steer_mode)m, 0, m == TS_STEER_CLAMP ? 1.7 : 0, 0};
        assert_int_equal(ts_steer_row(&axis, &rule, y, &c), TS_STEER_OFF);
        assert_memory_equal(x, y, sizeof x);
        assert_true(c == want);
        rule.scale = -0.0;
        assert_int_equal(ts_steer_row(&axis, &rule, y, &c), TS_STEER_OFF);
        rule.scale = 0.37;
        rule.gate = nextafter(fabs(want), INFINITY);
        assert_int_equal(ts_steer_row(&axis, &rule, y, &c), TS_STEER_GATED);
        assert_memory_equal(x, y, sizeof x);
        assert_true(c == want);
        rule.gate = fabs(want);
        assert_int_equal(ts_steer_row(&axis, &rule, y, &c), TS_STEER_EDITED);
        assert_memory_not_equal(x, y, sizeof x);
        memcpy(y, x, sizeof y);
    }
    ts_steer_axis_free(&axis);
}

static void not_finite(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static float x[MAX], d[MAX], y[MAX];
    ts_steer_axis axis;
    double c;
    fill(d, 577);
    d[100] = 0; /* where u is zero a bad value must be seen too */
    assert_int_equal(ts_steer_axis_init(&axis, d, 577, NULL), TS_OK);
    for (int b = 0; b < 3; b++) {
        for (int at = 0; at < 577; at += 100) {
            fill(x, 577);
            x[at] = bad[b];
            memcpy(y, x, sizeof y);
            for (int m = 0; m < TS_STEER_MODE_COUNT; m++) {
                assert_int_equal(
                    ts_steer_row(&axis, &(ts_steer_rule){(enum ts_steer_mode)m, 0.37, 0, 0}, y, &c),
                    TS_STEER_NONFINITE);
                assert_memory_equal(x, y, sizeof x);
                assert_true(!isfinite(c));
            }
        }
    }
    /* large but finite values are no reason to stop */
    for (int i = 0; i < 577; i++)
        x[i] = 3e38f;
    assert_int_equal(ts_steer_row(&axis, &(ts_steer_rule){TS_STEER_ABLATE, 0.01, 0, 0}, x, &c),
                     TS_STEER_EDITED);
    /* a factor beyond f32 is */
    memcpy(y, x, sizeof y);
    assert_int_equal(ts_steer_row(&axis, &(ts_steer_rule){TS_STEER_ABLATE, 3e30, 0, 0}, x, &c),
                     TS_STEER_NONFINITE);
    assert_memory_equal(x, y, sizeof x);
    ts_steer_axis_free(&axis);
}

static void parallel(void **state) {
    (void)state;
    float x[64], d[64], y[64];
    ts_steer_axis axis;
    double c;
    fill(d, 64);
    for (int i = 0; i < 64; i++)
        x[i] = 2.5f * d[i];
    memcpy(y, x, sizeof y);
    assert_int_equal(ts_steer_axis_init(&axis, d, 64, NULL), TS_OK);
    assert_int_equal(ts_steer_row(&axis, &(ts_steer_rule){TS_STEER_RENORM, 1, 0, 0}, y, &c),
                     TS_STEER_PARALLEL);
    assert_memory_equal(x, y, sizeof x);
    assert_int_equal(ts_steer_row(&axis, &(ts_steer_rule){TS_STEER_RENORM, 0.37, 0, 0}, y, &c),
                     TS_STEER_EDITED);
    memset(x, 0, sizeof x);
    assert_int_equal(ts_steer_row(&axis, &(ts_steer_rule){TS_STEER_RENORM, 0.37, 0, 0}, x, &c),
                     TS_STEER_PARALLEL);
    assert_true(c == 0 && x[0] == 0);
    ts_steer_axis_free(&axis);
}

/* A direction's length counts for add alone. */
static void length(void **state) {
    (void)state;
    static const float lengths[] = {1e-30f, 1e-4f, 1, 1e4f, 1e30f};
    float x[64], d[64], scaled[64], one[64], y[64];
    fill(x, 64);
    fill(d, 64);
    for (int m = 0; m < TS_STEER_MODE_COUNT; m++) {
        if (m == TS_STEER_ADD)
            continue;
        for (int k = 0; k < 5; k++) {
            ts_steer_axis axis;
            double c;
            for (int i = 0; i < 64; i++)
                scaled[i] = d[i] * lengths[k];
            memcpy(y, x, sizeof y);
            assert_int_equal(ts_steer_axis_init(&axis, scaled, 64, NULL), TS_OK);
            ts_steer_row(
                &axis,
                &(ts_steer_rule){(enum ts_steer_mode)m, 0.37, m == TS_STEER_CLAMP ? 4 : 0, 0}, y,
                &c);
            if (k == 0)
                memcpy(one, y, sizeof y);
            for (int i = 0; i < 64; i++)
                assert_true(fabsf(y[i] - one[i]) <= 2e-6f);
            ts_steer_axis_free(&axis);
        }
    }
}

static void refuse_axis(const float *d, int n, const char *what) {
    ts_steer_axis axis;
    ts_error err = {0};
    assert_int_equal(ts_steer_axis_init(&axis, d, n, &err), TS_ERR_ARG);
    if (!strstr(err.message, what))
        fail_msg("'%s' does not say '%s'", err.message, what);
    ts_steer_axis_free(&axis);
}

static void refuse_rule(ts_steer_rule rule, const char *what) {
    ts_error err = {0};
    assert_int_equal(ts_steer_rule_check(&rule, &err), TS_ERR_ARG);
    if (!strstr(err.message, what))
        fail_msg("'%s' does not say '%s'", err.message, what);
}

static void refusals(void **state) {
    (void)state;
    enum ts_steer_mode mode;
    refuse_axis((float[]){0, -0.0f, 0}, 3, "zero");
    refuse_axis((float[]){1, NAN}, 2, "not finite");
    refuse_axis((float[]){1, INFINITY}, 2, "not finite");
    refuse_axis((float[]){1}, 0, "at least one");
    refuse_rule((ts_steer_rule){(enum ts_steer_mode)9, 1, 0, 0}, "mode 9");
    refuse_rule((ts_steer_rule){TS_STEER_ADD, NAN, 0, 0}, "scale");
    refuse_rule((ts_steer_rule){TS_STEER_ADD, INFINITY, 0, 0}, "scale");
    refuse_rule((ts_steer_rule){TS_STEER_CLAMP, 1, NAN, 0}, "target");
    refuse_rule((ts_steer_rule){TS_STEER_ADD, 1, 2, 0}, "clamp");
    refuse_rule((ts_steer_rule){TS_STEER_ADD, 1, 0, -1}, "gate");
    refuse_rule((ts_steer_rule){TS_STEER_ADD, 1, 0, NAN}, "gate");
    for (int m = 0; m < TS_STEER_MODE_COUNT; m++) {
        assert_true(ts_steer_mode_find(ts_steer_mode_name((enum ts_steer_mode)m), &mode));
        assert_int_equal(mode, m);
    }
    assert_false(ts_steer_mode_find("Ablate", &mode));
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void speed(void **state) {
    (void)state;
    static float x[576], d[576];
    ts_steer_axis axis;
    double c;
    if (!getenv("TEST_STEER_BENCH"))
        skip();
    fill(x, 576);
    fill(d, 576);
    assert_int_equal(ts_steer_axis_init(&axis, d, 576, NULL), TS_OK);
    for (int m = 0; m < TS_STEER_MODE_COUNT; m++) {
        ts_steer_rule rule = {(enum ts_steer_mode)m, 1e-4, 0, 0};
        double best = INFINITY;
        for (int round = 0; round < 50; round++) {
            double start = now_ns();
            for (int i = 0; i < 1000; i++)
                ts_steer_row(&axis, &rule, x, &c);
            best = fmin(best, (now_ns() - start) / 1000);
        }
        print_message("%-6s %6.0f ns a row of 576\n", ts_steer_mode_name(rule.mode), best);
    }
    ts_steer_axis_free(&axis);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modes),      cmocka_unit_test(effects),  cmocka_unit_test(untouched),
        cmocka_unit_test(not_finite), cmocka_unit_test(parallel), cmocka_unit_test(length),
        cmocka_unit_test(refusals),   cmocka_unit_test(speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
