/* Each allocation and each system call on the way to a result fails once, over every command's work: an error with one
 * line of message, no temporary and no lock left, and what stands under a final name is whole; a sanitizer's leak check
 * at the end covers all of it. Every system call is made to fail; of the allocations some hundred a command, all of them
 * with TS_FAULT_ALL=1. Ours are counted, not those inside llama.cpp and jansson (whose parser follows a null pointer when
 * one of its own fails). Needs a build with TS_FAULT_INJECTION. */
#include "e2e.h"
#include "tiny.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef TS_FAULT_INJECTION
int main(void) { return E2E_SKIP; }
#else

#include <dirent.h>
#include <llama.h>
#include <string.h>
#include <unistd.h>

#include "core/fault.h"

enum { SAMPLE = 120 };

static struct {
    struct llama_model *model; /* of the work at hand */
    struct llama_model *dense, *moe;

} t;

static ts_session *open_session(ts_error *err) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    ts_session *s;
    so.model = t.model;
    so.n_ctx = 64;
    so.n_ubatch = 16;
    so.n_threads = 1;
    return ts_session_open(&so, &s, err) == TS_OK ? s : NULL;
}

/* ---- the work of each command; 0 or the error */

static int attach(ts_session *s, ts_error *err) {
    ts_resid_options r = TS_OPTIONS_INIT(ts_resid_options);
    ts_ffn_hist_options f = TS_OPTIONS_INIT(ts_ffn_hist_options);
    ts_steering_options st = TS_OPTIONS_INIT(ts_steering_options);
    r.path = "out-r.json";
    f.path = "out-f.json";
    st.path = "in-dir.gguf";
    st.mode = TS_STEERING_ABLATE;
    st.scale = 1;
    int rc = ts_session_attach_steering(s, &st, err);
    if (rc == TS_OK) rc = ts_session_trace_steering(s, "out-t.json", err);
    if (rc == TS_OK) rc = ts_session_attach_resid(s, &r, err);
    return rc == TS_OK ? ts_session_attach_ffn(s, &f, err) : rc;
}

static int generate(ts_session *s, ts_error *err) {
    static const int32_t tokens[] = {5, 9, 2, 7};
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    g.tokens = tokens;
    g.n_tokens = sizeof(tokens) / sizeof(tokens[0]);
    g.n_predict = 2;
    g.ignore_eos = true;
    int rc = ts_session_start(s, err);
    if (rc == TS_OK) rc = ts_session_generate(s, &g, NULL, err);
    return rc == TS_OK ? ts_session_finish(s, err) : rc;
}

static int work_run(ts_error *err) {
    ts_session *s = open_session(err);
    if (!s) return err->code;
    int rc = attach(s, err);
    if (rc == TS_OK) rc = generate(s, err);
    ts_session_close(s);
    return rc;
}

static int work_gates(ts_error *err) {
    ts_session *s = open_session(err);
    if (!s) return err->code;
    int rc = ts_session_attach_env(s, err);
    if (rc == TS_OK) rc = generate(s, err);
    ts_session_close(s);
    return rc;
}

static int capture(const char *out, enum ts_capture_format format, ts_error *err) {
    ts_capture_options o = TS_OPTIONS_INIT(ts_capture_options);
    ts_session *s = open_session(err);
    if (!s) return err->code;
    o.input_path = "in.jsonl";
    o.output_path = out;
    o.format = format;
    int rc = ts_capture_run(s, &o, NULL, err);
    ts_session_close(s);
    return rc;
}

static int work_pair(ts_error *err) { return capture("out-c.json", TS_CAPTURE_F32, err); }
static int work_safetensors(ts_error *err) { return capture("out-c.safetensors", TS_CAPTURE_SAFETENSORS, err); }

