/* Divergence of two rows of logits: against plain sums in long double, exact zeros, -infinity,
 * quantiles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stats/kl.h"

enum { MAX = 300000 };

static float p[MAX], q[MAX];
static uint64_t seed = 0x9e3779b97f4a7c15;

static double draw(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (double)(int64_t)seed * 0x1p-63;
}

static void fill(int n, double wide, double apart) {
    for (int i = 0; i < n; i++) {
        double x = draw() * wide;
        p[i] = (float)x;
        q[i] = (float)(x + draw() * apart + 3);
    }
}

static void near(double got, double want, double tolerance, const char *what) {
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
        fail_msg("%s: %.17g, expected %.17g", what, got, want);
}

/* Straight from the definition: probabilities first. */
static void against_definition(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 17, 1000, MAX};
    static const double wides[] = {0.1, 5, 60};
    for (int k = 0; k < 5; k++) {
        for (int w = 0; w < 3; w++) {
            int n = sizes[k], token = n / 3;
            long double zp = 0, zq = 0, pq = 0, qp = 0, hp = 0, hq = 0;
            ts_kl_row r, single;
            fill(n, wides[w], 0.7);
            for (int i = 0; i < n; i++) {
                zp += expl((long double)p[i]);
                zq += expl((long double)q[i]);
            }
            for (int i = 0; i < n; i++) {
                long double a = expl((long double)p[i]) / zp, b = expl((long double)q[i]) / zq;
                pq += a * logl(a / b);
                qp += b * logl(b / a);
                hp -= a * logl(a);
                hq -= b * logl(b);
            }
            assert_int_equal(ts_kl_compare(p, q, n, token, &r, NULL), TS_OK);
            near(r.kl_pq, (double)pq, 1e-11, "kl_pq");
            near(r.kl_qp, (double)qp, 1e-11, "kl_qp");
            near(r.entropy_p, (double)hp, 1e-11, "entropy_p");
            near(r.entropy_q, (double)hq, 1e-11, "entropy_q");
            near(r.nll_p, (double)(logl(zp) - (long double)p[token]), 1e-11, "nll_p");
            near(r.nll_q, (double)(logl(zq) - (long double)q[token]), 1e-11, "nll_q");
            assert_true(r.outside_p == 0 && r.outside_q == 0);
            assert_int_equal(ts_kl_single(p, n, token, &single, NULL), TS_OK);
            near(single.entropy_p, r.entropy_p, 1e-12, "entropy alone");
            near(single.nll_p, r.nll_p, 1e-12, "nll alone");
            assert_int_equal(single.top_p, r.top_p);
        }
    }
}

static void itself(void **state) {
    (void)state;
    ts_kl_row r;
    fill(MAX, 20, 1);
    p[5] = p[MAX - 1] = -INFINITY;
    memcpy(q, p, sizeof q);
    assert_int_equal(ts_kl_compare(p, q, MAX, 5, &r, NULL), TS_OK);
    assert_true(r.kl_pq == 0 && r.kl_qp == 0 && r.outside_p == 0 && r.outside_q == 0);
    assert_true(r.top_p == r.top_q && r.entropy_p == r.entropy_q);
    assert_true(isinf(r.nll_p) && isinf(r.nll_q));
    /* a constant added to all logits changes no probability */
    for (int i = 0; i < MAX; i++)
        p[i] = q[i] = (float)(i % 64);
    for (int i = 0; i < MAX; i++)
        q[i] += 1024;
    assert_int_equal(ts_kl_compare(p, q, MAX, -1, &r, NULL), TS_OK);
    assert_true(r.kl_pq == 0 && r.kl_qp == 0);
    assert_true(isnan(r.nll_p) && isnan(r.nll_q));
}

