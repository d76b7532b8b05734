/* Owns what must add up in a routing census. Writer and readers call it. */
#include <inttypes.h>
#include <math.h>

#include "core/mem.h"
#include "core/plural.h"
#include "store/router_internal.h"

/* No sum of counts can overflow below it. */
#define LIMIT (UINT64_C(1) << 60)

static int wrong(ts_error *err, uint32_t layer, const char *what, uint64_t got, uint64_t expected) {
    return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": %s %" PRIu64 ", expected %" PRIu64, layer, what, got, expected);
}

static int check_phase(const ts_router_layer *l, uint32_t i, int p, ts_error *err) {
    static const char *const sums[] = {"its prefill counts add up to", "its counts add up to"};
    uint64_t sum = 0;
    if (l->rows[p] > LIMIT / l->top_k)
        return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 " has too many rows: %" PRIu64, i, l->rows[p]);
    for (uint32_t e = 0; e < l->n_experts; e++) {
        if (l->counts[p][e] > LIMIT - sum)
            return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": its counts add up to more than %" PRIu64, i, LIMIT);
        sum += l->counts[p][e];
    }
    return sum == l->rows[p] * l->top_k ? TS_OK : wrong(err, i, sums[p], sum, l->rows[p] * l->top_k);
}

static int check_gate(const ts_router_layer *l, uint32_t i, ts_error *err) {
    uint64_t slots = ts_router_rows(l) * l->top_k;
    for (uint32_t e = 0; l->gate_mass && e < l->n_experts; e++)
        if (!isfinite(l->gate_mass[e]) || l->gate_mass[e] < 0.0)
            return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": the gate mass of expert %" PRIu32 " is %g", i, e, l->gate_mass[e]);
    if (l->gate_nonfinite > slots)
        return wrong(err, i, "its weights that are not finite are", l->gate_nonfinite, slots);
    return l->duplicates > slots ? wrong(err, i, "its duplicates are", l->duplicates, slots) : TS_OK;
}

static int check_generations(const ts_router *r, const ts_router_layer *l, uint32_t i, ts_error *err) {
    uint64_t sum[TS_ROUTER_PHASES] = {0};
    for (uint64_t g = 0; g < r->n_generations * TS_ROUTER_PHASES; g++) {
        if (l->generation_rows[g] > LIMIT)
            return wrong(err, i, "a generation has rows", l->generation_rows[g], ts_router_rows(l));
        sum[g % TS_ROUTER_PHASES] += l->generation_rows[g];
        if (sum[g % TS_ROUTER_PHASES] > LIMIT)
            return wrong(err, i, "its generations' rows add up to", sum[g % TS_ROUTER_PHASES], ts_router_rows(l));
    }
    for (int p = 0; p < TS_ROUTER_PHASES; p++)
        if (sum[p] != l->rows[p])
            return wrong(err, i, p ? "its generations' decode rows add up to" : "its generations' prefill rows add up to", sum[p],
                         l->rows[p]);
    return TS_OK;
}

uint64_t ts_router_trace_duplicates(const ts_router_layer *l) {
    uint64_t duplicates = 0;
    for (uint64_t at = 0; l->top_k && at < l->n_trace; at++) {
        uint64_t first = at - at % l->top_k;
        bool again = false;
        for (uint64_t j = first; j < at && !again; j++)
            again = l->trace[j] == l->trace[at];
        duplicates += again;
    }
    return duplicates;
}

static int compare_trace(const ts_router *r, const ts_router_layer *l, uint32_t i, uint64_t *counts, ts_error *err) {
    for (uint64_t at = 0; at < l->n_trace; at++)
        if (l->trace[at] >= l->n_experts)
            return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": element %" PRIu64 " of its trace is expert %" PRIu32 ", it has %" PRIu32,
                           i, at, l->trace[at], l->n_experts);
    uint64_t duplicates = ts_router_trace_duplicates(l);
    for (uint64_t at = 0; at < l->n_trace; at++)
        counts[l->trace[at]]++;
    for (uint32_t e = 0; e < l->n_experts; e++)
        if (counts[e] != l->counts[0][e] + l->counts[1][e])
            return ts_fail(err, TS_ERR_FORMAT,
                           "layer %" PRIu32 ": its trace holds expert %" PRIu32 " %" PRIu64 " times, its counts say %" PRIu64, i, e,
                           counts[e], l->counts[0][e] + l->counts[1][e]);
    if (r->split && duplicates != l->duplicates)
        return wrong(err, i, "its duplicates are", l->duplicates, duplicates);
    return TS_OK;
}

static int check_trace(const ts_router *r, const ts_router_layer *l, uint32_t i, ts_error *err) {
    uint64_t expected = ts_router_rows(l) * l->top_k;
    if (l->n_trace != expected)
        return wrong(err, i, "the elements of its trace are", l->n_trace, expected);
    uint64_t *counts = ts_calloc((size_t)l->n_experts + 1, sizeof *counts);
    if (counts == NULL)
        return ts_fail_nomem(err, "counts of a trace", l->n_experts * sizeof *counts);
    int rc = compare_trace(r, l, i, counts, err);
    ts_free(counts);
    return rc == TS_OK ? check_generations(r, l, i, err) : rc;
}

static int wrong_top_k(const ts_router_layer *l, uint32_t i, ts_error *err) {
    return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": its top_k is %" PRIu32 ", expected at most its %" PRIu32 " expert%s", i, l->top_k,
                   l->n_experts, ts_plural(l->n_experts));
}

static int check_layer(const ts_router *r, uint32_t i, ts_error *err) {
    const ts_router_layer *l = &r->layers[i];
    if (l->n_experts == 0)
        return l->n_trace == 0 ? TS_OK : ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 " has a trace but no experts", i);
    if (l->top_k == 0)
        return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 " has experts but a top_k of 0", i);
    if (l->top_k > l->n_experts)
        return wrong_top_k(l, i, err);
    int rc = check_phase(l, i, TS_ROUTER_PREFILL, err);
    if (rc == TS_OK)
        rc = check_phase(l, i, TS_ROUTER_DECODE, err);
    if (rc == TS_OK)
        rc = check_gate(l, i, err);
    return rc == TS_OK && r->traced ? check_trace(r, l, i, err) : rc;
}

int ts_router_check(const ts_router *r, ts_error *err) {
    if (ts_router_experts(r) == 0)
        return ts_fail(err, TS_ERR_FORMAT, "no layer has experts");
    int rc = TS_OK;
    for (uint32_t i = 0; rc == TS_OK && i < r->n_layers; i++)
        rc = check_layer(r, i, err);
    return rc;
}
