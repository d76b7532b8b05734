/* Steered generations for the end-to-end tests. */
#include "steered.h"

#include <llama.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rows.h"
#include "store/cvec.h"

const int32_t *steered_prompt(void) {
    static const int32_t prompt[STEERED_PROMPT] = {17, 80, 5, 121, 33, 64, 9, 150, 42};
    return prompt;
}

void steered_direction(float *d, int32_t width, int32_t block, unsigned seed, double length) {
    uint32_t state = (seed * 7919u + (uint32_t)block) * 2654435761u + 12345u;
    double sum = 0;
    for (int32_t i = 0; i < width; i++) {
        state = state * 1664525u + 1013904223u;
        d[i] = (float)((double)(state >> 8) / (1 << 24) - 0.5);
        sum += (double)d[i] * (double)d[i];
    }
    for (int32_t i = 0; i < width; i++) d[i] = (float)((double)d[i] * length / sqrt(sum));
}

const char *steered_file(const char *name, int32_t width, ts_range blocks, unsigned seed, double length) {
    ts_error err = {0};
    int32_t n = blocks.last - blocks.first + 1, *block = calloc((size_t)n, sizeof(*block));
    float *d = calloc((size_t)n * (size_t)width, sizeof(*d));
    const char *path = e2e_path(name);
    assert_non_null(block);
    assert_non_null(d);
    for (int32_t i = 0; i < n; i++) {
        block[i] = blocks.first + i;
        steered_direction(d + (size_t)i * (size_t)width, width, block[i], seed, length);
    }
    ts_cvec_spec spec = {.width = width, .n = n, .block = block, .d = d};
    e2e_ok(ts_cvec_write(path, &spec, NULL, &err), &err);
    free(block);
    free(d);
    return path;
}

ts_steering_options steered_by(const char *path, enum ts_steering_mode mode, double scale) {
    ts_steering_options o = TS_OPTIONS_INIT(ts_steering_options);
    o.path = path;
    o.mode = mode;
    o.scale = scale;
    return o;
}

/* ---- with our code */

static void add_pass(const float *logits, int32_t n_vocab, void *user) {
    steered *out = user;
    size_t n = (size_t)n_vocab;
    out->logits = realloc(out->logits, (size_t)(out->n_passes + 1) * n * sizeof(float));
    assert_non_null(out->logits);
    memcpy(out->logits + (size_t)out->n_passes++ * n, logits, n * sizeof(float));
    out->n_vocab = n_vocab;
}

void steered_run(const ts_session_options *so, const ts_steering_options *files, size_t n, const steered_extra *extra, steered *out) {
    static const steered_extra none;
    ts_error err = {0};
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    extra = extra ? extra : &none;
    *out = (steered){0};
    ts_session *s = e2e_open(so);
    for (size_t i = 0; i < n; i++) e2e_ok(ts_session_attach_steering(s, &files[i], &err), &err);
    if (extra->trace) e2e_ok(ts_session_trace_steering(s, extra->trace, &err), &err);
    ro.path = extra->capture;
    if (extra->capture) e2e_ok(ts_session_attach_resid(s, &ro, &err), &err);
    g.tokens = steered_prompt();
    g.n_tokens = STEERED_PROMPT;
    g.n_predict = extra->n_predict ? extra->n_predict : STEERED_PASSES;
    g.ignore_eos = true;
    g.on_logits = add_pass;
    g.user = out;
    e2e_ok(ts_session_generate(s, &g, NULL, &err), &err);
    e2e_ok(ts_session_steering_summary(s, &out->summary, &err), &err);
    if (!out->summary) out->summary = calloc(1, 1);
    out->callback = ts_session_has_callback(s);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
}

void steered_free(steered *s) {
    free(s->logits);
    ts_free(s->summary);
    *s = (steered){0};
}

/* ---- without it */

static int32_t likeliest(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static void decode(struct llama_context *ctx, int32_t *tokens, int32_t n) {
    struct llama_batch batch = llama_batch_get_one(tokens, n);
    assert_int_equal(llama_decode(ctx, batch), 0);
}

/* The prompt but its last token, which nobody reads the logits of, then one token a pass. */
void steered_stock(const ts_session_options *so, const float *added, steered *out) {
    struct llama_context_params p = llama_context_default_params();
    int32_t tokens[STEERED_PROMPT], n_layer = llama_model_n_layer(so->model), n_embd = llama_model_n_embd(so->model);
    int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(so->model));
    *out = (steered){.summary = calloc(1, 1)};
    p.n_ctx = so->n_ctx;
    p.n_batch = so->n_ctx;
    p.n_ubatch = so->n_ubatch;
    p.n_threads = p.n_threads_batch = 1;
    p.swa_full = false;
    p.kv_unified = true;
    struct llama_context *ctx = llama_init_from_model(so->model, p);
    assert_non_null(ctx);
    if (added)
        assert_int_equal(llama_set_adapter_cvec(ctx, added + n_embd, (size_t)(n_layer - 1) * (size_t)n_embd, n_embd, 1, n_layer - 1), 0);
    memcpy(tokens, steered_prompt(), sizeof(tokens));
    decode(ctx, tokens, STEERED_PROMPT - 1);
    int32_t next = tokens[STEERED_PROMPT - 1];
    for (int pass = 0; pass < STEERED_PASSES; pass++) {
        decode(ctx, &next, 1);
        add_pass(llama_get_logits_ith(ctx, -1), n_vocab, out);
        next = likeliest(llama_get_logits_ith(ctx, -1), n_vocab);
    }
    llama_free(ctx);
}

/* ---- comparisons */

double steered_error(const steered *a, const steered *b) {
    assert_int_equal(a->n_passes, b->n_passes);
    assert_int_equal(a->n_vocab, b->n_vocab);
    return rows_error(a->logits, b->logits, a->n_passes * a->n_vocab);
}

void steered_assert_same(const steered *a, const steered *b) {
    assert_int_equal(a->n_passes, b->n_passes);
    assert_memory_equal(a->logits, b->logits, (size_t)(a->n_passes * a->n_vocab) * sizeof(float));
}

json_t *steered_trace(const char *path) {
    size_t n;
    char *text = e2e_slurp(path, &n), *save = NULL;
    json_t *lines = json_array();
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_error_t why;
        json_t *v = json_loads(line, 0, &why);
        if (!v) print_error("%s: %s\n", line, why.text);
        assert_non_null(v);
        json_array_append_new(lines, v);
    }
    free(text);
    return lines;
}