static int work_census(ts_error *err) {
    ts_census_options o = TS_OPTIONS_INIT(ts_census_options);
    ts_session *s = open_session(err);
    if (!s) return err->code;
    o.input_path = "in.jsonl";
    o.output_path = "out-n.json";
    o.n_predict = 2;
    o.ignore_eos = true;
    o.trace = t.model == t.dense; /* no trace can name the neurons of experts */
    int rc = ts_census_run(s, &o, NULL, err);
    ts_session_close(s);
    return rc;
}

static int work_logits(ts_error *err) {
    ts_logits_options o = TS_OPTIONS_INIT(ts_logits_options);
    ts_logits_result r;
    ts_session *s = open_session(err);
    if (!s) return err->code;
    o.input_path = "in.txt";
    o.output_path = "out-l";
    int rc = ts_logits_run(s, &o, &r, err);
    ts_session_close(s);
    return rc;
}

static int work_kld(ts_error *err) {
    ts_kld_options o = TS_OPTIONS_INIT(ts_kld_options);
    ts_kld_result r;
    o.a = o.b = "in-l";
    o.json_path = "out-k.json";
    return ts_kld_run(&o, &r, err);
}

static int extract(const char *out, const char *json, ts_error *err) {
    static const char *const positive[] = {"in-p.json"}, *const negative[] = {"in-n.safetensors"};
    ts_extract_options o = TS_OPTIONS_INIT(ts_extract_options);
    o.positive = positive;
    o.negative = negative;
    o.n_positive = o.n_negative = 1;
    o.output_path = out;
    o.json_path = json;
    return ts_extract_run(NULL, &o, NULL, err);
}

static int work_extract(ts_error *err) { return extract("out-d.gguf", "out-d.json", err); }

static int work_prompts(ts_error *err) {
    static const char *const positive[] = {"in-q.jsonl"}, *const negative[] = {"in-p.json"};
    ts_extract_options o = TS_OPTIONS_INIT(ts_extract_options);
    ts_session *s = open_session(err);
    if (!s) return err->code;
    o.positive = positive;
    o.negative = negative;
    o.n_positive = o.n_negative = 1;
    o.output_path = "out-d.gguf";
    int rc = ts_extract_run(s, &o, NULL, err);
    ts_session_close(s);
    return rc;
}

static int work_sweep(ts_error *err) {
    static const double scales[] = {0, 1};
    static const enum ts_steering_mode modes[] = {TS_STEERING_ADD};
    ts_sweep_options o = TS_OPTIONS_INIT(ts_sweep_options);
    ts_sweep_result r;
    ts_session *s = open_session(err);
    if (!s) return err->code;
    o.path = "in-dir.gguf";
    o.input_path = "in.jsonl";
    o.scales = scales;
    o.n_scales = 2;
    o.modes = modes;
    o.n_modes = 1;
    o.n_predict = 2;
    o.parallel = 2;
    o.output_path = "out-s.json";
    int rc = ts_sweep_run(s, &o, &r, err);
    if (rc == TS_OK) ts_sweep_free(&r);
    ts_session_close(s);
    return rc;
}

static int work_merge(ts_error *err) {
    static const char *const parts[] = {"in-n.json"};
    return ts_merge(parts, 1, "out-m.json", true, err);
}

static int work_analyze(ts_error *err) {
    static const char *const parts[] = {"in-n.json"};
    ts_analyze_options o = TS_OPTIONS_INIT(ts_analyze_options);
    char *text = NULL;
    o.paths = parts;
    o.n_paths = 1;
    o.cache = true;
    int rc = ts_analyze(&o, &text, err);
    ts_free(text);
    return rc;
}

static int inspect(const char *path, ts_error *err) {
    char *text = NULL;
    int rc = ts_inspect(path, true, &text, err);
    ts_free(text);
    return rc;
}

static int work_inspect(ts_error *err) {
    static const char *const files[] = {"in-p.json", "in-n.safetensors", "in-dir.gguf", "in-n.json", "in-n.trace", "in-l"};
    int rc = TS_OK;
    for (size_t i = 0; rc == TS_OK && i < sizeof(files) / sizeof(files[0]); i++) rc = inspect(files[i], err);
    return rc;
}

