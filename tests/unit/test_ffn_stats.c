/* FFN accumulator: the arithmetic it promises, on rows small enough to check by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "stats/ffn_stats.h"

enum { WIDTH = 2048 };

static ts_ffn_stats *make(uint32_t width, uint32_t n_slots) {
    ts_ffn_options o = {.n_slots = n_slots};
    ts_ffn_stats *s = NULL;

    assert_int_equal(ts_ffn_stats_create(&s, &width, 1, &o), 0);
    return s;
}

static void pass(ts_ffn_stats *s, uint32_t slot, const float *row) {
    assert_int_equal(ts_ffn_record_block(s, 0, slot, 0, row), 0);
    assert_int_equal(ts_ffn_end_pass(s, slot), 0);
}

/* A row of `back` with `n` values of `front` from index `from` on. */
static const float *band(float *row, uint32_t from, uint32_t n, float front, float back) {
    for (uint32_t i = 0; i < WIDTH; i++)
        row[i] = i >= from && i < from + n ? front : back;
    return row;
}

static void bucket_edges(void **state) {
    (void)state;
    assert_int_equal(ts_hist_bucket(0.0f), 0);
    assert_int_equal(ts_hist_bucket(-0.0f), 0);
    assert_int_equal(ts_hist_bucket(0.5f), 32);
    assert_int_equal(ts_hist_bucket(1.0f), 33);
    assert_int_equal(ts_hist_bucket(-1.0f), 33);
    assert_int_equal(ts_hist_bucket(1.999f), 33);
    assert_int_equal(ts_hist_bucket(1.9999999f), 33);
    assert_int_equal(ts_hist_bucket(2.0f), 34);
    assert_int_equal(ts_hist_bucket(65504.0f), 48);
    assert_int_equal(ts_hist_bucket(6.0e-8f), 9);
    assert_int_equal(ts_hist_bucket(INFINITY), 63);
    assert_int_equal(ts_hist_bucket(-INFINITY), 63);
    assert_int_equal(ts_hist_bucket(NAN), 63);
    assert_int_equal(ts_hist_bucket(3.0e38f), 62);
    assert_int_equal(ts_hist_bucket(0x1p-32f), 1);
    assert_int_equal(ts_hist_bucket(0x1p-60f), 1);
    assert_int_equal(ts_hist_bucket(1.0e-45f), 1);
}

/* The same edges through the accumulator: a count and its mass in the bucket, nothing elsewhere. */
static void bucket_edges_accumulated(void **state) {
    const float edge[] = {0.0f,     0.5f,    1.0f,     1.999f,   1.9999999f, 2.0f,
                          65504.0f, 6.0e-8f, INFINITY, 1.0e-45f, 3.4e38f};
    ts_ffn_stats *s;
    uint64_t count[TS_HIST_N_BUCKETS];
    double mass[TS_HIST_N_BUCKETS];

    (void)state;
    for (size_t i = 0; i < sizeof edge / sizeof *edge; i++) {
        int at = ts_hist_bucket(edge[i]);

        s = make(1, 1);
        pass(s, 0, &edge[i]);
        ts_hist_buckets(&s->blocks[0].hist, count, mass);
        for (int b = 0; b < TS_HIST_N_BUCKETS; b++) {
            assert_int_equal(count[b], b == at);
            assert_true(mass[b] == (b == at && at != 63 ? (double)edge[i] : 0.0));
        }
        ts_ffn_stats_free(s);
    }
}

static void disjoint_and_identical_sets(void **state) {
    ts_ffn_stats *s = make(WIDTH, 1);
    float x[WIDTH], y[WIDTH];

    (void)state;
    band(x, 0, 512, 5.0f, 0.0f);
    band(y, 1024, 512, 5.0f, 0.0f);
    pass(s, 0, x);
    pass(s, 0, y);
    assert_int_equal(s->blocks[0].hits[0], 0);
    pass(s, 0, y);
    assert_int_equal(s->blocks[0].k[0], 512);
    assert_int_equal(s->blocks[0].hits[0], 512);
    assert_int_equal(s->blocks[0].k[3], WIDTH); /* 4096, clamped: the whole row, both times */
    assert_int_equal(s->blocks[0].hits[3], 2 * WIDTH);
    assert_int_equal(s->overlap_pairs, 2);
    assert_int_equal(s->blocks[0].n_pairs, 2);
    ts_ffn_stats_free(s);
}

