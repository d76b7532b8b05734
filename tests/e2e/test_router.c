/* The routing census on tiny mixtures of experts: ids and weights equal to those taken by asking for the nodes, counted anew;
 * text and logits as without it; the corpus command against `run`; twice the same bytes; resumed after a stop. */
#include "rows.h"
#include "tiny_each.h"

#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/router.h"

enum { MAX_LAYERS = 16, MAX_EXPERTS = 64, PREDICT = 11, N_PROMPTS = 7 };

/* 13 tokens: with 11 headful passes a prime number, 23, of rows. */
static const char prompt[] = "00001-00002-00003-00004-00005-00006-00007-00008-00009-00010-00011";

static void generate(ts_session *s, e2e_outcome *o, bool sampled) {
    *o = (e2e_outcome){.logits = E2E_HASH};
    e2e_generate(s, prompt, PREDICT, sampled, o);
}

/* ---- what a reader of the nodes itself counts, by name where these architectures have one */

typedef struct truth {
    uint64_t counts[2][MAX_LAYERS][MAX_EXPERTS];
    double mass[MAX_LAYERS][MAX_EXPERTS];
    uint64_t rows[2][MAX_LAYERS];
    uint32_t *trace[MAX_LAYERS];
    uint64_t n_trace[MAX_LAYERS];
    int32_t ids[MAX_LAYERS][512 * 8]; /* of the pass at hand */
    int64_t n_rows[MAX_LAYERS], top_k;
    int phase;
    int times[2][MAX_LAYERS]; /* in the pass at hand: an architecture may have a second group of experts, of the same names */
} truth;

static int block_of(const char *name, const char *prefix) {
    size_t n = strlen(prefix);
    char *end;
    if (strncmp(name, prefix, n) != 0) return -1;
    long block = strtol(name + n, &end, 10);
    return *end == '\0' && end > name + n ? (int)block : -1;
}

/* The view itself, read with its strides. */
static void take_ids(truth *x, int il, const struct ggml_tensor *t) {
    x->top_k = t->ne[0];
    x->n_rows[il] = t->ne[1];
    for (int64_t r = 0; r < t->ne[1]; r++)
        for (int64_t k = 0; k < t->ne[0]; k++) {
            int32_t id;
            ggml_backend_tensor_get(t, &id, (size_t)r * t->nb[1] + (size_t)k * t->nb[0], sizeof id);
            x->ids[il][r * t->ne[0] + k] = id;
            x->counts[x->phase][il][id]++;
            x->trace[il] = realloc(x->trace[il], (x->n_trace[il] + 1) * sizeof(uint32_t));
            assert_non_null(x->trace[il]);
            x->trace[il][x->n_trace[il]++] = (uint32_t)id;
        }
    x->rows[x->phase][il] += (uint64_t)t->ne[1];
}

/* The product [n_embd, top_k, rows] knows its factor. */
static void take_weights(truth *x, int il, const struct ggml_tensor *product) {
    const struct ggml_tensor *w = product->src[1];
    for (int64_t i = 0; i < x->n_rows[il] * x->top_k; i++) {
        float weight;
        ggml_backend_tensor_get(w, &weight, (size_t)i * sizeof weight, sizeof weight);
        x->mass[il][x->ids[il][i]] += (double)weight;
    }
}

static bool ask(struct ggml_tensor *t, bool asking, void *user) {
    truth *x = user;
    int ids = block_of(t->name, "ffn_moe_topk-"), weighted = block_of(t->name, "ffn_moe_weighted-");
    if (asking) return ids >= 0 || weighted >= 0;
    if (ids >= 0 && x->times[0][ids]++ > 0) return true;
    if (weighted >= 0 && x->times[1][weighted]++ > 0) return true;
    if (ids >= 0 && t->ne[1] > 0) take_ids(x, ids, t);
    if (ids >= 0 && t->ne[1] == 0) x->n_rows[ids] = 0;
    if (weighted >= 0) take_weights(x, weighted, t);
    return true;
}

