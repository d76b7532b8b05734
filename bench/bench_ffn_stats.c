/*
 * Cost of the FFN accumulator: ns per activation on one core, all statistics on, for each kernel
 * this processor runs. Usage: bench_ffn_stats [rounds]. Owns the measurement; refuses to judge it.
 *
 * Each round records fresh rows; the figure is the median over rounds of CPU time / (rows * width),
 * the spread its 10th and 90th percentile. `hot` is one block recorded over and over, 8 rows a
 * round (rows and state stay in the second level cache); `cycle` goes round 30 blocks, 60 rows a
 * round, as a model does. Rows: `product` = silu(g) u with g, u normal and a scale per neuron over
 * three orders of magnitude; `relu` = the same with 90 % exact zeros.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "stats/ffn_stats.h"

enum { HOT_ROWS = 8, CYCLE_ROWS = 60, N_CYCLE = 30 };

static uint64_t seed = 0x9e3779b97f4a7c15;

static double uniform(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return ((double)(seed >> 11) + 0.5) * 0x1p-53;
}

static double normal(void) {
    return sqrt(-2.0 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static void fill_rows(float *rows, uint32_t n_rows, uint32_t width, const float *scale, int relu) {
    for (size_t i = 0; i < (size_t)n_rows * width; i++) {
        double gate = normal(), act = gate / (1.0 + exp(-gate));

        if (relu)
            act = gate > 1.2816 ? gate : 0.0;
        rows[i] = (float)(act * normal()) * scale[i % width];
    }
}

static double now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double record_round(ts_ffn_stats *s, const float *rows, uint32_t n_rows, uint32_t width) {
    double start = now_ns();

    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t block = r % s->n_blocks;

        if (ts_ffn_record_block(s, 0, 0, block, rows + (size_t)r * width) != 0)
            exit(1);
        if (block + 1 == s->n_blocks)
            (void)ts_ffn_end_pass(s, 0);
    }
    return (now_ns() - start) / ((double)n_rows * width);
}

static void measure(const char *kernel, uint32_t width, uint32_t n_blocks, int relu, int rounds) {
    ts_ffn_options o = {.kernel = kernel};
    ts_ffn_stats *s = NULL;
    uint32_t widths[N_CYCLE], n_rows = n_blocks > 1 ? CYCLE_ROWS : HOT_ROWS;
    float *rows = malloc((size_t)n_rows * width * sizeof *rows);
    float *scale = malloc(width * sizeof *scale);
    double *ns = malloc((size_t)rounds * sizeof *ns);

    for (uint32_t b = 0; b < n_blocks; b++)
        widths[b] = width;
    if (!rows || !scale || !ns || ts_ffn_stats_create(&s, widths, n_blocks, &o) != 0)
        exit(1);
    for (uint32_t i = 0; i < width; i++)
        scale[i] = (float)pow(10.0, 3.0 * uniform() - 2.5);
    for (int r = -1; r < rounds; r++) { /* the first round warms up */
        fill_rows(rows, n_rows, width, scale, relu);
        ns[r < 0 ? 0 : r] = record_round(s, rows, n_rows, width);
    }
    qsort(ns, (size_t)rounds, sizeof *ns, ascending);
    printf("%-7s %6u  %-5s  %-7s  %6.3f   %6.3f - %.3f\n", kernel, width,
           n_blocks > 1 ? "cycle" : "hot", relu ? "relu" : "product", ns[rounds / 2],
           ns[rounds / 10], ns[rounds * 9 / 10]);
    ts_ffn_stats_free(s);
    free(rows);
    free(scale);
    free(ns);
}

int main(int argc, char **argv) {
    static const uint32_t width[] = {1536, 8192, 18944};
    int rounds = argc > 1 ? atoi(argv[1]) : 31;
    size_t n;
    const ts_ffn_kernel *const *all = ts_ffn_kernels(&n);

    if (rounds < 1)
        return 2;
    printf("kernel   width  state  rows     ns/act   p10 - p90  (%d rounds)\n", rounds);
    for (size_t k = 0; k < n; k++) {
        for (size_t w = 0; w < sizeof width / sizeof *width; w++) {
            measure(all[k]->name, width[w], 1, 0, rounds);
            measure(all[k]->name, width[w], N_CYCLE, 0, rounds);
            measure(all[k]->name, width[w], N_CYCLE, 1, rounds);
        }
    }
    return 0;
}
