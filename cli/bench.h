/* A comparison: arms run in turn, again and again, in one process. Arm 0 is the reference and arm 1
 * the same thing again: what those two differ by decides what can be told. */
#ifndef TS_CLI_BENCH_H
#define TS_CLI_BENCH_H

#include <stdio.h>

#include "options.h"

enum { BENCH_MAX_ARMS = 8 };

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

/* Median, minimum and maximum of what `arm` costs over the reference, in percent of its time, by
 * pairs. */
typedef struct bench_cost {
    double median, min, max;
} bench_cost;
bench_cost bench_compare(const bench_plan *plan, size_t arm, size_t reference);
/* The median difference of the reference from itself, in percent, without sign. */
double bench_spread(const bench_plan *plan);
double bench_median_rate(const bench_plan *plan, size_t arm);

void bench_print_table(const bench_plan *plan);

/* The file of raw samples: opened as PATH.part before the work, so that a wrong path costs no time,
 * and renamed when whole. Both return an exit code; `out` is NULL when `path` is. */
int bench_json_open(const char *path, FILE **out);
int bench_json_finish(const bench_plan *plan, const char *path, FILE *out);
/* Drops it. NULL is fine. */
void bench_json_discard(const char *path, FILE *out);

/* The packed capture of `corpus` against the same batches untapped and against --exact. */
int bench_corpus(const cli_common *common, const char *corpus, int32_t repetitions, bool drawing,
                 const char *json_path);

#endif