static void decode(truth *x, struct llama_context *ctx, struct llama_batch b) {
    memset(x->times, 0, sizeof x->times);
    assert_int_equal(llama_decode(ctx, b), 0);
}

/* The passes of `run`, greedily, in a context of its own. */
static void run_asked(truth *x, ts_session *tokenizer) {
    ts_error err = {0};
    int32_t *tokens;
    size_t n;
    const struct llama_vocab *vocab = llama_model_get_vocab(tiny_loaded());
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = p.n_batch = 512;
    p.n_ubatch = 64;
    p.n_threads = p.n_threads_batch = 1;
    p.cb_eval = ask;
    p.cb_eval_user_data = x;
    p.kv_unified = true;
    struct llama_context *ctx = llama_init_from_model(tiny_loaded(), p);
    assert_non_null(ctx);
    memset(x, 0, sizeof *x);
    e2e_ok(ts_session_tokenize(tokenizer, prompt, strlen(prompt), 0, &tokens, &n, &err), &err);
    struct llama_batch b = llama_batch_init(512, 0, 1);
    for (size_t i = 0; i + 1 < n; i++) {
        b.token[i] = tokens[i];
        b.pos[i] = (int32_t)i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = 0;
    }
    b.n_tokens = (int32_t)n - 1;
    x->phase = 0;
    decode(x, ctx, b);
    int32_t token = tokens[n - 1];
    x->phase = 1;
    for (int i = 0; i < PREDICT; i++) {
        b.n_tokens = 1;
        b.token[0] = token;
        b.pos[0] = (int32_t)(n - 1) + i;
        b.logits[0] = 1;
        decode(x, ctx, b);
        const float *logits = llama_get_logits_ith(ctx, -1);
        token = 0;
        for (int32_t v = 1; v < llama_vocab_n_tokens(vocab); v++)
            if (logits[v] > logits[token]) token = v;
    }
    llama_batch_free(b);
    llama_free(ctx);
    ts_free(tokens);
}

/* ---- runs */

static void run_counted(enum ts_tap_method tap, bool trace, const char *path, e2e_outcome *o, bool sampled) {
    ts_error err = {0};
    ts_session_options so = tiny_session(64);
    ts_router_hist_options ro = TS_OPTIONS_INIT(ts_router_hist_options);
    so.tap = tap;
    ro.path = path;
    ro.trace = trace;
    ts_session *s = e2e_open(&so);
    e2e_ok(ts_session_attach_router(s, &ro, &err), &err);
    generate(s, o, sampled);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
}

static void read_back(const char *path, ts_router *r) {
    ts_error err = {0};
    e2e_ok(ts_router_read(path, r, &err), &err);
}

