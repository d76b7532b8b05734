/* A comparison: arms run in turn, again and again, in one process. Arm 0 is the reference and arm 1
 * the same thing again: what those two differ by decides what can be told. */
#ifndef TS_CLI_BENCH_H
#define TS_CLI_BENCH_H

#include <stdio.h>

#include "options.h"

enum {
    BENCH_MAX_ARMS = 16,
    BENCH_MIN_ROUNDS = 6, /* fewer hold no 95 % interval of a median: 2 x 0.5^n is over 0.05 */
};

typedef struct bench_arm {
    const char *name;
    double *tokens_per_s; /* [repetitions] */
} bench_arm;

typedef struct bench_plan {
    const char *work; /* "decode" or "corpus": the JSON's key */
    char title[256];  /* the line above the table */
    const ts_model_info *info;
    const cli_common *common;
    int32_t repetitions;
    bench_arm arms[BENCH_MAX_ARMS];
    size_t n_arms;
    bool drawing;
    /* Runs one repetition of one arm; returns 0 and its rate. */
    int (*run)(size_t arm, void *user, double *tokens_per_s, ts_error *err);
    void *user;
} bench_plan;

/* Runs every arm once uncounted, then `repetitions` rounds, each starting at another arm, every
 * second one in reverse. */
int bench_run(bench_plan *plan, ts_error *err);
void bench_free(bench_plan *plan);

/* What `arm` costs over the reference, in percent of its time, by pairs: the median, and the
 * interval that holds the true median in 95 of 100 such comparisons (order statistics, no
 * assumption on the noise; the whole range where there are fewer than BENCH_MIN_ROUNDS pairs, which
 * holds it less often). */
typedef struct bench_cost {
    double median, low, high;
} bench_cost;
bench_cost bench_compare(const bench_plan *plan, size_t arm, size_t reference);
/* Is the arm's cost apart from nothing: enough rounds, an interval without 0, and more than arm 1,
 * the same thing again, differs by? */
bool bench_told(const bench_plan *plan, size_t arm);
/* The median difference of the reference from itself, in percent, without sign. */
double bench_spread(const bench_plan *plan);
double bench_median_rate(const bench_plan *plan, size_t arm);

void bench_print_table(const bench_plan *plan);

/* The raw samples; an exit code. A NULL path is fine. */
int bench_json_write(const bench_plan *plan, const char *path);

/* The packed capture of `corpus` against the same batches untapped and against --exact. */
int bench_corpus(const cli_common *common, const char *corpus, int32_t repetitions, bool drawing,
                 const char *json_path);

#endif