static void shares_of_the_width(void **state) {
    const uint32_t expected[TS_FFN_N_SETS] = {512, 1024, 2048, 2048, 21, 41, 103, 205, 410};
    ts_ffn_stats *s = make(WIDTH, 1);
    float x[WIDTH];

    (void)state;
    assert_memory_equal(s->blocks[0].k, expected, sizeof expected);
    for (int i = 0; i < WIDTH; i++)
        x[i] = (float)(i + 1);
    pass(s, 0, x);
    for (int i = 0; i < WIDTH; i++) /* 21 of the last 410 stay, the rest of the set is exchanged */
        x[i] = i >= WIDTH - 21 ? 5000.0f + (float)i : (float)(WIDTH - i);
    pass(s, 0, x);
    assert_int_equal(s->blocks[0].hits[4], 21);
    assert_int_equal(s->blocks[0].hits[8], 21);
    ts_ffn_stats_free(s);
}

static void pairs_stay_in_their_generation(void **state) {
    ts_ffn_stats *s = make(WIDTH, 2);
    float x[WIDTH], y[WIDTH];

    (void)state;
    band(x, 0, 512, 5.0f, 0.0f);
    band(y, 1024, 512, 5.0f, 0.0f);
    ts_ffn_begin_generation(s, 0);
    pass(s, 0, x);
    pass(s, 0, x);
    ts_ffn_begin_generation(s, 0);
    assert_null(ts_ffn_levels(s, 0, 0));
    pass(s, 0, x); /* same set as before, but the pair is across the boundary */
    assert_int_equal(s->overlap_pairs, 1);
    assert_int_equal(s->blocks[0].hits[0], 512);
    /* two sequences side by side: each is compared with itself only */
    ts_ffn_begin_generation(s, 0);
    ts_ffn_begin_generation(s, 1);
    for (int p = 0; p < 3; p++) {
        pass(s, 0, x);
        pass(s, 1, y);
    }
    assert_int_equal(s->overlap_pairs, 1 + 4);
    assert_int_equal(s->blocks[0].hits[0], 5 * 512);
    assert_int_equal(s->decode_passes, 3 + 6);
    ts_ffn_stats_free(s);
}

/* A pass that left a block out breaks that block's chain. */
static void skipped_block_forms_no_pair(void **state) {
    const uint32_t width[2] = {64, 64};
    float x[64];
    ts_ffn_stats *s = NULL;

    (void)state;
    for (int i = 0; i < 64; i++)
        x[i] = (float)i;
    assert_int_equal(ts_ffn_stats_create(&s, width, 2, NULL), 0);
    for (uint32_t p = 0; p < 3; p++) {
        assert_int_equal(ts_ffn_record_block(s, 0, 0, 0, x), 0);
        if (p != 1)
            assert_int_equal(ts_ffn_record_block(s, 0, 0, 1, x), 0);
        ts_ffn_end_pass(s, 0);
    }
    assert_int_equal(s->blocks[0].n_pairs, 2);
    assert_int_equal(s->blocks[1].n_pairs, 0);
    assert_int_equal(s->blocks[1].n_rows, 2);
    ts_ffn_stats_free(s);
}

static void counts_sum_to_passes_times_width(void **state) {
    const uint32_t width[3] = {32, 0, 33};
    const int n_passes = 7;
    float x[33];
    ts_ffn_stats *s = NULL;

    (void)state;
    assert_int_equal(ts_ffn_stats_create(&s, width, 3, NULL), 0);
    ts_ffn_note_prefill(s, 4);
    for (int p = 0; p < n_passes; p++) {
        for (int i = 0; i < 33; i++)
            x[i] = i == p ? NAN : (float)(i - 5) * 0.25f;
        for (uint32_t b = 0; b < 3; b++)
            assert_int_equal(ts_ffn_record_block(s, 0, 0, b, x), 0);
        ts_ffn_end_pass(s, 0);
    }
    assert_int_equal(s->prefill_passes, 4);
    assert_int_equal(s->decode_passes, n_passes);
    for (uint32_t b = 0; b < 3; b++) {
        uint64_t count[TS_HIST_N_BUCKETS], sum = 0;
        double mass[TS_HIST_N_BUCKETS];

        ts_hist_buckets(&s->blocks[b].hist, count, mass);
        for (int i = 0; i < TS_HIST_N_BUCKETS; i++)
            sum += count[i];
        assert_int_equal(sum, s->decode_passes * width[b]);
        assert_int_equal(s->blocks[b].n_rows, n_passes);
        assert_int_equal(count[63], width[b] ? n_passes : 0);
        assert_int_equal(count[0], width[b] ? n_passes - 1 : 0); /* x[5] is 0, but once it is NaN */
    }
    ts_ffn_stats_free(s);
}

