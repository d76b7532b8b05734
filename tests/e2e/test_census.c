/* The census on a real model: text and every logit are the same with it off, redirected, asked for and beside the
 * residual capture; passes, prompt tokens and pairs are counted exactly; runs repeat to the byte; a census of one prompt
 * is what a generation counts; sequences side by side count what they count one by one. */
#include "counted.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More than 64 tokens: several ubatches of 32. */
static const char prompt[] =
    "The lighthouse keeper climbed the spiral stairs every evening at dusk, carrying a lantern, a flask of tea and the "
    "old logbook in which his father had written down the names of every ship that passed the cape. On the night of "
    "the great storm he counted seventeen of them before the glass went dark, and in the morning, when the fishermen came";

static const char *const prompts[] = {"The sky is", "Once upon a time, in a village by the sea,", "One", "The river runs", "Stone and water are"};

static ts_session *base;

static ts_session_options options(uint32_t n_ubatch, int32_t n_threads) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.share = base;
    so.n_ctx = 256;
    so.n_ubatch = n_ubatch;
    so.n_threads = n_threads;
    return so;
}

/* The first n of the prompts as a list; *n_tokens: of all but the last token of each. */
static const char *write_prompts(size_t n, int64_t *n_before) {
    const char *path = e2e_path("prompts.txt");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    *n_before = 0;
    for (size_t i = 0; i < n; i++) {
        ts_error err = {0};
        int32_t *tokens;
        size_t n_tokens;
        fprintf(f, "%s\n", prompts[i]);
        e2e_ok(ts_session_tokenize(base, prompts[i], strlen(prompts[i]), 0, &tokens, &n_tokens, &err), &err);
        *n_before += (int64_t)n_tokens - 1;
        ts_free(tokens);
    }
    assert_int_equal(fclose(f), 0);
    return path;
}

/* ---- identity */

enum arm { OFF, REDIRECT, ASK, BOTH, N_ARMS };

static void attach(ts_session *s, enum arm arm) {
    ts_error err = {0};
    ts_ffn_hist_options fo = TS_OPTIONS_INIT(ts_ffn_hist_options);
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    fo.path = e2e_path("hist.json");
    ro.path = e2e_path("snap.json");
    if (arm != OFF) e2e_ok(ts_session_attach_ffn(s, &fo, &err), &err);
    if (arm == BOTH) e2e_ok(ts_session_attach_resid(s, &ro, &err), &err);
}

static void run(ts_session_options so, enum arm arm, bool sampled, int32_t n, e2e_outcome *o, counted_files *files) {
    ts_error err = {0};
    so.tap = arm == ASK ? TS_TAP_ASK : TS_TAP_REDIRECT;
    *o = (e2e_outcome){.logits = E2E_HASH};
    ts_session *s = e2e_open(&so);
    attach(s, arm);
    e2e_ok(ts_session_start(s, &err), &err);
    assert_int_equal(ts_session_has_callback(s), arm != OFF);
    e2e_generate(s, prompt, n, sampled, o);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    if (arm != OFF) counted_slurp(e2e_path("hist.json"), files);
}

static void check_setting(bool sampled, uint32_t n_ubatch, int32_t n_threads, int32_t n) {
    e2e_outcome off, on;
    counted_files first, files;
    print_message("  %s, -ub %u, -t %d, -n %d\n", sampled ? "sampled" : "greedy", n_ubatch, n_threads, n);
    run(options(n_ubatch, n_threads), OFF, sampled, n, &off, NULL);
    assert_int_equal(off.n_passes, n);
    for (enum arm arm = REDIRECT; arm < N_ARMS; arm++) {
        run(options(n_ubatch, n_threads), arm, sampled, n, &on, &files);
        e2e_assert_same(&off, &on);
        if (arm == REDIRECT) first = files;
        assert_int_equal(first.n[COUNTED_JSON], files.n[COUNTED_JSON]);
        assert_memory_equal(first.bytes[COUNTED_JSON], files.bytes[COUNTED_JSON], files.n[COUNTED_JSON]);
        if (arm != REDIRECT) counted_free(&files);
    }
    counted_free(&first);
}

static void test_identity(void **state) {
    (void)state;
    check_setting(false, 32, 1, 1);
    check_setting(false, 32, 1, 16);
    check_setting(true, 512, 1, 16);
    check_setting(false, 512, 2, 4);
    check_setting(true, 32, 2, 4);
}

