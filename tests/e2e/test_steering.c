/* Steering around the edit: what result files say of it, when the trace is there, and every wrong input refused by name
 * before a token is generated. */
#include "rows.h"
#include "steered.h"

#include <dirent.h>
#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "store/cvec.h"

static int32_t n_layer(void) { return llama_model_n_layer(tiny_loaded()); }
static int32_t width(void) { return llama_model_n_embd(tiny_loaded()); }
static const char *all_blocks(void) { return steered_file("all.gguf", width(), (ts_range){1, n_layer() - 1}, 3, 2.0); }

/* ---- results */

/* The capture beside it holds edited rows and names what edited them. */
static void test_meta(void **state) {
    (void)state;
    steered out;
    ts_session_options so = tiny_session(64);
    steered_extra extra = {.capture = e2e_path("meta.json"), .trace = e2e_path("meta.jsonl")};
    ts_steering_options o = steered_by(all_blocks(), TS_STEERING_CLAMP, 0.37);
    o.target = 2.5;
    steered_run(&so, &o, 1, &extra, &out);
    json_t *meta = rows_meta(extra.capture);
    const char *text = json_string_value(json_object_get(meta, "steering"));
    assert_non_null(text);
    assert_string_equal(text, out.summary);
    assert_non_null(strstr(text, "clamp to 2.5 at scale 0.37 on 3 of 4 blocks"));
    assert_non_null(strstr(text, "'all.gguf'"));
    json_decref(meta);
    steered_free(&out);
    steered_run(&so, NULL, 0, &(steered_extra){.capture = e2e_path("meta.json")}, &out);
    meta = rows_meta(extra.capture);
    text = json_string_value(json_object_get(meta, "steering"));
    assert_true(!text || !*text);
    json_decref(meta);
    steered_free(&out);
}

/* A file's own mode counts where none is asked for. */
static void test_declared(void **state) {
    (void)state;
    steered declared, asked;
    ts_error err = {0};
    float d[1024];
    ts_session_options so = tiny_session(64);
    assert_true(width() <= 1024);
    steered_direction(d, width(), 2, 3, 2.0);
    ts_cvec_spec spec = {.width = width(), .n = 1, .block = (int32_t[]){2}, .d = d, .mode = "renorm"};
    e2e_ok(ts_cvec_write(e2e_path("own.gguf"), &spec, NULL, &err), &err);
    ts_steering_options o = steered_by(e2e_path("own.gguf"), TS_STEERING_DECLARED, 0.37);
    steered_run(&so, &o, 1, NULL, &declared);
    assert_non_null(strstr(declared.summary, "renorm"));
    o.mode = TS_STEERING_RENORM;
    steered_run(&so, &o, 1, NULL, &asked);
    steered_assert_same(&declared, &asked);
    steered_free(&declared);
    steered_free(&asked);
}

/* The trace comes whole, at the end, or not at all. */
static void check_atomic(bool finish) {
    ts_error err = {0};
    ts_session_options so = tiny_session(64);
    ts_steering_options o = steered_by(all_blocks(), TS_STEERING_ABLATE, 0.37);
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    const char *trace = e2e_path("whole.jsonl");
    ts_session *s = e2e_open(&so);
    e2e_ok(ts_session_attach_steering(s, &o, &err), &err);
    e2e_ok(ts_session_trace_steering(s, trace, &err), &err);
    assert_int_equal(ts_session_trace_steering(s, trace, &err), TS_ERR_STATE);
    g.tokens = steered_prompt();
    g.n_tokens = STEERED_PROMPT;
    g.n_predict = 2;
    e2e_ok(ts_session_generate(s, &g, NULL, &err), &err);
    assert_int_not_equal(access(trace, F_OK), 0);
    assert_int_equal(ts_session_attach_steering(s, &o, &err), TS_ERR_STATE);
    if (finish) e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    assert_int_equal(access(trace, F_OK) == 0, finish);
    unlink(trace);
    DIR *folder = opendir(e2e_tmp());
    for (struct dirent *e = readdir(folder); e; e = readdir(folder)) assert_null(strstr(e->d_name, "whole.jsonl"));
    closedir(folder);
}

static void test_atomic(void **state) {
    (void)state;
    check_atomic(true);
    check_atomic(false);
}

/* Sixteen files, no more; and each may be the same. */
static void test_many(void **state) {
    (void)state;
    ts_error err = {0};
    ts_session_options so = tiny_session(64);
    ts_steering_options o = steered_by(all_blocks(), TS_STEERING_ADD, 0.1);
    ts_session *s = e2e_open(&so);
    for (int i = 0; i < 16; i++) e2e_ok(ts_session_attach_steering(s, &o, &err), &err);
    assert_int_equal(ts_session_attach_steering(s, &o, &err), TS_ERR_ARG);
    e2e_ok(ts_session_start(s, &err), &err);
    ts_session_close(s);
}

/* ---- wrong input */

static void refuse(ts_steering_options o, int code, const char *says) {
    ts_error err = {0};
    ts_session_options so = tiny_session(64);
    ts_session *s = e2e_open(&so);
    int rc = ts_session_attach_steering(s, &o, &err);
    if (rc != code || !strstr(err.message, says) || strchr(err.message, '\n'))
        fail_msg("expected %d and '%s', got %d: %s", code, says, rc, err.message);
    e2e_ok(ts_session_start(s, &err), &err); /* what was refused leaves nothing */
    assert_false(ts_session_has_callback(s));
    ts_session_close(s);
}

