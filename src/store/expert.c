/* Owns an expert-activation census in memory: what must add up, sums. Refuses sums of
 * other models or shapes. */
#include "store/expert.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/plural.h"

#define LIMIT (UINT64_C(1) << 60)

int ts_experts_init(ts_experts *x, uint32_t n_layers, ts_error *err) {
    *x = (ts_experts){.n_layers = n_layers};
    x->layers = ts_calloc(n_layers, sizeof *x->layers);
    return x->layers ? TS_OK : ts_fail_nomem(err, "an expert census", n_layers * sizeof *x->layers);
}

int ts_expert_layer_init(ts_expert_layer *l, uint32_t n_experts, uint32_t top_k, uint32_t width, ts_error *err) {
    l->n_experts = n_experts;
    l->top_k = top_k;
    l->width = width;
    l->rows = ts_calloc(n_experts, sizeof *l->rows);
    l->mass = ts_calloc((size_t)n_experts * width, sizeof *l->mass);
    return l->rows && l->mass ? TS_OK : ts_fail_nomem(err, "an expert census", (size_t)n_experts * width * sizeof *l->mass);
}

void ts_experts_free(ts_experts *x) {
    for (uint32_t i = 0; x->layers && i < x->n_layers; i++) {
        ts_free(x->layers[i].rows);
        ts_free(x->layers[i].mass);
    }
    ts_free(x->layers);
    *x = (ts_experts){0};
}

/* ---- what must add up */

static int check_sum(const uint64_t *counts, uint32_t n, uint64_t expected, uint32_t layer, const char *what, ts_error *err) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (counts[i] > expected - sum)
            return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": %s adds up to more than %" PRIu64, layer, what, expected);
        sum += counts[i];
    }
    if (sum != expected)
        return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": %s adds up to %" PRIu64 ", expected %" PRIu64, layer, what, sum, expected);
    return TS_OK;
}

static int check_masses(const ts_expert_layer *l, uint32_t layer, ts_error *err) {
    for (uint32_t e = 0; e < l->n_experts; e++)
        for (uint32_t i = 0; l->rows[e] > 0 && i < l->width; i++) {
            double mass = l->mass[(size_t)e * l->width + i];
            if (!isfinite(mass) || mass < 0.0)
                return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": neuron %" PRIu32 " of expert %" PRIu32 " has a mass of %g", layer, i,
                               e, mass);
        }
    return TS_OK;
}

int ts_experts_check(const ts_experts *x, ts_error *err) {
    int rc = TS_OK;
    for (uint32_t i = 0; rc == TS_OK && i < x->n_layers; i++) {
        const ts_expert_layer *l = &x->layers[i];
        if (l->n_experts == 0)
            continue;
        if (l->top_k == 0 || l->width == 0 || x->decode_passes > LIMIT / l->top_k / l->width)
            return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": %" PRIu64 " passes of %" PRIu32 " experts of %" PRIu32
                           " neurons cannot be counted", i, x->decode_passes, l->top_k, l->width);
        rc = check_sum(l->rows, l->n_experts, x->decode_passes * l->top_k, i, "rows", err);
        if (rc == TS_OK)
            rc = check_sum(l->bucket_count, TS_EXPERT_BUCKETS, x->decode_passes * l->top_k * l->width, i, "bucket_count", err);
        if (rc == TS_OK)
            rc = check_masses(l, i, err);
    }
    return rc;
}

/* ---- sums */

static int check_same(const ts_experts *a, const ts_experts *b, ts_error *err) {
    if (a->model[0] && b->model[0] && strcmp(a->model, b->model) != 0)
        return ts_fail(err, TS_ERR_ARG, "its experts are of model %s, expected %s", b->model, a->model);
    if (a->n_layers != b->n_layers)
        return ts_fail(err, TS_ERR_ARG, "its experts are in %" PRIu32 " layer%s, expected %" PRIu32, b->n_layers, ts_plural(b->n_layers), a->n_layers);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        const ts_expert_layer *x = &a->layers[i], *y = &b->layers[i];
        if (x->n_experts != y->n_experts || x->top_k != y->top_k || x->width != y->width)
            return ts_fail(err, TS_ERR_ARG, "layer %" PRIu32 " has %" PRIu32 " of %" PRIu32 " experts of %" PRIu32
                           " neurons, expected %" PRIu32 " of %" PRIu32 " of %" PRIu32, i, y->top_k, y->n_experts, y->width, x->top_k,
                           x->n_experts, x->width);
    }
    if (a->decode_passes > LIMIT / 2 || b->decode_passes > LIMIT / 2)
        return ts_fail(err, TS_ERR_ARG, "too many passes to count");
    return TS_OK;
}

int ts_experts_add(ts_experts *dst, const ts_experts *src, ts_error *err) {
    int rc = check_same(dst, src, err);
    for (uint32_t i = 0; rc == TS_OK && i < dst->n_layers; i++) {
        ts_expert_layer *to = &dst->layers[i];
        const ts_expert_layer *from = &src->layers[i];
        for (uint32_t e = 0; e < to->n_experts; e++)
            to->rows[e] += from->rows[e];
        for (size_t k = 0; k < (size_t)to->n_experts * to->width; k++)
            to->mass[k] += from->mass[k];
        for (int b = 0; b < TS_EXPERT_BUCKETS; b++)
            to->bucket_count[b] += from->bucket_count[b];
    }
    if (rc == TS_OK)
        dst->decode_passes += src->decode_passes;
    return rc;
}