static void nan_never_ranks(void **state) {
    ts_ffn_stats *s = make(WIDTH, 1);
    ts_ffn_place place = {0};
    float x[WIDTH];
    const uint8_t *level;
    uint32_t n_in = 0;

    (void)state;
    band(x, 0, WIDTH, 1.0f, 0.0f);
    assert_int_equal(ts_ffn_first_nonfinite(s, &place), -1);
    pass(s, 0, x);
    x[0] = NAN;
    x[7] = -INFINITY;
    pass(s, 0, x);
    level = ts_ffn_levels(s, 0, 0);
    assert_int_equal(s->blocks[0].hist.n_nonfinite, 2);
    assert_int_equal(level[0], TS_FFN_N_SETS);
    assert_int_equal(level[7], TS_FFN_N_SETS);
    for (uint32_t i = 0; i < WIDTH; i++)
        n_in += level[i] <= s->blocks[0].rank[0];
    assert_int_equal(n_in, 512);
    assert_true(level[513] <= s->blocks[0].rank[0] &&
                level[514] > s->blocks[0].rank[0]); /* the next two move up */
    assert_true(s->blocks[0].mass[0] == 1.0 && s->blocks[0].mass[7] == 1.0 &&
                s->blocks[0].mass[1] == 2.0);
    assert_int_equal(ts_ffn_first_nonfinite(s, &place), 0);
    assert_int_equal(place.row, 1);
    assert_int_equal(place.neuron, 0);
    assert_true(s->blocks[0].max_abs == 1.0f);
    /* fewer finite values than K: exactly those are in every set that large */
    for (uint32_t i = 0; i < WIDTH; i++)
        x[i] = i % 100 == 3 ? 0.0f : NAN;
    pass(s, 0, x);
    level = ts_ffn_levels(s, 0, 0);
    for (uint32_t i = 0; i < WIDTH; i++)
        assert_int_equal(level[i] <= s->blocks[0].rank[0], i % 100 == 3);
    ts_ffn_stats_free(s);
}

static void quantiles_within_three_percent(void **state) {
    ts_ffn_stats *s = make(WIDTH, 1);
    const ts_hist *h = &s->blocks[0].hist;
    float x[WIDTH];

    (void)state;
    assert_true(ts_hist_quantile(h, 0.5) == 0.0);
    for (int i = 0; i < WIDTH; i++)
        x[i] = (float)exp2(-20.0 + 30.0 * i / WIDTH);
    pass(s, 0, x);
    for (int i = 0; i < WIDTH; i++)
        assert_true(fabs(ts_hist_quantile(h, (i + 1.0) / WIDTH) / (double)x[i] - 1.0) <= 0.016);
    assert_true(fabs(ts_hist_quantile(h, 0.0) / (double)x[0] - 1.0) <= 0.016);
    memset(x, 0, sizeof x);
    pass(s, 0, x);
    assert_true(ts_hist_quantile(h, 0.5) == 0.0);
    assert_true(ts_hist_quantile(h, 0.51) > 0.0);
    ts_ffn_stats_free(s);
}

static void top_p_counts(void **state) {
    ts_ffn_stats *s = make(100, 1);
    float x[100] = {0};

    (void)state;
    pass(s, 0, x); /* no mass: none needed */
    assert_int_equal(s->blocks[0].top_p[2], 0);
    for (int i = 0; i < 100; i++)
        x[i] = 2.0f;
    pass(s, 0, x);
    assert_int_equal(s->blocks[0].top_p[0], 90);
    assert_int_equal(s->blocks[0].top_p[1], 95);
    assert_int_equal(s->blocks[0].top_p[2], 99);
    x[40] = 1.0e6f; /* one value holds more than 99 % */
    pass(s, 0, x);
    assert_int_equal(s->blocks[0].top_p[0], 91);
    assert_int_equal(s->blocks[0].top_p[2], 100);
    ts_ffn_stats_free(s);
}