static void same_bytes(const char *a, const char *b) {
    size_t n, m;
    char *x = e2e_slurp(a, &n), *y = e2e_slurp(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

static void compare_layer(const ts_router *r, const truth *x, uint32_t i) {
    const ts_router_layer *l = &r->layers[i];
    assert_int_equal(l->top_k, l->n_experts ? x->top_k : 0);
    for (int p = 0; p < 2; p++) {
        assert_int_equal(l->rows[p], x->rows[p][i]);
        for (uint32_t e = 0; e < l->n_experts; e++) assert_int_equal(l->counts[p][e], x->counts[p][i][e]);
    }
    assert_int_equal(l->n_trace, x->n_trace[i]);
    if (l->n_trace) assert_memory_equal(l->trace, x->trace[i], l->n_trace * sizeof(uint32_t));
    if (l->n_experts) assert_non_null(l->gate_mass);
    for (uint32_t e = 0; e < l->n_experts; e++) assert_true(fabs(l->gate_mass[e] - x->mass[i][e]) <= 1e-12 * (1 + x->mass[i][e]));
}

static void test_truth(void **state) {
    (void)state;
    static truth x;
    e2e_outcome o;
    ts_session_options so = tiny_session(64);
    ts_session *s = e2e_open(&so);
    run_asked(&x, s);
    ts_session_close(s);
    for (int tap = 0; tap < 2; tap++) {
        ts_router r;
        run_counted(tap ? TS_TAP_ASK : TS_TAP_REDIRECT, true, e2e_path("run.json"), &o, false);
        read_back(e2e_path("run.json"), &r);
        assert_int_equal(r.n_layers, llama_model_n_layer(tiny_loaded()));
        for (uint32_t i = 0; i < r.n_layers; i++) compare_layer(&r, &x, i);
        ts_router_free(&r);
    }
    for (int i = 0; i < MAX_LAYERS; i++) free(x.trace[i]);
}

static void test_identity(void **state) {
    (void)state;
    ts_session_options so = tiny_session(64);
    for (int sampled = 0; sampled < 2; sampled++) {
        e2e_outcome off, on, asked;
        ts_session *s = e2e_open(&so);
        generate(s, &off, sampled);
        assert_false(ts_session_has_callback(s));
        ts_session_close(s);
        run_counted(TS_TAP_REDIRECT, true, e2e_path("a.json"), &on, sampled);
        run_counted(TS_TAP_ASK, true, e2e_path("b.json"), &asked, sampled);
        e2e_assert_same(&off, &on);
        e2e_assert_same(&off, &asked);
        same_bytes(e2e_path("a.json"), e2e_path("b.json"));
        run_counted(TS_TAP_REDIRECT, true, e2e_path("b.json"), &on, sampled);
        same_bytes(e2e_path("a.json"), e2e_path("b.json"));
        same_bytes(e2e_path("a.meta"), e2e_path("a.meta"));
    }
}

/* ---- the corpus */

static const char *write_prompts(int n) {
    const char *path = e2e_path("prompts.txt");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < 3 + i; k++) fprintf(f, "%05d", 7919 * (i + 1) * (k + 3) % 100000);
        fputc('\n', f);
    }
    assert_int_equal(fclose(f), 0);
    return path;
}

static ts_router_options corpus(const char *output, int32_t n_predict, int32_t parallel) {
    ts_router_options ro = TS_OPTIONS_INIT(ts_router_options);
    ro.input_path = e2e_path("prompts.txt");
    ro.output_path = output;
    ro.n_predict = n_predict;
    ro.parallel = parallel;
    ro.ignore_eos = ro.trace = ro.overwrite = true;
    return ro;
}

static int walk(const ts_router_options *ro, volatile const int *stop, ts_router_result *out, ts_error *err) {
    ts_session_options so = tiny_session(64);
    so.n_ctx = 0;
    so.stop = stop;
    ts_session *s = e2e_open(&so);
    int rc = ts_router_run(s, ro, out, err);
    ts_session_close(s);
    return rc;
}

/* One prompt: the passes of `run`, and so its file. Several: the same with three side by side, but for the order in which
 * masses are added. */