static int work_router_run(ts_error *err) {
    ts_router_hist_options r = TS_OPTIONS_INIT(ts_router_hist_options);
    ts_session *s = open_session(err);
    if (!s) return err->code;
    r.path = "out-x.json";
    r.trace = true;
    int rc = ts_session_attach_router(s, &r, err);
    if (rc == TS_OK) rc = generate(s, err);
    ts_session_close(s);
    return rc;
}

static int work_router(ts_error *err) {
    ts_router_options o = TS_OPTIONS_INIT(ts_router_options);
    ts_session *s = open_session(err);
    if (!s) return err->code;
    o.input_path = "in.jsonl";
    o.output_path = "out-x.json";
    o.csv_path = "out-x.csv";
    o.n_predict = 2;
    o.ignore_eos = true;
    int rc = ts_router_run(s, &o, NULL, err);
    ts_session_close(s);
    return rc;
}

/* ---- what each failure leaves */

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Everything called out-..., and what lies in out-l. */
static void remove_outputs(void) {
    static const char *const dump[] = {"out-l/meta.json", "out-l/logits.f16"};
    DIR *d = opendir(".");
    assert_non_null(d);
    for (size_t i = 0; i < 2; i++) unlink(dump[i]);
    for (const struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, "out-", 4) == 0 && unlink(e->d_name) != 0) rmdir(e->d_name);
    closedir(d);
}

/* `armed`: whether a fault may have left partial files, which resume takes up. */
static void check_left(const char *name, long at) {
    static const char *const wholes[] = {"out-r.json", "out-f.json", "out-c.json", "out-c.safetensors", "out-n.json",
                                         "out-n.trace", "out-l/meta.json", "out-d.gguf", "out-m.json", "out-x.json"};
    ts_error err = {0};
    DIR *d = opendir(".");
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".tmp-") || ends_with(e->d_name, ".lock")) fail_msg("%s, call %ld: '%s' was left", name, at, e->d_name);
    closedir(d);
    for (size_t i = 0; i < sizeof(wholes) / sizeof(wholes[0]); i++)
        if (access(wholes[i], F_OK) == 0 && inspect(wholes[i], &err) != TS_OK) fail_msg("%s, call %ld: %s", name, at, err.message);
}

typedef struct count {
    long calls, failed, swallowed;
} count;

/* One call fails. Returns false when there was no such call any more. */
static bool fail_once(const char *name, int (*work)(ts_error *), long at, count *n) {
    ts_error err = {0};
    remove_outputs();
    ts_fault_arm(at);
    int rc = work(&err);
    bool reached = ts_fault_count() >= at;
    ts_fault_arm(0);
    check_left(name, at);
    n->failed += rc != TS_OK;
    n->swallowed += reached && rc == TS_OK;
    if (reached && rc == TS_OK && getenv("TS_FAULT_ALL")) print_message("  %s: call %ld did not matter\n", name, at);
    if (rc == TS_OK) return reached;
    if (strcmp(name, "gates") == 0 && strstr(err.message, "tapped sites")) fail_msg("%s: an arena that failed ended the run", name);
    if (rc != err.code || !err.message[0] || strchr(err.message, '\n')) fail_msg("%s, call %ld: %d, '%s'", name, at, rc, err.message);
    if (!reached) fail_msg("%s failed without a fault: %s", name, err.message);
    return true;
}

static void each_call(const char *name, int (*work)(ts_error *), bool files_only) {
    ts_error err = {0};
    count n = {0};
    remove_outputs();
    ts_fault_files_only(files_only);
    ts_fault_arm(0);
    e2e_ok(work(&err), &err);
    n.calls = ts_fault_count();
    long step = files_only || getenv("TS_FAULT_ALL") ? 1 : n.calls / SAMPLE + 1;
    for (long at = 1; at <= n.calls && fail_once(name, work, at, &n); at += step) continue;
    ts_fault_files_only(false);
    ts_fault_arm(0);
    remove_outputs();
    print_message("  %-12s %s: %ld, every %ld. made to fail: %ld ended the work, %ld did not matter\n", name,
                  files_only ? "system calls" : "allocations and calls", n.calls, step, n.failed, n.swallowed);
}

