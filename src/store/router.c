/* Owns a routing census in memory: counting, tracing, adding up. Refuses ids that a layer does not have, and sums of
 * different models or shapes, naming the difference. */
#include "store/router.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/file.h"
#include "core/mem.h"
#include "core/plural.h"
#include "store/meta.h"

int ts_router_init(ts_router *r, uint32_t n_layers, bool traced, ts_error *err) {
    *r = (ts_router){.traced = traced, .split = true, .bounded = true};
    r->layers = ts_calloc(n_layers, sizeof *r->layers);
    r->n_layers = r->layers ? n_layers : 0;
    return r->layers ? TS_OK : ts_fail_nomem(err, "a routing census", n_layers * sizeof *r->layers);
}

int ts_router_layer_init(ts_router_layer *l, uint32_t n_experts, uint32_t top_k, bool gated, ts_error *err) {
    l->n_experts = n_experts;
    l->top_k = top_k;
    if (n_experts == 0)
        return TS_OK;
    for (int p = 0; p < TS_ROUTER_PHASES; p++)
        l->counts[p] = ts_calloc(n_experts, sizeof **l->counts);
    l->gate_mass = gated ? ts_calloc(n_experts, sizeof *l->gate_mass) : NULL;
    bool good = l->counts[0] && l->counts[1] && (!gated || l->gate_mass);
    return good ? TS_OK : ts_fail_nomem(err, "a routing census", n_experts * sizeof **l->counts);
}

void ts_router_forget_sources(ts_router *r) {
    for (size_t i = 0; i < r->n_sources; i++)
        ts_free(r->sources[i].path);
    ts_free(r->sources);
    r->sources = NULL;
    r->n_sources = 0;
}

void ts_router_free(ts_router *r) {
    for (uint32_t i = 0; r->layers && i < r->n_layers; i++) {
        ts_router_layer *l = &r->layers[i];
        ts_free(l->counts[0]);
        ts_free(l->counts[1]);
        ts_free(l->gate_mass);
        ts_free(l->trace);
        ts_free(l->generation_rows);
    }
    ts_free(r->layers);
    ts_free(r->sites_json);
    if (r->provenance != NULL)
        ts_meta_provenance_free(r->provenance);
    ts_free(r->provenance);
    ts_router_forget_sources(r);
    *r = (ts_router){0};
}

uint32_t ts_router_experts(const ts_router *r) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < r->n_layers; i++)
        most = r->layers[i].n_experts > most ? r->layers[i].n_experts : most;
    return most;
}

uint32_t ts_router_top_k(const ts_router *r) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < r->n_layers; i++)
        most = r->layers[i].top_k > most ? r->layers[i].top_k : most;
    return most;
}

uint64_t ts_router_rows(const ts_router_layer *l) {
    return l->rows[TS_ROUTER_PREFILL] + l->rows[TS_ROUTER_DECODE];
}

uint64_t ts_router_most_rows(const ts_router *r) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < r->n_layers; i++) {
        uint64_t rows = ts_router_rows(&r->layers[i]);
        most = rows > most ? rows : most;
    }
    return most;
}

/* ---- counting */

static bool repeats(const int32_t *ids, uint32_t i) {
    for (uint32_t j = 0; j < i; j++)
        if (ids[j] == ids[i])
            return true;
    return false;
}

int ts_router_count(ts_router_layer *l, enum ts_router_phase phase, const int32_t *ids, const float *weights, ts_error *err) {
    for (uint32_t i = 0; i < l->top_k; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= l->n_experts)
            return ts_fail(err, TS_ERR_ENGINE, "the router chose expert %" PRId32 " of %" PRIu32, ids[i], l->n_experts);
    for (uint32_t i = 0; i < l->top_k; i++) {
        l->counts[phase][ids[i]]++;
        l->duplicates += repeats(ids, i);
        if (l->gate_mass == NULL || weights == NULL)
            continue;
        if (isfinite(weights[i]))
            l->gate_mass[ids[i]] += fabs((double)weights[i]);
        else
            l->gate_nonfinite++;
    }
    l->rows[phase]++;
    return TS_OK;
}

int ts_router_trace(ts_router_layer *l, const uint32_t *ids, uint64_t n, ts_error *err) {
    if (l->n_trace + n > l->trace_capacity) {
        uint64_t capacity = l->trace_capacity * 2 > l->n_trace + n ? l->trace_capacity * 2 : l->n_trace + n;
        uint32_t *grown = ts_realloc(l->trace, capacity, sizeof *grown);
        if (grown == NULL)
            return ts_fail_nomem(err, "a routing trace", capacity * sizeof *grown);
        l->trace = grown;
        l->trace_capacity = capacity;
    }
    if (n > 0)
        memcpy(l->trace + l->n_trace, ids, n * sizeof *ids);
    l->n_trace += n;
    return TS_OK;
}

static int reserve_generations(ts_router_layer *l, uint64_t n, ts_error *err) {
    if (n <= l->generation_capacity)
        return TS_OK;
    uint64_t capacity = l->generation_capacity * 2 > n ? l->generation_capacity * 2 : n;
    uint64_t *grown = ts_realloc(l->generation_rows, capacity * TS_ROUTER_PHASES, sizeof *grown);
    if (grown == NULL)
        return ts_fail_nomem(err, "generations", capacity * sizeof *grown);
    l->generation_rows = grown;
    l->generation_capacity = capacity;
    return TS_OK;
}

