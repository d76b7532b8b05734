/* Runs the arms of a comparison in turn and compares them pair by pair. Knows nothing of what an
 * arm does. */
#include "bench.h"
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts in place. */
static double median(double *values, size_t n) {
    qsort(values, n, sizeof(values[0]), compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static double seconds(clockid_t clock) {
    struct timespec t = {0};

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The threads of the arm before spin for a while before they sleep, and would slow the next arm:
 * waits until this process uses no processor, at most a second. */
static void settle(void) {
    const struct timespec slice = {.tv_nsec = 30000000};
    double begin = seconds(CLOCK_MONOTONIC), used;

    do {
        used = seconds(CLOCK_PROCESS_CPUTIME_ID);
        nanosleep(&slice, NULL);
        used = seconds(CLOCK_PROCESS_CPUTIME_ID) - used;
    } while (used > 0.002 && seconds(CLOCK_MONOTONIC) - begin < 1);
}

int bench_run(bench_plan *plan, ts_error *err) {
    double warm_up;
    int rc = 0;

    for (size_t a = 0; a < plan->n_arms; a++)
        if (!(plan->arms[a].tokens_per_s = calloc((size_t)plan->repetitions, sizeof(double)))) {
            snprintf(err->message, sizeof(err->message), "out of memory");
            return TS_ERR_NOMEM;
        }
    for (int32_t r = -1; r < plan->repetitions && rc == 0; r++) {
        if (plan->drawing && r >= 0)
            fprintf(stderr, "\r%s: round %d of %d ", plan->work, r + 1, plan->repetitions);
        for (size_t i = 0; i < plan->n_arms && rc == 0; i++) {
            size_t step = r % 2 == 0 ? i : plan->n_arms - 1 - i;
            size_t arm = (step + (size_t)(r + 1) / 2) % plan->n_arms;

            settle();
            rc = plan->run(arm, plan->user, r < 0 ? &warm_up : &plan->arms[arm].tokens_per_s[r],
                           err);
            if (*cli_stop_flag()) { /* an arm may have ended early and well */
                snprintf(err->message, sizeof(err->message), "interrupted");
                rc = err->code = TS_ERR_INTERRUPTED;
            }
        }
    }
    if (plan->drawing)
        fputc('\n', stderr);
    return rc;
}

void bench_free(bench_plan *plan) {
    for (size_t a = 0; a < plan->n_arms; a++)
        free(plan->arms[a].tokens_per_s);
}

/* The rank, from 0, of the sorted sample where the interval begins: the highest below which and
 * above whose mirror the true median lies in at most 5 of 100 runs. The number of samples under the
 * median is binomial. */
static size_t interval_rank(size_t n) {
    double term = -(double)n * log(2), outside = 2 * exp(term);
    size_t rank = 0;

    while (2 * (rank + 1) < n) {
        term += log((double)(n - rank) / (double)(rank + 1));
        outside += 2 * exp(term);
        if (outside > 0.05)
            break;
        rank++;
    }
    return rank;
}

bench_cost bench_compare(const bench_plan *plan, size_t arm, size_t reference) {
    size_t n = (size_t)plan->repetitions;
    double *costs = malloc(n * sizeof(costs[0]));
    bench_cost cost = {NAN, NAN, NAN};
    size_t rank = interval_rank(n);

    if (!costs)
        return cost;
    for (size_t r = 0; r < n; r++)
        costs[r] =
            100 * (plan->arms[reference].tokens_per_s[r] / plan->arms[arm].tokens_per_s[r] - 1);
    cost.median = median(costs, n);
    cost.low = costs[rank];
    cost.high = costs[n - 1 - rank];
    free(costs);
    return cost;
}

bool bench_told(const bench_plan *plan, size_t arm) {
    bench_cost cost = bench_compare(plan, arm, 0), again = bench_compare(plan, 1, 0);

    return plan->repetitions >= BENCH_MIN_ROUNDS && (cost.low > 0 || cost.high < 0) &&
           fabs(cost.median) > fabs(again.median);
}

double bench_spread(const bench_plan *plan) {
    size_t n = (size_t)plan->repetitions;
    double *spread = malloc(n * sizeof(spread[0])), middle = NAN;

    for (size_t r = 0; spread && r < n; r++)
        spread[r] = fabs(100 * (plan->arms[0].tokens_per_s[r] / plan->arms[1].tokens_per_s[r] - 1));
    if (spread)
        middle = median(spread, n);
    free(spread);
    return middle;
}

double bench_median_rate(const bench_plan *plan, size_t arm) {
    size_t n = (size_t)plan->repetitions;
    double *rates = malloc(n * sizeof(rates[0])), middle = NAN;

    if (rates) {
        memcpy(rates, plan->arms[arm].tokens_per_s, n * sizeof(rates[0]));
        middle = median(rates, n);
    }
    free(rates);
    return middle;
}