/* ---- set-up: the inputs, made by the works themselves */

static void put(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void make_inputs(void) {
    static const char *const made[][2] = {{"out-c.json", "in-p.json"}, {"out-c.f32", "in-p.f32"}, {"out-c.meta", "in-p.meta"},
                                          {"out-c.safetensors", "in-n.safetensors"}, {"out-n.json", "in-n.json"},
                                          {"out-n.detail", "in-n.detail"}, {"out-n.meta", "in-n.meta"}, {"out-n.trace", "in-n.trace"},
                                          {"out-l", "in-l"}};
    ts_error err = {0};
    put("in.txt", "some text");
    put("in-q.jsonl", "{\"token_ids\": [2, 11, 4]}\n{\"token_ids\": [9]}\n");
    put("in.jsonl", "{\"token_ids\": [9, 8, 7]}\n{\"token_ids\": [1, 2]}\n");
    e2e_ok(work_safetensors(&err), &err);
    put("in.jsonl", "{\"token_ids\": [3, 4, 5], \"label\": \"a\"}\n{\"token_ids\": [6, 7]}\n");
    e2e_ok(capture("in-p.json", TS_CAPTURE_F32, &err), &err);
    e2e_ok(work_census(&err), &err);
    e2e_ok(work_logits(&err), &err);
    for (size_t i = 3; i < sizeof(made) / sizeof(made[0]); i++) assert_int_equal(rename(made[i][0], made[i][1]), 0);
    e2e_ok(extract("in-dir.gguf", NULL, &err), &err);
}

static void quiet(enum ts_log_level level, bool from_engine, const char *line, void *user) {
    (void)level;
    (void)from_engine;
    (void)line;
    (void)user;
}

static void test_faults(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int (*work)(ts_error *);
    } works[] = {
        {"run", work_run},         {"capture", work_pair},     {"safetensors", work_safetensors}, {"census", work_census},
        {"logits", work_logits},   {"kld", work_kld},          {"extract", work_extract},         {"from prompts", work_prompts},
        {"sweep", work_sweep},     {"merge", work_merge},      {"analyze", work_analyze},         {"inspect", work_inspect},
    };
    const char *only = getenv("TS_FAULT_ONLY");
    for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
        if (only && strcmp(only, works[i].name) != 0) continue;
        each_call(works[i].name, works[i].work, true);
        each_call(works[i].name, works[i].work, false);
    }
    setenv("TURBOSPARK_RESID_CAPTURE", "out-r.json", 1);
    setenv("TURBOSPARK_FFN_HIST", "out-f.json", 1);
    if (!only || strcmp(only, "gates") == 0) each_call("gates", work_gates, false);
    t.model = t.moe;
    if (!only || strcmp(only, "router") == 0) {
        each_call("router run", work_router_run, true);
        each_call("router run", work_router_run, false);
        each_call("router", work_router, true);
        each_call("router", work_router, false);
    }
    if (!only || strcmp(only, "experts") == 0) {
        each_call("experts", work_census, true);
        each_call("experts", work_census, false);
    }
}

int main(void) {
    const char *why = "";
    setenv("GGML_NO_BACKTRACE", "1", 1);
    ts_log_set(quiet, NULL);
    ts_device_count();
    t.model = t.dense = tiny_model("llama", &(tiny_opts){.n_layer = 2, .n_embd = 32, .n_ff = 64}, &why);
    t.moe = tiny_model("llama-moe", &(tiny_opts){.n_layer = 2, .n_embd = 32, .n_ff = 32}, &why);
    if (!t.dense || !t.moe) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    if (chdir(e2e_tmp()) != 0) return 1;
    make_inputs();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    llama_model_free(t.dense);
    llama_model_free(t.moe);
    if (chdir("/") != 0) return 1;
    e2e_remove_tmp();
    return failed;
}
#endif
