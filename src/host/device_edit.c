/* Edits on the device that holds the rows. Owns the graphs, their memory and when their coefficients come to the host.
 * Refuses rows outside our arenas and steps that the backend cannot compute: those go over the host. */
#include "host/device_edit.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "ggml-alloc.h"
#include "host/tap.h"

/* A graph that ran in the run at hand, its coefficients still on the device. */
typedef struct ts_device_taken {
    const ts_slot *slot;
    size_t n_steps;
} ts_device_taken;

/* ---- memory of an arena's edits */

static int open_edits(ts_tap *tap, ts_device_edit *d, const ts_arena *arena, ts_error *err) {
    if (d->cached) return TS_OK;
    size_t n = tap->n_slots, bytes;
    d->step = ggml_backend_buft_get_alignment(arena->buft);
    if (d->step < sizeof(float)) d->step = sizeof(float);
    bytes = n * TS_EDIT_STEPS * d->step;
    d->coefficients = ggml_backend_buft_alloc_buffer(arena->buft, bytes);
    d->scratch = ggml_gallocr_new(arena->buft);
    d->host = ts_malloc(bytes);
    d->taken = ts_calloc(n, sizeof(*d->taken));
    d->cached = ts_calloc(n, sizeof(*d->cached));
    d->n_slots = n;
    if (!d->coefficients || !d->scratch || !d->host || !d->taken || !d->cached) return ts_fail_nomem(err, "edits on a device", bytes);
    d->whole = (struct ggml_tensor){.type = GGML_TYPE_I8, .ne = {(int64_t)bytes, 1, 1, 1}, .nb = {1, bytes, bytes, bytes}};
    d->whole.buffer = d->coefficients;
    d->whole.data = ggml_backend_buffer_get_base(d->coefficients);
    return TS_OK;
}

void ts_device_edit_free(ts_device_edit *d) {
    for (size_t i = 0; d->cached && i < d->n_slots; i++) ts_edit_graph_free(&d->cached[i]);
    if (d->scratch) ggml_gallocr_free(d->scratch);
    if (d->coefficients) ggml_backend_buffer_free(d->coefficients);
    free(d->cached);
    free(d->taken);
    free(d->host);
    memset(d, 0, sizeof(*d));
}

/* ---- graphs */

static bool fits(const ts_edit_graph *g, const struct ggml_tensor *t, const ts_edit_step *steps, size_t n) {
    return g->ctx && g->n == n && g->x.data == t->data && g->x.ne[0] == t->ne[0] && memcmp(g->steps, steps, n * sizeof(*steps)) == 0;
}

/* The block's graph for one row, made where there is none that does this. */
static int cached_graph(ts_device_edit *d, const ts_arena *arena, size_t at, const struct ggml_tensor *t, const ts_edit_step *steps,
                        size_t n, ts_edit_graph **out, ts_error *err) {
    ts_edit_graph *g = &d->cached[at];
    *out = g;
    if (fits(g, t, steps, n)) return TS_OK;
    ts_edit_graph_free(g);
    int rc = ts_edit_graph_build(g, t, steps, n, &d->whole, at * d->step, d->n_slots * d->step, err);
    if (rc == TS_OK && !ts_edit_graph_served(g, arena->backend)) {
        ts_edit_graph_free(g);
        *out = NULL;
        return TS_OK;
    }
    if (rc == TS_OK && !(g->buffer = ggml_backend_alloc_ctx_tensors(g->ctx, arena->backend))) rc = ts_fail_nomem(err, "an edit's graph", 0);
    if (rc == TS_OK) rc = ts_edit_graph_fill(g, err);
    if (rc != TS_OK) ts_edit_graph_free(g);
    return rc;
}

static int compute(const ts_arena *arena, const ts_edit_graph *g, ts_error *err) {
    enum ggml_status status = ggml_backend_graph_compute(arena->backend, g->graph);
    return status == GGML_STATUS_SUCCESS ? TS_OK : ts_fail(err, TS_ERR_ENGINE, "an edit failed on %s", ggml_backend_name(arena->backend));
}

static int hand_on(ts_tap *tap, const ts_slot *slot, size_t step, const float *c, int64_t rows, ts_error *err) {
    const int32_t *tokens = ts_run_row_tokens(&tap->run, rows);
    return tap->edit.taken ? tap->edit.taken(&tap->run, &slot->site.pub, step, c, rows, tokens, tap->edit.user, err) : TS_OK;
}

