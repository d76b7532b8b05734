/* Figures of one layer's routing, and uniform routing beside them. Refuses nothing: callers checked ids and sums. */
#include "stats/router_stats.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"

/* ---- counts */

static int descending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

void ts_route_sort(uint64_t *counts, uint32_t n) {
    qsort(counts, n, sizeof *counts, descending);
}

static uint64_t total(const uint64_t *counts, uint32_t n) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

/* Whole numbers, without overflow: 100 held >= percent sum. */
static bool holds(uint64_t held, uint64_t sum, uint32_t percent) {
    uint64_t hundredth = sum / 100, rest = sum % 100;
    return held >= hundredth * percent + (rest * percent + 99) / 100;
}

uint32_t ts_route_cover(const uint64_t *sorted, uint32_t n, uint32_t percent) {
    uint64_t sum = total(sorted, n), held = 0;
    uint32_t i = 0;
    while (i < n && sum > 0 && !holds(held, sum, percent))
        held += sorted[i++];
    return i;
}

uint32_t ts_route_unused(const uint64_t *counts, uint32_t n) {
    uint32_t unused = 0;
    for (uint32_t i = 0; i < n; i++)
        unused += counts[i] == 0;
    return unused;
}

/* G = sum over ranks r from the smallest, 1-based, of (2r - n - 1) c_r / (n sum). */
double ts_route_gini(const uint64_t *sorted, uint32_t n) {
    double sum = 0.0, weighted = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        double rank = (double)(n - i);
        sum += (double)sorted[i];
        weighted += (2.0 * rank - (double)n - 1.0) * (double)sorted[i];
    }
    return sum > 0.0 ? weighted / ((double)n * sum) : NAN;
}

double ts_route_entropy(const uint64_t *counts, uint32_t n) {
    double sum = (double)total(counts, n), h = 0.0;
    if (sum == 0.0 || n < 2)
        return NAN;
    for (uint32_t i = 0; i < n; i++)
        if (counts[i] > 0)
            h -= (double)counts[i] / sum * log((double)counts[i] / sum);
    return h / log((double)n);
}

uint32_t ts_route_hot_size(uint32_t n, uint32_t top_k) {
    uint32_t quarter = n / 4 + (n % 4 != 0), size = quarter > top_k ? quarter : top_k;
    return size < n ? size : n;
}

/* A heap of the hottest seen so far, the coldest of them on top; of equals the higher id is the colder. */
static bool colder(const uint64_t *counts, uint32_t a, uint32_t b) {
    return counts[a] != counts[b] ? counts[a] < counts[b] : a > b;
}

static void sift(const uint64_t *counts, uint32_t *heap, uint32_t n, uint32_t at) {
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && colder(counts, heap[child + 1], heap[child]))
            child++;
        if (!colder(counts, heap[child], heap[at]))
            return;
        uint32_t swap = heap[child];
        heap[child] = heap[at];
        heap[at] = swap;
    }
}

void ts_route_hot(const uint64_t *counts, uint32_t n, uint32_t size, uint32_t *order, uint8_t *hot) {
    memset(hot, 0, n);
    for (uint32_t i = 0; i < size; i++)
        order[i] = i;
    for (uint32_t i = size / 2; i-- > 0;)
        sift(counts, order, size, i);
    for (uint32_t i = size; i < n && size > 0; i++)
        if (colder(counts, order[0], i)) {
            order[0] = i;
            sift(counts, order, size, 0);
        }
    for (uint32_t i = 0; i < size; i++)
        hot[order[i]] = 1;
}

uint32_t ts_route_common(const uint8_t *a, const uint8_t *b, uint32_t n) {
    uint32_t common = 0;
    for (uint32_t i = 0; i < n; i++)
        common += a[i] && b[i];
    return common;
}

/* ---- rows */

void ts_route_overlap(const uint32_t *ids, uint64_t n_rows, uint32_t top_k, uint64_t lag, uint8_t *mark, double *sum,
                      uint64_t *pairs) {
    for (uint64_t t = lag; t < n_rows; t++) {
        const uint32_t *now = ids + t * top_k, *before = ids + (t - lag) * top_k;
        uint32_t different = 0, common = 0;
        for (uint32_t i = 0; i < top_k; i++)
            mark[before[i]] = 1;
        for (uint32_t i = 0; i < top_k; i++) { /* bit 2: counted in this row already */
            if (mark[now[i]] & 2)
                continue;
            different++;
            common += mark[now[i]];
            mark[now[i]] |= 2;
        }
        for (uint32_t i = 0; i < top_k; i++)
            mark[before[i]] = mark[now[i]] = 0;
        *sum += (double)common / (double)different;
        ++*pairs;
    }
}

void ts_route_distinct(const uint32_t *ids, uint64_t n_rows, uint32_t top_k, uint64_t width, uint32_t *seen, uint64_t *sum,
                       uint64_t *windows) {
    uint32_t different = 0;
    for (uint64_t at = 0; at < n_rows * top_k; at++) {
        different += seen[ids[at]]++ == 0;
        if (at >= width * top_k)
            different -= --seen[ids[at - width * top_k]] == 0;
        if (at % top_k == top_k - 1 && at + 1 >= width * top_k) {
            *sum += different;
            ++*windows;
        }
    }
    for (uint64_t at = 0; at < n_rows * top_k; at++)
        seen[ids[at]] = 0;
}

