/* An edit as a ggml graph. Owns which operations make it up; knows nothing of when it runs. A row whose coefficient is not
 * finite stays as it is, as on the host. */
#include "host/edit_graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define NODES_A_STEP 64
#define INPUTS_A_STEP 8
#define PARALLEL 1e-6f /* of |x|^2: what is left of a row after its direction is taken out; less is rounding */
#define NOTHING 1e-30f
#define LARGE 1e6f /* no row grows back that much: see PARALLEL */

/* A leaf. */
typedef struct ts_edit_input {
    struct ggml_tensor *tensor;
    void *values;
    const float *from; /* the vector it holds, where it is one */
} ts_edit_input;

typedef struct builder {
    ts_edit_graph *g;
    const ts_edit_plan *plan;
    struct ggml_tensor *x; /* the rows as the steps so far leave them */
    struct ggml_tensor *node;
    const struct ggml_tensor *where;
    size_t offset, stride;
    int64_t width;
    bool failed;
} builder;

/* A number of a step: one for all rows, or [1, n_rows]. */
typedef struct number {
    float one;
    struct ggml_tensor *each;
} number;

static struct ggml_tensor *expand(builder *b, struct ggml_tensor *t) {
    ggml_build_forward_expand(b->g->graph, t);
    return t;
}

/* ---- leaves */

/* Zeros in *values, for the caller to fill; NULL there on no memory. */
static struct ggml_tensor *leaf(builder *b, enum ggml_type type, int64_t ne0, int64_t ne1, void **values) {
    ts_edit_graph *g = b->g;
    struct ggml_tensor *t = ggml_new_tensor_2d(g->ctx, type, ne0, ne1);
    *values = ts_calloc(1, ggml_nbytes(t));
    if (!*values) b->failed = true;
    g->inputs[g->n_inputs++] = (ts_edit_input){.tensor = t, .values = *values};
    return t;
}

/* v times `by`. */
static struct ggml_tensor *vector(builder *b, const float *v, float by) {
    ts_edit_graph *g = b->g;
    void *values;
    for (size_t i = 0; by == 1.0f && i < g->n_inputs; i++)
        if (g->inputs[i].from == v) return g->inputs[i].tensor;
    struct ggml_tensor *t = leaf(b, GGML_TYPE_F32, b->width, 1, &values);
    float *out = values;
    for (int64_t k = 0; out && k < b->width; k++) out[k] = by * v[k];
    if (by == 1.0f) g->inputs[g->n_inputs - 1].from = v;
    return t;
}

static const ts_edit_step *step_of(const builder *b, int64_t row, size_t i) { return &b->plan->steps[row * TS_EDIT_STEPS + (int64_t)i]; }

enum field { FIELD_A, FIELD_B, FIELD_GATE, FIELD_RESTORE };

static float field_of(const ts_edit_step *s, enum field f) {
    switch (f) {
    case FIELD_A: return s->a;
    case FIELD_B: return s->b;
    case FIELD_GATE: return s->gate;
    default: return s->restore ? 1.0f : 0.0f;
    }
}

static number number_of(builder *b, size_t i, enum field f) {
    void *values;
    if (b->plan->alike) return (number){.one = field_of(step_of(b, 0, i), f)};
    struct ggml_tensor *t = leaf(b, GGML_TYPE_F32, 1, b->plan->n_rows, &values);
    for (int64_t r = 0; values && r < b->plan->n_rows; r++) ((float *)values)[r] = field_of(step_of(b, r, i), f);
    return (number){.each = t};
}

static bool any(const builder *b, size_t i, enum field f) {
    for (int64_t r = 0; r < b->plan->n_rows; r++)
        if (field_of(step_of(b, r, i), f) > 0.0f) return true;
    return false;
}

static bool changes(const builder *b, size_t i) {
    for (int64_t r = 0; r < b->plan->n_rows; r++)
        if (ts_edit_step_changes(step_of(b, r, i))) return true;
    return false;
}

static struct ggml_tensor *times(builder *b, struct ggml_tensor *t, number n) {
    return n.each ? ggml_mul(b->g->ctx, t, n.each) : ggml_scale(b->g->ctx, t, n.one);
}

