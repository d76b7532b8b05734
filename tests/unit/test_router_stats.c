/* The routing figures against slow versions written from their definitions, and uniform routing against closed forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <turbospark/turbospark.h>

#include "stats/router_stats.h"

enum { MOST = 64, ROWS = 211 }; /* a prime number of rows */

static uint32_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* Rows with a taste for low ids and for the row before; `repeats`: an expert may be listed twice. */
static void make_rows(uint32_t *ids, uint64_t n_rows, uint32_t n, uint32_t k, bool repeats, uint64_t seed) {
    for (uint64_t t = 0; t < n_rows; t++)
        for (uint32_t i = 0; i < k; i++) {
            bool again = true;
            while (again) {
                uint32_t id = next_random(&seed) % n;
                if (t > 0 && next_random(&seed) % 3 == 0)
                    id = ids[(t - 1) * k + next_random(&seed) % k];
                else if (next_random(&seed) % 2)
                    id = id * id / n;
                again = false;
                for (uint32_t j = 0; j < i && !repeats; j++)
                    again = again || ids[t * k + j] == id;
                ids[t * k + i] = id;
            }
        }
}

static void count_rows(const uint32_t *ids, uint64_t n, uint64_t *counts) {
    memset(counts, 0, MOST * sizeof *counts);
    for (uint64_t i = 0; i < n; i++)
        counts[ids[i]]++;
}

/* ---- slow versions */

/* Takes the largest left, one by one, until the share is there. */
static uint32_t slow_cover(const uint64_t *counts, uint32_t n, uint32_t percent) {
    uint64_t left[MOST], sum = 0, held = 0;
    uint32_t taken = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += left[i] = counts[i];
    while (sum > 0 && held * 100 < sum * percent) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < n; i++)
            best = left[i] > left[best] ? i : best;
        held += left[best];
        left[best] = 0;
        taken++;
    }
    return taken;
}

/* Mean absolute difference of all pairs over twice the mean. */
static double slow_gini(const uint64_t *counts, uint32_t n) {
    double sum = 0, differences = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)counts[i];
        for (uint32_t j = 0; j < n; j++)
            differences += fabs((double)counts[i] - (double)counts[j]);
    }
    return differences / (2.0 * n * sum);
}

static bool in_row(const uint32_t *row, uint32_t k, uint32_t id) {
    for (uint32_t i = 0; i < k; i++)
        if (row[i] == id)
            return true;
    return false;
}

static double slow_overlap(const uint32_t *ids, uint64_t n_rows, uint32_t n, uint32_t k, uint64_t lag, uint64_t *pairs) {
    double sum = 0;
    *pairs = 0;
    for (uint64_t t = 0; t + lag < n_rows; t++) {
        uint32_t both = 0, now = 0;
        for (uint32_t id = 0; id < n; id++) {
            bool has = in_row(ids + (t + lag) * k, k, id);
            now += has;
            both += has && in_row(ids + t * k, k, id);
        }
        sum += (double)both / now;
        ++*pairs;
    }
    return sum;
}

static uint64_t slow_distinct(const uint32_t *ids, uint64_t n_rows, uint32_t n, uint32_t k, uint64_t width, uint64_t *windows) {
    uint64_t sum = 0;
    *windows = 0;
    for (uint64_t t = 0; t + width <= n_rows; t++, ++*windows)
        for (uint32_t id = 0; id < n; id++)
            sum += in_row(ids + t * k, (uint32_t)width * k, id);
    return sum;
}

static void slow_hot(const uint64_t *counts, uint32_t n, uint32_t size, uint8_t *hot) {
    memset(hot, 0, n);
    for (uint32_t taken = 0; taken < size; taken++) {
        int64_t best = -1;
        for (uint32_t i = 0; i < n; i++)
            if (!hot[i] && (best < 0 || counts[i] > counts[best]))
                best = i;
        hot[best] = 1;
    }
}

/* ---- the tests */

