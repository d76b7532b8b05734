/* Corpus capture: residual rows of many prompts in one open. Packs prompts by sequence id, streams rows to
 * disk with constant memory, resumes at a batch boundary. Refuses positions a prompt does not have and outputs
 * that would not fit the disk, before it computes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/buf.h"
#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "instrument/batch.h"
#include "instrument/capture_queue.h"
#include "instrument/corpus.h"
#include "instrument/provenance.h"
#include "store/fingerprint.h"
#include "store/resid_out.h"

#define CHECKPOINT_SECONDS 1.0
#define CTX_STEP 256u /* contexts are rounded up to this many tokens, llama.cpp's own padding */

typedef struct capture {
    ts_session *s;
    const ts_capture_options *o;
    ts_corpus *corpus;
    ts_corpus_summary summary;
    bool packed;             /* several sequences a batch */
    bool complete;           /* a killed process had finished already: nothing is left to do */
    ts_range blocks;
    int32_t n_layers, n_hidden, *layer_ids;
    ts_provenance prov;      /* read before computing: a model file replaced meanwhile is not the one captured */
    char plan_hash[33];
    uint64_t n_rows;         /* that the plan will give */
    ts_resid_out *out;       /* NULL = measure only */
    ts_resid_done done;
    ts_batch batch;
    size_t run_base;         /* batch offset of the graph run at hand */
    size_t seq_at;           /* sequence that the run's rows have reached */
    float *row;              /* [n_layers][n_hidden] */
    double *sum;             /* likewise, for a mean */
    ts_rows *rows;           /* [n_layers] of the run at hand */
    size_t *cursor;          /* [n_layers] row reached in each of them */
    ts_capture_result *result;
    double begin, checkpointed;
    uint64_t tokens_resumed, rows_resumed;
    ts_capture_queue *queue; /* NULL without a file */
} capture;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- positions */

/* The tokens of a prompt of n that are captured: [*first, *last]. False when the prompt has no such token. */
static bool wanted_tokens(const ts_positions *p, size_t n, size_t *first, size_t *last) {
    int64_t a = 0, b = (int64_t)n - 1;
    if (p->kind == TS_POSITIONS_LAST) a = b;
    if (p->kind == TS_POSITIONS_RANGE) {
        a = p->first < 0 ? (int64_t)n + p->first : p->first;
        b = p->last < 0 ? (int64_t)n + p->last : p->last;
    }
    if (a < 0 || b < a || b >= (int64_t)n) return false;
    *first = (size_t)a;
    *last = (size_t)b;
    return true;
}

/* First reading: every prompt must have the wanted positions; counts rows. */
static int count_rows(const ts_corpus_entry *e, void *user, ts_error *err) {
    capture *c = user;
    size_t first, last;
    if (!wanted_tokens(&c->o->positions, e->n, &first, &last))
        return ts_fail(err, TS_ERR_ARG, "%s:%lld: the prompt has %zu tokens: no positions %d:%d", c->o->input_path, (long long)e->line,
                       e->n, c->o->positions.first, c->o->positions.last);
    c->n_rows += c->o->positions.kind == TS_POSITIONS_MEAN ? 1 : last - first + 1;
    return TS_OK;
}

/* ---- plan */

static int check_options(const ts_session *s, const ts_capture_options *o, ts_error *err) {
    static const char *const beside[] = {"f32", "meta", NULL};
    int rc = ts_options_check(o, sizeof(*o), "ts_capture_options", err);
    if (rc != TS_OK) return rc;
    if (!o->input_path) return ts_fail(err, TS_ERR_ARG, "capture: no input");
    if (o->no_tap && o->output_path) return ts_fail(err, TS_ERR_ARG, "capture: an untapped run has no output");
    if (!o->output_path) return TS_OK;
    rc = ts_file_keep(o->output_path, "input", o->input_path, err);
    if (rc == TS_OK) rc = ts_session_keep_model(s, o->output_path, beside, err);
    return rc == TS_OK ? ts_file_check_target(o->output_path, err) : rc;
}

