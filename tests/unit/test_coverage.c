/* Coverage, thresholds, quantiles and hot sets against slow, obviously right versions; then a census made by hand whose
 * figures and verdict are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "instrument/analyze.h"

enum { WIDTH_MAX = 700 };

static void assert_near(double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance))
        fail_msg("expected %.15g, found %.15g", expected, found);
}

static uint32_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* Whole numbers, so that sums and shares are exact; many ties and zeros. */
static void make_masses(double *mass, uint32_t width, uint64_t seed) {
    for (uint32_t i = 0; i < width; i++)
        mass[i] = next_random(&seed) % 3 ? next_random(&seed) % 50 : next_random(&seed) % 5000 * (i % 7 == 0);
}

/* The fewest neurons: take the largest that is left, again and again. */
static uint32_t slow_count(const double *mass, uint32_t width, unsigned percent) {
    int taken[WIDTH_MAX] = {0};
    long long total = 0, sum = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < width; i++)
        total += (long long)mass[i];
    while (100 * sum < (long long)percent * total) {
        uint32_t best = UINT32_MAX;

        for (uint32_t i = 0; i < width; i++)
            if (!taken[i] && (best == UINT32_MAX || mass[i] > mass[best]))
                best = i;
        taken[best] = 1;
        sum += (long long)mass[best];
        n++;
    }
    return n;
}

static void test_coverage_counts(void **state) {
    static const uint32_t widths[] = {1, 2, 3, 31, 32, 33, 257, WIDTH_MAX};
    static const unsigned percents[] = {0, 1, 50, 90, 95, 99, 100};

    (void)state;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (uint64_t seed = 1; seed < 8; seed++) {
            double mass[WIDTH_MAX];
            uint32_t order[WIDTH_MAX], width = widths[w];

            make_masses(mass, width, seed);
            assert_int_equal(ts_rank_by_mass(mass, width, order), 0);
            for (uint32_t i = 1; i < width; i++)
                assert_true(mass[order[i - 1]] > mass[order[i]] ||
                            (mass[order[i - 1]] == mass[order[i]] && order[i - 1] < order[i]));
            for (size_t p = 0; p < sizeof percents / sizeof *percents; p++)
                assert_int_equal(ts_coverage_count(mass, order, width, percents[p]),
                                 slow_count(mass, width, percents[p]));
        }
}

static void test_coverage_without_mass(void **state) {
    const double mass[4] = {0};
    uint32_t order[4];

    (void)state;
    assert_int_equal(ts_rank_by_mass(mass, 4, order), 0);
    assert_int_equal(order[0], 0);
    assert_int_equal(order[3], 3);
    assert_int_equal(ts_coverage_count(mass, order, 4, 95), 0);
    assert_int_equal(ts_coverage_count(mass, order, 0, 95), 0);
}

/* Random magnitudes, with their bins; the finer ones as the census makes them, from the bits. */
typedef struct sample {
    double *edges, *mass, *value;
    uint64_t *count;
    size_t n;
    ts_magnitudes m;
} sample;

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static sample make_sample(size_t n, uint64_t seed) {
    sample s = {.n = n};

    s.edges = calloc(TS_CENSUS_FINE_BINS + 1, sizeof *s.edges);
    s.mass = calloc(TS_CENSUS_FINE_BINS, sizeof *s.mass);
    s.count = calloc(TS_CENSUS_FINE_BINS, sizeof *s.count);
    s.value = calloc(n, sizeof *s.value);
    assert_true(s.edges && s.mass && s.count && s.value);
    s.m = (ts_magnitudes){.edges = s.edges, .count = s.count, .mass = s.mass, .n = TS_CENSUS_FINE_BINS, .middle = true};
    for (uint32_t b = 0; b <= TS_CENSUS_FINE_BINS; b++)
        s.edges[b] = ts_census_fine_edge(b);
    for (size_t i = 0; i < n; i++) {
        double u = next_random(&seed) / 2147483648.0, v = next_random(&seed) / 2147483648.0;
        float x = (float)(next_random(&seed) % 11 ? exp(6 * (u + v - 1.3)) : 0);
        uint32_t bits;

        memcpy(&bits, &x, sizeof bits);
        s.value[i] = (double)x;
        if (bits == 0) {
            s.m.zeros++;
            continue;
        }
        s.count[bits >> 18]++;
        s.mass[bits >> 18] += (double)x;
    }
    qsort(s.value, n, sizeof *s.value, ascending);
    return s;
}

static void sample_free(sample *s) {
    free(s->edges);
    free(s->mass);
    free(s->count);
    free(s->value);
}