static void check_counts(const uint64_t *counts, uint32_t n, uint32_t k) {
    uint64_t sorted[MOST];
    uint32_t order[MOST];
    uint8_t hot[MOST], expected[MOST];
    memcpy(sorted, counts, n * sizeof *counts);
    ts_route_sort(sorted, n);
    for (uint32_t i = 1; i < n; i++)
        assert_true(sorted[i - 1] >= sorted[i]);
    for (uint32_t percent = 1; percent <= 100; percent++)
        assert_int_equal(ts_route_cover(sorted, n, percent), slow_cover(counts, n, percent));
    assert_true(fabs(ts_route_gini(sorted, n) - slow_gini(counts, n)) < 1e-12);
    for (uint32_t size = 1; size <= n; size++) {
        ts_route_hot(counts, n, size, order, hot);
        slow_hot(counts, n, size, expected);
        assert_memory_equal(hot, expected, n);
    }
    assert_true(ts_route_hot_size(n, k) >= k && ts_route_hot_size(n, k) * 4 >= n);
}

static void check_rows(const uint32_t *ids, uint64_t n_rows, uint32_t n, uint32_t k) {
    static const uint64_t lags[] = {1, 8, 300}, widths[] = {1, 2, 4, 8, 16, 300};
    uint8_t mark[MOST] = {0};
    uint32_t seen[MOST] = {0};
    for (size_t i = 0; i < sizeof lags / sizeof *lags; i++) {
        double sum = 0;
        uint64_t pairs = 0, expected;
        ts_route_overlap(ids, n_rows, k, lags[i], mark, &sum, &pairs);
        assert_true(fabs(sum - slow_overlap(ids, n_rows, n, k, lags[i], &expected)) < 1e-9);
        assert_int_equal(pairs, expected);
    }
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        uint64_t sum = 0, windows = 0, expected, slow = slow_distinct(ids, n_rows, n, k, widths[i], &expected);
        ts_route_distinct(ids, n_rows, k, widths[i], seen, &sum, &windows);
        assert_int_equal(sum, slow);
        assert_int_equal(windows, expected);
    }
    for (uint32_t i = 0; i < n; i++)
        assert_true(mark[i] == 0 && seen[i] == 0);
}

static void test_against_slow(void **state) {
    (void)state;
    static const struct {
        uint32_t n, k;
        uint64_t rows;
        bool repeats;
    } shapes[] = {{8, 2, ROWS, false}, {7, 1, ROWS, false}, {64, 8, ROWS, false}, {5, 5, 13, false}, {8, 2, 1, false}, {16, 4, ROWS, true}, {3, 2, 8, true}, {1, 1, 5, false}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint64_t seed = 1; seed <= 5; seed++) {
            static uint32_t ids[ROWS * MOST];
            uint64_t counts[MOST];
            make_rows(ids, shapes[i].rows, shapes[i].n, shapes[i].k, shapes[i].repeats, seed);
            count_rows(ids, shapes[i].rows * shapes[i].k, counts);
            check_counts(counts, shapes[i].n, shapes[i].k);
            check_rows(ids, shapes[i].rows, shapes[i].n, shapes[i].k);
        }
}

static void test_edges(void **state) {
    (void)state;
    uint64_t none[4] = {0}, even[4] = {5, 5, 5, 5}, one[4] = {9, 0, 0, 0}, ties[4] = {3, 7, 3, 7};
    uint32_t order[4];
    uint8_t hot[4];
    assert_int_equal(ts_route_cover(none, 4, 95), 0);
    assert_true(isnan(ts_route_gini(none, 4)) && isnan(ts_route_entropy(none, 4)) && isnan(ts_route_entropy(one, 1)));
    assert_int_equal(ts_route_unused(none, 4), 4);
    assert_true(fabs(ts_route_gini(even, 4)) < 1e-15 && fabs(ts_route_entropy(even, 4) - 1.0) < 1e-15);
    assert_true(fabs(ts_route_gini(one, 4) - 0.75) < 1e-15 && ts_route_entropy(one, 4) == 0.0);
    assert_int_equal(ts_route_unused(one, 4), 3);
    ts_route_hot(ties, 4, 3, order, hot); /* of equals the lower id */
    assert_memory_equal(hot, ((const uint8_t[]){1, 1, 0, 1}), 4);
    uint64_t huge[3] = {UINT64_C(1) << 59, UINT64_C(1) << 58, 1};
    assert_int_equal(ts_route_cover(huge, 3, 99), 2);
    assert_int_equal(ts_route_cover(huge, 3, 100), 3);
}

