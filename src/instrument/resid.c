/* Instrument: residual capture. One snapshot a generation, every block's output at the last prompt token (the
 * first headful pass), whatever -n is; armed again by the next generation. Refuses, by name, a model with a
 * block that has no such site. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "instrument/provenance.h"
#include "instrument/resid.h"
#include "store/meta.h"
#include "store/resid_out.h"

typedef struct resid {
    char *path; /* NULL = measure only */
    bool gate, armed, every_pass;
    ts_session *session;
    ts_resid_out *out;
    int32_t n_layer, n_embd;
    float *snapshot;    /* [n_layer][n_embd] */
    int32_t *layer_ids; /* [n_layer] */
    uint64_t n_snapshots;
    ts_error deferred;  /* by environment: an output path that failed is reported after the text */
} resid;

static int open_output(resid *r, ts_error *err) {
    ts_resid_spec spec = {.path = r->path, .format = TS_CAPTURE_F32, .n_layers = r->n_layer, .n_hidden = r->n_embd,
                          .layer_ids = r->layer_ids, .plan_hash = "run", .overwrite = true};
    static const char *const beside[] = {"f32", "meta", NULL};
    ts_resid_done done;
    int rc = ts_session_keep_model(r->session, r->path, beside, err);
    if (rc == TS_OK) rc = ts_result_keep(r->path, "resid", beside, err);
    if (rc == TS_OK) rc = ts_resid_out_keep_unfinished(&spec, err);
    return rc != TS_OK ? rc : ts_resid_out_open(&spec, &r->out, &done, err);
}

static int resid_start(void *self, ts_session *s, ts_error *err) {
    resid *r = self;
    r->session = s;
    r->n_layer = llama_model_n_layer(s->model->llama);
    r->n_embd = llama_model_n_embd(s->model->llama);
    int rc = ts_sites_require(&s->tap->table, TS_SITE_RESID, 0, r->n_layer - 1, s->model->architecture, err);
    if (rc != TS_OK) return rc;
    r->snapshot = ts_calloc((size_t)r->n_layer * (size_t)r->n_embd, sizeof(float));
    r->layer_ids = ts_calloc((size_t)r->n_layer, sizeof(int32_t));
    if (!r->snapshot || !r->layer_ids) return ts_fail_nomem(err, "snapshot", (size_t)r->n_layer * (size_t)r->n_embd * sizeof(float));
    for (int32_t i = 0; i < r->n_layer; i++) r->layer_ids[i] = i;
    if (!r->path) return TS_OK;
    if (!r->gate) return open_output(r, err);
    open_output(r, &r->deferred);
    return TS_OK;
}

static int resid_begin(void *self, const ts_generation *g, ts_error *err) {
    (void)g;
    (void)err;
    ((resid *)self)->armed = true;
    return TS_OK;
}

static unsigned resid_wants(void *self, enum ts_pass_kind kind) {
    const resid *r = self;
    return (r->armed || r->every_pass) && kind == TS_PASS_HEADFUL ? 1u << TS_SITE_RESID : 0;
}

/* The pass's last token, block by block. */
static int take_snapshot(resid *r, const ts_run *run, ts_error *err) {
    for (int32_t il = 0; il < r->n_layer; il++) {
        ts_rows rows;
        int rc = ts_run_rows(run, TS_SITE_RESID, il, &rows, err);
        if (rc != TS_OK) return rc;
        if (rows.n_rows == 0 || rows.token_index[rows.n_rows - 1] != ts_run_n_tokens(run) - 1)
            return ts_fail(err, TS_ERR_ENGINE, "block %d gave no row for the last prompt token", il);
        memcpy(r->snapshot + (size_t)il * (size_t)r->n_embd, rows.data + (rows.n_rows - 1) * rows.width, (size_t)r->n_embd * sizeof(float));
    }
    return TS_OK;
}

/* For the measurement of every pass: the rows come to where they could be used. */
static int read_only(const resid *r, const ts_run *run, ts_error *err) {
    int rc = TS_OK;
    for (int32_t il = 0; rc == TS_OK && il < r->n_layer; il++) {
        ts_rows rows;
        rc = ts_run_rows(run, TS_SITE_RESID, il, &rows, err);
        if (rc == TS_OK && rows.n_rows == 0) rc = ts_fail(err, TS_ERR_ENGINE, "block %d gave no row", il);
    }
    return rc;
}