static int choose_blocks(capture *c, ts_error *err) {
    int32_t n_layer = llama_model_n_layer(c->s->model->llama);
    c->blocks = c->o->layers ? *c->o->layers : (ts_range){0, n_layer - 1};
    if (c->blocks.first < 0 || c->blocks.last < c->blocks.first || c->blocks.last >= n_layer)
        return ts_fail(err, TS_ERR_ARG, "--layers %d:%d: the model has blocks 0:%d", c->blocks.first, c->blocks.last, n_layer - 1);
    c->n_layers = c->blocks.last - c->blocks.first + 1;
    c->n_hidden = llama_model_n_embd(c->s->model->llama);
    size_t values = (size_t)c->n_layers * (size_t)c->n_hidden, layers = (size_t)c->n_layers;
    c->layer_ids = ts_calloc(layers, sizeof(*c->layer_ids));
    c->row = ts_calloc(values, sizeof(*c->row));
    c->sum = ts_calloc(values, sizeof(*c->sum));
    c->rows = ts_calloc(layers, sizeof(*c->rows));
    c->cursor = ts_calloc(layers, sizeof(*c->cursor));
    if (!c->layer_ids || !c->row || !c->sum || !c->rows || !c->cursor) return ts_fail_nomem(err, "capture rows", values * sizeof(double));
    for (int32_t i = 0; i < c->n_layers; i++) c->layer_ids[i] = c->blocks.first + i;
    return TS_OK;
}

/* Corpus, model and options that decide the bytes; a partial file of another plan is not continued. */
static int hash_plan(capture *c, ts_error *err) {
    ts_model_info m;
    ts_buf b = {0};
    const ts_session_options *so = &c->s->opts;
    ts_model_info_fill(c->s->model, &m);
    ts_buf_printf(&b, "%s|%s|%s|%llu|%llu|", c->summary.fingerprint, m.architecture, m.description, (unsigned long long)m.size_bytes,
                  (unsigned long long)m.n_params);
    ts_buf_printf(&b, "%d:%d|%d:%d:%d|%d|%d|", c->blocks.first, c->blocks.last, (int)c->o->positions.kind, c->o->positions.first,
                  c->o->positions.last, (int)c->o->format, c->o->exact);
    ts_buf_printf(&b, "%u|%u|%d|%d|%s|%s|%d|%d|%s", so->n_ubatch, so->n_ctx, so->n_threads, (int)so->flash_attn,
                  so->type_k ? so->type_k : "", so->type_v ? so->type_v : "", (int)so->tap, so->n_gpu_layers, so->device ? so->device : "");
    for (size_t i = 0; i < c->prov.n_shards; i++) ts_buf_printf(&b, "|%s", c->prov.shards[i].xxh3);
    int rc = b.failed ? ts_fail_nomem(err, "plan", 0) : TS_OK;
    if (rc == TS_OK) ts_fingerprint_bytes(b.data, b.length, c->plan_hash);
    ts_buf_free(&b);
    return rc;
}

/* Room for the longest prompt and for a full ubatch. */
static int size_context(capture *c, ts_error *err) {
    ts_session_options *so = &c->s->opts;
    uint32_t trained = (uint32_t)llama_model_n_ctx_train(c->s->model->llama), ubatch = so->n_ubatch ? so->n_ubatch : 512;
    size_t need = c->summary.longest > ubatch ? c->summary.longest : ubatch;
    uint32_t limit = so->n_ctx ? so->n_ctx : trained;
    if (c->summary.longest > limit)
        return ts_fail(err, TS_ERR_ARG, "%s:%lld: the prompt has %zu tokens, the context holds %u%s", c->o->input_path,
                       (long long)c->summary.longest_line, c->summary.longest, limit, so->n_ctx ? ": raise -c" : " (as trained): set -c");
    if (!so->n_ctx) so->n_ctx = (uint32_t)((need + CTX_STEP - 1) / CTX_STEP * CTX_STEP);
    so->n_batch = so->n_ubatch = ubatch > so->n_ctx ? so->n_ctx : ubatch;
    so->n_seq_max = !c->packed ? 1 : so->n_batch < TS_BATCH_MAX_SEQ ? so->n_batch : TS_BATCH_MAX_SEQ;
    return TS_OK;
}