static struct ggml_tensor *plus(builder *b, struct ggml_tensor *t, number n) {
    return n.each ? ggml_add(b->g->ctx, t, n.each) : ggml_scale_bias(b->g->ctx, t, 1.0f, n.one);
}

/* 1 - t */
static struct ggml_tensor *inverse(builder *b, struct ggml_tensor *t) { return ggml_scale_bias(b->g->ctx, t, -1.0f, 1.0f); }

/* ---- directions */

static const float *direction_of(const ts_edit_step *s, bool v) { return v ? s->v : s->u; }

/* Each row's, from a table of the different ones. A row without the step takes any. */
static struct ggml_tensor *gather_directions(builder *b, size_t i, bool v) {
    const ts_edit_plan *p = b->plan;
    const float **list = ts_calloc((size_t)p->n_rows, sizeof(*list));
    int64_t n = 0;
    void *ids, *table;
    struct ggml_tensor *id = leaf(b, GGML_TYPE_I32, p->n_rows, 1, &ids);
    if (!list || !ids) b->failed = true;
    for (int64_t r = 0; list && ids && r < p->n_rows; r++) {
        const float *d = direction_of(step_of(b, r, i), v);
        int64_t k = 0;
        while (d && k < n && list[k] != d) k++;
        if (d && k == n) list[n++] = d;
        ((int32_t *)ids)[r] = d ? (int32_t)k : 0;
    }
    struct ggml_tensor *t = leaf(b, GGML_TYPE_F32, b->width, n ? n : 1, &table);
    for (int64_t k = 0; list && table && k < n; k++)
        memcpy((float *)table + k * b->width, list[k], (size_t)b->width * sizeof(float));
    free(list);
    return ggml_get_rows(b->g->ctx, t, id);
}

/* u: [width] where the rows are alike, else [width, n_rows] */
static struct ggml_tensor *directions(builder *b, size_t i) {
    return b->plan->alike ? vector(b, step_of(b, 0, i)->u, 1.0f) : gather_directions(b, i, false);
}

/* v: [width, n_rows], with b in it where that makes f = c. */
static bool folds(const builder *b, size_t i) {
    const ts_edit_step *s = step_of(b, 0, i);
    return b->plan->alike && s->a == 0.0f && s->b != 0.0f && !s->restore;
}

static struct ggml_tensor *additions(builder *b, size_t i) {
    if (!b->plan->alike) return gather_directions(b, i, true);
    const ts_edit_step *s = step_of(b, 0, i);
    struct ggml_tensor *v = vector(b, s->v, folds(b, i) ? s->b : 1.0f);
    return b->plan->n_rows > 1 ? ggml_repeat_4d(b->g->ctx, v, b->width, b->plan->n_rows, 1, 1) : v;
}

/* ---- one step, for any rows */

static struct ggml_tensor *squares(builder *b) { return expand(b, ggml_sum_rows(b->g->ctx, ggml_sqr(b->g->ctx, b->x))); }

/* To where the coefficients are wanted. */
static struct ggml_tensor *place(builder *b, size_t i, struct ggml_tensor *t, size_t first, float scale) {
    if (b->where) {
        t->data = (char *)b->where->data + b->offset + i * b->stride;
        t->buffer = b->where->buffer;
    }
    ggml_set_output(t);
    b->g->c[i] = (ts_edit_place){.tensor = t, .first = first, .scale = scale};
    return expand(b, t);
}

/* [1, n_rows]. Matrix products of many rows may run in less than f32. */
static struct ggml_tensor *coefficient(builder *b, size_t i) {
    struct ggml_context *ctx = b->g->ctx;
    struct ggml_tensor *u = directions(b, i);
    struct ggml_tensor *c = b->plan->n_rows == 1 && b->plan->alike ? ggml_mul_mat(ctx, u, b->x) : ggml_sum_rows(ctx, ggml_mul(ctx, b->x, u));
    return place(b, i, c, 0, 1.0f);
}

/* 1 where the row is edited: 0 c + 1 is not 1 for a c that is not finite. */
static struct ggml_tensor *mask(builder *b, size_t i, struct ggml_tensor *c) {
    struct ggml_context *ctx = b->g->ctx;
    struct ggml_tensor *keep = ggml_step(ctx, ggml_scale_bias(ctx, c, 0.0f, 1.0f));
    if (!any(b, i, FIELD_GATE)) return expand(b, keep);
    struct ggml_tensor *below = ggml_step(ctx, plus(b, ggml_neg(ctx, ggml_abs(ctx, c)), number_of(b, i, FIELD_GATE)));
    return expand(b, ggml_mul(ctx, keep, inverse(b, below)));
}