/* Several rows: their coefficients come at once, the next graph takes the same memory. */
static int run_several(ts_tap *tap, ts_device_edit *d, const ts_arena *arena, const ts_slot *slot, const struct ggml_tensor *t,
                       const ts_edit_step *steps, size_t n, bool *done, ts_error *err) {
    ts_edit_graph g;
    float *c = ts_malloc((size_t)t->ne[1] * sizeof(*c));
    int rc = ts_edit_graph_build(&g, t, steps, n, NULL, 0, 0, err);
    if (rc == TS_OK && !c) rc = ts_fail_nomem(err, "coefficients", (size_t)t->ne[1] * sizeof(*c));
    *done = rc == TS_OK && ts_edit_graph_served(&g, arena->backend);
    if (*done && !ggml_gallocr_alloc_graph(d->scratch, g.graph)) rc = ts_fail_nomem(err, "an edit's graph", 0);
    if (*done && rc == TS_OK) rc = ts_edit_graph_fill(&g, err);
    if (*done && rc == TS_OK) rc = compute(arena, &g, err);
    for (size_t i = 0; *done && rc == TS_OK && i < n; i++) {
        ggml_backend_tensor_get(g.c[i], c, 0, (size_t)t->ne[1] * sizeof(*c));
        rc = hand_on(tap, slot, i, c, t->ne[1], err);
    }
    ts_edit_graph_free(&g);
    free(c);
    return rc;
}

static int run_one(ts_device_edit *d, const ts_arena *arena, const ts_slot *slot, size_t at, const struct ggml_tensor *t,
                   const ts_edit_step *steps, size_t n, bool *done, ts_error *err) {
    ts_edit_graph *g = NULL;
    int rc = cached_graph(d, arena, at, t, steps, n, &g, err);
    *done = g != NULL;
    if (rc != TS_OK || !g) return rc;
    d->taken[d->n_taken++] = (ts_device_taken){slot, n};
    return compute(arena, g, err);
}

int ts_device_edit_run(ts_tap *tap, ts_slot *slot, struct ggml_tensor *t, bool *done, ts_error *err) {
    ts_edit_step steps[TS_EDIT_STEPS];
    size_t n = 0, at = (size_t)(slot - tap->slots);
    ts_arena *arena = &tap->arenas.list[slot->arena];
    ts_device_edit *d = &tap->edits[slot->arena];
    *done = false;
    if (slot->seen != TS_SLOT_REDIRECTED || arena->host || !arena->backend || !tap->edit.steps) return TS_OK;
    memset(steps, 0, sizeof(steps)); /* compared as bytes */
    if (!tap->edit.steps(&tap->run, slot->site.pub.block, steps, &n, tap->edit.user)) return TS_OK;
    *done = true;
    if (n == 0) return TS_OK;
    int rc = open_edits(tap, d, arena, err);
    if (rc != TS_OK) return rc;
    return t->ne[1] == 1 ? run_one(d, arena, slot, at, t, steps, n, done, err) : run_several(tap, d, arena, slot, t, steps, n, done, err);
}

/* ---- coefficients */

static int close_arena(ts_tap *tap, ts_device_edit *d, const ts_arena *arena, ts_error *err) {
    size_t n = d->n_taken, most = 0;
    int rc = TS_OK;
    d->n_taken = 0;
    if (n == 0 || !tap->edit.taken) return TS_OK;
    for (size_t k = 0; k < n; k++) most = d->taken[k].n_steps > most ? d->taken[k].n_steps : most;
    ggml_backend_tensor_get_async(arena->backend, &d->whole, d->host, 0, most * d->n_slots * d->step);
    ggml_backend_synchronize(arena->backend);
    for (size_t k = 0; k < n && rc == TS_OK; k++)
        for (size_t i = 0; i < d->taken[k].n_steps && rc == TS_OK; i++) {
            float c;
            memcpy(&c, d->host + (i * d->n_slots + (size_t)(d->taken[k].slot - tap->slots)) * d->step, sizeof(c));
            rc = hand_on(tap, d->taken[k].slot, i, &c, 1, err);
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