static int start_session(capture *c, ts_error *err) {
    ts_session *s = c->s;
    if (s->started) return ts_fail(err, TS_ERR_STATE, "capture needs a session that has not started");
    int rc = size_context(c, err);
    if (rc == TS_OK && !c->o->no_tap) rc = ts_session_want(s, 1u << TS_SITE_RESID, &c->blocks, err);
    if (rc == TS_OK) rc = ts_session_start(s, err);
    if (rc == TS_OK && s->tap)
        rc = ts_sites_require(&s->tap->table, TS_SITE_RESID, c->blocks.first, c->blocks.last, s->model->architecture, err);
    return rc == TS_OK ? ts_batch_init(&c->batch, s->opts.n_ubatch, err) : rc;
}

static ts_resid_spec output_spec(const capture *c) {
    return (ts_resid_spec){.path = c->o->output_path, .format = c->o->format, .n_layers = c->n_layers, .n_hidden = c->n_hidden,
                           .layer_ids = c->layer_ids, .layers_subset = c->n_layers != llama_model_n_layer(c->s->model->llama),
                           .mean = c->o->positions.kind == TS_POSITIONS_MEAN, .plan_hash = c->plan_hash, .resume = c->o->resume,
                           .overwrite = c->o->overwrite};
}

static ts_progress progress(const capture *c) {
    return (ts_progress){.prompts_done = c->done.prompts, .prompts_total = c->summary.n_prompts, .tokens_done = c->done.tokens,
                         .tokens_total = c->summary.n_tokens,
                         .bytes_done = c->done.rows * (uint64_t)c->n_layers * (uint64_t)c->n_hidden * sizeof(float),
                         .seconds = now() - c->begin, .tokens_resumed = c->tokens_resumed};
}

static int open_output(capture *c, ts_error *err) {
    ts_resid_spec spec = output_spec(c);
    uint64_t free_bytes = 0, bytes = ts_resid_out_predict(&spec, c->n_rows, c->summary.n_tokens);
    int rc = ts_resid_out_open(&spec, &c->out, &c->done, err);
    if (rc == TS_OK) rc = ts_file_free_bytes(c->o->output_path, &free_bytes, err);
    if (rc == TS_OK)
        rc = ts_capture_queue_open(c->out, (size_t)c->n_layers * (size_t)c->n_hidden, ts_engine_cores() > c->s->opts.n_threads, &c->queue, err);
    c->tokens_resumed = c->done.tokens;
    c->rows_resumed = c->done.rows;
    ts_progress p = progress(c);
    p.bytes_total = bytes;
    if (rc == TS_OK && c->o->on_plan) c->o->on_plan(&p, c->o->user);
    if (rc == TS_OK && bytes > p.bytes_done && bytes - p.bytes_done > free_bytes)
        rc = ts_fail(err, TS_ERR_IO, "'%s' would take %.1f MiB, %.1f MiB are free there", c->o->output_path,
                     (double)(bytes - p.bytes_done) / 1048576.0, (double)free_bytes / 1048576.0);
    return rc;
}

/* ---- rows */