static struct ggml_tensor *factor(builder *b, size_t i, struct ggml_tensor *c, struct ggml_tensor *keep) {
    struct ggml_context *ctx = b->g->ctx;
    const ts_edit_step *s = step_of(b, 0, i);
    if (b->plan->alike && s->b == 0.0f) return ggml_scale(ctx, keep, s->a);
    struct ggml_tensor *f = ggml_clamp(ctx, c, -TS_EDIT_C_MAX, TS_EDIT_C_MAX);
    if (!b->plan->alike) f = plus(b, times(b, f, number_of(b, i, FIELD_B)), number_of(b, i, FIELD_A));
    else if (!folds(b, i)) f = ggml_scale_bias(ctx, f, s->b, s->a);
    return ggml_mul(ctx, f, keep);
}

/* No factor for a row that is nothing but its direction: it would be rounding, blown up. `restores`: 1 where that is asked. */
static struct ggml_tensor *spare_parallel(builder *b, struct ggml_tensor *before, struct ggml_tensor *c, struct ggml_tensor *f,
                                          number restores) {
    struct ggml_context *ctx = b->g->ctx;
    struct ggml_tensor *finite = ggml_clamp(ctx, c, -TS_EDIT_C_MAX, TS_EDIT_C_MAX);
    struct ggml_tensor *change = ggml_mul(ctx, f, ggml_add(ctx, ggml_scale(ctx, finite, 2.0f), f));
    struct ggml_tensor *left = ggml_step(ctx, ggml_add(ctx, ggml_scale(ctx, before, 1.0f - PARALLEL), change));
    if (restores.each) left = inverse(b, ggml_mul(ctx, inverse(b, left), restores.each));
    return ggml_mul(ctx, f, left);
}

/* By 1 where nothing was edited, also where the row's length is no number. */
static void restore(builder *b, struct ggml_tensor *before, struct ggml_tensor *keep, number restores) {
    struct ggml_context *ctx = b->g->ctx;
    struct ggml_tensor *after = ggml_scale_bias(ctx, squares(b), 1.0f, NOTHING);
    struct ggml_tensor *back = ggml_sqrt(ctx, ggml_div(ctx, ggml_scale_bias(ctx, before, 1.0f, NOTHING), after));
    back = ggml_scale_bias(ctx, ggml_clamp(ctx, back, 0.0f, LARGE), 1.0f, -1.0f);
    if (restores.each) back = ggml_mul(ctx, back, restores.each);
    b->x = expand(b, ggml_mul_inplace(ctx, b->x, ggml_scale_bias(ctx, ggml_mul(ctx, back, keep), 1.0f, 1.0f)));
}

static void add_step(builder *b, size_t i) {
    bool restores = any(b, i, FIELD_RESTORE);
    struct ggml_tensor *before = restores ? squares(b) : NULL, *c = coefficient(b, i);
    if (!changes(b, i)) return;
    number which = restores ? number_of(b, i, FIELD_RESTORE) : (number){0};
    struct ggml_tensor *keep = mask(b, i, c), *f = factor(b, i, c, keep);
    if (restores) f = spare_parallel(b, before, c, f, which);
    b->x = expand(b, ggml_add_inplace(b->g->ctx, b->x, ggml_mul(b->g->ctx, additions(b, i), f)));
    if (restores) restore(b, before, keep, which);
}

/* ---- one step of a single row, in as few kernels as a GPU can make of it
 *
 *   p = U x + p0,  q = 0 x + 32            f and -f twice where there is a gate, c - gate, -c - gate, c
 *   o = silu(q) p                          32 p; a NaN throughout where x is not finite
 *   x += V relu(o)                         relu takes NaN to 0, and f comes as its two halves
 *
 * with relu(o) times step(c - gate) or step(-c - gate) for gated ones. CUDA computes p, q and o in one kernel, and the
 * product by V with the sum in another. */

#define ONE_SHIFT 32.0f /* silu takes it to itself */
#define SMALL 0x1p-20f  /* no finite row makes p overflow */