/* The residual capture beside it is the one without it. */
static void test_capture_beside(void **state) {
    (void)state;
    size_t n, n_alone;
    ts_error err = {0};
    e2e_outcome o;
    counted_files files;
    ts_session_options so = options(512, 1);
    run(so, BOTH, false, 3, &o, &files);
    char *beside = e2e_slurp(e2e_path("snap.f32"), &n);
    ts_session *s = e2e_open(&so);
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    ro.path = e2e_path("alone.json");
    e2e_ok(ts_session_attach_resid(s, &ro, &err), &err);
    e2e_generate(s, prompt, 3, false, &o);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    char *alone = e2e_slurp(e2e_path("alone.f32"), &n_alone);
    assert_int_equal(n, n_alone);
    assert_memory_equal(beside, alone, n);
    free(beside);
    free(alone);
    counted_free(&files);
}

/* ---- counts */

/* 13 tokens from each of three prompts: 39 passes, and 36 pairs, none across a generation's end. */
static void test_prime(void **state) {
    (void)state;
    int64_t n_before;
    ts_census_result r;
    ts_session_options so = options(512, 1);
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    co.input_path = write_prompts(3, &n_before);
    co.n_predict = 13;
    co.ignore_eos = true;
    json_t *census = counted_make(&so, co, "prime.json", &r);
    counted_check(census, 39, n_before, 36);
    assert_int_equal(r.n_prompts, 3);
    assert_int_equal(r.n_tokens, n_before + 39);
    assert_int_equal(counted_width(census, 0), 1536);
    assert_int_equal(counted_int(census, "num_layers"), 30);
    json_decref(census);
    counted_files files;
    json_error_t at;
    counted_slurp(e2e_path("prime.json"), &files);
    json_t *detail = json_loadb(files.bytes[COUNTED_DETAIL], files.n[COUNTED_DETAIL], 0, &at);
    assert_non_null(detail);
    for (size_t i = 0; i < 30; i++) {
        const json_t *block = json_array_get(json_object_get(detail, "dense"), i);
        assert_int_equal(counted_int(block, "n_rows"), 39);
        assert_int_equal(counted_int(block, "n_pairs"), 36);
    }
    json_decref(detail);
    counted_free(&files);
}

/* Also on another thread's time: with one thread computing, the analysis runs beside it. */
static void test_repeats(void **state) {
    (void)state;
    int64_t n_before;
    ts_census_result r;
    counted_files files[2];
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    co.input_path = write_prompts(2, &n_before);
    co.n_predict = 5;
    co.ignore_eos = true;
    co.trace = true;
    ts_session_options so = options(512, 1);
    for (int i = 0; i < 2; i++) {
        json_decref(counted_make(&so, co, "repeat.json", &r));
        counted_slurp(e2e_path("repeat.json"), &files[i]);
    }
    assert_non_null(files[0].bytes[COUNTED_TRACE]);
    counted_assert_same(&files[0], &files[1]);
    so.n_threads = 2;
    json_decref(counted_make(&so, co, "repeat.json", &r));
    counted_free(&files[1]);
    counted_slurp(e2e_path("repeat.json"), &files[1]);
    for (int i = 0; i < COUNTED_FILES; i++) {
        if (i == COUNTED_META) continue; /* it says how many threads */
        assert_int_equal(files[0].n[i], files[1].n[i]);
        assert_memory_equal(files[0].bytes[i], files[1].bytes[i], files[0].n[i]);
    }
    counted_free(&files[0]);
    counted_free(&files[1]);
}

