/* An edit as a ggml graph. Owns which operations make it up; knows nothing of when it runs. A row whose coefficient is not
 * finite stays as it is, as on the host. */
#include "host/edit_graph.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define NODES 256
#define PARALLEL 1e-6f /* of |x|^2: what is left of a row after its direction is taken out; less is rounding */
#define NOTHING 1e-30f
#define LARGE 1e6f /* no row grows back that much: see PARALLEL */

typedef struct builder {
    ts_edit_graph *g;
    struct ggml_tensor *x; /* the rows as the steps so far leave them */
    int64_t rows;
} builder;

static struct ggml_tensor *expand(builder *b, struct ggml_tensor *t) {
    ggml_build_forward_expand(b->g->graph, t);
    return t;
}

static struct ggml_tensor *squares(builder *b) { return expand(b, ggml_sum_rows(b->g->ctx, ggml_sqr(b->g->ctx, b->x))); }

/* [1, rows]. Matrix products of many rows may run in less than f32. */
static struct ggml_tensor *coefficient(builder *b, struct ggml_tensor *u) {
    struct ggml_context *ctx = b->g->ctx;
    return b->rows == 1 ? ggml_mul_mat(ctx, u, b->x) : ggml_sum_rows(ctx, ggml_mul(ctx, b->x, u));
}

/* 1 where the row is edited: 0 c + 1 is not 1 for a c that is not finite. */
static struct ggml_tensor *mask(builder *b, const ts_edit_step *s, struct ggml_tensor *c) {
    struct ggml_context *ctx = b->g->ctx;
    struct ggml_tensor *keep = ggml_step(ctx, ggml_scale_bias(ctx, c, 0.0f, 1.0f));
    if (s->gate <= 0.0f) return expand(b, keep);
    struct ggml_tensor *below = ggml_step(ctx, ggml_scale_bias(ctx, ggml_abs(ctx, c), -1.0f, s->gate));
    return expand(b, ggml_mul(ctx, keep, ggml_scale_bias(ctx, below, -1.0f, 1.0f)));
}

static struct ggml_tensor *factor(builder *b, const ts_edit_step *s, struct ggml_tensor *c, struct ggml_tensor *keep) {
    struct ggml_context *ctx = b->g->ctx;
    if (s->b == 0.0f) return ggml_scale(ctx, keep, s->a);
    struct ggml_tensor *f = ggml_clamp(ctx, c, -TS_EDIT_C_MAX, TS_EDIT_C_MAX);
    if (s->a != 0.0f || s->restore) f = ggml_scale_bias(ctx, f, s->b, s->a); /* else b is in v */
    return ggml_mul(ctx, f, keep);
}

/* No factor for a row that is nothing but its direction: it would be rounding, blown up. */
static struct ggml_tensor *spare_parallel(builder *b, struct ggml_tensor *before, struct ggml_tensor *c, struct ggml_tensor *f) {
    struct ggml_context *ctx = b->g->ctx;
    struct ggml_tensor *finite = ggml_clamp(ctx, c, -TS_EDIT_C_MAX, TS_EDIT_C_MAX);
    struct ggml_tensor *change = ggml_mul(ctx, f, ggml_add(ctx, ggml_scale(ctx, finite, 2.0f), f));
    return ggml_mul(ctx, f, ggml_step(ctx, ggml_add(ctx, ggml_scale(ctx, before, 1.0f - PARALLEL), change)));
}

/* By 1 where nothing was edited, also where the row's length is no number. */
static void restore(builder *b, struct ggml_tensor *before, struct ggml_tensor *keep) {
    struct ggml_context *ctx = b->g->ctx;
    struct ggml_tensor *after = ggml_scale_bias(ctx, squares(b), 1.0f, NOTHING);
    struct ggml_tensor *back = ggml_sqrt(ctx, ggml_div(ctx, ggml_scale_bias(ctx, before, 1.0f, NOTHING), after));
    back = ggml_scale_bias(ctx, ggml_clamp(ctx, back, 0.0f, LARGE), 1.0f, -1.0f);
    b->x = expand(b, ggml_mul_inplace(ctx, b->x, ggml_scale_bias(ctx, ggml_mul(ctx, back, keep), 1.0f, 1.0f)));
}