/* Row of token `t` of the run in every layer, into c->row. Tokens come in ascending order. */
static int gather(capture *c, int32_t t, ts_error *err) {
    for (int32_t l = 0; l < c->n_layers; l++) {
        const ts_rows *r = &c->rows[l];
        while ((int64_t)c->cursor[l] < r->n_rows && r->token_index[c->cursor[l]] < t) c->cursor[l]++;
        if ((int64_t)c->cursor[l] == r->n_rows || r->token_index[c->cursor[l]] != t)
            return ts_fail(err, TS_ERR_ENGINE, "block %d gave no row for token %d of the run", c->layer_ids[l], t);
        memcpy(c->row + (size_t)l * (size_t)c->n_hidden, r->data + (int64_t)c->cursor[l] * r->width, (size_t)c->n_hidden * sizeof(float));
    }
    return TS_OK;
}

static int add_row(capture *c, const ts_batch_seq *seq, size_t at, bool with_prompt, ts_error *err) {
    char piece[512];
    bool mean = c->o->positions.kind == TS_POSITIONS_MEAN;
    int32_t token = mean ? -1 : c->batch.tokens[at];
    int n = mean ? 0 : ts_session_piece(c->s, token, piece, sizeof(piece), NULL);
    ts_resid_row row = {.prompt_index = seq->prompt_index, .position = mean ? -1 : c->batch.positions[at], .token = token,
                        .piece = piece, .piece_length = n > 0 ? (size_t)n : 0, .label = seq->label};
    if (with_prompt) {
        row.prompt_tokens = c->batch.tokens + seq->begin;
        row.n_prompt_tokens = seq->n;
    }
    c->result->n_rows++;
    return c->queue ? ts_capture_queue_add(c->queue, c->row, &row, err) : TS_OK;
}

static int add_to_mean(capture *c, const ts_batch_seq *seq, size_t at, ts_error *err) {
    size_t values = (size_t)c->n_layers * (size_t)c->n_hidden;
    if (at == seq->begin) memset(c->sum, 0, values * sizeof(*c->sum));
    for (size_t i = 0; i < values; i++) c->sum[i] += (double)c->row[i];
    if (at + 1 < seq->begin + seq->n) return TS_OK;
    for (size_t i = 0; i < values; i++) c->row[i] = (float)(c->sum[i] / (double)seq->n);
    return add_row(c, seq, at, true, err);
}

/* Consumer of the tap: the run holds batch tokens [run_base, run_base + n). */
static int on_run(const ts_run *run, void *user, ts_error *err) {
    capture *c = user;
    int32_t n = ts_run_n_tokens(run);
    for (int32_t l = 0; l < c->n_layers; l++) {
        int rc = ts_run_rows(run, TS_SITE_RESID, c->layer_ids[l], &c->rows[l], err);
        if (rc != TS_OK) return rc;
        c->cursor[l] = 0;
    }
    for (int32_t t = 0; t < n; t++) {
        size_t at = c->run_base + (size_t)t, first, last;
        while (at >= c->batch.seqs[c->seq_at].begin + c->batch.seqs[c->seq_at].n) c->seq_at++;
        const ts_batch_seq *seq = &c->batch.seqs[c->seq_at];
        if (!c->batch.output[at]) continue;
        int rc = gather(c, t, err);
        wanted_tokens(&c->o->positions, seq->n, &first, &last);
        if (rc == TS_OK && c->o->positions.kind == TS_POSITIONS_MEAN)
            rc = add_to_mean(c, seq, at, err);
        else if (rc == TS_OK)
            rc = add_row(c, seq, at, at == seq->begin + first, err);
        if (rc != TS_OK) return rc;
    }
    c->run_base += (size_t)n;
    return TS_OK;
}

/* ---- batches */

static void mark_outputs(capture *c) {
    for (size_t i = 0; i < c->batch.n_seqs; i++) {
        const ts_batch_seq *seq = &c->batch.seqs[i];
        size_t first = 0, last = 0;
        wanted_tokens(&c->o->positions, seq->n, &first, &last);
        memset(c->batch.output + seq->begin + first, 1, last - first + 1);
    }
}

