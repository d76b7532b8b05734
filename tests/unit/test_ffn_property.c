/*
 * FFN accumulator against a slow version that sorts: random rows with ties, zeros, denormals, NaN
 * and infinities, widths 1 to 20,000; and every vector path against the first, bit by bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "stats/ffn_stats.h"

enum { MAX_WIDTH = 20000, N_PASSES = 3, N_KINDS = 9 };

static uint64_t rng = 42;

static uint64_t next(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

static double uniform(void) {
    return ((double)(next() >> 11) + 0.5) * 0x1p-53;
}

static float of_bits(uint32_t bits) {
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static float draw(int kind) {
    float normal = (float)(sqrt(-2.0 * log(uniform())) * cos(6.283185307179586 * uniform()));

    switch (kind) {
    case 0:
        return normal * (float)exp2(10.0 * uniform() - 8.0);
    case 1:
        return (float)((int)(next() % 7) - 3); /* ties */
    case 2:
        return next() % 10 ? 0.0f : normal; /* mostly zeros */
    case 3:
        return of_bits((uint32_t)(next() % 0x00900000)); /* denormals and the first normals */
    case 4:
        return of_bits((uint32_t)next()); /* anything, NaN and infinity among it */
    case 5:
        return next() % 20 ? normal : next() % 2 ? NAN : -INFINITY;
    case 6:
        return next() % 50 ? NAN : normal; /* fewer finite values than K */
    case 7:
        return 1.0f + (float)(next() % 5) * FLT_EPSILON; /* all in one bin, some equal */
    default:
        return -0.25f;
    }
}

static const float *sorting;

/* Descending magnitude, non-finite last, ties by index: what the sets are defined by. */
static int by_rank(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    double x = isfinite(sorting[i]) ? fabs((double)sorting[i]) : -1.0;
    double y = isfinite(sorting[j]) ? fabs((double)sorting[j]) : -1.0;

    return x != y ? (x < y) - (x > y) : (i > j) - (i < j);
}

/* Everything the slow version knows of a block. */
typedef struct slow {
    uint32_t order[MAX_WIDTH];
    uint8_t in[2][TS_FFN_N_SETS][MAX_WIDTH];
    uint64_t count[TS_HIST_N_BUCKETS], hits[TS_FFN_N_SETS];
    long double bucket_mass[TS_HIST_N_BUCKETS];
    double mass[MAX_WIDTH];
    float max_abs;
    int n_rows;
} slow;

static void slow_values(slow *s, const float *row, uint32_t width) {
    for (uint32_t i = 0; i < width; i++) {
        float a = fabsf(row[i]);
        int e, b;

        frexpf(a, &e);
        b = e - 1 + 33 < 1 ? 1 : e - 1 + 33 > 62 ? 62 : e - 1 + 33;
        b = a == 0.0f ? 0 : isfinite(a) ? b : 63;
        s->count[b]++;
        if (!isfinite(a))
            continue;
        s->bucket_mass[b] += (long double)a;
        s->mass[i] += (double)a;
        s->max_abs = a > s->max_abs ? a : s->max_abs;
    }
}

static void slow_sets(slow *s, const ts_ffn_block *b, const float *row) {
    int now = s->n_rows % 2;

    for (uint32_t i = 0; i < b->width; i++)
        s->order[i] = i;
    sorting = row;
    qsort(s->order, b->width, sizeof *s->order, by_rank);
    for (int j = 0; j < TS_FFN_N_SETS; j++) {
        memset(s->in[now][j], 0, b->width);
        for (uint32_t i = 0; i < b->k[j] && isfinite(row[s->order[i]]); i++)
            s->in[now][j][s->order[i]] = 1;
        for (uint32_t i = 0; i < b->width && s->n_rows > 0; i++)
            s->hits[j] += s->in[0][j][i] && s->in[1][j][i];
    }
    s->n_rows++;
}

/* The row's own share counts: exact but for 1/32 of the values within 1/32 of the last one taken.
 */
static void check_top_p(const slow *s, const float *row, uint32_t width, const uint64_t *got) {
    long double total = 0.0L;

    for (uint32_t i = 0; i < width && isfinite(row[s->order[i]]); i++)
        total += (long double)fabsf(row[s->order[i]]);
    for (int p = 0; p < TS_FFN_N_TOP_P; p++) {
        long double sum = 0.0L;
        uint32_t n = 0, n_near = 0;
        double last = 0.0;

        while (n < width && total > 0.0L && sum < (long double)ts_ffn_top_p[p] * total &&
               isfinite(row[s->order[n]]))
            sum += (long double)fabsf(row[s->order[n++]]);
        if (n > 0)
            last = fabs((double)row[s->order[n - 1]]);
        for (uint32_t i = 0; i < width; i++)
            n_near += isfinite(row[i]) &&
                      (fabs(fabs((double)row[i]) - last) <= last / 16.0 || last < 0x1p-120);
        assert_true(fabs((double)got[p] - (double)n) <= 1.0 + n_near / 16.0);
    }
}

