/* One graph run. Owns reading the graph's own inputs and the guard: tokens and positions in the order sent, or
 * an error, never a silent wrong row. */
#include "host/run.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

static int grow(struct ts_run *run, int32_t n, ts_error *err) {
    if (n <= run->capacity) return TS_OK;
    int32_t **arrays[] = {&run->tokens, &run->positions, &run->out_ids, &run->identity, &run->picked};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        int32_t *grown = ts_realloc(*arrays[i], (size_t)n, sizeof(**arrays[i]));
        if (!grown) return ts_fail_nomem(err, "tokens of a run", (size_t)n * sizeof(*grown));
        *arrays[i] = grown;
    }
    for (int32_t i = 0; i < n; i++) run->identity[i] = i;
    run->capacity = n;
    return TS_OK;
}

/* One token sent cannot be out of order: what it is need not be fetched from a device. */
static bool alone(const ts_tap *tap) { return tap->expect.n == 1 && tap->run.n_tokens == 1; }

static void read_ids(const struct ggml_tensor *t, int32_t *out, int32_t n) {
    ggml_backend_tensor_get(t, out, 0, (size_t)n * sizeof(int32_t));
}

static bool readable_ids(const struct ggml_tensor *t) {
    return t && t->type == GGML_TYPE_I32 && t->data && ggml_is_contiguous(t);
}

/* The run's tokens are the next ones sent. */
static int guard_tokens(const ts_tap *tap, ts_error *err) {
    const ts_expect *e = &tap->expect;
    const struct ts_run *run = &tap->run;
    if (e->n == 0) return TS_OK;
    if (e->cursor + (size_t)run->n_tokens > e->n)
        return ts_fail(err, TS_ERR_ENGINE, "the graph ran more tokens than the %zu sent", e->n);
    for (int32_t i = 0; i < run->n_tokens; i++) {
        size_t at = e->cursor + (size_t)i;
        if (run->tokens[i] != e->tokens[at])
            return ts_fail_at(err, TS_ERR_ENGINE, (int64_t)at, "the graph ran token %d where token %d was sent (number %zu)",
                              run->tokens[i], e->tokens[at], at);
    }
    return TS_OK;
}

/* The tokens whose rows are read, where not every one's are. */
static void pick(ts_tap *tap) {
    struct ts_run *run = &tap->run;
    const ts_expect *e = &tap->expect;
    run->n_picked = 0;
    for (int32_t i = 0; e->output && i < run->n_tokens; i++)
        if (e->output[e->cursor + (size_t)i]) run->picked[run->n_picked++] = i;
    run->picking = e->output && run->n_picked < run->n_tokens;
}

static int open_run(ts_tap *tap, const struct ggml_tensor *ids, ts_error *err) {
    int rc = ts_run_close(tap, err);
    struct ts_run *run = &tap->run;
    if (rc == TS_OK) rc = grow(run, (int32_t)ids->ne[0], err);
    if (rc != TS_OK) return rc;
    run->tap = tap;
    run->n_tokens = (int32_t)ids->ne[0];
    run->n_out = 0;
    run->has_tokens = true;
    run->has_positions = run->has_out_ids = false;
    read_ids(ids, run->tokens, run->n_tokens);
    for (size_t i = 0; i < tap->n_slots; i++) {
        tap->slots[i].seen = TS_SLOT_UNSEEN;
        tap->slots[i].occurrences = 0;
        tap->slots[i].staged_valid = tap->slots[i].read_back = tap->slots[i].picked = false;
    }
    tap->run_open = true;
    rc = guard_tokens(tap, err);
    if (rc == TS_OK) pick(tap);
    return rc;
}

/* M-RoPE carries four positions a token, the first n_tokens of them being the text's. */
static void read_positions(struct ts_run *run, const struct ggml_tensor *t) {
    if (!readable_ids(t) || t->ne[0] < run->n_tokens || t->ne[0] % run->n_tokens != 0) return;
    if (alone(run->tap)) run->positions[0] = run->tap->expect.positions[0];
    else read_ids(t, run->positions, run->n_tokens);
    run->has_positions = true;
}

static int read_out_ids(struct ts_run *run, const struct ggml_tensor *t, ts_error *err) {
    if (!readable_ids(t)) return TS_OK;
    int32_t n = (int32_t)t->ne[0];
    if (n > run->n_tokens)
        return ts_fail(err, TS_ERR_ENGINE, "the graph names %d outputs for %d tokens", n, run->n_tokens);
    if (alone(run->tap) && n == 1) run->out_ids[0] = 0;
    else read_ids(t, run->out_ids, n);
    run->n_out = n;
    run->has_out_ids = true;
    return TS_OK;
}