/* Tokens [at, at + n) of the batch in one llama_decode. */
static int decode_part(capture *c, size_t at, size_t n, ts_error *err) {
    ts_decode d = {.tokens = c->batch.tokens + at, .positions = c->batch.positions + at, .seq_ids = c->batch.seq_ids + at,
                   .output = c->batch.output + at, .n = n, .wanted = 1u << TS_SITE_RESID, .outputs_only = true, .skip_head = !c->o->exact,
                   .on_run = c->o->no_tap ? NULL : on_run, .user = c};
    return ts_session_decode(c->s, &d, err);
}

/* As `run` does it: all but the last token in chunks, the last as a pass of its own. */
static int decode_exact(capture *c, ts_error *err) {
    size_t chunk = c->s->opts.n_ubatch, n = c->batch.n - 1;
    int rc = TS_OK;
    for (size_t at = 0; rc == TS_OK && at < n; at += chunk) rc = decode_part(c, at, n - at < chunk ? n - at : chunk, err);
    return rc == TS_OK ? decode_part(c, n, 1, err) : rc;
}

static int decode_packed(capture *c, ts_error *err) {
    size_t chunk = c->s->opts.n_ubatch;
    int rc = TS_OK;
    for (size_t at = 0; rc == TS_OK && at < c->batch.n; at += chunk)
        rc = decode_part(c, at, c->batch.n - at < chunk ? c->batch.n - at : chunk, err);
    return rc;
}

static int checkpoint(capture *c, bool force, ts_error *err) {
    if (!c->out || (!force && now() - c->checkpointed < CHECKPOINT_SECONDS)) return TS_OK;
    int rc = ts_capture_queue_wait(c->queue, err);
    c->checkpointed = now();
    return rc == TS_OK ? ts_resid_out_checkpoint(c->out, &c->done, err) : rc;
}

static int flush_batch(capture *c, ts_error *err) {
    if (c->batch.n == 0) return TS_OK;
    mark_outputs(c);
    ts_session_clear(c->s);
    c->run_base = c->seq_at = 0;
    int rc = c->o->exact ? decode_exact(c, err) : decode_packed(c, err);
    if (rc == TS_OK && c->queue) rc = ts_capture_queue_flush(c->queue, err);
    if (rc != TS_OK) return rc;
    c->done.prompts += c->batch.n_seqs;
    c->done.tokens += c->batch.n;
    c->done.rows = c->rows_resumed + c->result->n_rows;
    c->done.batches++;
    c->result->n_batches++;
    ts_batch_clear(&c->batch);
    rc = checkpoint(c, false, err);
    ts_progress p = progress(c);
    if (rc == TS_OK && c->o->on_progress) c->o->on_progress(&p, c->o->user);
    return rc;
}

static bool fits(const capture *c, size_t n) {
    if (c->batch.n == 0) return true;
    return c->packed && ts_batch_fits(&c->batch, n);
}

static int walk(capture *c, ts_error *err) {
    bool got = true;
    uint64_t skip = c->done.prompts;
    int rc = TS_OK;
    while (rc == TS_OK && !ts_session_stopped(c->s)) {
        ts_corpus_entry e;
        rc = ts_corpus_next(c->corpus, &e, &got, err);
        if (rc != TS_OK || !got) break;
        if ((uint64_t)e.index < skip) continue;
        if (!fits(c, e.n)) rc = flush_batch(c, err);
        if (rc == TS_OK && !ts_session_stopped(c->s)) rc = ts_batch_add(&c->batch, e.index, e.tokens, e.n, e.label, err);
    }
    if (rc == TS_OK && !ts_session_stopped(c->s)) rc = flush_batch(c, err);
    return rc;
}

/* ---- end */

static int write_result(capture *c, bool partial, ts_error *err) {
    char *sites = ts_session_sites_json(c->s);
    if (!sites) return ts_fail_nomem(err, "sites", 0);
    int rc = ts_resid_out_finish(c->out, &c->prov, sites, partial, err);
    c->out = NULL;
    free(sites);
    return rc;
}

