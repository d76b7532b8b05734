/*
 * Seconds and memory of direction extraction: two sets of captures, one row of each block, at the
 * size that the methods are held to. Usage: bench_direction [method [snapshots [layers [hidden
 * [threads [noise]]]]]]. Owns the measurement; refuses to judge it.
 *
 * The rows are made when they are asked for (the cost of making them is measured first and shown
 * apart), so the memory shown is the extraction's own. A row is a fixed offset + a class shift +
 * falling variances along the dimensions, the first few dwarfing the others, as residual streams
 * have them; with `noise`, plain normal values, the slowest for eigenvectors since no axis stands
 * out.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "stats/direction.h"

enum { N_TABLE = 1 << 16 };

typedef struct source {
    int32_t hidden;
    int positive, noise;
    float normal[N_TABLE]; /* drawn from, at a place that depends on snapshot and layer */
    float scale[1 << 15], offset[1 << 15];
} source;

static double now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu(void) {
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static double uniform(uint64_t i) {
    return ((double)(mix(i + 1) >> 11) + 0.5) * 0x1p-53;
}

static void prepare(source *s, int32_t hidden, int positive, int noise) {
    s->hidden = hidden;
    s->positive = positive;
    s->noise = noise;
    for (uint64_t i = 0; i < N_TABLE; i++)
        s->normal[i] =
            (float)(sqrt(-2 * log(uniform(2 * i))) * cos(6.283185307179586 * uniform(2 * i + 1)));
    for (int32_t j = 0; j < hidden; j++) {
        s->scale[j] = noise ? 1 : (float)(j < 3 ? 30 : pow(1 + j, -0.5));
        s->offset[j] =
            noise ? 0 : s->normal[j] * 2 + (positive ? 0.1f * s->normal[N_TABLE - 1 - j] : 0);
    }
}

static int make(void *user, int64_t snapshot, int32_t layer, int32_t n_layers, float *rows,
                ts_error *err) {
    const source *s = user;

    (void)err;
    for (int32_t l = 0; l < n_layers; l++) {
        uint64_t at =
            mix((uint64_t)snapshot * 4099 + (uint64_t)(layer + l) * 2 + (uint64_t)s->positive);

        for (int32_t j = 0; j < s->hidden; j += 64) {
            const float *x = s->normal + (mix(at + (uint64_t)j) & (N_TABLE - 64));
            /* an odd step through the table would repeat: the start is drawn anew for every 64
             * values */
            for (int32_t k = j; k < j + 64 && k < s->hidden; k++)
                rows[k] = s->offset[k] + s->scale[k] * x[k - j];
        }
        rows += s->hidden;
    }
    return 0;
}

static void measure(const char *method, ts_direction_set set[2], int32_t layers, int threads,
                    double making) {
    ts_direction_options o = {.n_threads = threads};
    ts_direction *d;
    ts_error err = {0};
    struct rusage use;
    double start = now(), start_cpu = cpu();

    if (!ts_direction_method_find(method, &o.method) ||
        ts_direction_extract(&set[0], &set[1], &o, &d, &err)) {
        fprintf(stderr, "%s: %s\n", method, err.message);
        exit(1);
    }
    getrusage(RUSAGE_SELF, &use);
    printf("%-10s %8.2f %8.2f %8.2f %9.0f   %6.3f  %6.3f\n", method, now() - start,
           cpu() - start_cpu, making, (double)use.ru_maxrss / 1024, d->blocks[layers / 2].auc,
           d->blocks[layers / 2].eigen_gap);
    ts_direction_free(d);
}

int main(int argc, char **argv) {
    static source s[2];
    const char *only = argc > 1 ? argv[1] : "all";
    int64_t n = argc > 2 ? atoll(argv[2]) : 2000;
    int32_t layers = argc > 3 ? atoi(argv[3]) : 32, hidden = argc > 4 ? atoi(argv[4]) : 4096;
    int threads = argc > 5 ? atoi(argv[5]) : 2;
    ts_direction_set set[2];
    float *rows;
    double start;

    if (n < 2 || layers < 1 || hidden < 1 || hidden > 1 << 15)
        return 2;
    for (int i = 0; i < 2; i++) {
        prepare(&s[i], hidden, i == 0, argc > 6);
        set[i] = (ts_direction_set){i ? "negative" : "positive", n, layers, hidden, make, &s[i]};
    }
    rows = malloc((size_t)layers * (size_t)hidden * sizeof *rows);
    start = now();
    for (int i = 0; i < 2; i++)
        for (int64_t k = 0; k < n; k++)
            make(&s[i], k, 0, layers, rows, NULL);
    start = now() - start;
    free(rows);
    printf("2 x %lld snapshots of %d x %d, %d threads\n", (long long)n, layers, hidden, threads);
    printf("method      seconds      cpu   making  peak MiB      auc     gap  (of block %d)\n",
           layers / 2);
    for (int m = 0; m < TS_DIRECTION_METHOD_COUNT; m++) {
        const char *name = ts_direction_method_name((enum ts_direction_method)m);

        if (strcmp(only, "all") == 0 || strcmp(only, name) == 0)
            measure(name, set, layers, threads, start);
    }
    return 0;
}
