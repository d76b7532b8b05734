/* Edits on the device that holds the rows. Owns the graphs, their memory and when their coefficients come to the host.
 * Refuses rows outside our arenas and steps that the backend cannot compute: those go over the host. */
#include "host/device_edit.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "ggml-alloc.h"
#include "host/tap.h"

/* ---- memory of an arena's edits */

static char *host_memory(ts_device_edit *d, ggml_backend_t backend, size_t bytes) {
    ggml_backend_buffer_type_t locked = ggml_backend_dev_host_buffer_type(ggml_backend_get_device(backend));
    d->host = ggml_backend_buft_alloc_buffer(locked ? locked : ggml_backend_cpu_buffer_type(), bytes);
    return d->host ? ggml_backend_buffer_get_base(d->host) : NULL;
}

static int open_edits(ts_tap *tap, ts_device_edit *d, const ts_arena *arena, ts_error *err) {
    if (d->cached) return TS_OK;
    size_t n = tap->n_slots, align = ggml_backend_buft_get_alignment(arena->buft), least = TS_EDIT_PLACE * sizeof(float);
    d->step = align < least ? least : align;
    size_t bytes = n * TS_EDIT_STEPS * d->step;
    d->coefficients = ggml_backend_buft_alloc_buffer(arena->buft, bytes);
    d->scratch = ggml_gallocr_new(arena->buft);
    d->taken = ts_calloc(n, sizeof(*d->taken));
    d->cached = ts_calloc(n, sizeof(*d->cached));
    d->n_slots = n;
    if (!d->coefficients || !d->scratch || !host_memory(d, arena->backend, bytes) || !d->taken || !d->cached)
        return ts_fail_nomem(err, "edits on a device", bytes);
    d->whole = (struct ggml_tensor){.type = GGML_TYPE_I8, .ne = {(int64_t)bytes, 1, 1, 1}, .nb = {1, bytes, bytes, bytes}};
    d->whole.buffer = d->coefficients;
    d->whole.data = ggml_backend_buffer_get_base(d->coefficients);
    return TS_OK;
}

void ts_device_edit_free(ts_device_edit *d) {
    for (size_t i = 0; d->cached && i < d->n_slots; i++) ts_edit_graph_free(&d->cached[i]);
    if (d->scratch) ggml_gallocr_free(d->scratch);
    if (d->coefficients) ggml_backend_buffer_free(d->coefficients);
    if (d->host) ggml_backend_buffer_free(d->host);
    free(d->cached);
    free(d->taken);
    memset(d, 0, sizeof(*d));
}

/* ---- graphs */

/* Tries the form with fewer kernels first. *served false, and no graph left, when the backend has neither. */
static int build(ts_edit_graph *g, const ts_arena *arena, const struct ggml_tensor *t, const ts_edit_plan *plan,
                 const struct ggml_tensor *c, size_t offset, size_t stride, bool *served, ts_error *err) {
    int rc = TS_OK;
    *served = false;
    for (int brief = 1; brief >= 0 && rc == TS_OK && !*served; brief--) {
        rc = ts_edit_graph_build(g, t, plan, brief, c, offset, stride, err);
        *served = rc == TS_OK && ts_arena_serves(arena, g->graph);
        if (!*served) ts_edit_graph_free(g);
    }
    return rc;
}

/* Few rows: the graph is kept until other rows or steps come, its coefficients are taken at the end of the run. */
static int run_few(ts_device_edit *d, const ts_arena *arena, const ts_slot *slot, size_t at, const struct ggml_tensor *t,
                   const ts_edit_plan *plan, bool *done, ts_error *err) {
    ts_edit_graph *g = &d->cached[at];
    if (!ts_edit_graph_fits(g, t, plan)) {
        ts_edit_graph_free(g);
        int rc = build(g, arena, t, plan, &d->whole, at * d->step, d->n_slots * d->step, done, err);
        if (rc != TS_OK || !*done) return rc;
        g->buffer = ggml_backend_alloc_ctx_tensors(g->ctx, arena->backend);
        if (!g->buffer) {
            ts_edit_graph_free(g);
            return ts_fail_nomem(err, "an edit's graph", 0);
        }
        ts_edit_graph_fill(g);
    }
    *done = true;
    d->taken[d->n_taken++] = slot;
    return ts_arena_compute(arena, g->graph, err);
}

static int hand_on(ts_tap *tap, const ts_slot *slot, const ts_edit_graph *g, int64_t row, size_t step, const float *values, ts_error *err) {
    const int32_t *tokens = ts_run_row_tokens(&tap->run, g->x.ne[1]);
    float c = values[g->c[step].first + (size_t)row] * g->c[step].scale;
    return tap->edit.taken(&tap->run, &slot->site.pub, tokens[g->plan.row[row]], step, c, tap->edit.user, err);
}

/* values: [n_steps] places of one step's coefficients each, `stride` bytes apart */
static int hand_on_all(ts_tap *tap, const ts_slot *slot, const ts_edit_graph *g, const char *values, size_t stride, ts_error *err) {
    int rc = TS_OK;
    for (int64_t r = 0; r < g->plan.n_rows; r++)
        for (size_t i = 0; i < g->plan.count[r] && rc == TS_OK; i++)
            rc = hand_on(tap, slot, g, r, i, (const float *)(const void *)(values + i * stride), err);
    return rc;
}