int ts_router_generation(ts_router *r, const uint64_t *rows, ts_error *err) {
    int rc = TS_OK;
    for (uint32_t i = 0; rc == TS_OK && i < r->n_layers; i++)
        if (r->layers[i].n_experts > 0)
            rc = reserve_generations(&r->layers[i], r->n_generations + 1, err);
    for (uint32_t i = 0; rc == TS_OK && i < r->n_layers; i++)
        if (r->layers[i].n_experts > 0)
            memcpy(r->layers[i].generation_rows + r->n_generations * TS_ROUTER_PHASES, rows + i * TS_ROUTER_PHASES,
                   TS_ROUTER_PHASES * sizeof *rows);
    if (rc == TS_OK)
        r->n_generations++;
    return rc;
}

/* ---- adding up */

static const char *name_of(const ts_router *r) {
    return r->n_sources > 0 && r->sources[0].path ? r->sources[0].path : "a routing census";
}

int ts_router_same_shape(const ts_router *a, const ts_router *b, ts_error *err) {
    int rc = a->provenance && b->provenance ? ts_meta_same_model(a->provenance, b->provenance, err) : TS_OK;
    if (rc == TS_OK && a->n_layers != b->n_layers)
        rc = ts_fail(err, TS_ERR_ARG, "it has %" PRIu32 " layer%s, expected %" PRIu32, b->n_layers, ts_plural(b->n_layers), a->n_layers);
    for (uint32_t i = 0; rc == TS_OK && i < a->n_layers; i++) {
        const ts_router_layer *x = &a->layers[i], *y = &b->layers[i];
        if (x->n_experts != y->n_experts || x->top_k != y->top_k)
            rc = ts_fail(err, TS_ERR_ARG,
                         "layer %" PRIu32 " chooses %" PRIu32 " of %" PRIu32 " experts, expected %" PRIu32 " of %" PRIu32, i,
                         y->top_k, y->n_experts, x->top_k, x->n_experts);
    }
    return rc;
}

static int append_sources(ts_router *dst, const ts_router *src, ts_error *err) {
    ts_router_source *grown = ts_realloc(dst->sources, dst->n_sources + src->n_sources, sizeof *grown);
    if (grown == NULL)
        return ts_fail_nomem(err, "sources", src->n_sources * sizeof *grown);
    dst->sources = grown;
    for (size_t i = 0; i < src->n_sources; i++) {
        ts_router_source *to = &grown[dst->n_sources];
        *to = src->sources[i];
        to->path = ts_strdup(src->sources[i].path ? src->sources[i].path : "");
        if (to->path == NULL)
            return ts_fail_nomem(err, "sources", sizeof *grown);
        dst->n_sources++;
    }
    return TS_OK;
}

static void drop_trace(ts_router *r) {
    for (uint32_t i = 0; i < r->n_layers; i++) {
        ts_router_layer *l = &r->layers[i];
        ts_free(l->trace);
        ts_free(l->generation_rows);
        l->trace = NULL;
        l->generation_rows = NULL;
        l->n_trace = l->trace_capacity = l->generation_capacity = 0;
    }
    r->traced = false;
}

static int add_trace(ts_router *dst, const ts_router *src, ts_error *err) {
    int rc = TS_OK;
    for (uint32_t i = 0; rc == TS_OK && i < dst->n_layers; i++) {
        ts_router_layer *to = &dst->layers[i];
        const ts_router_layer *from = &src->layers[i];
        if (to->n_experts == 0)
            continue;
        rc = ts_router_trace(to, from->trace, from->n_trace, err);
        if (rc == TS_OK)
            rc = reserve_generations(to, dst->n_generations + src->n_generations, err);
        if (rc == TS_OK && src->n_generations > 0)
            memcpy(to->generation_rows + dst->n_generations * TS_ROUTER_PHASES, from->generation_rows,
                   src->n_generations * TS_ROUTER_PHASES * sizeof *from->generation_rows);
    }
    return rc;
}

static void add_layer(ts_router_layer *dst, const ts_router_layer *src) {
    bool gated = dst->gate_mass && src->gate_mass;
    for (int p = 0; p < TS_ROUTER_PHASES; p++)
        dst->rows[p] += src->rows[p];
    for (uint32_t e = 0; e < dst->n_experts; e++) {
        dst->counts[0][e] += src->counts[0][e];
        dst->counts[1][e] += src->counts[1][e];
        if (gated)
            dst->gate_mass[e] += src->gate_mass[e];
    }
    dst->duplicates += src->duplicates;
    dst->gate_nonfinite += src->gate_nonfinite;
    if (!gated) {
        ts_free(dst->gate_mass);
        dst->gate_mass = NULL;
        dst->gate_nonfinite = 0;
    }
}

int ts_router_add(ts_router *dst, const ts_router *src, ts_error *err) {
    const uint64_t limit = UINT64_C(1) << 59;
    int rc = ts_router_same_shape(dst, src, err);
    if (rc == TS_OK && (ts_router_most_rows(dst) > limit / (ts_router_top_k(dst) + 1) ||
                        ts_router_most_rows(src) > limit / (ts_router_top_k(dst) + 1)))
        rc = ts_fail(err, TS_ERR_ARG, "too many rows to count");
    if (rc < 0) {
        ts_error_prefix(err, "'%s' cannot be added to '%s': ", name_of(src), name_of(dst));
        return rc;
    }
    rc = append_sources(dst, src, err);
    if (rc == TS_OK && dst->traced && src->traced)
        rc = add_trace(dst, src, err);
    else if (rc == TS_OK)
        drop_trace(dst);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < dst->n_layers; i++)
        add_layer(&dst->layers[i], &src->layers[i]);
    dst->n_generations += src->n_generations;
    dst->split = dst->split && src->split;
    dst->bounded = dst->bounded && src->bounded;
    dst->partial = dst->partial || src->partial;
    return TS_OK;
}
