/* Zeroing of one row against a slow version that sorts, and the edges: shares of 0 and 1, ties, zeros, values that are
 * not finite, thresholds. */
#include "stats/zero.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Few distinct magnitudes make ties; now and then a zero, a denormal, a NaN or an infinity of either sign. */
static float draw(uint32_t *state) {
    uint32_t kind = next(state) % 16, levels = 1 + next(state) % 40;
    float x = (float)(next(state) % levels) / 7.0f - 1.0f;
    switch (kind) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return 1e-42f;
    case 3: return next(state) % 2 ? NAN : -NAN;
    case 4: return next(state) % 2 ? INFINITY : -INFINITY;
    default: return x;
    }
}

typedef struct entry {
    float magnitude; /* 2 for infinities and 3 for NaNs above all the rest, in `rank` */
    int rank;
    size_t index;
} entry;

/* Smallest first; of equal ones the higher index. Every NaN is one magnitude here only if its bits are. */
static int compare(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->rank == 0 && x->magnitude != y->magnitude) return x->magnitude < y->magnitude ? -1 : 1;
    return x->index > y->index ? -1 : 1;
}

static size_t slow(float *row, size_t n, double share) {
    entry *order = calloc(n + 1, sizeof(*order));
    size_t changed = 0;
    assert_non_null(order);
    for (size_t i = 0; i < n; i++) {
        int rank = isnan(row[i]) ? 2 : isinf(row[i]) ? 1 : 0;
        order[i] = (entry){rank ? 0.0f : fabsf(row[i]), rank, i};
    }
    qsort(order, n, sizeof(*order), compare);
    for (size_t i = 0; i < (size_t)floor(share * (double)n); i++) {
        changed += row[order[i].index] != 0.0f;
        row[order[i].index] = 0.0f;
    }
    free(order);
    return changed;
}

/* The same bytes, where a zero that was there may keep its sign: who is zeroed of zeros is told by nothing else. */
static void assert_same_row(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool zeros = a[i] == 0.0f && b[i] == 0.0f;
        assert_true(zeros || memcmp(&a[i], &b[i], sizeof(*a)) == 0);
    }
}

static void test_against_slow(void **state) {
    (void)state;
    static const double shares[] = {0, 0.001, 0.25, 0.4, 0.5, 0.7, 0.9, 0.999, 1};
    uint32_t seed = 1;
    for (int round = 0; round < 600; round++) {
        size_t n = round < 60 ? (size_t)round : 1 + next(&seed) % 3000;
        double share = round % 3 ? shares[next(&seed) % 9] : (double)next(&seed) / (double)(1u << 24);
        float *row = calloc(n + 1, sizeof(*row)), *expected = calloc(n + 1, sizeof(*row));
        uint32_t *scratch = calloc(n + 1, sizeof(*scratch));
        assert_true(row && expected && scratch);
        for (size_t i = 0; i < n; i++) row[i] = expected[i] = draw(&seed);
        row[n] = expected[n] = 42.0f;
        size_t changed = ts_zero_smallest(row, n, share, scratch);
        assert_int_equal(changed, slow(expected, n, share));
        assert_same_row(row, expected, n);
        assert_true(row[n] == 42.0f);
        free(row);
        free(expected);
        free(scratch);
    }
}

static void test_ties(void **state) {
    (void)state;
    float row[] = {1, -1, 2, 1, -2, 1};
    uint32_t scratch[6];
    assert_int_equal(ts_zero_smallest(row, 6, 0.34, scratch), 2); /* two of the four ones: the last two */
    const float expected[] = {1, -1, 2, 0, -2, 0};
    assert_memory_equal(row, expected, sizeof(row));
}

static void test_ends(void **state) {
    (void)state;
    float row[] = {3, -0.0f, NAN, -INFINITY, 1e-45f};
    float before[5];
    uint32_t scratch[5];
    memcpy(before, row, sizeof(row));
    assert_int_equal(ts_zero_smallest(row, 5, 0, scratch), 0);
    assert_memory_equal(row, before, sizeof(row));
    assert_int_equal(ts_zero_smallest(row, 5, 0.19, scratch), 0); /* less than one value */
    assert_memory_equal(row, before, sizeof(row));
    assert_int_equal(ts_zero_smallest(row, 5, 0.6, scratch), 2); /* the zero was one already */
    assert_true(row[0] == 0 && row[1] == 0 && row[4] == 0 && isnan(row[2]) && isinf(row[3]));
    assert_int_equal(ts_zero_smallest(row, 5, 1, scratch), 2);
    for (int i = 0; i < 5; i++) assert_true(row[i] == 0);
    assert_int_equal(ts_zero_smallest(row, 0, 1, scratch), 0);
}

static void test_below(void **state) {
    (void)state;
    float row[] = {0.5f, -0.25f, 0.0f, NAN, -INFINITY, 1e-45f, -1};
    float copy[7];
    memcpy(copy, row, sizeof(row));
    assert_int_equal(ts_zero_below(row, 7, 0), 0);
    assert_memory_equal(row, copy, sizeof(row));
    assert_int_equal(ts_zero_below(row, 7, 0.5), 2); /* not the 0.5 itself */
    assert_true(row[0] == 0.5f && row[1] == 0 && row[5] == 0 && isnan(row[3]) && isinf(row[4]) && row[6] == -1);
    assert_int_equal(ts_zero_below(row, 7, 1e30), 2);
    assert_true(isnan(row[3]) && isinf(row[4]));
    memcpy(row, copy, sizeof(row));
    assert_int_equal(ts_zero_below(row, 7, 1e-320), 0); /* thresholds are compared as doubles */
    assert_int_equal(ts_zero_below(row, 7, 1e-44), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_slow),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_below),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
