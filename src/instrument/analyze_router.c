/* Owns the figures of a routing census, layer by layer. Refuses to pair tokens of different generations. */
#include "instrument/analyze_router.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "stats/router_stats.h"

const unsigned ts_route_percent[TS_ROUTE_CAPACITIES] = {10, 25, 50, 75, 90, 100};
const char *const ts_route_names[TS_ROUTE_COLUMNS] = {"n95",  "n99",  "unused",     "gini",       "entropy",    "split_half", "overlap_1",
                                                      "overlap_8", "distinct_2", "distinct_4", "distinct_8", "distinct_16", "jaccard"};

enum { SIMULATED_ROWS = 4096, MOST_TRACES = 64 }; /* uniform traces: rows of one at most, and of all together at least */

/* One layer's scratch. */
typedef struct scratch {
    uint64_t *counts; /* [n] */
    uint32_t *order, *seen;
    uint8_t *mark, *hot[2];
    uint32_t *ids; /* [top_k] */
} scratch;

/* Uniform routing of one shape: layers share it. */
typedef struct uniform {
    uint32_t n, top_k;
    uint64_t rows;
    bool replayed;
    ts_route_uniform figures;
    double rate[TS_ROUTE_CAPACITIES][TS_CACHE_POLICIES];
} uniform;

typedef struct uniforms {
    uniform *list;
    size_t n;
} uniforms;

static void free_scratch(scratch *s) {
    free(s->counts);
    free(s->order);
    free(s->seen);
    free(s->mark);
    free(s->hot[0]);
    free(s->hot[1]);
    free(s->ids);
}

static int make_scratch(scratch *s, const ts_router *r, ts_error *err) {
    size_t n = (size_t)ts_router_experts(r) + 1;

    *s = (scratch){ts_calloc(n, sizeof *s->counts), ts_calloc(n, sizeof *s->order), ts_calloc(n, sizeof *s->seen),
                   ts_calloc(n, 1), {ts_calloc(n, 1), ts_calloc(n, 1)}, ts_calloc((size_t)ts_router_top_k(r) + 1, sizeof *s->ids)};
    return s->counts && s->order && s->seen && s->mark && s->hot[0] && s->hot[1] && s->ids
               ? TS_OK
               : ts_fail_nomem(err, "an analysis", n * sizeof *s->counts);
}

static void sum_counts(const ts_router_layer *l, uint64_t *counts) {
    for (uint32_t e = 0; e < l->n_experts; e++)
        counts[e] = l->counts[0][e] + l->counts[1][e];
}

/* ---- caches */

static void set_slots(uint32_t n, uint32_t slots[TS_ROUTE_CAPACITIES]) {
    for (int c = 0; c < TS_ROUTE_CAPACITIES; c++) {
        slots[c] = (uint32_t)((uint64_t)n * ts_route_percent[c] / 100);
        slots[c] = slots[c] ? slots[c] : 1;
    }
}

static uint32_t without_repeats(const uint32_t *row, uint32_t top_k, uint8_t *mark, uint32_t *ids) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < top_k; i++)
        if (!mark[row[i]]++)
            ids[n++] = row[i];
    for (uint32_t i = 0; i < n; i++)
        mark[ids[i]] = 0;
    return n;
}

static void add_counts(ts_cache_counts *to, const ts_cache_counts *from) {
    to->references += from->references;
    to->compulsory += from->compulsory;
    for (int i = 0; i < TS_ROUTE_CAPACITIES; i++)
        for (int p = 0; p < TS_CACHE_POLICIES; p++)
            to->hits[p][i] += from->hits[p][i];
}

/* Hits over the uses that are no first ones; NAN without any. */
static void take_rates(const ts_cache_counts *c, double rate[TS_ROUTE_CAPACITIES][TS_CACHE_POLICIES]) {
    uint64_t again = c->references - c->compulsory;

    for (int i = 0; i < TS_ROUTE_CAPACITIES; i++)
        for (int p = 0; p < TS_CACHE_POLICIES; p++)
            rate[i][p] = again ? (double)c->hits[p][i] / (double)again : NAN;
}