static void add_step(builder *b, size_t i, const struct ggml_tensor *where, size_t offset) {
    ts_edit_graph *g = b->g;
    const ts_edit_step *s = &g->steps[i];
    struct ggml_tensor *before = s->restore ? squares(b) : NULL, *v;
    g->u[i] = ggml_new_tensor_1d(g->ctx, GGML_TYPE_F32, b->x->ne[0]);
    g->v[i] = v = ggml_new_tensor_1d(g->ctx, GGML_TYPE_F32, b->x->ne[0]);
    struct ggml_tensor *c = g->c[i] = coefficient(b, g->u[i]);
    if (where) {
        c->data = (char *)where->data + offset;
        c->buffer = where->buffer;
    }
    ggml_set_output(c);
    struct ggml_tensor *keep = mask(b, s, expand(b, c)), *f = factor(b, s, c, keep);
    if (s->restore) f = spare_parallel(b, before, c, f);
    if (b->rows > 1) v = ggml_repeat_4d(g->ctx, v, v->ne[0], b->rows, 1, 1);
    b->x = expand(b, ggml_add_inplace(g->ctx, b->x, ggml_mul(g->ctx, v, f)));
    if (s->restore) restore(b, before, keep);
}

static bool init(ts_edit_graph *g) {
    size_t size = ggml_tensor_overhead() * NODES * 2 + ggml_graph_overhead_custom(NODES * 2, false);
    memset(g, 0, sizeof(*g));
    g->ctx = ggml_init((struct ggml_init_params){.mem_size = size, .no_alloc = true});
    g->graph = g->ctx ? ggml_new_graph_custom(g->ctx, NODES * 2, false) : NULL;
    return g->graph != NULL;
}

int ts_edit_graph_build(ts_edit_graph *g, const struct ggml_tensor *x, const ts_edit_step *steps, size_t n, const struct ggml_tensor *c,
                        size_t c_offset, size_t c_step, ts_error *err) {
    if (!init(g)) return ts_fail_nomem(err, "an edit's graph", 0);
    g->n = n;
    memcpy(g->steps, steps, n * sizeof(*steps));
    builder b = {.g = g, .x = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, x->ne[0], x->ne[1]), .rows = x->ne[1]};
    b.x->data = x->data;
    b.x->buffer = x->buffer;
    g->x = *b.x;
    for (size_t i = 0; i < n; i++) add_step(&b, i, c, c_offset + i * c_step);
    return TS_OK;
}

bool ts_edit_graph_served(const ts_edit_graph *g, ggml_backend_t backend) {
    for (int i = 0; i < ggml_graph_n_nodes(g->graph); i++)
        if (!ggml_backend_supports_op(backend, ggml_graph_node(g->graph, i))) return false;
    return true;
}

int ts_edit_graph_fill(const ts_edit_graph *g, ts_error *err) {
    size_t width = (size_t)g->x.ne[0], bytes = width * sizeof(float);
    float *scaled = ts_malloc(bytes);
    if (!scaled) return ts_fail_nomem(err, "an edit's vector", bytes);
    for (size_t i = 0; i < g->n; i++) {
        const ts_edit_step *s = &g->steps[i];
        bool folded = s->a == 0.0f && s->b != 0.0f && !s->restore;
        for (size_t k = 0; k < width; k++) scaled[k] = folded ? s->b * s->v[k] : s->v[k];
        ggml_backend_tensor_set(g->u[i], s->u, 0, bytes);
        ggml_backend_tensor_set(g->v[i], scaled, 0, bytes);
    }
    free(scaled);
    return TS_OK;
}

void ts_edit_graph_free(ts_edit_graph *g) {
    if (g->buffer) ggml_backend_buffer_free(g->buffer);
    if (g->ctx) ggml_free(g->ctx);
    memset(g, 0, sizeof(*g));
}