static void check_block(const slow *s, const ts_ffn_block *b, const uint8_t *level) {
    uint64_t count[TS_HIST_N_BUCKETS];
    double mass[TS_HIST_N_BUCKETS];

    ts_hist_buckets(&b->hist, count, mass);
    assert_memory_equal(count, s->count, sizeof count);
    for (int i = 0; i < TS_HIST_N_BUCKETS; i++)
        assert_true(fabsl((long double)mass[i] - s->bucket_mass[i]) <= 1e-14L * s->bucket_mass[i]);
    assert_memory_equal(b->mass, s->mass, b->width * sizeof *b->mass);
    assert_memory_equal(b->hits, s->hits, sizeof s->hits);
    assert_true(b->max_abs == s->max_abs);
    for (int j = 0; j < TS_FFN_N_SETS; j++) {
        for (uint32_t i = 0; i < b->width; i++)
            assert_int_equal(level[i] <= b->rank[j], s->in[(s->n_rows - 1) % 2][j][i]);
    }
}

static void check_same(const ts_ffn_stats *a, const ts_ffn_stats *b) {
    const ts_ffn_block *x = a->blocks, *y = b->blocks;

    assert_memory_equal(&x->hist, &y->hist, sizeof x->hist);
    assert_memory_equal(x->mass, y->mass, x->width * sizeof *x->mass);
    assert_memory_equal(x->hits, y->hits, sizeof x->hits);
    assert_memory_equal(x->top_p, y->top_p, sizeof x->top_p);
    assert_memory_equal(&x->max_abs, &y->max_abs, sizeof x->max_abs);
    assert_memory_equal(ts_ffn_levels(a, 0, 0), ts_ffn_levels(b, 0, 0), x->width);
    assert_int_equal(x->nonfinite.row, y->nonfinite.row);
    assert_int_equal(x->nonfinite.neuron, y->nonfinite.neuron);
}

static void run_case(slow *s, uint32_t width, const int *kind) {
    static float row[MAX_WIDTH];
    ts_ffn_stats *acc[4] = {NULL};
    size_t n_kernels;
    const ts_ffn_kernel *const *kernel = ts_ffn_kernels(&n_kernels);

    memset(s, 0, sizeof *s);
    for (size_t k = 0; k < n_kernels; k++) {
        ts_ffn_options o = {.kernel = kernel[k]->name};

        assert_int_equal(ts_ffn_stats_create(&acc[k], &width, 1, &o), 0);
    }
    for (int p = 0; p < N_PASSES; p++) {
        uint64_t before[TS_FFN_N_TOP_P], grown[TS_FFN_N_TOP_P];

        for (uint32_t i = 0; i < width; i++)
            row[i] = draw(kind[p]);
        memcpy(before, acc[0]->blocks[0].top_p, sizeof before);
        for (size_t k = 0; k < n_kernels; k++) {
            assert_int_equal(ts_ffn_record_block(acc[k], 0, 0, 0, row), 0);
            ts_ffn_end_pass(acc[k], 0);
        }
        slow_values(s, row, width);
        slow_sets(s, acc[0]->blocks, row);
        for (int t = 0; t < TS_FFN_N_TOP_P; t++)
            grown[t] = acc[0]->blocks[0].top_p[t] - before[t];
        check_top_p(s, row, width, grown);
        check_block(s, acc[0]->blocks, ts_ffn_levels(acc[0], 0, 0));
    }
    for (size_t k = 1; k < n_kernels; k++)
        check_same(acc[0], acc[k]);
    for (size_t k = 0; k < n_kernels; k++)
        ts_ffn_stats_free(acc[k]);
}

static void equals_the_slow_version(void **state) {
    static const uint32_t edge[] = {1,    2,    3,    7,     8,     9,    15,   16,   17,
                                    31,   32,   33,   63,    64,    65,   99,   100,  127,
                                    128,  129,  511,  512,   513,   1024, 4096, 4097, 8159,
                                    8160, 8161, 8192, 16384, 18944, 20000};
    slow *s = malloc(sizeof *s);

    (void)state;
    assert_non_null(s);
    for (size_t e = 0; e < sizeof edge / sizeof *edge; e++) {
        for (int kind = 0; kind < N_KINDS; kind++)
            run_case(s, edge[e], (int[]){kind, kind, (kind + 1) % N_KINDS});
    }
    for (int i = 0; i < 300; i++) {
        uint32_t width = 1 + (uint32_t)(next() % (i % 10 == 0 ? MAX_WIDTH : i % 2 ? 100 : 3000));
        int kind[N_PASSES];

        for (int p = 0; p < N_PASSES; p++)
            kind[p] = (int)(next() % N_KINDS);
        run_case(s, width, kind);
    }
    free(s);
}

enum { N_BLOCKS = 6, N_THREADS = 3, BLOCK_WIDTH = 700 };

typedef struct share {
    ts_ffn_stats *s;
    const float *rows; /* [N_BLOCKS][BLOCK_WIDTH] */
    uint32_t worker;
} share;

static void *record_share(void *arg) {
    const share *mine = arg;

    for (uint32_t b = mine->worker; b < N_BLOCKS; b += N_THREADS)
        ts_ffn_record_block(mine->s, mine->worker, 0, b, mine->rows + b * BLOCK_WIDTH);
    return NULL;
}

