/* What a census will do, decided before it computes. Refuses options that contradict each other, texts shorter than
 * two tokens, and prompts the context cannot hold. */
#include "instrument/census_plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "stats/ffn_stats.h"
#include "store/fingerprint.h"

#define DEFAULT_PREDICT 64
#define DEFAULT_WINDOW 2048u
#define MAX_PARALLEL 256
#define CTX_STEP 256u

static int check_options(const ts_census_options *o, ts_error *err) {
    if (!o->input_path) return ts_fail(err, TS_ERR_ARG, "census: no input");
    if (o->no_tap && o->output_path) return ts_fail(err, TS_ERR_ARG, "census: an untapped run has no output");
    if (o->n_predict < 0) return ts_fail(err, TS_ERR_ARG, "-n: expected 1 or more, got %d", o->n_predict);
    if (o->parallel < 0 || o->parallel > MAX_PARALLEL)
        return ts_fail(err, TS_ERR_ARG, "--parallel: expected 1 to %d, got %d", MAX_PARALLEL, o->parallel);
    if (o->text && (o->n_predict || o->parallel || o->chat || o->chat_template || o->column))
        return ts_fail(err, TS_ERR_ARG, "a text is read as it is: no -n, --parallel, --chat, --chat-template or --column");
    if (o->trace && !o->output_path) return ts_fail(err, TS_ERR_ARG, "a trace needs an output");
    return ts_file_keep(o->output_path, "input", o->input_path, err);
}

static int choose_trace(ts_census_plan *p, const ts_census_options *o, ts_error *err) {
    uint32_t percent = o->trace_percent ? (uint32_t)o->trace_percent : 10;
    for (int i = 0; i < TS_FFN_N_SHARES; i++)
        if (ts_ffn_share_percent[i] == percent) {
            p->trace_share = i;
            return TS_OK;
        }
    return ts_fail(err, TS_ERR_ARG, "--trace-percent: expected 1, 2, 5, 10 or 20, got %d", o->trace_percent);
}

/* ---- a text */

static int read_text(ts_census_plan *p, ts_session *s, const ts_census_options *o, ts_error *err) {
    char *text = NULL;
    size_t length = 0;
    int rc = ts_text_file_read(o->input_path, &text, &length, err);
    if (rc == TS_OK) rc = ts_session_tokenize(s, text, length, o->special ? TS_TOKENIZE_SPECIAL : 0, &p->text, &p->n_text, err);
    free(text);
    if (rc == TS_OK && p->n_text < 2)
        rc = ts_fail(err, TS_ERR_ARG, "'%s' has %zu token(s): a text needs at least two", o->input_path, p->n_text);
    if (rc != TS_OK) return rc;
    uint32_t trained = (uint32_t)llama_model_n_ctx_train(s->model->llama);
    if (!s->opts.n_ctx) s->opts.n_ctx = trained && trained < DEFAULT_WINDOW ? trained : DEFAULT_WINDOW;
    p->window = s->opts.n_ctx;
    p->n_tokens = p->n_passes = p->n_text;
    p->summary.n_prompts = 1;
    ts_fingerprint_bytes(p->text, p->n_text * sizeof(*p->text), p->summary.fingerprint);
    return TS_OK;
}

/* ---- a prompt list */

static int read_prompts(ts_census_plan *p, ts_session *s, const ts_census_options *o, ts_error *err) {
    ts_corpus_options co = {o->input_path, o->column, o->chat_template, o->chat, o->special};
    int rc = ts_corpus_open(s, &co, &p->corpus, err);
    if (rc == TS_OK) rc = ts_corpus_scan(p->corpus, NULL, NULL, &p->summary, err);
    if (rc != TS_OK) return rc;
    uint64_t most = p->summary.n_prompts * (uint64_t)p->n_predict, each = p->summary.longest + (uint64_t)p->n_predict;
    uint64_t need = each * (uint64_t)p->parallel, trained = (uint64_t)llama_model_n_ctx_train(s->model->llama);
    uint64_t limit = s->opts.n_ctx ? s->opts.n_ctx : trained;
    if (each > limit || (s->opts.n_ctx && need > limit))
        return ts_fail(err, TS_ERR_ARG, "%s:%lld: a prompt of %zu tokens and %d to generate, %d side by side, exceed the context of %llu: raise -c, or lower -n or --parallel",
                       o->input_path, (long long)p->summary.longest_line, p->summary.longest, p->n_predict, p->parallel,
                       (unsigned long long)limit);
    if (!s->opts.n_ctx) s->opts.n_ctx = (uint32_t)((need + CTX_STEP - 1) / CTX_STEP * CTX_STEP);
    p->n_passes = most;
    p->n_tokens = p->summary.n_tokens + most - p->summary.n_prompts;
    return TS_OK;
}

static void size_session(const ts_census_plan *p, ts_session *s) {
    uint32_t ubatch = s->opts.n_ubatch ? s->opts.n_ubatch : 512;
    s->opts.n_ubatch = ubatch > s->opts.n_ctx ? s->opts.n_ctx : ubatch;
    s->opts.n_batch = s->opts.n_ubatch;
    s->opts.n_seq_max = (uint32_t)p->parallel;
}

static int hash_plan(ts_census_plan *p, const ts_session *s, const ts_census_options *o, ts_error *err) {
    ts_buf b = {0};
    ts_buf_printf(&b, "%s|%d|%d|%d|%d|%d|%u|%u", p->summary.fingerprint, o->text, p->n_predict, p->parallel, o->ignore_eos,
                  o->trace ? p->trace_share + 1 : 0, s->opts.n_ctx, s->opts.n_ubatch);
    if (!b.failed) ts_fingerprint_bytes(b.data, b.length, p->hash);
    int rc = b.failed ? ts_fail_nomem(err, "plan", 0) : TS_OK;
    ts_buf_free(&b);
    return rc;
}

int ts_census_plan_make(ts_census_plan *p, ts_session *s, const ts_census_options *o, ts_error *err) {
    memset(p, 0, sizeof(*p));
    int rc = check_options(o, err);
    if (rc == TS_OK && s->started) rc = ts_fail(err, TS_ERR_STATE, "census needs a session that has not started");
    if (rc == TS_OK) rc = choose_trace(p, o, err);
    if (rc != TS_OK) return rc;
    bool alone = llama_model_is_recurrent(s->model->llama) || llama_model_is_hybrid(s->model->llama);
    p->parallel = o->parallel > 0 && !alone ? o->parallel : 1;
    p->n_predict = o->n_predict > 0 ? o->n_predict : DEFAULT_PREDICT;
    rc = o->text ? read_text(p, s, o, err) : read_prompts(p, s, o, err);
    if (rc != TS_OK) return rc;
    size_session(p, s);
    if (p->parallel > (int32_t)s->opts.n_ubatch)
        return ts_fail(err, TS_ERR_ARG, "--parallel %d exceeds the ubatch size %u", p->parallel, s->opts.n_ubatch);
    return hash_plan(p, s, o, err);
}

void ts_census_plan_free(ts_census_plan *p) {
    ts_corpus_close(p->corpus);
    free(p->text);
    memset(p, 0, sizeof(*p));
}