static void test_corpus(void **state) {
    (void)state;
    ts_error err = {0};
    ts_router_result t;
    e2e_outcome o;
    ts_router run, one, three;
    FILE *f = fopen(e2e_path("prompts.txt"), "w");
    assert_non_null(f);
    fprintf(f, "%s\n", prompt);
    assert_int_equal(fclose(f), 0);
    ts_router_options ro = corpus(e2e_path("corpus.json"), PREDICT, 0);
    e2e_ok(walk(&ro, NULL, &t, &err), &err);
    run_counted(TS_TAP_REDIRECT, true, e2e_path("run.json"), &o, false);
    same_bytes(e2e_path("corpus.json"), e2e_path("run.json"));

    write_prompts(N_PROMPTS);
    ro = corpus(e2e_path("one.json"), 5, 1);
    e2e_ok(walk(&ro, NULL, &t, &err), &err);
    assert_int_equal(t.n_prompts, N_PROMPTS);
    ro = corpus(e2e_path("three.json"), 5, 3);
    e2e_ok(walk(&ro, NULL, &t, &err), &err);
    read_back(e2e_path("one.json"), &one);
    read_back(e2e_path("three.json"), &three);
    assert_int_equal(one.n_generations, N_PROMPTS);
    for (uint32_t i = 0; i < one.n_layers; i++) {
        const ts_router_layer *a = &one.layers[i], *b = &three.layers[i];
        assert_memory_equal(a->rows, b->rows, sizeof a->rows);
        if (a->n_experts)
            assert_memory_equal(a->generation_rows, b->generation_rows, 2 * N_PROMPTS * sizeof(uint64_t));
        uint64_t same = 0;
        for (uint64_t k = 0; k < a->n_trace; k++) same += a->trace[k] == b->trace[k];
        assert_true(same >= a->n_trace * 9 / 10); /* rounding of other batch shapes may turn a near tie */
        assert_int_equal(a->rows[TS_ROUTER_DECODE], a->n_experts ? N_PROMPTS * 5 : 0);
    }
    ro = corpus(e2e_path("prompts.json"), 0, 1); /* prompts only */
    e2e_ok(walk(&ro, NULL, &t, &err), &err);
    read_back(e2e_path("prompts.json"), &run);
    for (uint32_t i = 0; i < run.n_layers; i++)
        assert_int_equal(run.layers[i].rows[TS_ROUTER_DECODE], run.layers[i].n_experts ? N_PROMPTS : 0);
    ts_router_free(&run);
    ts_router_free(&one);
    ts_router_free(&three);
}

/* Stops after the third prompt; taken up, it ends with the bytes of one that never stopped. */
static volatile int stop_now;

static void stop_after(const ts_progress *p, void *user) {
    (void)user;
    stop_now = p->prompts_done >= 3;
}

static void test_resume(void **state) {
    (void)state;
    ts_error err = {0};
    ts_router_result t;
    ts_router r;
    write_prompts(N_PROMPTS);
    ts_router_options ro = corpus(e2e_path("whole.json"), 4, 1);
    e2e_ok(walk(&ro, NULL, &t, &err), &err);
    stop_now = 0;
    ro = corpus(e2e_path("parts.json"), 4, 1);
    ro.on_progress = stop_after;
    assert_int_equal(walk(&ro, &stop_now, &t, &err), TS_ERR_INTERRUPTED);
    assert_true(t.partial);
    read_back(e2e_path("parts.json"), &r);
    assert_true(r.partial);
    assert_int_equal(r.n_generations, 3);
    ts_router_free(&r);
    stop_now = 0;
    ro.on_progress = NULL;
    ro.overwrite = false;
    ro.resume = true;
    ro.n_predict = 3; /* another census is not taken up */
    assert_int_equal(walk(&ro, NULL, &t, &err), TS_ERR_STATE);
    ro.n_predict = 4;
    e2e_ok(walk(&ro, NULL, &t, &err), &err);
    same_bytes(e2e_path("parts.json"), e2e_path("whole.json"));
    assert_null(fopen(e2e_path("parts.json.part.router"), "rb"));
}