static int read_now(ts_tap *tap, const ts_slot *slot, const ts_edit_graph *g, ts_error *err) {
    size_t stride = (size_t)g->plan.n_rows * sizeof(float);
    if (!tap->edit.taken) return TS_OK;
    if (stride < TS_EDIT_PLACE * sizeof(float)) stride = TS_EDIT_PLACE * sizeof(float);
    char *values = ts_calloc(g->plan.n_steps, stride);
    if (!values) return ts_fail_nomem(err, "coefficients", g->plan.n_steps * stride);
    for (size_t i = 0; i < g->plan.n_steps; i++) ggml_backend_tensor_get(g->c[i].tensor, values + i * stride, 0, ggml_nbytes(g->c[i].tensor));
    int rc = hand_on_all(tap, slot, g, values, stride, err);
    free(values);
    return rc;
}

/* Many rows: their coefficients come at once, the next graph takes the same memory. */
static int run_many(ts_tap *tap, ts_device_edit *d, const ts_arena *arena, const ts_slot *slot, const struct ggml_tensor *t,
                    const ts_edit_plan *plan, bool *done, ts_error *err) {
    ts_edit_graph g;
    int rc = build(&g, arena, t, plan, NULL, 0, 0, done, err);
    if (rc != TS_OK || !*done) return rc;
    if (!ggml_gallocr_alloc_graph(d->scratch, g.graph)) rc = ts_fail_nomem(err, "an edit's graph", 0);
    if (rc == TS_OK) ts_edit_graph_fill(&g);
    if (rc == TS_OK) rc = ts_arena_compute(arena, g.graph, err);
    if (rc == TS_OK) rc = read_now(tap, slot, &g, err);
    ts_edit_graph_free(&g);
    return rc;
}

/* ---- which rows */

/* Two turns, as rows that change stand first. False where some row needs the host. */
static bool plan_rows(ts_tap *tap, const ts_slot *slot, int64_t n_rows, ts_edit_plan *plan) {
    const int32_t *tokens = ts_run_row_tokens(&tap->run, n_rows);
    for (int turn = 0; turn < 2; turn++)
        for (int64_t r = 0; r < n_rows; r++) {
            ts_edit_step steps[TS_EDIT_STEPS];
            size_t n = 0;
            bool changes = false;
            if (!tap->edit.steps(&tap->run, slot->site.pub.block, tokens[r], steps, &n, tap->edit.user)) return false;
            for (size_t i = 0; i < n; i++) changes = changes || ts_edit_step_changes(&steps[i]);
            if (n > 0 && changes == (turn == 0)) ts_edit_plan_add(plan, (int32_t)r, steps, n);
        }
    ts_edit_plan_end(plan, n_rows);
    return true;
}

static int run_steps(ts_tap *tap, ts_device_edit *d, const ts_arena *arena, const ts_slot *slot, const struct ggml_tensor *t, bool *done,
                     ts_error *err) {
    ts_edit_plan plan;
    int rc = ts_edit_plan_init(&plan, t->ne[1], err);
    if (rc != TS_OK || !plan_rows(tap, slot, t->ne[1], &plan)) goto cleanup;
    if (plan.n_rows == 0) *done = true;
    else if (plan.n_rows <= TS_EDIT_PLACE) rc = run_few(d, arena, slot, (size_t)(slot - tap->slots), t, &plan, done, err);
    else rc = run_many(tap, d, arena, slot, t, &plan, done, err);
cleanup:
    ts_edit_plan_free(&plan);
    return rc;
}

int ts_device_edit_run(ts_tap *tap, ts_slot *slot, struct ggml_tensor *t, bool *done, ts_error *err) {
    const ts_arena *arena = &tap->arenas.list[slot->arena];
    ts_device_edit *d = &tap->edits[slot->arena];
    *done = false;
    if (slot->seen != TS_SLOT_REDIRECTED || arena->host || !arena->backend || t->ne[2] * t->ne[3] != 1) return TS_OK;
    if (!tap->edit.steps && !tap->edit.zero) return TS_OK;
    int rc = open_edits(tap, d, arena, err);
    if (rc != TS_OK) return rc;
    return tap->edit.zero ? ts_device_zero_run(tap, arena, d->scratch, slot, t, done, err) : run_steps(tap, d, arena, slot, t, done, err);
}

/* ---- coefficients */

static int close_arena(ts_tap *tap, ts_device_edit *d, const ts_arena *arena, ts_error *err) {
    size_t n = d->n_taken, most = 0;
    const char *values = ggml_backend_buffer_get_base(d->host);
    int rc = TS_OK;
    d->n_taken = 0;
    if (n == 0 || !tap->edit.taken) return TS_OK;
    for (size_t k = 0; k < n; k++) {
        size_t steps = d->cached[d->taken[k] - tap->slots].plan.n_steps;
        most = steps > most ? steps : most;
    }
    ggml_backend_tensor_get_async(arena->backend, &d->whole, ggml_backend_buffer_get_base(d->host), 0, most * d->n_slots * d->step);
    ggml_backend_synchronize(arena->backend);
    for (size_t k = 0; k < n && rc == TS_OK; k++) {
        size_t at = (size_t)(d->taken[k] - tap->slots);
        rc = hand_on_all(tap, d->taken[k], &d->cached[at], values + at * d->step, d->n_slots * d->step, err);
    }
    return rc;
}

int ts_device_edit_close(ts_tap *tap, ts_error *err) {
    int rc = TS_OK;
    for (size_t i = 0; i < tap->arenas.n; i++)
        if (rc == TS_OK && tap->edits[i].cached) rc = close_arena(tap, &tap->edits[i], &tap->arenas.list[i], err);
        else tap->edits[i].n_taken = 0;
    return rc;
}
