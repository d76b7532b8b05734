/* Logits of a text: runs it teacher-forced, window by window (logits_plan.h), and streams each row to a dump. Refuses
 * a session that has started. What it leaves is a whole dump, one marked partial after a stop, or nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/file.h"
#include "core/mem.h"
#include "host/session.h"
#include "instrument/logits_plan.h"
#include "instrument/provenance.h"
#include "store/logits_dump.h"

#define DEFAULT_UBATCH 512u
#define DEFAULT_CTX 4096u
#define MAX_LOGIT_BYTES ((size_t)512 << 20) /* of one batch, kept by llama.cpp */

typedef struct run {
    ts_session *s;
    const ts_logits_options *o;
    int32_t *text; /* [n_text] */
    size_t n_text, n_vocab, batch;
    ts_logits_plan plan;
    int32_t bos;                  /* what later windows begin with, -1 = their own first token */
    int32_t *tokens, *positions;  /* [batch] */
    int8_t *output;               /* [batch] */
    ts_provenance provenance;
    ts_logits_spec spec;
    ts_logits_out *out;
    char members[128];
    uint64_t done; /* tokens decoded */
    struct timespec begin;
} run;

static double seconds_since(const struct timespec *begin) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)(t.tv_sec - begin->tv_sec) + 1e-9 * (double)(t.tv_nsec - begin->tv_nsec);
}

static void report(const run *r, ts_progress_fn fn) {
    uint64_t rows = r->out ? (uint64_t)ts_logits_out_rows(r->out) : 0, bytes = ts_logits_out_predict(&r->spec);
    ts_progress p = {.prompts_total = 1, .tokens_done = r->done, .tokens_total = r->plan.n_decoded,
                     .bytes_done = bytes / r->plan.n_run * rows, .bytes_total = bytes, .seconds = seconds_since(&r->begin)};
    if (fn) fn(&p, r->o->user);
}

/* ---- windows */

/* Tokens [at, at + n) of a window, into the context's memory as it is. */
static int decode(run *r, const ts_logits_window *w, size_t at, size_t n, ts_error *err) {
    for (size_t i = 0; i < n; i++) {
        r->tokens[i] = r->text[at + i];
        r->positions[i] = (int32_t)(at + i - w->begin);
        r->output[i] = at + i >= w->write;
    }
    if (at == w->begin && w->begin > 0 && r->bos >= 0) r->tokens[0] = r->bos;
    ts_decode d = {.tokens = r->tokens, .positions = r->positions, .output = r->output, .n = n};
    return ts_session_decode(r->s, &d, err);
}

static int write_rows(run *r, size_t n, ts_error *err) {
    int rc = TS_OK;
    for (size_t i = 0; rc == TS_OK && i < n; i++) {
        if (!r->output[i]) continue;
        const float *logits = llama_get_logits_ith(r->s->ctx, (int32_t)i);
        rc = logits ? ts_logits_out_add(r->out, logits, err)
                    : ts_fail(err, TS_ERR_ENGINE, "llama.cpp gave no logits for token %zu of a batch", i);
    }
    return rc;
}

static int walk_window(run *r, const ts_logits_window *w, ts_error *err) {
    int rc = TS_OK;
    ts_session_clear(r->s);
    for (size_t at = w->begin; rc == TS_OK && at < w->end; at += r->batch) {
        size_t n = w->end - at < r->batch ? w->end - at : r->batch;
        if (ts_session_stopped(r->s)) return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted");
        rc = decode(r, w, at, n, err);
        if (rc == TS_OK) rc = write_rows(r, n, err);
        r->done += n;
        if (rc == TS_OK) report(r, r->o->on_progress);
    }
    return rc;
}

static int walk(run *r, ts_error *err) {
    int rc = TS_OK;
    for (size_t k = 0; rc == TS_OK && k < r->plan.n_windows; k++) {
        ts_logits_window w = ts_logits_plan_window(&r->plan, k);
        rc = walk_window(r, &w, err);
    }
    return rc;
}