static int replay(const ts_router_layer *l, scratch *s, double rate[TS_ROUTE_CAPACITIES][TS_CACHE_POLICIES], ts_error *err) {
    uint32_t slots[TS_ROUTE_CAPACITIES];
    ts_cache_replay *cache = NULL;

    set_slots(l->n_experts, slots);
    int rc = ts_cache_replay_create(l->n_experts, slots, TS_ROUTE_CAPACITIES, &cache);
    for (uint64_t t = 0; t < ts_router_rows(l) && rc == TS_OK; t++) {
        uint32_t n = without_repeats(l->trace + t * l->top_k, l->top_k, s->mark, s->ids);

        rc = ts_cache_replay_pass(cache, s->ids, n);
    }
    if (rc == TS_OK)
        take_rates(ts_cache_replay_counts(cache), rate);
    ts_cache_replay_free(cache);
    return rc == TS_OK ? TS_OK : ts_fail(err, rc, "a cache of experts cannot be replayed");
}

/* One uniform trace through caches that are empty at first. */
static int replay_drawn(const uniform *u, uint64_t rows, uint64_t *state, scratch *s, ts_cache_counts *sum) {
    uint32_t slots[TS_ROUTE_CAPACITIES], k = u->top_k < u->n ? u->top_k : u->n;
    ts_cache_replay *cache = NULL;

    set_slots(u->n, slots);
    int rc = ts_cache_replay_create(u->n, slots, TS_ROUTE_CAPACITIES, &cache);
    for (uint64_t t = 0; t < rows && rc == TS_OK; t++) {
        ts_route_draw(state, s->order, u->n, k, s->ids);
        rc = ts_cache_replay_pass(cache, s->ids, k);
    }
    if (rc == TS_OK)
        add_counts(sum, ts_cache_replay_counts(cache));
    ts_cache_replay_free(cache);
    return rc;
}

/* Traces as long as the layer's own, as many as give a steady mean. */
static int replay_uniform(uniform *u, scratch *s, ts_error *err) {
    uint64_t state = 2, rows = u->rows < SIMULATED_ROWS ? u->rows : SIMULATED_ROWS, traces = (SIMULATED_ROWS + rows - 1) / rows;
    ts_cache_counts sum = {0};
    int rc = TS_OK;

    for (uint32_t i = 0; i < u->n; i++)
        s->order[i] = i;
    for (uint64_t i = 0; i < traces && i < MOST_TRACES && rc == TS_OK; i++)
        rc = replay_drawn(u, rows, &state, s, &sum);
    take_rates(&sum, u->rate);
    u->replayed = true;
    return rc == TS_OK ? TS_OK : ts_fail(err, rc, "a cache of experts cannot be replayed");
}

/* ---- one layer */

static int find_uniform(uniforms *all, const ts_router_layer *l, uniform **out, ts_error *err) {
    uint64_t rows = ts_router_rows(l);

    for (size_t i = 0; i < all->n; i++) {
        *out = &all->list[i];
        if ((*out)->n == l->n_experts && (*out)->top_k == l->top_k && (*out)->rows == rows)
            return TS_OK;
    }
    uniform *grown = ts_realloc(all->list, all->n + 1, sizeof *grown);
    if (!grown)
        return ts_fail_nomem(err, "an analysis", (all->n + 1) * sizeof *grown);
    all->list = grown;
    *out = &grown[all->n++];
    **out = (uniform){.n = l->n_experts, .top_k = l->top_k, .rows = rows};
    return ts_route_simulate(l->n_experts, l->top_k, rows, &(*out)->figures) == TS_OK
               ? TS_OK
               : ts_fail_nomem(err, "an analysis", l->n_experts * sizeof(uint64_t));
}

