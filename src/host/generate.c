/* The generation loop. The prompt but its last token in chunks without output, the last token as a pass of its
 * own, then one pass a generated token, whether or not anything is attached: batch shape changes rounding, so
 * this is what makes on and off identical to the byte. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/log.h"
#include "core/mem.h"
#include "host/session.h"
#include "host/stream.h"

#define DEFAULT_TOP_K 40
#define DEFAULT_TOP_P 0.95f

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* ---- sampling, by llama.cpp's own chain */

static struct llama_sampler *make_sampler(const ts_generate_options *o) {
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (o->temperature == 0.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
        return chain;
    }
    int32_t top_k = o->top_k == 0 ? DEFAULT_TOP_K : o->top_k;
    float top_p = o->top_p == 0.0f ? DEFAULT_TOP_P : o->top_p;
    if (top_k > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(top_k));
    if (top_p < 1.0f) llama_sampler_chain_add(chain, llama_sampler_init_top_p(top_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp(o->temperature));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(o->seed));
    return chain;
}

/* ---- instruments */

static int begin_instruments(ts_session *s, const ts_generation *g, ts_error *err) {
    for (size_t i = 0; i < s->n_attached; i++) {
        const ts_attached *a = &s->attached[i];
        int rc = a->off || !a->class->begin ? TS_OK : a->class->begin(a->self, g, err);
        if (rc != TS_OK) return rc;
    }
    return TS_OK;
}

static unsigned wanted(const ts_session *s, const ts_attached *a, enum ts_pass_kind kind) {
    (void)s;
    if (a->off) return 0;
    return a->class->wants ? a->class->wants(a->self, kind) & a->class->sites : a->class->sites;
}

/* The tap's consumer during a generation: every instrument that wants this pass sees the run. */
static int dispatch(const ts_run *run, void *user, ts_error *err) {
    ts_session *s = user;
    s->pass.run = run;
    for (size_t i = 0; i < s->n_attached; i++) {
        ts_attached *a = &s->attached[i];
        if (!wanted(s, a, s->pass.kind)) continue;
        int rc = a->class->pass(a->self, &s->pass, err);
        if (rc != TS_OK) return rc;
    }
    return TS_OK;
}

/* ---- passes */

static int run_pass(ts_session *s, const int32_t *tokens, size_t n, size_t first_position, bool headful, ts_error *err) {
    int32_t *positions = ts_malloc(n * sizeof(*positions));
    int8_t *output = ts_calloc(n, sizeof(*output));
    unsigned kinds = 0;
    int rc = TS_OK;
    if (!positions || !output) rc = ts_fail_nomem(err, "positions", n * sizeof(*positions));
    for (size_t i = 0; rc == TS_OK && i < n; i++) positions[i] = (int32_t)(first_position + i);
    if (rc == TS_OK && headful) output[n - 1] = 1;
    s->pass.kind = headful ? TS_PASS_HEADFUL : TS_PASS_PREFILL;
    for (size_t i = 0; i < s->n_attached; i++) kinds |= wanted(s, &s->attached[i], s->pass.kind);
    ts_decode d = {.tokens = tokens, .positions = positions, .output = output, .n = n, .wanted = kinds,
                   .on_run = kinds ? dispatch : NULL, .user = s};
    if (rc == TS_OK) rc = ts_session_decode(s, &d, err);
    free(positions);
    free(output);
    return rc;
}

static int prefill(ts_session *s, const int32_t *tokens, size_t n, ts_error *err) {
    size_t chunk = llama_n_ubatch(s->ctx);
    for (size_t at = 0; at < n; at += chunk) {
        if (ts_session_stopped(s)) return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted in the prompt");
        size_t take = n - at < chunk ? n - at : chunk;
        int rc = run_pass(s, tokens + at, take, at, false, err);
        if (rc != TS_OK) return rc;
    }
    return TS_OK;
}

static int emit(ts_session *s, llama_token token, ts_stream *stream, ts_error *err) {
    char small[256];
    int32_t n = llama_token_to_piece(s->model->vocab, token, small, sizeof(small), 0, false);
    if (n >= 0) return ts_stream_add(stream, small, (size_t)n, err);
    char *large = ts_malloc((size_t)-n);
    if (!large) return ts_fail_nomem(err, "piece", (size_t)-n);
    n = llama_token_to_piece(s->model->vocab, token, large, -n, 0, false);
    int rc = n >= 0 ? ts_stream_add(stream, large, (size_t)n, err) : TS_OK;
    free(large);
    return rc;
}