enum { HALVES = 4 };

static bool gated(const ts_edit_step *s) { return s->gate > 0.0f; }

/* Row r of p: *c c + returned constant. A gate lets |c| = gate pass. */
static float row_of_p(const ts_edit_step *s, int r, float *c) {
    float below = nextafterf(s->gate, 0.0f);
    bool sign = r & 1;
    if (r == (gated(s) ? 2 * HALVES : 2)) {
        *c = 1.0f;
        return 0.0f;
    }
    if (r >= (gated(s) ? HALVES : 2)) { /* ungated, the fourth: nothing */
        *c = !gated(s) ? 0.0f : r < HALVES + 2 ? 1.0f : -1.0f;
        return gated(s) ? -below : 0.0f;
    }
    *c = sign ? -s->b : s->b;
    return sign ? -s->a : s->a;
}

/* o */
static struct ggml_tensor *halves(builder *b, const ts_edit_step *s) {
    struct ggml_context *ctx = b->g->ctx;
    int n = gated(s) ? 2 * HALVES + 1 : HALVES;
    void *up, *zero, *p0, *q0;
    struct ggml_tensor *u = leaf(b, GGML_TYPE_F32, b->width, n, &up), *none = leaf(b, GGML_TYPE_F32, b->width, n, &zero);
    struct ggml_tensor *p_bias = leaf(b, GGML_TYPE_F32, n, 1, &p0), *q_bias = leaf(b, GGML_TYPE_F32, n, 1, &q0);
    for (int r = 0; up && p0 && q0 && r < n; r++) {
        float c, *row = (float *)up + r * b->width;
        ((float *)p0)[r] = SMALL * row_of_p(s, r, &c);
        ((float *)q0)[r] = ONE_SHIFT;
        for (int64_t k = 0; k < b->width; k++) row[k] = SMALL * c * s->u[k];
    }
    struct ggml_tensor *q = ggml_add(ctx, ggml_mul_mat(ctx, none, b->x), q_bias);
    return ggml_swiglu_split(ctx, q, ggml_add(ctx, ggml_mul_mat(ctx, u, b->x), p_bias));
}

static void add_brief_step(builder *b, size_t i) {
    struct ggml_context *ctx = b->g->ctx;
    const ts_edit_step *s = step_of(b, 0, i);
    void *back;
    struct ggml_tensor *o = place(b, i, halves(b, s), gated(s) ? 2 * HALVES : 2, 1.0f / (ONE_SHIFT * SMALL));
    struct ggml_tensor *v = leaf(b, GGML_TYPE_F32, HALVES, b->width, &back);
    for (int64_t k = 0; back && k < b->width; k++)
        for (int r = 0; r < (gated(s) ? HALVES : 2); r++)
            ((float *)back)[k * HALVES + r] = (r & 1 ? -s->v[k] : s->v[k]) / (ONE_SHIFT * SMALL);
    struct ggml_tensor *f = ggml_relu(ctx, gated(s) ? ggml_view_1d(ctx, o, HALVES, 0) : o);
    if (gated(s)) f = ggml_mul(ctx, f, ggml_step(ctx, ggml_view_1d(ctx, o, HALVES, HALVES * sizeof(float))));
    b->x = expand(b, ggml_add_inplace(ctx, b->x, ggml_mul_mat(ctx, v, f)));
}

/* ---- all of it */

static bool init(ts_edit_graph *g, size_t n_steps) {
    size_t nodes = NODES_A_STEP * (n_steps + 1);
    memset(g, 0, sizeof(*g));
    g->inputs = ts_calloc(INPUTS_A_STEP * (n_steps + 1), sizeof(*g->inputs));
    g->ctx = ggml_init((struct ggml_init_params){.mem_size = ggml_tensor_overhead() * nodes + ggml_graph_overhead_custom(nodes, false),
                                                 .no_alloc = true});
    g->graph = g->ctx ? ggml_new_graph_custom(g->ctx, nodes, false) : NULL;
    return g->inputs && g->graph;
}

