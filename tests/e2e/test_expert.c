/* The expert-activation census on tiny mixtures of experts: rows and masses equal to those of nodes asked for; redirected as
 * asked, twice the same, resumed as undisturbed; nothing of it beside a dense model's census. */
#include "counted.h"
#include "tiny_each.h"

#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/expert.h"

enum { N_TOKENS = 61 }; /* a prime number */

static const char *write_text(int n) {
    const char *path = e2e_path("text.txt");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int k = 0; k < n; k++) fprintf(f, "%05d", 104729 * (k + 3) % 100000);
    assert_int_equal(fclose(f), 0);
    return path;
}

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

static void same_bytes(const char *a, const char *b) {
    size_t n, m;
    char *x = e2e_slurp(a, &n), *y = e2e_slurp(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

/* ---- a reader of the graph: what each down projection of experts reads, whatever it is called */

enum { LAYERS = 64, MOST_EXPERTS = 16, MOST_WIDTH = 512 };

typedef struct truth {
    uint64_t rows[LAYERS][MOST_EXPERTS];
    double mass[LAYERS][MOST_EXPERTS][MOST_WIDTH];
} truth;

static int down_of(const struct ggml_tensor *t) {
    int block = -1, end = 0;
    if (t->op != GGML_OP_MUL_MAT_ID) return -1;
    if (sscanf(t->src[0]->name, "blk.%d.ffn_down_exps.weight%n", &block, &end) != 1) return -1;
    return end > 0 && t->src[0]->name[end] == '\0' ? block : -1;
}

static size_t at(const struct ggml_tensor *t, int64_t i, int64_t k, int64_t r) {
    return (size_t)i * t->nb[0] + (size_t)k * t->nb[1] + (size_t)r * t->nb[2];
}

/* ids [top_k, rows] with their strides; values [width, top_k, rows]. */
static void take(truth *x, int il, const struct ggml_tensor *values, const struct ggml_tensor *ids) {
    for (int64_t r = 0; r < values->ne[2]; r++)
        for (int64_t k = 0; k < values->ne[1]; k++) {
            int32_t id;
            ggml_backend_tensor_get(ids, &id, (size_t)r * ids->nb[1] + (size_t)k * ids->nb[0], sizeof id);
            x->rows[il][id]++;
            for (int64_t i = 0; i < values->ne[0]; i++) {
                float a;
                ggml_backend_tensor_get(values, &a, at(values, i, k, r), sizeof a);
                x->mass[il][id][i] += fabs((double)a);
            }
        }
}

static bool ask(struct ggml_tensor *t, bool asking, void *user) {
    int il = down_of(t);
    if (!asking && il >= 0) take(user, il, t->src[1], t->src[2]);
    return !asking || il >= 0;
}

/* The text in one batch, every token an output. */
static void run_asked(truth *x, const char *text) {
    ts_error err = {0};
    int32_t *tokens;
    size_t n;
    ts_session_options so = tiny_session(64);
    ts_session *s = e2e_open(&so);
    e2e_ok(ts_session_tokenize(s, text, strlen(text), 0, &tokens, &n, &err), &err);
    ts_session_close(s);
    assert_int_equal(n, N_TOKENS);
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = p.n_batch = p.n_ubatch = 64;
    p.n_threads = p.n_threads_batch = 1;
    p.cb_eval = ask;
    p.cb_eval_user_data = x;
    p.kv_unified = true;
    struct llama_context *ctx = llama_init_from_model(tiny_loaded(), p);
    assert_non_null(ctx);
    struct llama_batch b = llama_batch_init(64, 0, 1);
    b.n_tokens = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        b.token[i] = tokens[i];
        b.pos[i] = (int32_t)i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = 1;
    }
    memset(x, 0, sizeof *x);
    assert_int_equal(llama_decode(ctx, b), 0);
    llama_batch_free(b);
    llama_free(ctx);
    ts_free(tokens);
}

/* ---- */

static ts_census_options text_options(void) {
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    co.input_path = write_text(N_TOKENS);
    co.text = co.overwrite = true;
    return co;
}

static void run_census(ts_census_options co, const char *name, enum ts_tap_method tap, ts_census_result *r) {
    ts_error err = {0};
    ts_session_options so = tiny_session(64);
    so.tap = tap;
    co.output_path = e2e_path(name);
    e2e_ok(counted_run(&so, &co, r, &err), &err);
}

static void test_truth(void **state) {
    (void)state;
    static truth x;
    ts_error err = {0};
    ts_census_result r;
    ts_experts e;
    size_t n;
    run_census(text_options(), "redirected.json", TS_TAP_REDIRECT, &r);
    run_census(text_options(), "asked.json", TS_TAP_ASK, &r);
    same_bytes(e2e_path("redirected.experts"), e2e_path("asked.experts"));
    char *text = e2e_slurp(e2e_path("text.txt"), &n);
    run_asked(&x, text);
    free(text);
    e2e_ok(ts_experts_read(e2e_path("redirected.experts"), &e, &err), &err);
    assert_int_equal(e.decode_passes, N_TOKENS);
    for (uint32_t il = 0; il < e.n_layers; il++) {
        const ts_expert_layer *l = &e.layers[il];
        uint64_t rows = 0;
        for (uint32_t i = 0; i < MOST_EXPERTS; i++) rows += x.rows[il][i];
        assert_int_equal(l->n_experts > 0, rows > 0);
        for (uint32_t i = 0; i < l->n_experts; i++) {
            assert_int_equal(l->rows[i], x.rows[il][i]);
            for (uint32_t k = 0; k < l->width; k++) {
                double a = l->mass[i * l->width + k], b = x.mass[il][i][k];
                assert_true(fabs(a - b) <= 2e-5 * fmax(a, b)); /* a file's masses have six digits */
            }
        }
    }
    ts_experts_free(&e);
}

static volatile int stop_now;

static void stop_after(const ts_progress *p, void *user) {
    (void)user;
    stop_now = p->prompts_done >= 3;
}

static void test_resume(void **state) {
    (void)state;
    ts_error err = {0};
    ts_census_result r;
    ts_experts e;
    ts_session_options so = tiny_session(64);
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    static char input[512], output[512]; /* e2e_path's own memory takes turns */
    snprintf(input, sizeof input, "%s", write_prompts(7));
    snprintf(output, sizeof output, "%s", e2e_path("parts.json"));
    co.input_path = input;
    co.n_predict = 4;
    co.ignore_eos = true;
    run_census(co, "whole.json", TS_TAP_REDIRECT, &r);
    assert_int_equal(r.decode_passes, 28);
    co.output_path = output;
    co.on_progress = stop_after;
    so.stop = &stop_now;
    stop_now = 0;
    assert_int_equal(counted_run(&so, &co, &r, &err), TS_ERR_INTERRUPTED);
    e2e_ok(ts_experts_read(e2e_path("parts.experts"), &e, &err), &err);
    assert_int_equal(e.decode_passes, 12);
    ts_experts_free(&e);
    stop_now = 0;
    co.on_progress = NULL;
    co.resume = true;
    e2e_ok(counted_run(&so, &co, &r, &err), &err);
    same_bytes(e2e_path("parts.experts"), e2e_path("whole.experts"));
}

static void test_dense(void **state) {
    (void)state;
    ts_census_result r;
    run_census(text_options(), "dense.json", TS_TAP_REDIRECT, &r);
    assert_null(fopen(e2e_path("dense.experts"), "rb"));
}

static int run(void) {
    const struct CMUnitTest served[] = {cmocka_unit_test(test_truth), cmocka_unit_test(test_resume)};
    const struct CMUnitTest dense[] = {cmocka_unit_test(test_dense)};
    return strcmp(tiny_arch(), "llama") == 0 ? cmocka_run_group_tests(dense, NULL, NULL) : cmocka_run_group_tests(served, NULL, NULL);
}

static int run_truth(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_truth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
    static const char *const archs[] = {"qwen3moe", "llama-moe", "deepseek", "llama", NULL};
    static const char *const others[] = {"llama4", "grok", "qwen3next", "qwen35moe", "phimoe", "gemma4/moe", "jamba/moe", "dbrx", "deepseek2",
                                         "deepseek4", "glm4moe", "nemotron_h_moe", "granite/moe", "bailingmoe2", "gpt-oss", "smallthinker",
                                         "grovemoe", "minimax-m2", "mistral3/moe", "step35", "kimi-linear", NULL};
    return tiny_each(archs, run) + tiny_each(others, run_truth) ? 1 : 0;
}