static void test_quantiles(void **state) {
    static const double qs[] = {0, 0.05, 0.25, 0.4, 0.5, 0.65, 0.9, 0.95, 1};

    (void)state;
    for (uint64_t seed = 1; seed < 5; seed++) {
        sample s = make_sample(4000 + seed, seed);

        for (size_t i = 0; i < sizeof qs / sizeof *qs; i++) {
            double rank = fmax(ceil(qs[i] * (double)s.n), 1), truth = s.value[(size_t)rank - 1];
            double got = ts_magnitudes_quantile(&s.m, qs[i]);

            if (truth == 0)
                assert_true(got == 0);
            else
                assert_true(fabs(got - truth) <= truth / 64);
        }
        sample_free(&s);
    }
}

static void test_thresholds(void **state) {
    static const double ts[] = {1e-3, 1e-2, 1e-1, 1, 0.5, 1e9, 0};

    (void)state;
    for (uint64_t seed = 1; seed < 5; seed++) {
        sample s = make_sample(3000, seed);

        for (size_t t = 0; t < sizeof ts / sizeof *ts; t++) {
            double elements = 0, mass = 0, total = 0;
            ts_below got = ts_magnitudes_below(&s.m, ts[t]);

            for (size_t i = 0; i < s.n; i++) {
                total += s.value[i];
                if (s.value[i] < ts[t]) {
                    elements++;
                    mass += s.value[i];
                }
            }
            assert_true(fabs(got.elements - elements / (double)s.n) <= got.elements_error + 1e-12);
            assert_true(fabs(got.mass - mass / total) <= got.mass_error + 1e-12);
            assert_true(got.elements_error < 0.02 && got.mass_error < 0.02);
        }
        sample_free(&s);
    }
}

static void test_log2_buckets(void **state) {
    uint64_t count[64] = {0};
    double mass[64] = {0}, edges[TS_LOG2_BINS + 1];
    ts_magnitudes m = ts_magnitudes_log2(count, mass, edges);

    (void)state;
    assert_true(edges[0] == 0 && edges[1] == ldexp(1, -31) && edges[32] == 1 && edges[33] == 2);
    assert_true(isnan(ts_magnitudes_quantile(&m, 0.5)));
    assert_true(isnan(ts_magnitudes_below(&m, 1).elements));
    count[0] = 10;
    m = ts_magnitudes_log2(count, mass, edges);
    assert_true(ts_magnitudes_quantile(&m, 0.5) == 0);
    assert_true(ts_magnitudes_below(&m, 1).elements == 1);
    assert_true(isnan(ts_magnitudes_below(&m, 1).mass));
    count[33] = 30; /* [1, 2) */
    count[63] = 99; /* not finite: in no share */
    mass[33] = 45;
    m = ts_magnitudes_log2(count, mass, edges);
    assert_near(ts_magnitudes_below(&m, 1).elements, 0.25, 1e-12);
    assert_near(ts_magnitudes_below(&m, 1.5).elements, (10 + 15) / 40.0, 1e-12);
    assert_near(ts_magnitudes_below(&m, 1.5).elements_error, 15 / 40.0, 1e-12);
    assert_near(ts_magnitudes_below(&m, 1.5).mass, 0.5 * 2.5 / 3, 1e-12);
    assert_near(ts_magnitudes_quantile(&m, 0.625), 1 + 14.5 / 30, 1e-12);
}

static void test_hot_blocks(void **state) {
    static const uint32_t blocks[] = {1, 2, 32, 256};
    uint64_t seed = 3;

    (void)state;
    for (int round = 0; round < 60; round++) {
        uint32_t width = 1 + next_random(&seed) % WIDTH_MAX, block = blocks[round % 4], truth = 0;
        uint8_t hot[WIDTH_MAX];

        for (uint32_t i = 0; i < width; i++)
            hot[i] = next_random(&seed) % 40 == 0;
        for (uint32_t b = 0; b * block < width; b++) {
            int any = 0;

            for (uint32_t i = 0; i < width; i++)
                any |= hot[i] && i / block == b;
            truth += (uint32_t)any;
        }
        assert_int_equal(ts_hot_blocks(hot, width, block), truth);
    }
}

static void test_hot_compare(void **state) {
    const uint8_t a[4] = {1, 1, 0, 0}, b[4] = {0, 1, 1, 0}, none[4] = {0};
    const double mass[4] = {1, 2, 3, 4};
    ts_hot_pair p = ts_hot_compare(a, b, mass, 4);

    (void)state;
    assert_near(p.jaccard, 1 / 3.0, 1e-12);
    assert_near(p.chance, 1 / 3.0, 1e-12); /* one of two is met by chance too */
    assert_near(p.held, 0.3, 1e-12);
    assert_near(ts_hot_compare(a, a, mass, 4).jaccard, 1, 0);
    assert_true(isnan(ts_hot_compare(none, none, mass, 4).jaccard));
}