/* A census of one prompt is what the variable counts in a generation. */
static void test_census_is_run(void **state) {
    (void)state;
    ts_error err = {0};
    ts_census_result r;
    counted_files census, hist;
    ts_session_options so = options(512, 1);
    const char *list = e2e_path("one.txt");
    FILE *f = fopen(list, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", prompt);
    assert_int_equal(fclose(f), 0);
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    co.input_path = list;
    co.n_predict = 7;
    co.ignore_eos = true;
    json_decref(counted_make(&so, co, "same.json", &r));
    counted_slurp(e2e_path("same.json"), &census);
    static const char *const names[] = {"same.json", "same.detail", "same.meta"}; /* which a generation does not replace */
    for (int i = 0; i < 3; i++) assert_int_equal(unlink(e2e_path(names[i])), 0);
    setenv("TURBOSPARK_FFN_HIST", e2e_path("same.json"), 1);
    ts_session *s = e2e_open(&so);
    e2e_outcome o = {.logits = E2E_HASH};
    e2e_ok(ts_session_attach_env(s, &err), &err);
    unsetenv("TURBOSPARK_FFN_HIST");
    e2e_generate(s, prompt, 7, false, &o);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    counted_slurp(e2e_path("same.json"), &hist);
    for (int i = COUNTED_JSON; i <= COUNTED_DETAIL; i++) {
        assert_int_equal(census.n[i], hist.n[i]);
        assert_memory_equal(census.bytes[i], hist.bytes[i], hist.n[i]);
    }
    counted_free(&census);
    counted_free(&hist);
}

/* Five prompts, four side by side: the last one is a group of its own. */
static void test_parallel(void **state) {
    (void)state;
    int64_t n_before;
    ts_census_result r;
    ts_session_options so = options(512, 1);
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    co.input_path = write_prompts(5, &n_before);
    co.n_predict = 7;
    co.ignore_eos = true;
    json_t *one = counted_make(&so, co, "one.json", &r);
    co.parallel = 4;
    json_t *four = counted_make(&so, co, "four.json", &r);
    counted_check(one, 35, n_before, 30);
    counted_check(four, 35, n_before, 30);
    print_message("  worst block: %.2e\n", counted_error(four, one));
    assert_true(counted_error(four, one) <= 2e-3);
    json_decref(one);
    json_decref(four);
}

/* Every token of a text is a pass; windows of the context's size begin anew, so a pair is lost at each. */
static void test_text(void **state) {
    (void)state;
    ts_error err = {0};
    ts_census_result r;
    int32_t *tokens;
    size_t n;
    char text[2 * sizeof(prompt)];
    snprintf(text, sizeof(text), "%s\n%s", prompt, prompt);
    FILE *f = fopen(e2e_path("text.txt"), "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    e2e_ok(ts_session_tokenize(base, text, strlen(text), 0, &tokens, &n, &err), &err);
    ts_free(tokens);
    assert_in_range(n, 120, 200);
    ts_session_options so = options(32, 1);
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    co.input_path = e2e_path("text.txt");
    co.text = true;
    json_t *whole = counted_make(&so, co, "whole.json", &r);
    counted_check(whole, (int64_t)n, 0, (int64_t)n - 1);
    assert_int_equal(r.n_tokens, n);
    so.n_ubatch = 512; /* the batches do not decide what is counted */
    json_t *batch = counted_make(&so, co, "batch.json", &r);
    counted_check(batch, (int64_t)n, 0, (int64_t)n - 1);
    print_message("  -ub 32 and 512: worst block %.2e\n", counted_error(whole, batch));
    assert_true(counted_error(whole, batch) <= 2e-2); /* of a model that quantises its activations */
    json_decref(whole);
    json_decref(batch);
    so.n_ctx = 64;
    json_t *windows = counted_make(&so, co, "windows.json", &r);
    counted_check(windows, (int64_t)n, 0, (int64_t)n - (int64_t)((n + 63) / 64));
    json_decref(windows);
}

/* Nothing ran: nothing written, no error. */
static void test_nothing_counted(void **state) {
    (void)state;
    ts_error err = {0};
    ts_session_options so = options(512, 1);
    ts_session *s = e2e_open(&so);
    ts_ffn_hist_options fo = TS_OPTIONS_INIT(ts_ffn_hist_options);
    fo.path = e2e_path("none.json");
    e2e_ok(ts_session_attach_ffn(s, &fo, &err), &err);
    e2e_ok(ts_session_start(s, &err), &err);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    assert_null(fopen(e2e_path("none.json"), "rb"));
    assert_null(fopen(e2e_path("none.detail"), "rb"));
    assert_null(fopen(e2e_path("none.meta"), "rb"));
}

int main(void) {
    if (!e2e_model_path()) return E2E_SKIP;
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.model_path = e2e_model_path();
    ts_error err = {0};
    if (ts_session_open(&so, &base, &err) != TS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity), cmocka_unit_test(test_capture_beside), cmocka_unit_test(test_prime),
        cmocka_unit_test(test_repeats),  cmocka_unit_test(test_census_is_run),  cmocka_unit_test(test_parallel),
        cmocka_unit_test(test_text),     cmocka_unit_test(test_nothing_counted),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ts_session_close(base);
    e2e_remove_tmp();
    return failed;
}
