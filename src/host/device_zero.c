/* Zeroing as a ggml graph. Owns the operations that leave finite values the same bits and those that are not finite alone;
 * refuses nothing but what the backend does not compute. */
#include "host/device_zero.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "core/mem.h"
#include "ggml-alloc.h"
#include "host/tap.h"

#define NODES 64

typedef struct zero_graph {
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    struct ggml_tensor *n_zero; /* [1, n_rows] */
} zero_graph;

/* 1 where |x| < limit; 0 for a NaN. */
static struct ggml_tensor *below(struct ggml_context *ctx, struct ggml_tensor *x, float limit) {
    return ggml_step(ctx, ggml_scale_bias(ctx, ggml_abs(ctx, x), -1.0f, limit));
}

/* The smallest float that is not below the threshold: the same values are below both. */
static float limit_of(double threshold) {
    float f = (float)threshold;
    return (double)f < threshold ? nextafterf(f, INFINITY) : f;
}

static struct ggml_tensor *zero_below(struct ggml_context *ctx, struct ggml_tensor *x, float limit) {
    return ggml_mul_inplace(ctx, x, ggml_scale_bias(ctx, below(ctx, x, limit), -1.0f, 1.0f));
}

/* |x|, FLT_MAX for what is not finite: a NaN has no place in an order, and clamps of it differ. */
static struct ggml_tensor *magnitudes(struct ggml_context *ctx, struct ggml_tensor *x) {
    struct ggml_tensor *finite = ggml_step(ctx, ggml_scale_bias(ctx, x, 0.0f, 1.0f));
    struct ggml_tensor *m = ggml_mul(ctx, ggml_clamp(ctx, ggml_abs(ctx, x), 0.0f, FLT_MAX), finite);
    return ggml_add(ctx, m, ggml_scale_bias(ctx, finite, -FLT_MAX, FLT_MAX));
}

/* The last k of each row in descending order. */
static struct ggml_tensor *zero_last(struct ggml_context *ctx, struct ggml_tensor *x, int64_t k) {
    int64_t n = x->ne[0], rows = x->ne[1];
    struct ggml_tensor *m = magnitudes(ctx, x), *order = ggml_argsort(ctx, m, GGML_SORT_ORDER_DESC);
    struct ggml_tensor *last = ggml_view_2d(ctx, order, k, rows, order->nb[1], (size_t)(n - k) * sizeof(int32_t));
    struct ggml_tensor *zeros = ggml_scale(ctx, ggml_view_3d(ctx, m, 1, k, rows, sizeof(float), (size_t)k * sizeof(float), 0), 0.0f);
    struct ggml_tensor *values = ggml_view_3d(ctx, x, 1, n, rows, sizeof(float), x->nb[1], 0);
    return ggml_reshape_2d(ctx, ggml_set_rows(ctx, values, zeros, last), n, rows);
}

static int64_t share_of(const ts_edit_zero *how, int64_t n) {
    int64_t k = (int64_t)floor(how->value * (double)n);
    return k < n ? k : n;
}

static bool build(zero_graph *g, const struct ggml_tensor *node, const ts_edit_zero *how) {
    g->ctx = ggml_init((struct ggml_init_params){.mem_size = ggml_tensor_overhead() * NODES + ggml_graph_overhead_custom(NODES, false),
                                                 .no_alloc = true});
    g->graph = g->ctx ? ggml_new_graph_custom(g->ctx, NODES, false) : NULL;
    if (!g->graph) return false;
    struct ggml_tensor *x = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, node->ne[0], node->ne[1]);
    x->data = node->data;
    x->buffer = node->buffer;
    if (how->by_share && share_of(how, x->ne[0]) > 0) x = zero_last(g->ctx, x, share_of(how, x->ne[0]));
    if (!how->by_share && how->value > 0) x = zero_below(g->ctx, x, limit_of(how->value));
    g->n_zero = ggml_sum_rows(g->ctx, below(g->ctx, x, FLT_MIN)); /* what is smaller is zero to a GPU */
    ggml_set_output(g->n_zero);
    ggml_build_forward_expand(g->graph, g->n_zero);
    return true;
}

static int compute(const zero_graph *g, const ts_arena *arena, struct ggml_gallocr *scratch, float *counts, ts_error *err) {
    if (!ggml_gallocr_alloc_graph(scratch, g->graph)) return ts_fail_nomem(err, "zeroing", 0);
    int rc = ts_arena_compute(arena, g->graph, err);
    if (rc == TS_OK) ggml_backend_tensor_get(g->n_zero, counts, 0, ggml_nbytes(g->n_zero));
    return rc;
}

int ts_device_zero_run(ts_tap *tap, const ts_arena *arena, struct ggml_gallocr *scratch, const ts_slot *slot, const struct ggml_tensor *t,
                       bool *done, ts_error *err) {
    zero_graph g = {0};
    int64_t n_zero = 0;
    float *counts = ts_calloc((size_t)t->ne[1], sizeof(*counts));
    int rc = counts && build(&g, t, tap->edit.zero) ? TS_OK : ts_fail_nomem(err, "zeroing", (size_t)t->ne[1] * sizeof(*counts));
    *done = rc == TS_OK && ts_arena_serves(arena, g.graph);
    if (*done) rc = compute(&g, arena, scratch, counts, err);
    for (int64_t r = 0; rc == TS_OK && r < t->ne[1]; r++) n_zero += (int64_t)counts[r];
    if (rc == TS_OK && *done) rc = tap->edit.zeroed(&slot->site.pub, t->ne[0] * t->ne[1], n_zero, tap->edit.user, err);
    if (g.ctx) ggml_free(g.ctx);
    free(counts);
    return rc;
}