/* ---- uniform routing, exact */

/* A row leaves an expert out with probability 1 - k/n. */
double ts_route_uniform_unused(uint32_t n, uint32_t top_k, uint64_t rows) {
    if (rows == 0)
        return n;
    return top_k >= n ? 0.0 : (double)n * exp((double)rows * log1p(-(double)top_k / (double)n));
}

double ts_route_uniform_distinct(uint32_t n, uint32_t top_k, uint64_t width) {
    return (double)n - ts_route_uniform_unused(n, top_k, width);
}

/* The common part of two sets is hypergeometric: C(s,i) C(n-s,s-i) / C(n,s). */
double ts_route_uniform_jaccard(uint32_t n, uint32_t size) {
    double s = size, expected = 0.0, all = lgamma((double)n + 1) - lgamma(s + 1) - lgamma((double)n - s + 1);
    if (size == 0)
        return NAN;
    for (uint32_t i = 2 * (uint64_t)size > n ? 2 * size - n : 0; i <= size; i++) {
        double c = i;
        double in = lgamma(s + 1) - lgamma(c + 1) - lgamma(s - c + 1);
        double out = lgamma((double)n - s + 1) - lgamma(s - c + 1) - lgamma((double)n - 2 * s + c + 1);
        expected += exp(in + out - all) * c / (2 * s - c);
    }
    return expected;
}

/* ---- uniform routing, simulated */

/* splitmix64 */
static uint64_t next(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint32_t below(uint64_t *state, uint32_t n) {
    return (uint32_t)((next(state) >> 32) * n >> 32);
}

static double normal(uint64_t *state) {
    double u = ((double)(next(state) >> 11) + 0.5) * 0x1p-53, v = (double)(next(state) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(2.0 * acos(-1.0) * v);
}

/* The first top_k of a shuffle; any order to begin with will do, so the last one is left standing. */
void ts_route_draw(uint64_t *state, uint32_t *order, uint32_t n, uint32_t top_k, uint32_t *ids) {
    for (uint32_t i = 0; i < top_k && i < n; i++) {
        uint32_t j = i + below(state, n - i), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
        ids[i] = order[i];
    }
}

enum { MOST_RUNS = 64 };
static const uint64_t drawn_slots = UINT64_C(1) << 21;

static void simulate_rows(uint64_t *state, uint32_t n, uint32_t top_k, uint64_t rows, uint32_t *order, uint32_t *ids, uint64_t *counts) {
    memset(counts, 0, n * sizeof *counts);
    for (uint64_t t = 0; t < rows; t++) {
        ts_route_draw(state, order, n, top_k, ids);
        for (uint32_t i = 0; i < top_k; i++)
            counts[ids[i]]++;
    }
}

static void simulate_normal(uint64_t *state, uint32_t n, uint32_t top_k, uint64_t rows, uint64_t *counts) {
    double p = (double)top_k / (double)n, mean = (double)rows * p, deviation = sqrt(mean * (1.0 - p));
    for (uint32_t i = 0; i < n; i++) {
        double c = mean + deviation * normal(state);
        counts[i] = c > 0.0 ? (uint64_t)(c + 0.5) : 0;
    }
}

static void add_run(uint64_t *counts, uint32_t n, ts_route_uniform *out) {
    ts_route_sort(counts, n);
    out->n95 += ts_route_cover(counts, n, 95);
    out->n99 += ts_route_cover(counts, n, 99);
    out->gini += ts_route_gini(counts, n);
    out->entropy += ts_route_entropy(counts, n);
    out->runs++;
}

static uint32_t choose_runs(uint64_t slots) {
    uint64_t runs = slots ? drawn_slots / slots : 1;
    return runs < 1 ? 8 : runs > MOST_RUNS ? MOST_RUNS : (uint32_t)runs;
}

int ts_route_simulate(uint32_t n, uint32_t top_k, uint64_t rows, ts_route_uniform *out) {
    uint32_t k = top_k < n ? top_k : n; /* different experts cannot be more */
    uint64_t state = 1, slots = rows * k, *counts = ts_calloc((size_t)n + 1, sizeof *counts);
    uint32_t *order = ts_calloc((size_t)n + 1, sizeof *order), *ids = ts_calloc((size_t)k + 1, sizeof *ids);
    int rc = counts && order && ids ? TS_OK : TS_ERR_NOMEM;
    *out = (ts_route_uniform){0};
    for (uint32_t i = 0; rc == TS_OK && i < n; i++)
        order[i] = i;
    for (uint32_t run = choose_runs(slots); rc == TS_OK && run > 0; run--) {
        if (slots <= drawn_slots)
            simulate_rows(&state, n, k, rows, order, ids, counts);
        else
            simulate_normal(&state, n, k, rows, counts);
        add_run(counts, n, out);
    }
    if (out->runs > 0) {
        out->n95 /= out->runs;
        out->n99 /= out->runs;
        out->gini /= out->runs;
        out->entropy /= out->runs;
    }
    free(counts);
    free(order);
    free(ids);
    return rc;
}