static const char *with_hash(void) {
    ts_error err = {0};
    float d[1024];
    steered_direction(d, width(), 1, 3, 2.0);
    ts_cvec_spec spec = {.width = width(), .n = 1, .block = (int32_t[]){1}, .d = d, .model_hash = "0123456789abcdef0123456789abcdef"};
    e2e_ok(ts_cvec_write(e2e_path("hash.gguf"), &spec, NULL, &err), &err);
    return e2e_path("hash.gguf");
}

static void test_numbers(void **state) {
    (void)state;
    ts_steering_options o = steered_by(all_blocks(), TS_STEERING_CLAMP, 1);
    o.target = (double)NAN;
    refuse(o, TS_ERR_ARG, "target");
    o.target = (double)INFINITY;
    refuse(o, TS_ERR_ARG, "target");
    o.target = 1;
    o.mode = TS_STEERING_ADD;
    refuse(o, TS_ERR_ARG, "'clamp'");
    o.target = 0;
    o.scale = (double)NAN;
    refuse(o, TS_ERR_ARG, "scale");
    o.scale = 1;
    o.gate = -1;
    refuse(o, TS_ERR_ARG, "gate");
    o.gate = 0;
    o.mode = (enum ts_steering_mode)9;
    refuse(o, TS_ERR_ARG, "mode");
    o.mode = TS_STEERING_DECLARED;
    refuse(o, TS_ERR_ARG, "declares no mode");
    o.mode = TS_STEERING_ADD;
    o.from = (enum ts_steering_from)7;
    refuse(o, TS_ERR_ARG, "tokens");
    o.from = TS_STEERING_ALL;
    o.path = NULL;
    refuse(o, TS_ERR_ARG, "no file");
}

static void test_blocks(void **state) {
    (void)state;
    ts_steering_options o = steered_by(all_blocks(), TS_STEERING_ABLATE, 1);
    ts_range none = {0, 0}, beyond = {1, n_layer()}, back = {2, 1}, negative = {-1, 2};
    o.blocks = &none;
    refuse(o, TS_ERR_ARG, "no direction for blocks 0:0");
    o.blocks = &beyond;
    refuse(o, TS_ERR_ARG, "the model has blocks 0:3");
    o.blocks = &back;
    refuse(o, TS_ERR_ARG, "2:1");
    o.blocks = &negative;
    refuse(o, TS_ERR_ARG, "-1:2");
}

static void test_files(void **state) {
    (void)state;
    const char *why = NULL, *model = e2e_path("model.gguf");
    ts_error err = {0};
    e2e_ok(ts_file_put(e2e_path("text.gguf"), "not a GGUF\n", 11, &err), &err);
    assert_true(tiny_save("llama", NULL, model, &why));
    refuse(steered_by(e2e_path("nowhere.gguf"), TS_STEERING_ADD, 1), TS_ERR_IO, "nowhere.gguf");
    refuse(steered_by(e2e_path("text.gguf"), TS_STEERING_ADD, 1), TS_ERR_FORMAT, "text.gguf");
    refuse(steered_by(model, TS_STEERING_ADD, 1), TS_ERR_FORMAT, "it is a model of architecture 'llama'");
    refuse(steered_by(steered_file("wide.gguf", width() + 4, (ts_range){1, 2}, 1, 1), TS_STEERING_ADD, 1), TS_ERR_MODEL, "width");
    refuse(steered_by(steered_file("deep.gguf", width(), (ts_range){1, n_layer()}, 1, 1), TS_STEERING_ADD, 1), TS_ERR_MODEL, "block 4");
}

/* A file that names the model it was made from steers no other. */
static void test_other_model(void **state) {
    (void)state;
    const char *why = NULL, *model = e2e_path("model.gguf");
    ts_error err = {0};
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    ts_steering_options o = steered_by(with_hash(), TS_STEERING_ADD, 1);
    assert_true(tiny_save("llama", NULL, model, &why));
    so.model_path = model;
    so.n_ctx = 256;
    so.n_threads = 1;
    ts_session *s = e2e_open(&so);
    assert_int_equal(ts_session_attach_steering(s, &o, &err), TS_ERR_MODEL);
    assert_non_null(strstr(err.message, "made with another model"));
    ts_session_close(s);
}

/* ---- architectures without a residual stream to edit */

static void test_unsupported(void **state) {
    (void)state;
    ts_error err = {0};
    char named[64];
    ts_session_options so = tiny_session(64);
    ts_steering_options o = steered_by(all_blocks(), TS_STEERING_ADD, 1);
    snprintf(named, sizeof(named), "'%s'", tiny_arch());
    for (int gated = 0; gated < 2; gated++) {
        o.gate = gated ? 1e-30 : 0;
        ts_session *s = e2e_open(&so);
        e2e_ok(ts_session_attach_steering(s, &o, &err), &err);
        assert_int_equal(ts_session_start(s, &err), TS_ERR_UNSUPPORTED);
        if (!strstr(err.message, named) || !strstr(err.message, "block ")) fail_msg("got: %s", err.message);
        ts_session_close(s);
    }
}

static int run(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meta),    cmocka_unit_test(test_declared), cmocka_unit_test(test_atomic),
        cmocka_unit_test(test_many),    cmocka_unit_test(test_numbers),  cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_files),   cmocka_unit_test(test_other_model),
    };
    return cmocka_run_group_tests_name(tiny_arch(), tests, NULL, NULL);
}

static int run_unsupported(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_unsupported)};
    return cmocka_run_group_tests_name(tiny_arch(), tests, NULL, NULL);
}

int main(void) {
    static const char *const archs[] = {"llama", NULL}, *const unsupported[] = {"deepseek4", "hy_v4", "gemma3n", "deci", NULL};
    return tiny_each(archs, run) + tiny_each(unsupported, run_unsupported) ? 1 : 0;
}