static void fill_counts(ts_route_row *row, const ts_router_layer *l, scratch *s, const uniform *u) {
    uint32_t n = l->n_experts, k = l->top_k < n ? l->top_k : n;

    sum_counts(l, s->counts);
    row->value[TS_ROUTE_UNUSED] = ts_route_unused(s->counts, n);
    row->value[TS_ROUTE_ENTROPY] = ts_route_entropy(s->counts, n);
    ts_route_sort(s->counts, n);
    row->value[TS_ROUTE_N95] = ts_route_cover(s->counts, n, 95);
    row->value[TS_ROUTE_N99] = ts_route_cover(s->counts, n, 99);
    row->value[TS_ROUTE_GINI] = ts_route_gini(s->counts, n);
    row->uniform[TS_ROUTE_UNUSED] = ts_route_uniform_unused(n, k, row->rows);
    row->uniform[TS_ROUTE_ENTROPY] = u->figures.entropy;
    row->uniform[TS_ROUTE_N95] = u->figures.n95;
    row->uniform[TS_ROUTE_N99] = u->figures.n99;
    row->uniform[TS_ROUTE_GINI] = u->figures.gini;
}

static void hot_of_rows(const ts_router_layer *l, uint64_t first, uint64_t end, uint32_t size, scratch *s, uint8_t *hot) {
    memset(s->counts, 0, l->n_experts * sizeof *s->counts);
    for (uint64_t at = first * l->top_k; at < end * l->top_k; at++)
        s->counts[l->trace[at]]++;
    ts_route_hot(s->counts, l->n_experts, size, s->order, hot);
}

/* Two independent hot sets of uniform routing share size / n of their experts, whatever the number of rows. */
static void fill_split(ts_route_row *row, const ts_router_layer *l, scratch *s) {
    uint64_t half = row->rows / 2;

    if (half == 0)
        return;
    hot_of_rows(l, 0, half, row->hot_size, s, s->hot[0]);
    hot_of_rows(l, half, row->rows, row->hot_size, s, s->hot[1]);
    row->value[TS_ROUTE_SPLIT] = (double)ts_route_common(s->hot[0], s->hot[1], l->n_experts) / row->hot_size;
    row->uniform[TS_ROUTE_SPLIT] = (double)row->hot_size / l->n_experts;
}

static void fill_overlap(ts_route_row *row, const ts_router *r, const ts_router_layer *l, int column, uint64_t lag, scratch *s) {
    double sum = 0.0;
    uint64_t pairs = 0, at = 0;

    for (uint64_t g = 0; g < r->n_generations; g++) {
        uint64_t rows = l->generation_rows[2 * g] + l->generation_rows[2 * g + 1];

        ts_route_overlap(l->trace + at * l->top_k, rows, l->top_k, lag, s->mark, &sum, &pairs);
        at += rows;
    }
    row->value[column] = pairs ? sum / (double)pairs : NAN;
    row->uniform[column] = l->top_k < l->n_experts ? (double)l->top_k / l->n_experts : 1.0;
}

static void fill_windows(ts_route_row *row, const ts_router *r, const ts_router_layer *l, int column, uint64_t width, scratch *s) {
    uint64_t sum = 0, windows = 0, at = 0;

    for (uint64_t g = 0; g < r->n_generations; g++) {
        uint64_t rows = l->generation_rows[2 * g] + l->generation_rows[2 * g + 1];

        ts_route_distinct(l->trace + at * l->top_k, rows, l->top_k, width, s->seen, &sum, &windows);
        at += rows;
    }
    row->value[column] = windows ? (double)sum / (double)windows : NAN;
    row->uniform[column] = ts_route_uniform_distinct(l->n_experts, l->top_k < l->n_experts ? l->top_k : l->n_experts, width);
}

static int fill_trace(ts_route_row *row, const ts_router *r, const ts_router_layer *l, scratch *s, uniform *u, ts_error *err) {
    fill_split(row, l, s);
    fill_overlap(row, r, l, TS_ROUTE_LAG1, 1, s);
    fill_overlap(row, r, l, TS_ROUTE_LAG8, 8, s);
    for (int i = 0; i < 4; i++)
        fill_windows(row, r, l, TS_ROUTE_W2 + i, UINT64_C(2) << i, s);
    int rc = replay(l, s, row->rate, err);
    if (rc == TS_OK && !u->replayed)
        rc = replay_uniform(u, s, err);
    memcpy(row->uniform_rate, u->rate, sizeof row->uniform_rate);
    return rc;
}