static void check_equal(const ts_ffn_stats *one, const ts_ffn_stats *many) {
    assert_int_equal(one->decode_passes, many->decode_passes);
    assert_int_equal(one->overlap_pairs, many->overlap_pairs);
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        const ts_ffn_block *x = &one->blocks[b], *y = &many->blocks[b];

        assert_int_equal(x->n_rows, y->n_rows);
        assert_int_equal(x->n_pairs, y->n_pairs);
        assert_memory_equal(&x->hist, &y->hist, sizeof x->hist);
        assert_memory_equal(x->mass, y->mass, sizeof(double) * BLOCK_WIDTH);
        assert_memory_equal(x->hits, y->hits, sizeof x->hits);
        assert_memory_equal(x->top_p, y->top_p, sizeof x->top_p);
    }
}

/* Blocks of one pass recorded by several threads: the same as by one. */
static void threads_change_nothing(void **state) {
    static float rows[N_BLOCKS * BLOCK_WIDTH];
    uint32_t width[N_BLOCKS];
    ts_ffn_options o = {.n_workers = N_THREADS};
    ts_ffn_stats *one = NULL, *many = NULL;

    (void)state;
    for (int b = 0; b < N_BLOCKS; b++)
        width[b] = BLOCK_WIDTH;
    assert_int_equal(ts_ffn_stats_create(&one, width, N_BLOCKS, NULL), 0);
    assert_int_equal(ts_ffn_stats_create(&many, width, N_BLOCKS, &o), 0);
    for (int p = 0; p < 20; p++) {
        pthread_t thread[N_THREADS];
        share work[N_THREADS];

        for (int i = 0; i < N_BLOCKS * BLOCK_WIDTH; i++)
            rows[i] = draw(p % N_KINDS);
        for (uint32_t t = 0; t < N_THREADS; t++) {
            work[t] = (share){many, rows, t};
            assert_int_equal(pthread_create(&thread[t], NULL, record_share, &work[t]), 0);
        }
        for (uint32_t t = 0; t < N_THREADS; t++)
            pthread_join(thread[t], NULL);
        for (uint32_t b = 0; b < N_BLOCKS; b++)
            assert_int_equal(ts_ffn_record_block(one, 0, 0, b, rows + b * BLOCK_WIDTH), 0);
        ts_ffn_end_pass(one, 0);
        ts_ffn_end_pass(many, 0);
    }
    check_equal(one, many);
    ts_ffn_stats_free(one);
    ts_ffn_stats_free(many);
}

enum { N_NUMBERED = 37, N_SLOTS = 3 };

/* A batch of passes of several sequences, with generations that begin inside it, counted block by block: the same
 * as pass by pass. */
static void block_by_block_is_the_same(void **state) {
    static float rows[N_NUMBERED][N_BLOCKS * BLOCK_WIDTH];
    uint32_t width[N_BLOCKS], slot[N_NUMBERED];
    uint64_t pass[N_NUMBERED];
    ts_ffn_options o = {.n_slots = N_SLOTS};
    ts_ffn_stats *one = NULL, *many = NULL;

    (void)state;
    for (int b = 0; b < N_BLOCKS; b++)
        width[b] = BLOCK_WIDTH;
    assert_int_equal(ts_ffn_stats_create(&one, width, N_BLOCKS, &o), 0);
    assert_int_equal(ts_ffn_stats_create(&many, width, N_BLOCKS, &o), 0);
    for (int batch = 0; batch < 3; batch++) {
        for (int p = 0; p < N_NUMBERED; p++) {
            bool begins = next() % 5 == 0;

            slot[p] = (uint32_t)(next() % N_SLOTS);
            for (int i = 0; i < N_BLOCKS * BLOCK_WIDTH; i++)
                rows[p][i] = draw(p % N_KINDS);
            if (begins)
                ts_ffn_begin_generation(one, slot[p]);
            for (uint32_t b = 0; b < N_BLOCKS; b++)
                assert_int_equal(ts_ffn_record_block(one, 0, slot[p], b, rows[p] + b * BLOCK_WIDTH), 0);
            ts_ffn_end_pass(one, slot[p]);
            assert_int_equal(ts_ffn_number_pass(many, slot[p], begins, &pass[p]), 0);
        }
        for (uint32_t b = 0; b < N_BLOCKS; b++)
            for (int p = 0; p < N_NUMBERED; p++)
                assert_int_equal(ts_ffn_record_numbered(many, 0, slot[p], b, pass[p], rows[p] + b * BLOCK_WIDTH), 0);
    }
    check_equal(one, many);
    assert_int_equal(ts_ffn_record_numbered(many, 0, slot[0], 0, 0, rows[0]), TS_FFN_ERR_ARGUMENT);
    assert_int_equal(ts_ffn_number_pass(many, N_SLOTS, false, pass), TS_FFN_ERR_ARGUMENT);
    ts_ffn_stats_free(one);
    ts_ffn_stats_free(many);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_slow_version),
        cmocka_unit_test(block_by_block_is_the_same),
        cmocka_unit_test(threads_change_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
