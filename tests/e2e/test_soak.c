/* Memory over 2,000 generations in one process with every instrument on: what is resident after 200 of them is what is
 * resident after 2,000, within a few MiB. */
#include "e2e.h"
#include "tiny.h"

#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GENERATIONS = 2000, SETTLED = 200, ALLOWED_KIB = 4096 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEASURABLE = 0 }; /* sanitizers keep freed memory */
#else
enum { MEASURABLE = 1 };
#endif

static long resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%ld %ld", &pages, &resident) != 2) resident = 0;
    fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static ts_session *open_session(struct llama_model *model) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.model = model;
    so.n_ctx = 128;
    so.n_ubatch = 16;
    so.n_threads = 1;
    return e2e_open(&so);
}

static void generate(ts_session *s, uint32_t seed) {
    int32_t tokens[6];
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    ts_error err = {0};
    uint32_t n = 2 + seed % 5;
    for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)((seed * 31 + i * 17) % 60);
    g.tokens = tokens;
    g.n_tokens = n;
    g.n_predict = 1 + (int32_t)(seed % 3);
    g.ignore_eos = true;
    g.temperature = seed % 2 ? 0.8f : 0.0f;
    g.seed = seed;
    g.prompt_index = (int32_t)seed;
    e2e_ok(ts_session_generate(s, &g, NULL, &err), &err);
}

/* A direction to steer by, of captures of two prompts a side. */
static void make_direction(struct llama_model *model) {
    static const char *const lists[] = {"a.jsonl", "b.jsonl"}, *const texts[] = {"{\"token_ids\": [1, 2, 3]}\n{\"token_ids\": [4]}\n", "{\"token_ids\": [9, 8]}\n{\"token_ids\": [7]}\n"};
    ts_extract_options x = TS_OPTIONS_INIT(ts_extract_options);
    ts_session *s = open_session(model);
    ts_error err = {0};
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(lists[i], "w");
        assert_non_null(f);
        fputs(texts[i], f);
        assert_int_equal(fclose(f), 0);
    }
    x.positive = lists;
    x.negative = lists + 1;
    x.n_positive = x.n_negative = 1;
    x.output_path = "dir.gguf";
    e2e_ok(ts_extract_run(s, &x, NULL, &err), &err);
    ts_session_close(s);
}

static void attach_all(ts_session *s) {
    ts_steering_options st = TS_OPTIONS_INIT(ts_steering_options);
    ts_resid_options r = TS_OPTIONS_INIT(ts_resid_options);
    ts_ffn_hist_options f = TS_OPTIONS_INIT(ts_ffn_hist_options);
    ts_router_hist_options e = TS_OPTIONS_INIT(ts_router_hist_options);
    ts_error err = {0};
    st.path = "dir.gguf";
    st.mode = TS_STEERING_ABLATE;
    st.scale = 1;
    r.path = "resid.json";
    f.path = "ffn.json";
    e.path = "router.json";
    e2e_ok(ts_session_attach_steering(s, &st, &err), &err);
    e2e_ok(ts_session_trace_steering(s, "trace.jsonl", &err), &err);
    e2e_ok(ts_session_attach_resid(s, &r, &err), &err);
    e2e_ok(ts_session_attach_ffn(s, &f, &err), &err);
    e2e_ok(ts_session_attach_router(s, &e, &err), &err);
}

static void test_memory_is_flat(void **state) {
    struct llama_model *model = *state;
    long settled = 0, end;
    ts_error err = {0};
    make_direction(model);
    ts_session *s = open_session(model);
    attach_all(s);
    e2e_ok(ts_session_start(s, &err), &err);
    for (uint32_t i = 1; i <= GENERATIONS; i++) {
        generate(s, i);
        if (i == SETTLED) settled = resident_kib();
    }
    end = resident_kib();
    print_message("  resident after %d generations: %ld KiB, after %d: %ld KiB\n", SETTLED, settled, GENERATIONS, end);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    if (MEASURABLE && settled) assert_true(end - settled <= ALLOWED_KIB);
    ts_capture_shape shape;
    ts_capture_file *f;
    e2e_ok(ts_capture_open("resid.json", &f, &shape, &err), &err);
    assert_int_equal(shape.n_snapshots, GENERATIONS);
    ts_capture_close(f);
}

/* Sessions that come and go, sharing one model, leave nothing either. */
static void test_sessions_leave_nothing(void **state) {
    struct llama_model *model = *state;
    long settled = 0;
    for (int i = 1; i <= 300; i++) {
        ts_session *s = open_session(model);
        ts_error err = {0};
        ts_resid_options r = TS_OPTIONS_INIT(ts_resid_options);
        ts_ffn_hist_options f = TS_OPTIONS_INIT(ts_ffn_hist_options);
        e2e_ok(ts_session_attach_resid(s, &r, &err), &err);
        e2e_ok(ts_session_attach_ffn(s, &f, &err), &err);
        e2e_ok(ts_session_start(s, &err), &err);
        generate(s, (uint32_t)i);
        ts_session_close(s);
        if (i == 100) settled = resident_kib();
    }
    print_message("  resident after 100 sessions: %ld KiB, after 300: %ld KiB\n", settled, resident_kib());
    if (MEASURABLE && settled) assert_true(resident_kib() - settled <= ALLOWED_KIB);
}

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(void) {
    const char *why = "";
    tiny_opts o = {0};
    setenv("GGML_NO_BACKTRACE", "1", 1);
    ts_device_count();
    llama_log_set(quiet, NULL);
    struct llama_model *model = tiny_model("deepseek", &o, &why); /* dense, shared and routed FFNs */
    if (!model) {
        fprintf(stderr, "deepseek: %s\n", why);
        return 1;
    }
    if (chdir(e2e_tmp()) != 0) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_memory_is_flat, model),
                                       cmocka_unit_test_prestate(test_sessions_leave_nothing, model)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    llama_model_free(model);
    if (chdir("/") != 0) return 1;
    e2e_remove_tmp();
    return failed;
}