/* Every set of k of n, counted out. */
static void test_exact(void **state) {
    (void)state;
    enum { N = 6, SIZE = 3 };
    double jaccard = 0, sets = 0;
    for (uint32_t a = 0; a < 1u << N; a++)
        for (uint32_t b = 0; b < 1u << N; b++)
            if (__builtin_popcount(a) == SIZE && __builtin_popcount(b) == SIZE) {
                jaccard += (double)__builtin_popcount(a & b) / __builtin_popcount(a | b);
                sets++;
            }
    assert_true(fabs(ts_route_uniform_jaccard(N, SIZE) - jaccard / sets) < 1e-12);
    assert_true(fabs(ts_route_uniform_jaccard(8, 8) - 1.0) < 1e-12);
    double distinct = 0, pairs = 0; /* two rows of 2 of 6 */
    for (uint32_t a = 0; a < 1u << N; a++)
        for (uint32_t b = 0; b < 1u << N; b++)
            if (__builtin_popcount(a) == 2 && __builtin_popcount(b) == 2) {
                distinct += __builtin_popcount(a | b);
                pairs++;
            }
    assert_true(fabs(ts_route_uniform_distinct(N, 2, 2) - distinct / pairs) < 1e-12);
    assert_true(ts_route_uniform_unused(8, 8, 3) == 0.0 && ts_route_uniform_unused(8, 2, 0) == 8.0);
}

/* The simulation agrees with what is known: for one row, and with the two ways where they meet. */
static void test_simulated(void **state) {
    (void)state;
    ts_route_uniform u, again, beyond;
    assert_int_equal(ts_route_simulate(8, 2, 1, &u), TS_OK);
    assert_true(u.n95 == 2.0 && fabs(u.gini - 0.75) < 1e-12 && fabs(u.entropy - 1.0 / 3) < 1e-12);
    assert_int_equal(ts_route_simulate(64, 8, 5003, &u), TS_OK);
    assert_int_equal(ts_route_simulate(64, 8, 5003, &again), TS_OK);
    assert_memory_equal(&u, &again, sizeof u);
    assert_true(u.n95 > 55 && u.n95 <= 64 && u.gini < 0.05 && u.entropy > 0.999);
    /* just under and just over the number of slots that is drawn one by one */
    assert_int_equal(ts_route_simulate(16, 2, UINT64_C(1) << 20, &u), TS_OK);
    assert_int_equal(ts_route_simulate(16, 2, (UINT64_C(1) << 20) + 1, &beyond), TS_OK);
    assert_true(fabs(u.gini - beyond.gini) < 1e-3 && fabs(u.n95 - beyond.n95) < 0.5);
    assert_int_equal(ts_route_simulate(4, 6, 10, &u), TS_OK); /* more slots than experts: all of them each time */
    assert_true(fabs(u.gini) < 1e-12);
}

static void test_draw(void **state) {
    (void)state;
    enum { N = 10, K = 3, DRAWS = 30000 };
    uint64_t seed = 7, counts[N] = {0};
    uint32_t order[N], ids[K];
    for (uint32_t i = 0; i < N; i++)
        order[i] = i;
    for (int t = 0; t < DRAWS; t++) {
        ts_route_draw(&seed, order, N, K, ids);
        for (uint32_t i = 0; i < K; i++) {
            for (uint32_t j = 0; j < i; j++)
                assert_int_not_equal(ids[i], ids[j]);
            counts[ids[i]]++;
        }
    }
    for (uint32_t i = 0; i < N; i++) /* 9000 expected, standard deviation 79 */
        assert_true(counts[i] > 8600 && counts[i] < 9400);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_slow), cmocka_unit_test(test_edges), cmocka_unit_test(test_exact),
        cmocka_unit_test(test_simulated),    cmocka_unit_test(test_draw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