static void test_verdicts(void **state) {
    (void)state;
    assert_int_equal(ts_verdict_of(15, 0.5, 0.1), TS_VERDICT_PLAUSIBLE);
    assert_int_equal(ts_verdict_of(15.1, 0.9, 0.1), TS_VERDICT_UNDECIDED);
    assert_int_equal(ts_verdict_of(5, 0.49, 0.1), TS_VERDICT_UNDECIDED);
    assert_int_equal(ts_verdict_of(5, 0.5, 0.2), TS_VERDICT_UNDECIDED);
    assert_int_equal(ts_verdict_of(5, NAN, NAN), TS_VERDICT_UNDECIDED);
    assert_int_equal(ts_verdict_of(NAN, 0.9, 0.1), TS_VERDICT_UNDECIDED);
    assert_int_equal(ts_verdict_of(50, 1, 0.1), TS_VERDICT_DEAD_END);
    assert_int_equal(ts_verdict_of(49.9, 0, 0.1), TS_VERDICT_UNDECIDED);
}

/* Two blocks of 64 neurons and one without: in each, `hot` neurons spaced 8 apart share 99 % of the mass. */
static void make_census(ts_census *c, uint32_t hot) {
    ts_error err;

    assert_int_equal(ts_census_init(c, 3, false, &err), 0);
    c->inter = 64;
    c->decode_passes = 100;
    c->overlap_pairs = 99;
    for (uint32_t il = 0; il < 3; il += 2) {
        ts_census_block *b = &c->dense[il];

        assert_int_equal(ts_census_block_init(b, 64, true, &err), 0);
        b->n_rows = 100;
        b->n_pairs = 99;
        for (uint32_t i = 0; i < 64; i++)
            b->mass[i] = 64.0 / (64 - hot);
        for (uint32_t i = 0; i < hot; i++)
            b->mass[i * 8 % 64 + i / 8] = 99 * 64.0 / hot;
        for (int j = 0; j < TS_CENSUS_SETS; j++) {
            b->k[j] = j < TS_CENSUS_FIXED ? 64 : (64 * ts_census_share_percent[j - TS_CENSUS_FIXED] + 99) / 100;
            b->hits[j] = 99u * b->k[j] * (j < TS_CENSUS_FIXED ? 4 : 3) / 4;
        }
        b->top_p[0] = 640;
        b->zeros = b->bucket_count[0] = 1600;
        b->bucket_count[33] = b->fine_count[127 * 32] = 4800; /* [1, 1 + 1/32) */
        b->bucket_mass[33] = b->fine_mass[127 * 32] = 6400;
        c->gate_bytes[il] = c->up_bytes[il] = 6400;
        c->down_bytes[il] = 12800;
        c->down_block[il] = 32;
    }
}

static void test_section_by_hand(void **state) {
    ts_census c;
    ts_analyze_section s;
    ts_analyze_verdict v;
    ts_error err;
    const double *x;

    (void)state;
    make_census(&c, 4);
    assert_int_equal(ts_analyze_section_make(&c, c.dense, "dense", &s, &err), 0);
    assert_int_equal(s.n, 2);
    assert_int_equal(s.rows[1].block, 2);
    x = s.rows[1].value;
    assert_true(x[TS_COL_N50] == 3 && x[TS_COL_N95] == 4 && x[TS_COL_N99] == 4);
    assert_near(x[TS_COL_N95_PERCENT], 6.25, 1e-12);
    assert_near(x[TS_COL_ZEROS], 0.25, 1e-12);
    assert_near(x[TS_COL_ELEMENTS], 0.25, 1e-12);
    assert_near(x[TS_COL_MASS + 2], 0, 0);
    assert_near(x[TS_COL_T50], 1 + 1 / 64.0, 1e-12);
    assert_true(x[TS_COL_RATIO] == 0 && x[TS_COL_RATIO + 4] == 1);
    assert_near(x[TS_COL_TOP_P], 0.1, 1e-12);
    assert_near(x[TS_COL_CHANCE + TS_SET_10_PERCENT], 7 / 64.0, 1e-12);
    assert_near(x[TS_COL_OVERLAP], 1, 0);
    assert_near(x[TS_COL_FFN_BYTES], 25600, 0);
    assert_near(x[TS_COL_HOT_BYTES], 1600, 1e-9);
    assert_true(x[TS_COL_DOWN_BLOCKS] == 2 && x[TS_COL_HOT_DOWN_BLOCKS] == 1); /* neurons 0, 8, 16, 24 */
    assert_near(x[TS_COL_HOT_BLOCK_BYTES], 800 + 6400, 1e-9);
    assert_near(s.mean.value[TS_COL_HOT_BYTES], 3200, 1e-9); /* a sum */
    ts_analyze_judge(&s, &v);
    assert_int_equal(v.verdict, TS_VERDICT_PLAUSIBLE);
    assert_int_equal(v.n_why, 3);
    ts_analyze_section_free(&s);
    ts_census_free(&c);
}