static void merged_equals_together(void **state) {
    const uint32_t width[2] = {300, 77};
    ts_ffn_stats *part[2], *whole;
    ts_ffn_place place;
    float x[300];

    (void)state;
    ts_ffn_stats_create(&whole, width, 2, NULL);
    for (int g = 0; g < 2; g++) {
        ts_ffn_stats_create(&part[g], width, 2, NULL);
        ts_ffn_begin_generation(whole, 0);
        ts_ffn_note_prefill(whole, 3);
        ts_ffn_note_prefill(part[g], 3);
        for (int p = 0; p < 11; p++) {
            for (int i = 0; i < 300; i++)
                x[i] =
                    g == 1 && p == 2 && i == 9 ? INFINITY : sinf((float)(i * (p + 1) + g)) * 0.1f;
            for (uint32_t b = 0; b < 2; b++) {
                assert_int_equal(ts_ffn_record_block(whole, 0, 0, b, x), 0);
                assert_int_equal(ts_ffn_record_block(part[g], 0, 0, b, x), 0);
            }
            ts_ffn_end_pass(whole, 0);
            ts_ffn_end_pass(part[g], 0);
        }
    }
    assert_int_equal(ts_ffn_stats_merge(part[0], part[1]), 0);
    assert_int_equal(part[0]->decode_passes, whole->decode_passes);
    assert_int_equal(part[0]->prefill_passes, whole->prefill_passes);
    assert_int_equal(part[0]->overlap_pairs, whole->overlap_pairs);
    assert_int_equal(ts_ffn_first_nonfinite(part[0], &place), 0);
    assert_int_equal(place.row, 13);
    assert_int_equal(place.neuron, 9);
    for (uint32_t b = 0; b < 2; b++) {
        const ts_ffn_block *m = &part[0]->blocks[b], *w = &whole->blocks[b];

        assert_memory_equal(&m->hist, &w->hist, sizeof m->hist);
        assert_memory_equal(m->hits, w->hits, sizeof m->hits);
        assert_memory_equal(m->top_p, w->top_p, sizeof m->top_p);
        assert_int_equal(m->n_rows, w->n_rows);
        assert_int_equal(m->n_pairs, w->n_pairs);
        assert_true(m->max_abs == w->max_abs);
        for (uint32_t i = 0; i < width[b]; i++)
            assert_true(fabs(m->mass[i] - w->mass[i]) <= 1e-12 * w->mass[i]);
    }
    ts_ffn_stats_free(part[0]);
    ts_ffn_stats_free(part[1]);
    ts_ffn_stats_free(whole);
}

static void misuse_is_refused(void **state) {
    const uint32_t width[2] = {8, 9}, too_wide = TS_FFN_MAX_WIDTH + 1;
    const ts_ffn_options unknown = {.kernel = "abacus"};
    ts_ffn_stats *s = NULL, *other = NULL;
    float x[9] = {1.0f};

    (void)state;
    assert_int_equal(ts_ffn_stats_create(&s, &too_wide, 1, NULL), TS_FFN_ERR_ARGUMENT);
    assert_int_equal(ts_ffn_stats_create(&s, width, 2, &unknown), TS_FFN_ERR_ARGUMENT);
    assert_null(s);
    assert_int_equal(ts_ffn_stats_create(&s, width, 2, NULL), 0);
    assert_int_equal(ts_ffn_record_block(s, 1, 0, 0, x), TS_FFN_ERR_ARGUMENT);
    assert_int_equal(ts_ffn_record_block(s, 0, 1, 0, x), TS_FFN_ERR_ARGUMENT);
    assert_int_equal(ts_ffn_record_block(s, 0, 0, 2, x), TS_FFN_ERR_ARGUMENT);
    assert_int_equal(ts_ffn_record_block(s, 0, 0, 0, x), 0);
    assert_int_equal(ts_ffn_record_block(s, 0, 0, 0, x), TS_FFN_ERR_ARGUMENT);
    assert_int_equal(s->blocks[0].n_rows, 1);
    assert_int_equal(ts_ffn_begin_generation(s, 1), TS_FFN_ERR_ARGUMENT);
    assert_int_equal(ts_ffn_end_pass(s, 1), TS_FFN_ERR_ARGUMENT);
    assert_null(ts_ffn_levels(s, 0, 1));
    assert_int_equal(ts_ffn_stats_create(&other, width, 1, NULL), 0);
    assert_int_equal(ts_ffn_stats_merge(s, other), TS_FFN_ERR_SHAPE);
    ts_ffn_stats_free(other);
    assert_int_equal(ts_ffn_stats_create(&other, (uint32_t[]){8, 8}, 2, NULL), 0);
    assert_int_equal(ts_ffn_stats_merge(s, other), TS_FFN_ERR_SHAPE);
    ts_ffn_stats_free(other);
    ts_ffn_begin_generation(s, 0);
    s->blocks[0].n_rows = TS_HIST_MAX_COUNT / 8;
    assert_int_equal(ts_ffn_record_block(s, 0, 0, 0, x), TS_FFN_ERR_FULL);
    ts_ffn_stats_free(s);
    ts_ffn_stats_free(NULL);
    assert_int_equal(ts_ffn_stats_create(&s, NULL, 0, NULL), 0);
    ts_ffn_stats_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bucket_edges),
        cmocka_unit_test(bucket_edges_accumulated),
        cmocka_unit_test(disjoint_and_identical_sets),
        cmocka_unit_test(shares_of_the_width),
        cmocka_unit_test(pairs_stay_in_their_generation),
        cmocka_unit_test(skipped_block_forms_no_pair),
        cmocka_unit_test(counts_sum_to_passes_times_width),
        cmocka_unit_test(nan_never_ranks),
        cmocka_unit_test(quantiles_within_three_percent),
        cmocka_unit_test(top_p_counts),
        cmocka_unit_test(merged_equals_together),
        cmocka_unit_test(misuse_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