/* By flag an error with the name; by environment one line, and the generation goes on. */
static void test_refused(void **state) {
    (void)state;
    ts_error err = {0};
    ts_router_result t;
    e2e_outcome o;
    ts_session_options so = tiny_session(64);
    ts_router_hist_options ho = TS_OPTIONS_INIT(ts_router_hist_options);
    ho.path = e2e_path("no.json");
    write_prompts(2);
    ts_router_options ro = corpus(e2e_path("no.json"), 4, 1);
    assert_int_equal(walk(&ro, NULL, &t, &err), TS_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "has no experts"));
    assert_non_null(strstr(err.message, tiny_arch()));
    ts_session *s = e2e_open(&so);
    e2e_ok(ts_session_attach_router(s, &ho, &err), &err);
    assert_int_equal(ts_session_start(s, &err), TS_ERR_UNSUPPORTED);
    ts_session_close(s);
    s = e2e_open(&so);
    setenv("TURBOSPARK_ROUTER_HIST", e2e_path("no.json"), 1);
    e2e_ok(ts_session_attach_env(s, &err), &err);
    unsetenv("TURBOSPARK_ROUTER_HIST");
    generate(s, &o, false);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    assert_int_equal(o.n_passes, PREDICT);
    assert_null(fopen(e2e_path("no.json"), "rb"));
    assert_null(fopen(e2e_path("no.json.part.router"), "rb"));
}

/* By environment, with and without the trace. */
static void test_gate(void **state) {
    (void)state;
    ts_error err = {0};
    e2e_outcome o;
    ts_session_options so = tiny_session(64);
    for (int traced = 0; traced < 2; traced++) {
        ts_router r;
        ts_session *s = e2e_open(&so);
        setenv("TURBOSPARK_ROUTER_HIST", e2e_path("env.json"), 1);
        if (traced) setenv("TURBOSPARK_ROUTER_TRACE", "1", 1);
        e2e_ok(ts_session_attach_env(s, &err), &err);
        unsetenv("TURBOSPARK_ROUTER_HIST");
        unsetenv("TURBOSPARK_ROUTER_TRACE");
        generate(s, &o, false);
        generate(s, &o, false); /* two generations in one file */
        e2e_ok(ts_session_finish(s, &err), &err);
        ts_session_close(s);
        read_back(e2e_path("env.json"), &r);
        assert_int_equal(r.traced, traced);
        assert_int_equal(r.n_generations, 2);
        ts_router_free(&r);
    }
}

static int run(void) {
    const struct CMUnitTest served[] = {
        cmocka_unit_test(test_truth),  cmocka_unit_test(test_identity), cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_resume), cmocka_unit_test(test_gate),
    };
    const struct CMUnitTest refused[] = {cmocka_unit_test(test_refused)};
    bool moe = strcmp(tiny_arch(), "llama") != 0 && strcmp(tiny_arch(), "mamba") != 0;
    return moe ? cmocka_run_group_tests(served, NULL, NULL) : cmocka_run_group_tests(refused, NULL, NULL);
}

static int run_truth(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_truth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
    static const char *const archs[] = {"qwen3moe", "llama-moe", "deepseek", "deepseek4", "llama", "mamba", NULL};
    /* every architecture with experts that generates: softmax and sigmoid gates, groups, biases, tables, weights before the
     * experts, weights without a name of their own */
    static const char *const others[] = {
        "llama4",      "grok",      "qwen2moe",       "qwen3next",     "qwen3vlmoe",  "qwen35moe",    "qwen4exp",     "phimoe",
        "minicpm/moe", "gemma4/moe", "maple",         "jamba/moe",     "cohere2moe",  "dbrx",         "olmoe",        "arctic",
        "deepseek2",   "deepseek32", "glm4moe",       "glm-dsa",       "nemotron_h_moe", "exaone-moe", "granite/moe",  "granitemoe/moe",
        "granitehybrid/moe", "granite_swa/moe", "bailingmoe", "bailingmoe2", "bailingmoe3", "dots1",  "dots3note",    "afmoe",
        "laguna",      "ernie4_5-moe", "hunyuan-moe", "hy_v3",         "hy_v4/moe",   "gpt-oss",      "lfm2moe",      "smallthinker",
        "grovemoe",    "minimax-01", "minimax-m2",    "minimax-m3",    "mistral3/moe", "mistral4",    "mimo2",        "step35",
        "kimi-linear", "kimi-k3",   "mellum",         NULL};
    return tiny_each(archs, run) + tiny_each(others, run_truth) ? 1 : 0;
}
