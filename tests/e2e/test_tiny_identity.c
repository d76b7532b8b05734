/* On every kind of model: logits are the same bits with the capture off, redirected and asked for, and so are the
 * snapshots of the last two; every block has a redirected residual site, also in the model as a file. */
#include "rows.h"
#include "tiny_each.h"

#include <stdlib.h>
#include <string.h>

enum arm { OFF, REDIRECT, ASK };

#define N_PROMPT 50
#define N_PREDICT 12

typedef struct outcome {
    uint64_t logits;
    int n_passes;
    char *snapshot;
    size_t n_bytes;
} outcome;

static void on_logits(const float *logits, int32_t n_vocab, void *user) {
    outcome *o = user;
    o->logits = e2e_hash(o->logits, logits, (size_t)n_vocab * sizeof(float));
    o->n_passes++;
}

static void generate(ts_session *s, bool sampled, outcome *o) {
    ts_error err = {0};
    int32_t tokens[N_PROMPT];
    for (int32_t i = 0; i < N_PROMPT; i++) tokens[i] = (i * 53 + 11) % 160;
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    g.tokens = tokens;
    g.n_tokens = N_PROMPT;
    g.n_predict = N_PREDICT;
    g.ignore_eos = true;
    g.temperature = sampled ? 0.8f : 0.0f;
    g.seed = 1;
    g.on_logits = on_logits;
    g.user = o;
    e2e_ok(ts_session_generate(s, &g, NULL, &err), &err);
}

static void run(enum arm arm, uint32_t n_ubatch, bool sampled, outcome *o) {
    ts_error err = {0};
    ts_session_options so = tiny_session(n_ubatch);
    so.tap = arm == ASK ? TS_TAP_ASK : TS_TAP_REDIRECT;
    *o = (outcome){.logits = E2E_HASH};
    ts_session *s = e2e_open(&so);
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    ro.path = e2e_path("snap.json");
    if (arm != OFF) e2e_ok(ts_session_attach_resid(s, &ro, &err), &err);
    generate(s, sampled, o);
    assert_int_equal(ts_session_has_callback(s), arm != OFF);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    if (arm != OFF) o->snapshot = e2e_slurp(e2e_path("snap.f32"), &o->n_bytes);
}

static void identity(uint32_t n_ubatch, bool sampled) {
    outcome off, redirected, asked;
    run(OFF, n_ubatch, sampled, &off);
    run(REDIRECT, n_ubatch, sampled, &redirected);
    run(ASK, n_ubatch, sampled, &asked);
    assert_int_equal(off.n_passes, N_PREDICT);
    assert_true(redirected.logits == off.logits);
    assert_true(asked.logits == off.logits);
    assert_int_equal(redirected.n_bytes, asked.n_bytes);
    assert_memory_equal(redirected.snapshot, asked.snapshot, asked.n_bytes);
    free(redirected.snapshot);
    free(asked.snapshot);
}

static void test_identity(void **state) {
    (void)state;
    identity(4, false);
    identity(32, false);
    identity(32, true);
}

/* ---- the site table */

static const char *name_of_residual(void) { return strcmp(tiny_arch(), "plamo2") == 0 ? "ffn_residual-" : "l_out-"; }

static void check_sites(ts_session *s) {
    ts_error err = {0};
    ts_model_info info;
    ts_site *sites;
    size_t n;
    int32_t found = 0;
    e2e_ok(ts_session_model_info(s, &info, &err), &err);
    e2e_ok(ts_session_sites(s, &sites, &n, &err), &err);
    for (size_t i = 0; i < n; i++) {
        if (sites[i].kind != TS_SITE_RESID) continue;
        assert_int_equal(sites[i].block, found++); /* one a block, in order */
        assert_int_equal(sites[i].how, TS_HOW_REDIRECTED);
        assert_string_equal(sites[i].why, "");
        assert_string_equal(sites[i].type, "f32");
        assert_int_equal(sites[i].width, info.n_embd);
        assert_int_equal(strncmp(sites[i].tensor, name_of_residual(), strlen(name_of_residual())), 0);
    }
    assert_int_equal(found, info.n_layer);
    ts_free(sites);
}

static void test_sites_in_memory(void **state) {
    (void)state;
    ts_session_options so = tiny_session(32);
    ts_session *s = e2e_open(&so);
    check_sites(s);
    ts_session_close(s);
}

/* A file lacks the optional tensors that the model in memory has, and so the nodes that use them. */
static void test_sites_of_file(void **state) {
    (void)state;
    const char *why = NULL, *path = e2e_path("model.gguf");
    if (!tiny_save(tiny_arch(), NULL, path, &why)) fail_msg("%s", why);
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.model_path = path;
    so.n_threads = 1;
    ts_session *s = e2e_open(&so);
    check_sites(s);
    ts_session_close(s);
}

static int tests_of_arch(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_sites_in_memory),
        cmocka_unit_test(test_sites_of_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
    static const char *const archs[] = {"llama",    "gemma3",    "qwen3",    "qwen35", "gpt2",
                                        "qwen3moe", "llama-moe", "deepseek", "mamba",  "plamo2", NULL};
    return tiny_each(archs, tests_of_arch) ? 1 : 0;
}