static int resid_pass(void *self, const ts_pass *pass, ts_error *err) {
    resid *r = self;
    if (!r->armed) return read_only(r, pass->run, err);
    int rc = take_snapshot(r, pass->run, err);
    if (rc != TS_OK) return rc;
    r->armed = false;
    r->n_snapshots++;
    if (!r->out) return TS_OK;
    const ts_generation *g = pass->generation;
    char piece[512];
    int32_t last = g->tokens[g->n_tokens - 1];
    int n = ts_session_piece(r->session, last, piece, sizeof(piece), NULL);
    ts_resid_row row = {.prompt_index = g->prompt_index, .position = (int32_t)g->n_tokens - 1, .token = last, .piece = piece,
                        .piece_length = n > 0 ? (size_t)n : 0, .prompt_tokens = g->tokens, .n_prompt_tokens = g->n_tokens,
                        .label = g->label};
    return ts_resid_out_add(r->out, r->snapshot, &row, err);
}

static int write_result(resid *r, ts_session *s, ts_error *err) {
    ts_provenance prov;
    char *sites = ts_session_sites_json(s);
    int rc = sites ? ts_provenance_complete(s, &prov, err) : ts_fail_nomem(err, "sites", 0);
    if (rc == TS_OK) {
        rc = ts_resid_out_finish(r->out, &prov, sites, ts_session_stopped(s), err);
        r->out = NULL;
    }
    if (sites) ts_provenance_free(&prov);
    free(sites);
    return rc;
}

static int resid_finish(void *self, ts_session *s, ts_error *err) {
    resid *r = self;
    if (!r->path) return TS_OK;
    if (r->deferred.code) {
        if (err) *err = r->deferred;
        return r->deferred.code;
    }
    if (r->n_snapshots == 0) {
        ts_log(TS_LOG_WARN, "resid-capture: no headful pass ran, nothing is written to '%s'", r->path);
        return TS_OK;
    }
    uint64_t nonfinite = ts_resid_out_nonfinite(r->out);
    int rc = write_result(r, s, err);
    if (rc == TS_OK) ts_log(TS_LOG_INFO, "resid-capture: %llu snapshot(s) in '%s'", (unsigned long long)r->n_snapshots, r->path);
    if (rc == TS_OK && nonfinite)
        ts_log(TS_LOG_WARN, "resid-capture: %llu values are not finite (see '%s', nonfinite)", (unsigned long long)nonfinite, r->path);
    return rc;
}

static void resid_free(void *self) {
    resid *r = self;
    if (!r) return;
    if (r->out) ts_resid_out_abandon(r->out, true);
    free(r->path);
    free(r->snapshot);
    free(r->layer_ids);
    free(r);
}

static const ts_instrument_class resid_class = {
    .name = "resid-capture", .sites = 1u << TS_SITE_RESID, .start = resid_start, .begin = resid_begin, .wants = resid_wants,
    .pass = resid_pass, .finish = resid_finish, .free = resid_free,
};

static int attach(ts_session *s, const char *path, bool gate, bool every_pass, ts_error *err) {
    resid *r = ts_calloc(1, sizeof(*r));
    if (!r) return ts_fail_nomem(err, "resid-capture", sizeof(*r));
    r->gate = gate;
    r->every_pass = every_pass;
    if (path && !(r->path = ts_strdup(path))) {
        free(r);
        return ts_fail_nomem(err, "resid-capture", strlen(path));
    }
    return ts_session_attach(s, &resid_class, r, gate, err);
}

int ts_resid_attach(ts_session *s, const char *path, bool gate, ts_error *err) { return attach(s, path, gate, false, err); }

int ts_session_attach_resid(ts_session *s, const ts_resid_options *opts, ts_error *err) {
    int rc = ts_options_check(opts, sizeof(*opts), "ts_resid_options", err);
    return rc == TS_OK ? attach(s, opts->path, false, opts->every_pass, err) : rc;
}

bool ts_resid_allows_speculation(bool mtp_open, bool headless_drafter, ts_error *err) {
    if (!mtp_open || headless_drafter) return true;
    ts_fail(err, TS_ERR_STATE,
            "residual capture cannot run beside multi-token-prediction drafting: its prefill passes are headful and its draft steps "
            "overwrite the rows, so the snapshot would be of another token");
    return false;
}