static void fill_pair(ts_route_row *row, const ts_router_layer *a, const ts_router_layer *b, scratch *s) {
    const ts_router_layer *const both[2] = {a, b};

    if (row->rows == 0 || ts_router_rows(b) == 0)
        return;
    for (int i = 0; i < 2; i++) {
        sum_counts(both[i], s->counts);
        ts_route_hot(s->counts, a->n_experts, row->hot_size, s->order, s->hot[i]);
    }
    uint32_t common = ts_route_common(s->hot[0], s->hot[1], a->n_experts);
    row->value[TS_ROUTE_JACCARD] = (double)common / (double)(2 * row->hot_size - common);
    row->uniform[TS_ROUTE_JACCARD] = ts_route_uniform_jaccard(a->n_experts, row->hot_size);
}

static void begin_row(ts_route_row *row, int32_t block, const ts_router_layer *l) {
    *row = (ts_route_row){.block = block};
    if (l) {
        row->n_experts = l->n_experts;
        row->top_k = l->top_k;
        row->hot_size = ts_route_hot_size(l->n_experts, l->top_k);
        row->rows = ts_router_rows(l);
        row->duplicates = l->duplicates;
        set_slots(l->n_experts, row->slots);
    }
    for (int i = 0; i < TS_ROUTE_COLUMNS; i++)
        row->value[i] = row->uniform[i] = NAN;
    for (int c = 0; c < TS_ROUTE_CAPACITIES; c++)
        for (int p = 0; p < TS_CACHE_POLICIES; p++)
            row->rate[c][p] = row->uniform_rate[c][p] = NAN;
}

/* ---- all layers */

static double mean_of(const ts_route_analysis *a, size_t offset) {
    double sum = 0.0;
    size_t n = 0;

    for (size_t i = 0; i < a->n; i++) {
        double x;

        memcpy(&x, (const char *)&a->rows[i] + offset, sizeof x);
        if (!isnan(x)) {
            sum += x;
            n++;
        }
    }
    return n ? sum / (double)n : NAN;
}

static void fill_mean(ts_route_analysis *a) {
    ts_route_row *m = &a->mean;

    begin_row(m, -1, NULL);
    for (size_t i = 0; i < TS_ROUTE_COLUMNS; i++) {
        m->value[i] = mean_of(a, offsetof(ts_route_row, value) + i * sizeof(double));
        m->uniform[i] = mean_of(a, offsetof(ts_route_row, uniform) + i * sizeof(double));
    }
    for (size_t c = 0; c < TS_ROUTE_CAPACITIES * TS_CACHE_POLICIES; c++) {
        m->rate[c / TS_CACHE_POLICIES][c % TS_CACHE_POLICIES] = mean_of(a, offsetof(ts_route_row, rate) + c * sizeof(double));
        m->uniform_rate[c / TS_CACHE_POLICIES][c % TS_CACHE_POLICIES] =
            mean_of(a, offsetof(ts_route_row, uniform_rate) + c * sizeof(double));
    }
}

int ts_route_analyze(ts_route_analysis *a, const ts_router *router, const ts_router *against, ts_error *err) {
    scratch s = {0};
    uniforms all = {0};
    uniform *u = NULL;

    *a = (ts_route_analysis){.router = router, .against = against, .rows = ts_calloc(router->n_layers, sizeof *a->rows)};
    int rc = a->rows ? make_scratch(&s, router, err) : ts_fail_nomem(err, "an analysis", router->n_layers * sizeof *a->rows);
    for (uint32_t i = 0; i < router->n_layers && rc == TS_OK; i++) {
        const ts_router_layer *l = &router->layers[i];

        if (l->n_experts == 0)
            continue;
        ts_route_row *row = &a->rows[a->n++];
        begin_row(row, (int32_t)i, l);
        if (row->rows > 0)
            rc = find_uniform(&all, l, &u, err);
        if (rc == TS_OK && row->rows > 0)
            fill_counts(row, l, &s, u);
        if (rc == TS_OK && row->rows > 0 && router->traced)
            rc = fill_trace(row, router, l, &s, u, err);
        if (rc == TS_OK && against)
            fill_pair(row, l, &against->layers[i], &s);
    }
    if (rc == TS_OK)
        fill_mean(a);
    free(all.list);
    free_scratch(&s);
    return rc;
}

void ts_route_analysis_free(ts_route_analysis *a) {
    free(a->rows);
    *a = (ts_route_analysis){0};
}