static void ruled_out(void **state) {
    (void)state;
    const float inf = INFINITY;
    float a[4] = {0, 0, 0, -inf}, b[4] = {0, 0, -inf, 0};
    ts_kl_row r;
    assert_int_equal(ts_kl_compare(a, b, 4, 2, &r, NULL), TS_OK);
    assert_true(r.kl_pq == 0 && r.kl_qp == 0);
    near(r.outside_p, 1.0 / 3, 1e-15, "outside_p");
    near(r.outside_q, 1.0 / 3, 1e-15, "outside_q");
    near(r.entropy_p, log(3), 1e-15, "entropy");
    near(r.nll_p, log(3), 1e-15, "nll_p");
    assert_true(isinf(r.nll_q) && r.nll_q > 0);
    /* nothing in common: no NaN either */
    float c[2] = {0, -inf}, d[2] = {-inf, 0}, e[2] = {-2000, 0};
    assert_int_equal(ts_kl_compare(c, d, 2, -1, &r, NULL), TS_OK);
    assert_true(r.kl_pq == 0 && r.kl_qp == 0 && r.outside_p == 1 && r.outside_q == 1);
    assert_int_equal(ts_kl_compare(c, e, 2, -1, &r, NULL), TS_OK);
    assert_true(isfinite(r.kl_pq) && isfinite(r.kl_qp));
    assert_int_equal(ts_kl_compare(c, c, 2, 0, &r, NULL), TS_OK);
    assert_true(r.kl_pq == 0 && r.entropy_p == 0 && r.nll_p == 0);
}

static void refuse(float *a, float *b, int n, int token, int code, const char *what) {
    ts_kl_row r;
    ts_error err = {0};
    assert_int_equal(ts_kl_compare(a, b, n, token, &r, &err), code);
    if (!strstr(err.message, what))
        fail_msg("'%s' does not say '%s'", err.message, what);
}

static void refusals(void **state) {
    (void)state;
    const float inf = INFINITY;
    float good[3] = {1, 2, 3}, nan_[3] = {1, NAN, 3}, high[3] = {1, 2, inf},
          none[3] = {-inf, -inf, -inf};
    refuse(good, nan_, 3, 0, TS_ERR_FORMAT, "token 1 is nan");
    refuse(nan_, good, 3, 0, TS_ERR_FORMAT, "token 1 is nan");
    refuse(high, good, 3, 0, TS_ERR_FORMAT, "token 2 is inf");
    refuse(good, none, 3, 0, TS_ERR_FORMAT, "every logit");
    refuse(good, good, 3, 3, TS_ERR_ARG, "token 3");
    refuse(good, good, 3, -2, TS_ERR_ARG, "token -2");
    refuse(good, good, 0, -1, TS_ERR_ARG, "at least one");
}

static void summary(void **state) {
    (void)state;
    enum { N = 2003 };
    ts_kl_summary *s;
    ts_kl_totals t;
    ts_error err = {0};
    double sum = 0;
    assert_int_equal(ts_kl_summary_create(&s, NULL), TS_OK);
    assert_int_equal(ts_kl_summary_totals(s, &t, &err), TS_ERR_STATE);
    for (int i = 0; i < N; i++) {
        int k = i * 7 % N; /* every number below N once, in no order */
        ts_kl_row r = {.kl_pq = k,
                       .kl_qp = k / 2.0,
                       .entropy_p = 1,
                       .entropy_q = 2,
                       .nll_p = 1,
                       .nll_q = 3,
                       .outside_q = i == 9 ? 0.25 : 0,
                       .top_p = 1,
                       .top_q = i == 11 || i == 700 ? 2 : 1};
        if (i % 2)
            r.nll_p = r.nll_q = NAN;
        sum += k;
        assert_int_equal(ts_kl_summary_add(s, &r, NULL), TS_OK);
    }
    assert_int_equal(ts_kl_summary_totals(s, &t, NULL), TS_OK);
    assert_int_equal(t.n_rows, N);
    near(t.pq.mean, sum / N, 1e-15, "mean");
    near(t.pq.median, 1001, 1e-15, "median");
    near(t.pq.p99, 0.99 * (N - 1), 1e-15, "p99");
    assert_true(t.pq.max == N - 1 && t.qp.max == (N - 1) / 2.0);
    near(t.qp.median, 500.5, 1e-15, "median");
    assert_int_equal(t.first_apart, 11);
    near(t.agreement, (N - 2.0) / N, 1e-15, "agreement");
    assert_int_equal(t.n_scored, 1002);
    near(t.perplexity_p, exp(1), 1e-14, "perplexity_p");
    near(t.perplexity_q, exp(3), 1e-14, "perplexity_q");
    assert_true(t.entropy_p == 1 && t.entropy_q == 2);
    assert_int_equal(t.n_outside, 1);
    assert_true(t.max_outside == 0.25);
    ts_kl_summary_free(s);
    ts_kl_summary_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_definition),
        cmocka_unit_test(itself),
        cmocka_unit_test(ruled_out),
        cmocka_unit_test(refusals),
        cmocka_unit_test(summary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