static int copy_plan(ts_edit_graph *g, const ts_edit_plan *from, ts_error *err) {
    size_t n = (size_t)from->n_rows;
    int rc = ts_edit_plan_init(&g->plan, from->n_rows, err);
    if (rc != TS_OK) return rc;
    ts_edit_plan to = g->plan;
    memcpy(to.row, from->row, n * sizeof(*to.row));
    memcpy(to.count, from->count, n * sizeof(*to.count));
    memcpy(to.steps, from->steps, n * TS_EDIT_STEPS * sizeof(*to.steps));
    g->plan = *from;
    g->plan.row = to.row;
    g->plan.count = to.count;
    g->plan.steps = to.steps;
    return TS_OK;
}

/* The rows out of the node, and back those that may have changed. */
static struct ggml_tensor *take_rows(builder *b) {
    void *ids;
    struct ggml_tensor *id = leaf(b, GGML_TYPE_I32, b->plan->n_rows, 1, &ids);
    if (ids) memcpy(ids, b->plan->row, (size_t)b->plan->n_rows * sizeof(*b->plan->row));
    b->x = ggml_get_rows(b->g->ctx, b->node, id);
    return id;
}

static void put_rows(builder *b, struct ggml_tensor *id) {
    struct ggml_context *ctx = b->g->ctx;
    int64_t n = b->plan->n_changed;
    if (n == 0) return;
    struct ggml_tensor *rows = ggml_view_2d(ctx, b->x, b->width, n, b->x->nb[1], 0);
    expand(b, ggml_set_rows(ctx, b->node, rows, ggml_view_1d(ctx, id, n, 0)));
}

/* A restored row needs its length; a step that changes nothing is one product already. */
static bool brief_step(const builder *b, size_t i) {
    const ts_edit_step *s = step_of(b, 0, i);
    return b->plan->n_rows == 1 && ts_edit_step_changes(s) && !s->restore;
}

int ts_edit_graph_build(ts_edit_graph *g, const struct ggml_tensor *x, const ts_edit_plan *plan, bool brief, const struct ggml_tensor *c,
                        size_t c_offset, size_t c_step, ts_error *err) {
    if (!init(g, plan->n_steps)) return ts_fail_nomem(err, "an edit's graph", 0);
    int rc = copy_plan(g, plan, err);
    if (rc != TS_OK) return rc;
    builder b = {.g = g, .plan = &g->plan, .where = c, .offset = c_offset, .stride = c_step, .width = x->ne[0]};
    b.x = b.node = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, x->ne[0], x->ne[1]);
    b.node->data = x->data;
    b.node->buffer = x->buffer;
    g->x = *b.node;
    struct ggml_tensor *id = plan->whole ? NULL : take_rows(&b);
    for (size_t i = 0; i < plan->n_steps; i++)
        if (brief && brief_step(&b, i)) add_brief_step(&b, i);
        else add_step(&b, i);
    if (id) put_rows(&b, id);
    return b.failed ? ts_fail_nomem(err, "an edit's vectors", 0) : TS_OK;
}

bool ts_edit_graph_fits(const ts_edit_graph *g, const struct ggml_tensor *x, const ts_edit_plan *p) {
    size_t n = (size_t)p->n_rows;
    return g->ctx && g->plan.n_rows == p->n_rows && g->x.data == x->data && g->x.ne[0] == x->ne[0] && g->x.ne[1] == x->ne[1] &&
           memcmp(g->plan.row, p->row, n * sizeof(*p->row)) == 0 && memcmp(g->plan.count, p->count, n * sizeof(*p->count)) == 0 &&
           memcmp(g->plan.steps, p->steps, n * TS_EDIT_STEPS * sizeof(*p->steps)) == 0;
}

static void drop_inputs(ts_edit_graph *g) {
    for (size_t i = 0; i < g->n_inputs; i++) free(g->inputs[i].values);
    g->n_inputs = 0;
}

void ts_edit_graph_fill(ts_edit_graph *g) {
    for (size_t i = 0; i < g->n_inputs; i++) ggml_backend_tensor_set(g->inputs[i].tensor, g->inputs[i].values, 0, ggml_nbytes(g->inputs[i].tensor));
    drop_inputs(g);
}

void ts_edit_graph_free(ts_edit_graph *g) {
    drop_inputs(g);
    free(g->inputs);
    ts_edit_plan_free(&g->plan);
    if (g->buffer) ggml_backend_buffer_free(g->buffer);
    if (g->ctx) ggml_free(g->ctx);
    memset(g, 0, sizeof(*g));
}