/* After a failure the partial files stay as of the last good batch; a stop writes what there is. */
static int conclude(capture *c, int rc, ts_error *err) {
    ts_error late;
    int written = c->queue ? ts_capture_queue_wait(c->queue, rc == TS_OK ? err : &late) : TS_OK;
    if (rc == TS_OK) rc = written;
    c->result->partial = rc == TS_OK && ts_session_stopped(c->s) && c->done.prompts < c->summary.n_prompts;
    if (!c->out) return rc;
    c->result->n_nonfinite = ts_resid_out_nonfinite(c->out);
    c->result->n_rows = ts_resid_out_rows(c->out);
    if (rc != TS_OK) return rc;
    if (c->done.rows == 0) { /* nothing to resume from either */
        ts_resid_out_abandon(c->out, true);
        c->out = NULL;
        return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted before the first batch: nothing captured");
    }
    rc = checkpoint(c, true, err);
    if (rc == TS_OK) rc = write_result(c, c->result->partial, err);
    if (rc == TS_OK && c->result->partial)
        rc = ts_fail(err, TS_ERR_INTERRUPTED, "interrupted after %llu of %llu prompts: '%s' holds their rows, marked partial; resume goes on from there",
                     (unsigned long long)c->done.prompts, (unsigned long long)c->summary.n_prompts, c->o->output_path);
    return rc;
}

static int prepare(capture *c, ts_error *err) {
    ts_corpus_options co = {c->o->input_path, c->o->column, c->o->chat_template, c->o->chat, c->o->special};
    int rc = choose_blocks(c, err);
    if (rc == TS_OK) rc = ts_corpus_open(c->s, &co, &c->corpus, err);
    if (rc == TS_OK) rc = ts_corpus_scan(c->corpus, count_rows, c, &c->summary, err);
    c->packed = !c->o->exact && !llama_model_is_recurrent(c->s->model->llama) && !llama_model_is_hybrid(c->s->model->llama);
    if (rc == TS_OK) rc = start_session(c, err);
    if (rc == TS_OK && c->o->output_path) rc = ts_provenance_complete(c->s, &c->prov, err);
    if (rc == TS_OK) rc = hash_plan(c, err);
    ts_resid_spec spec = output_spec(c);
    if (rc == TS_OK && c->o->resume && c->o->output_path && ts_resid_out_complete(&spec)) {
        c->complete = true;
        return TS_OK;
    }
    if (rc == TS_OK && c->o->output_path) rc = open_output(c, err);
    return rc;
}

int ts_capture_run(ts_session *s, const ts_capture_options *opts, ts_capture_result *out, ts_error *err) {
    ts_capture_result unused;
    capture c = {.s = s, .o = opts, .result = out ? out : &unused};
    memset(c.result, 0, sizeof(*c.result));
    int rc = check_options(s, opts, err);
    if (rc == TS_OK) rc = prepare(&c, err);
    c.begin = c.checkpointed = now();
    if (rc == TS_OK && c.complete) {
        ts_log(TS_LOG_WARN, "'%s' is complete already: nothing to resume", opts->output_path);
        c.done = (ts_resid_done){.prompts = c.summary.n_prompts, .tokens = c.summary.n_tokens, .rows = c.n_rows};
        c.result->n_rows = c.n_rows;
    } else if (rc == TS_OK) {
        rc = walk(&c, err);
    }
    c.result->seconds = now() - c.begin;
    rc = conclude(&c, rc, err);
    c.result->n_prompts = c.done.prompts;
    c.result->n_tokens = c.done.tokens;
    c.result->n_skipped_empty = c.summary.n_skipped;
    ts_capture_queue_close(c.queue); /* before the file it writes to */
    if (c.out) ts_resid_out_abandon(c.out, false);
    ts_provenance_free(&c.prov);
    ts_batch_free(&c.batch);
    ts_corpus_close(c.corpus);
    free(c.layer_ids);
    free(c.row);
    free(c.sum);
    free(c.rows);
    free(c.cursor);
    return rc;
}