/* ---- before */

/* A file of the folder may be one of those read. */
static int keep_inputs(const run *r, ts_error *err) {
    const char *folder = r->o->output_path, *name;
    if (ts_logits_dump_holds(folder, r->o->input_path, &name))
        return ts_fail(err, TS_ERR_ARG, "output '%s/%s' is the text", folder, name);
    for (size_t i = 0; i < r->s->model->n_shards; i++)
        if (ts_logits_dump_holds(folder, r->s->model->shards[i], &name))
            return ts_fail(err, TS_ERR_ARG, "output '%s/%s' is the model", folder, name);
    return TS_OK;
}

static int check(const run *r, ts_error *err) {
    int rc = ts_options_check(r->o, sizeof(*r->o), "ts_logits_options", err);
    if (rc != TS_OK) return rc;
    if (!r->o->input_path || !r->o->output_path) return ts_fail(err, TS_ERR_ARG, "ts_logits_options: input_path and output_path are needed");
    rc = keep_inputs(r, err);
    if (rc != TS_OK) return rc;
    return r->s->started ? ts_fail(err, TS_ERR_STATE, "logits need a session that has not started") : TS_OK;
}

static int read_text(run *r, ts_error *err) {
    char *text = NULL;
    size_t length = 0;
    int rc = ts_text_file_read(r->o->input_path, &text, &length, err);
    if (rc == TS_OK) rc = ts_session_tokenize(r->s, text, length, r->o->special ? TS_TOKENIZE_SPECIAL : 0, &r->text, &r->n_text, err);
    free(text);
    return rc;
}

/* Tokens a window may have: the context asked for, else as many as the model was trained on, where none is named
 * at most as many as every command takes by default. */
static size_t context_limit(const run *r) {
    uint32_t asked = r->s->opts.n_ctx;
    int32_t trained = llama_model_n_ctx_train(r->s->model->llama);
    if (asked) return asked;
    if (r->o->window) return trained > 0 ? (size_t)trained : r->o->window;
    return trained > 0 && (uint32_t)trained < DEFAULT_CTX ? (size_t)trained : DEFAULT_CTX;
}

static int make_plan(run *r, ts_error *err) {
    const struct llama_vocab *vocab = r->s->model->vocab;
    r->bos = llama_vocab_get_add_bos(vocab) ? llama_vocab_bos(vocab) : -1;
    r->n_vocab = (size_t)llama_vocab_n_tokens(vocab);
    int rc = ts_logits_plan_make(r->o->input_path, r->n_text, context_limit(r), r->o->window, r->o->stride, r->bos >= 0, &r->plan, err);
    if (rc != TS_OK) return rc;
    snprintf(r->members, sizeof(r->members), "  \"window\": %zu,\n  \"stride\": %zu,\n  \"windows\": %zu,\n", r->plan.window,
             r->plan.stride, r->plan.n_windows);
    r->spec = (ts_logits_spec){.folder = r->o->output_path, .dtype = r->o->f32 ? TS_LOGITS_F32 : TS_LOGITS_F16, .vocab_size = (int32_t)r->n_vocab,
                               .token_ids = r->text, .n_tokens = r->n_text, .first_scored_position = (int64_t)r->plan.first_scored,
                               .provenance = &r->provenance, .members = r->members, .overwrite = r->o->overwrite};
    return TS_OK;
}

static int open_output(run *r, ts_error *err) {
    uint64_t free_bytes = 0, bytes = ts_logits_out_predict(&r->spec);
    int rc = ts_logits_out_open(&r->spec, &r->out, err);
    if (rc != TS_OK) return rc;
    char *inside = ts_malloc(strlen(r->o->output_path) + 3); /* a name in the folder, which may be another disk */
    if (!inside) return ts_fail_nomem(err, "a path", strlen(r->o->output_path));
    sprintf(inside, "%s/x", r->o->output_path);
    rc = ts_file_free_bytes(inside, &free_bytes, err);
    free(inside);
    if (rc == TS_OK && bytes > free_bytes)
        rc = ts_fail(err, TS_ERR_IO, "'%s' would take %.1f MiB, %.1f MiB are free there", r->o->output_path, (double)bytes / 1048576.0,
                     (double)free_bytes / 1048576.0);
    return rc;
}

