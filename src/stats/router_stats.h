/* What a router's counts and ids say, and what uniform routing would give for the same experts, top-k and rows.
 *
 * Owns: one layer at a time, plain arrays. Refuses: files. Uniform routing: each row chooses top_k different experts, every
 * set as likely, independently of all others. Exact expectations have closed forms; the others come from a simulation
 * with a fixed seed. */
#ifndef TS_STATS_ROUTER_STATS_H
#define TS_STATS_ROUTER_STATS_H

#include <stdint.h>

/* ---- counts [n] of slots */

/* Fewest experts that hold at least `percent` of the slots; 0 without any. `sorted` is [n], descending (ts_route_sort). */
uint32_t ts_route_cover(const uint64_t *sorted, uint32_t n, uint32_t percent);
void ts_route_sort(uint64_t *counts, uint32_t n);
uint32_t ts_route_unused(const uint64_t *counts, uint32_t n);
/* 0 = all equal, towards 1 = one expert has everything; NAN without slots. Of sorted counts. */
double ts_route_gini(const uint64_t *sorted, uint32_t n);
/* Of the slots' distribution over n experts, 1 = uniform; NAN without slots or with one expert. */
double ts_route_entropy(const uint64_t *counts, uint32_t n);

/* The hot set: a quarter of the experts (rounded up), at least top_k, at most n; those used most, of equals the lower ids. */
uint32_t ts_route_hot_size(uint32_t n, uint32_t top_k);
/* hot[n] becomes 0 or 1. `order` [n] is scratch. */
void ts_route_hot(const uint64_t *counts, uint32_t n, uint32_t size, uint32_t *order, uint8_t *hot);
uint32_t ts_route_common(const uint8_t *a, const uint8_t *b, uint32_t n);

/* ---- rows [n_rows][top_k] of ids below n; `mark` [n] is scratch of zeros and left so */

/* Mean share of a row's different experts that the row `lag` before it has too; adds sum and pairs. */
void ts_route_overlap(const uint32_t *ids, uint64_t n_rows, uint32_t top_k, uint64_t lag, uint8_t *mark, double *sum,
                      uint64_t *pairs);
/* Different experts in each window of `width` rows in a row; adds their sum and number. `seen` [n] is scratch of zeros and left
 * so. */
void ts_route_distinct(const uint32_t *ids, uint64_t n_rows, uint32_t top_k, uint64_t width, uint32_t *seen, uint64_t *sum,
                       uint64_t *windows);

/* ---- uniform routing, exact */

double ts_route_uniform_unused(uint32_t n, uint32_t top_k, uint64_t rows);
double ts_route_uniform_distinct(uint32_t n, uint32_t top_k, uint64_t width);
/* Of two independent uniformly random sets of `size` of n: expected Jaccard. */
double ts_route_uniform_jaccard(uint32_t n, uint32_t size);

/* ---- uniform routing, simulated */

typedef struct ts_route_uniform {
    double n95, n99, gini, entropy; /* means over the runs */
    uint32_t runs;
} ts_route_uniform;

/* Row by row up to 2^21 slots; beyond, an expert's count is drawn from the normal distribution of its mean and variance.
 * 0 or TS_ERR_NOMEM. */
int ts_route_simulate(uint32_t n, uint32_t top_k, uint64_t rows, ts_route_uniform *out);
/* One random row of different experts. `state` starts as any number. `order` [n] holds 0..n-1 in any order. */
void ts_route_draw(uint64_t *state, uint32_t *order, uint32_t n, uint32_t top_k, uint32_t *ids);

#endif