int ts_run_visit(ts_tap *tap, const struct ggml_tensor *t, ts_error *err) {
    struct ts_run *run = &tap->run;
    if (t->op == GGML_OP_GET_ROWS) {
        if (readable_ids(t->src[1]) && ts_node_named(t->src[0], "token_embd.weight")) return open_run(tap, t->src[1], err);
        if (!tap->run_open) return TS_OK;
        if (!run->has_out_ids && ts_node_named(t->src[1], "out_ids")) return read_out_ids(run, t->src[1], err);
        if (!run->has_positions && ts_node_named(t->src[0], "position_embd.weight")) read_positions(run, t->src[1]);
        return TS_OK;
    }
    if (t->op == GGML_OP_ROPE && tap->run_open && !run->has_positions) read_positions(run, t->src[1]);
    return TS_OK;
}

/* And so are its positions, where the graph has them. */
static int guard_positions(const ts_tap *tap, ts_error *err) {
    const ts_expect *e = &tap->expect;
    const struct ts_run *run = &tap->run;
    for (int32_t i = 0; e->n && run->has_positions && i < run->n_tokens; i++) {
        size_t at = e->cursor + (size_t)i;
        if (run->positions[i] != e->positions[at])
            return ts_fail_at(err, TS_ERR_ENGINE, (int64_t)at, "the graph ran position %d where position %d was sent (number %zu)",
                              run->positions[i], e->positions[at], at);
    }
    return TS_OK;
}

int ts_run_close(ts_tap *tap, ts_error *err) {
    if (!tap->run_open) return TS_OK;
    tap->run_open = false;
    tap->n_runs++;
    int rc = guard_positions(tap, err);
    if (rc == TS_OK) rc = ts_device_edit_close(tap, err);
    if (rc == TS_OK && tap->on_run) rc = tap->on_run(&tap->run, tap->user, err);
    tap->expect.cursor += (size_t)tap->run.n_tokens;
    return rc;
}

void ts_run_free(struct ts_run *run) {
    free(run->tokens);
    free(run->positions);
    free(run->out_ids);
    free(run->identity);
    free(run->picked);
    memset(run, 0, sizeof(*run));
}

int32_t ts_run_rows_stay(const ts_run *run) { return ts_readback_stay(run->tap); }

int32_t ts_run_n_tokens(const ts_run *run) { return run->n_tokens; }
const int32_t *ts_run_tokens(const ts_run *run) { return run->has_tokens ? run->tokens : NULL; }
const int32_t *ts_run_positions(const ts_run *run) { return run->has_positions ? run->positions : NULL; }

int32_t ts_run_seq_id(const ts_run *run, int32_t token) {
    const ts_expect *e = &run->tap->expect;
    return e->n && e->seq_ids ? e->seq_ids[e->cursor + (size_t)token] : 0;
}

int32_t ts_run_position(const ts_run *run, int32_t token) {
    const ts_expect *e = &run->tap->expect;
    if (e->n) return e->positions[e->cursor + (size_t)token];
    return run->has_positions ? run->positions[token] : -1;
}

const int32_t *ts_run_row_tokens(const ts_run *run, int64_t rows) {
    if (rows == run->n_tokens) return run->identity;
    return run->has_out_ids && rows == run->n_out ? run->out_ids : NULL;
}

/* Rows a token: 1, or n_used for experts. The last block ran only the outputs. */
int ts_run_rows(const ts_run *run, enum ts_site_kind kind, int32_t block, ts_rows *out, ts_error *err) {
    memset(out, 0, sizeof(*out));
    ts_slot *slot = ts_tap_slot(run->tap, kind, block);
    if (!slot) return ts_fail(err, TS_ERR_UNSUPPORTED, "%s of block %d is not tapped", ts_site_kind_name(kind), block);
    out->width = slot->site.ne[0] * slot->site.ne[1];
    if (slot->seen == TS_SLOT_UNSEEN || (run->picking && run->n_picked == 0)) return TS_OK;
    const void *data = NULL;
    int rc = ts_slot_rows(run->tap, slot, &data, err);
    if (rc != TS_OK) return rc;
    int64_t rows = slot->picked ? run->n_picked : ts_node_rows(&slot->node) / slot->site.ne[1];
    out->token_index = slot->picked ? run->picked : ts_run_row_tokens(run, rows);
    if (slot->node.ne[0] != slot->site.ne[0] || !out->token_index)
        return ts_fail(err, TS_ERR_ENGINE, "'%s' has %lld rows of %lld in a run of %d tokens and %d outputs", slot->site.pub.tensor,
                       (long long)rows, (long long)slot->node.ne[0], run->n_tokens, run->n_out);
    out->data = data;
    out->n_rows = rows;
    return TS_OK;
}