/* From the first headful pass on. */
static int decode_loop(ts_session *s, const ts_generate_options *o, ts_generate_result *r, ts_error *err) {
    struct llama_sampler *sampler = make_sampler(o);
    ts_stream stream = {.on_text = o->on_text, .user = o->user};
    int32_t n_vocab = llama_vocab_n_tokens(s->model->vocab);
    llama_token token = o->tokens[o->n_tokens - 1];
    double begin = 0.0;
    int rc = TS_OK;
    for (int32_t i = 0;; i++) {
        s->pass.headful_index = i;
        rc = run_pass(s, &token, 1, o->n_tokens - 1 + (size_t)i, true, err);
        if (rc != TS_OK) break;
        if (i == 0) begin = now_ms();
        r->n_decode_passes = i;
        r->decode_ms = now_ms() - begin;
        if (o->on_logits) o->on_logits(llama_get_logits_ith(s->ctx, -1), n_vocab, o->user);
        if (i == o->n_predict) break;
        if (ts_session_stopped(s)) rc = ts_fail(err, TS_ERR_INTERRUPTED, "interrupted after %d token%s", r->n_generated, r->n_generated == 1 ? "" : "s");
        if (rc != TS_OK) break;
        token = llama_sampler_sample(sampler, s->ctx, -1);
        if (llama_vocab_is_eog(s->model->vocab, token) && !o->ignore_eos) {
            r->stopped_at_eog = true;
            break;
        }
        r->n_generated++;
        rc = emit(s, token, &stream, err);
        if (rc != TS_OK || r->n_generated == o->n_predict) break; /* the last token needs no pass of its own */
    }
    ts_stream_end(&stream);
    llama_sampler_free(sampler);
    return rc;
}

static int check_prompt(ts_session *s, const ts_generate_options *o, ts_error *err) {
    int32_t n_vocab = llama_vocab_n_tokens(s->model->vocab);
    uint64_t n_ctx = llama_n_ctx(s->ctx);
    if (o->n_tokens == 0) return ts_fail(err, TS_ERR_ARG, "the prompt is empty: it has no token");
    if (o->n_predict < 0) return ts_fail(err, TS_ERR_ARG, "n_predict: expected 0 or more, got %d", o->n_predict);
    if (!(o->temperature >= 0.0f)) return ts_fail(err, TS_ERR_ARG, "temperature: expected 0 or more, got %g", (double)o->temperature);
    if (o->n_tokens > n_ctx)
        return ts_fail(err, TS_ERR_ARG, "the prompt has %zu tokens, the context holds %llu: raise -c", o->n_tokens,
                       (unsigned long long)n_ctx);
    if (o->n_tokens + (uint64_t)o->n_predict > n_ctx + 1)
        return ts_fail(err, TS_ERR_ARG, "%zu prompt tokens and %d to generate exceed the context of %llu: raise -c or lower -n",
                       o->n_tokens, o->n_predict, (unsigned long long)n_ctx);
    for (size_t i = 0; i < o->n_tokens; i++)
        if (o->tokens[i] < 0 || o->tokens[i] >= n_vocab)
            return ts_fail_at(err, TS_ERR_ARG, (int64_t)i, "prompt token %zu is %d: the vocabulary has %d", i, o->tokens[i], n_vocab);
    return TS_OK;
}

int ts_session_generate(ts_session *s, const ts_generate_options *opts, ts_generate_result *out, ts_error *err) {
    ts_generate_result unused;
    if (!out) out = &unused;
    memset(out, 0, sizeof(*out));
    int rc = ts_options_check(opts, sizeof(*opts), "ts_generate_options", err);
    if (rc == TS_OK) rc = ts_session_start(s, err);
    if (rc == TS_OK) rc = check_prompt(s, opts, err);
    if (rc != TS_OK) return rc;
    ts_generation g = {opts->tokens, opts->n_tokens, opts->prompt_index, opts->label};
    s->pass = (ts_pass){.headful_index = -1, .generation = &g};
    out->n_prompt = (int32_t)opts->n_tokens;
    ts_session_clear(s);
    rc = begin_instruments(s, &g, err);
    double begin = now_ms();
    if (rc == TS_OK) rc = prefill(s, opts->tokens, opts->n_tokens - 1, err);
    out->prefill_ms = now_ms() - begin;
    if (rc == TS_OK) rc = decode_loop(s, opts, out, err);
    s->pass.generation = NULL;
    return rc;
}