static int start_session(run *r, ts_error *err) {
    ts_session_options *so = &r->s->opts;
    size_t longest = r->plan.window < r->plan.n_run ? r->plan.window : r->plan.n_run, most = MAX_LOGIT_BYTES / (r->n_vocab * sizeof(float));
    if (!so->n_ctx) so->n_ctx = (uint32_t)longest;
    r->batch = so->n_ubatch ? so->n_ubatch : DEFAULT_UBATCH;
    if (r->batch > longest) r->batch = longest;
    if (r->batch > most) r->batch = most ? most : 1;
    so->n_batch = so->n_ubatch = (uint32_t)r->batch;
    int rc = ts_session_start(r->s, err);
    if (rc == TS_OK) rc = ts_provenance_complete(r->s, &r->provenance, err);
    r->tokens = ts_calloc(r->batch, sizeof(*r->tokens));
    r->positions = ts_calloc(r->batch, sizeof(*r->positions));
    r->output = ts_calloc(r->batch, 1);
    if (rc == TS_OK && (!r->tokens || !r->positions || !r->output)) rc = ts_fail_nomem(err, "a batch", r->batch);
    return rc;
}

/* ---- life */

static void fill_result(const run *r, ts_logits_result *out) {
    *out = (ts_logits_result){.n_tokens = (int64_t)r->n_text, .n_rows = (int64_t)r->plan.n_run, .first_scored_position = (int64_t)r->plan.first_scored,
                              .window = (uint32_t)r->plan.window, .stride = (uint32_t)r->plan.stride, .n_windows = (uint32_t)r->plan.n_windows,
                              .n_bytes = ts_logits_out_predict(&r->spec), .seconds = seconds_since(&r->begin)};
}

/* What a stop leaves: the rows so far, unless a whole dump stands there. */
static int save_part(run *r, ts_error *err) {
    ts_error why = {0};
    int64_t rows = ts_logits_out_rows(r->out), total = (int64_t)r->n_text - 1;
    if (ts_logits_out_cut(r->out, &why) != TS_OK) return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted: %s", why.message);
    int rc = ts_logits_out_finish(r->out, NULL, err);
    r->out = NULL;
    if (rc != TS_OK) return rc;
    return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted after %" PRId64 " of %" PRId64 " rows: '%s' holds them, marked partial", rows, total,
                   r->o->output_path);
}

int ts_logits_run(ts_session *s, const ts_logits_options *opts, ts_logits_result *out, ts_error *err) {
    run r = {.s = s, .o = opts};
    clock_gettime(CLOCK_MONOTONIC, &r.begin);
    memset(out, 0, sizeof(*out));
    int rc = check(&r, err);
    if (rc == TS_OK) rc = read_text(&r, err);
    if (rc == TS_OK) rc = make_plan(&r, err);
    if (rc == TS_OK) rc = open_output(&r, err);
    if (rc == TS_OK) rc = start_session(&r, err);
    if (rc == TS_OK) report(&r, r.o->on_plan);
    if (rc == TS_OK) rc = walk(&r, err);
    if (rc == TS_ERR_INTERRUPTED) rc = save_part(&r, err);
    if (rc == TS_OK) {
        rc = ts_logits_out_finish(r.out, NULL, err);
        r.out = NULL;
    }
    if (rc == TS_OK) fill_result(&r, out);
    ts_logits_out_discard(r.out);
    ts_provenance_free(&r.provenance);
    free(r.text);
    free(r.tokens);
    free(r.positions);
    free(r.output);
    return rc;
}