static void test_section_without_detail(void **state) {
    ts_census c;
    ts_analyze_section s;
    ts_analyze_verdict v;
    ts_error err;

    (void)state;
    make_census(&c, 40);
    for (uint32_t il = 0; il < 3; il += 2) {
        ts_census_block *b = &c.dense[il];

        ts_free(b->fine_count);
        ts_free(b->fine_mass);
        b->fine_count = NULL;
        b->fine_mass = NULL;
        for (int j = TS_CENSUS_FIXED; j < TS_CENSUS_SETS; j++)
            b->k[j] = 0;
        b->k[0] = 8; /* as if the width were larger: nearest to 10 % */
        b->hits[0] = 99 * 2;
        c.down_bytes[il] = 0;
    }
    assert_int_equal(ts_analyze_section_make(&c, c.dense, "dense", &s, &err), 0);
    assert_false(s.fine);
    assert_true(isnan(s.mean.value[TS_COL_OVERLAP + TS_SET_10_PERCENT]));
    assert_true(isnan(s.mean.value[TS_COL_TOP_P]) && isnan(s.mean.value[TS_COL_FFN_BYTES]));
    assert_near(s.mean.value[TS_COL_ELEMENTS + 2], 0.25, 1e-12);
    ts_analyze_judge(&s, &v);
    assert_int_equal(v.set, 0);
    assert_near(v.overlap, 0.25, 1e-12);
    assert_int_equal(v.verdict, TS_VERDICT_DEAD_END);
    ts_analyze_section_free(&s);
    ts_census_free(&c);
}

static void test_compare(void **state) {
    ts_census a, b;
    ts_analyze_pairs p;
    ts_error err;

    (void)state;
    make_census(&a, 4);
    make_census(&b, 8);
    assert_int_equal(ts_analyze_compare(&a, &b, &p, &err), 0);
    assert_int_equal(p.n, 2);
    assert_near(p.mean.n95_percent[0], 6.25, 1e-12);
    assert_near(p.mean.n95_percent[1], 12.5, 1e-12);
    assert_near(p.mean.jaccard, 0.5, 1e-12);
    assert_near(p.rows[0].held, 0.495, 1e-3);
    ts_analyze_pairs_free(&p);
    ts_census_free(&a);
    ts_census_free(&b);
}

/* No token uses what no cache can hold: rates, bytes and the control arm of a small replay. */
static void test_cache_figures(void **state) {
    ts_census c;
    ts_analyze_cache cache;
    ts_error err;
    uint32_t ids[] = {0, 1, 2, 3};
    ts_cache_line line;

    (void)state;
    make_census(&c, 4);
    assert_int_equal(ts_analyze_cache_init(&cache, &c, &err), 0);
    for (int pass = 0; pass < 11; pass++)
        for (uint32_t il = 0; il < 3; il += 2)
            assert_int_equal(ts_analyze_cache_pass(&cache, il, ids, 4, &err), 0);
    assert_int_equal(ts_analyze_cache_pass(&cache, 1, ids, 4, &err), TS_ERR_FORMAT);
    assert_int_equal(ts_analyze_cache_control(&cache, &err), 0);
    line = ts_analyze_cache_line(&cache, -1, 0); /* 5 %: 4 of 64 */
    assert_near(line.chance, 4 / 64.0, 1e-12);
    assert_near(line.rate[TS_CACHE_LRU], 1, 0);
    assert_near(line.bytes[TS_CACHE_BELADY], 0, 0);
    assert_near(ts_analyze_cache_bytes(&cache), 2 * 4 * 400.0, 1e-9);
    assert_int_equal(ts_analyze_cache_sums(&cache).compulsory, 8);
    ts_analyze_cache_free(&cache);
    ts_census_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coverage_counts), cmocka_unit_test(test_coverage_without_mass),
        cmocka_unit_test(test_quantiles), cmocka_unit_test(test_thresholds),
        cmocka_unit_test(test_log2_buckets), cmocka_unit_test(test_hot_blocks),
        cmocka_unit_test(test_hot_compare), cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_section_by_hand), cmocka_unit_test(test_section_without_detail),
        cmocka_unit_test(test_compare), cmocka_unit_test(test_cache_figures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
