/* Models that cannot serve: each refusal is one true line that names the architecture and the reason. Asked for by
 * environment, it is one warning, and the generation is the same as without. Recurrent and unusually named models that can
 * serve do (test_tiny_identity). */
#include "tiny_each.h"

#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the refusal must say besides the architecture's name. */
typedef struct refusal {
    const char *arch, *says;
} refusal;

static const refusal refusals[] = {
    {"deepseek4", "block"},
    {"hy_v4", "several residual streams"},
    {"gemma3n", "several residual streams"},
    {"deci", "block 2"},
};

static const char *says(void) {
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
        if (strcmp(refusals[i].arch, tiny_arch()) == 0) return refusals[i].says;
    return NULL;
}

static void assert_one_line(const char *text) {
    assert_true(strlen(text) > 0);
    assert_null(strchr(text, '\n'));
    char named[64];
    snprintf(named, sizeof(named), "'%s'", tiny_arch());
    if (!strstr(text, named) || !strstr(text, says())) fail_msg("got: %s", text);
}

static void assert_absent(const char *name) {
    if (access(e2e_path(name), F_OK) == 0) fail_msg("'%s' was written", name);
}

/* ---- the log */

static struct {
    int n_warnings;
    char warning[1024];
} heard;

static void on_log(enum ts_log_level level, bool from_engine, const char *line, void *user) {
    (void)user;
    if (from_engine || level > TS_LOG_WARN) return;
    heard.n_warnings++;
    snprintf(heard.warning, sizeof(heard.warning), "%s", line);
}

/* ---- generation */

static void on_logits(const float *logits, int32_t n_vocab, void *user) {
    *(uint64_t *)user = e2e_hash(*(uint64_t *)user, logits, (size_t)n_vocab * sizeof(float));
}

static uint64_t generate(ts_session *s) {
    ts_error err = {0};
    uint64_t hash = E2E_HASH;
    static const int32_t tokens[] = {5, 9, 13, 2, 77, 31, 8};
    ts_generate_result r;
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    g.tokens = tokens;
    g.n_tokens = sizeof(tokens) / sizeof(tokens[0]);
    g.n_predict = 8;
    g.ignore_eos = true;
    g.on_logits = on_logits;
    g.user = &hash;
    e2e_ok(ts_session_generate(s, &g, &r, &err), &err);
    assert_int_equal(r.n_generated, 8);
    return hash;
}

static uint64_t plain(void) {
    ts_session_options so = tiny_session(32);
    ts_session *s = e2e_open(&so);
    uint64_t hash = generate(s);
    ts_session_close(s);
    return hash;
}

/* ---- tests */

static void test_by_name(void **state) {
    (void)state;
    ts_error err = {0};
    ts_session_options so = tiny_session(32);
    ts_session *s = e2e_open(&so);
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    ro.path = e2e_path("out.json");
    e2e_ok(ts_session_attach_resid(s, &ro, &err), &err);
    assert_int_equal(ts_session_start(s, &err), TS_ERR_UNSUPPORTED);
    print_message("  %s\n", err.message);
    assert_one_line(err.message);
    ts_session_finish(s, NULL);
    ts_session_close(s);
    assert_absent("out.json");
    assert_absent("out.f32");
}

static void test_corpus(void **state) {
    (void)state;
    ts_error err = {0};
    FILE *f = fopen(e2e_path("in.jsonl"), "w");
    assert_non_null(f);
    fputs("{\"token_ids\": [5, 9, 13]}\n", f);
    assert_int_equal(fclose(f), 0);
    ts_session_options so = tiny_session(32);
    ts_session *s = e2e_open(&so);
    ts_capture_options co = TS_OPTIONS_INIT(ts_capture_options);
    co.input_path = e2e_path("in.jsonl");
    co.output_path = e2e_path("out.json");
    assert_int_equal(ts_capture_run(s, &co, NULL, &err), TS_ERR_UNSUPPORTED);
    assert_one_line(err.message);
    ts_session_close(s);
    assert_absent("out.json");
    assert_absent("out.f32");
    assert_absent("out.json.part");
    assert_absent("out.json.part.state");
}

static void test_by_environment(void **state) {
    (void)state;
    ts_error err = {0};
    uint64_t off = plain();
    memset(&heard, 0, sizeof(heard));
    ts_log_set(on_log, NULL);
    setenv("TURBOSPARK_RESID_CAPTURE", e2e_path("env.json"), 1);
    ts_session_options so = tiny_session(32);
    ts_session *s = e2e_open(&so);
    e2e_ok(ts_session_attach_env(s, &err), &err);
    uint64_t on = generate(s);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    unsetenv("TURBOSPARK_RESID_CAPTURE");
    ts_log_set(NULL, NULL);
    assert_int_equal(heard.n_warnings, 1);
    assert_one_line(heard.warning);
    assert_true(on == off);
    assert_absent("env.json");
    assert_absent("env.f32");
    assert_absent("env.meta");
    assert_absent("env.json.part");
}

static int unservable(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_name),
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_by_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* An encoder cannot generate, whatever is attached: refused when it is opened, in memory and as a file. */
static void test_encoder(void **state) {
    (void)state;
    ts_session *s;
    const char *why = NULL, *path = e2e_path("bert.gguf");
    ts_error err = {0};
    ts_session_options so = tiny_session(32);
    assert_int_equal(ts_session_open(&so, &s, &err), TS_ERR_MODEL);
    assert_null(s);
    assert_non_null(strstr(err.message, "'bert'"));
    assert_non_null(strstr(err.message, "cannot generate"));
    print_message("  %s\n", err.message);
    if (!tiny_save("bert", NULL, path, &why)) fail_msg("%s", why);
    so.model = NULL;
    so.model_path = path;
    memset(&err, 0, sizeof(err));
    assert_int_equal(ts_session_open(&so, &s, &err), TS_ERR_MODEL);
    assert_non_null(strstr(err.message, "cannot generate"));
}

static int encoder(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_encoder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
    static const char *const cannot[] = {"deepseek4", "hy_v4", "gemma3n", "deci", NULL}, *const encoders[] = {"bert", NULL};
    int failed = tiny_each(cannot, unservable);
    failed += tiny_each(encoders, encoder);
    return failed ? 1 : 0;
}
