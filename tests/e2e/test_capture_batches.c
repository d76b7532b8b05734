/* The packing plan depends on the corpus and the options alone: stopped after any of its batches, a capture resumes to the
 * bytes of an uninterrupted one, also after a prompt longer than -ub; batches hold at most -ub tokens and 256 prompts. */
#include "rows.h"
#include "tiny_each.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t lengths[] = {5, 9, 70, 3, 8, 20, 6, 1, 1, 40, 2, 33, 64, 7, 7, 7, 7, 7, 12, 31, 1, 3};
#define N_PROMPTS (sizeof(lengths) / sizeof(lengths[0]))
#define UBATCH 32
/* 5+9 | 70 | 3+8+20+1 .. as first fit in order: 5 9; 70; 3 8 20; 6 1 1; 40; 2; 33; 64; 7 7 7 7; 7 12; 31 1; 3 */
#define N_BATCHES 12

typedef struct stopper {
    volatile int flag;
    uint64_t after, seen; /* batches */
} stopper;

static void on_progress(const ts_progress *p, void *user) {
    stopper *s = user;
    (void)p;
    if (++s->seen == s->after) s->flag = 1;
}

static int run(const ts_capture_options *co, volatile int *flag, ts_capture_result *r, ts_error *err) {
    ts_session_options so = tiny_session(UBATCH);
    so.stop = flag;
    return rows_capture(&so, co, r, err);
}

static ts_capture_options options(const char *output, const char *positions) {
    ts_error err = {0};
    json_t *list = prompts_ids(lengths, N_PROMPTS, 160, 5);
    ts_capture_options co = TS_OPTIONS_INIT(ts_capture_options);
    co.input_path = prompts_write(list, "prompts.jsonl");
    co.output_path = e2e_path(output);
    co.format = TS_CAPTURE_SAFETENSORS;
    e2e_ok(ts_parse_positions("--positions", positions, &co.positions, &err), &err);
    json_decref(list);
    return co;
}

/* Stopped after batch `k` and then after each third one, resumed until it is whole. */
static void stop_after(uint64_t k, const char *positions, const char *whole, size_t n_whole) {
    ts_error err = {0};
    ts_capture_result r;
    uint64_t batches = 0;
    ts_capture_options co = options("part.safetensors", positions);
    int rc = TS_ERR_INTERRUPTED;
    for (int i = 0; rc == TS_ERR_INTERRUPTED && i < N_BATCHES; i++) {
        stopper s = {.after = i == 0 ? k : 3};
        co.resume = i > 0;
        co.on_progress = on_progress;
        co.user = &s;
        rc = run(&co, &s.flag, &r, &err);
        assert_int_equal(rc == TS_ERR_INTERRUPTED, r.partial);
        batches += r.n_batches;
    }
    e2e_ok(rc, &err);
    assert_int_equal(batches, N_BATCHES);
    assert_int_equal(r.n_prompts, N_PROMPTS);
    size_t n;
    char *bytes = e2e_slurp(co.output_path, &n);
    assert_int_equal(n, n_whole);
    assert_memory_equal(bytes, whole, n);
    free(bytes);
    unlink(co.output_path);
}

static void resume_everywhere(const char *positions) {
    ts_error err = {0};
    ts_capture_result r;
    size_t n;
    ts_capture_options co = options("part.safetensors", positions);
    e2e_ok(run(&co, NULL, &r, &err), &err);
    assert_int_equal(r.n_batches, N_BATCHES);
    char *whole = e2e_slurp(co.output_path, &n);
    unlink(co.output_path);
    for (uint64_t k = 1; k < N_BATCHES; k++) stop_after(k, positions, whole, n);
    free(whole);
}

static void test_resume_last(void **state) {
    (void)state;
    resume_everywhere("last");
}

static void test_resume_mean(void **state) {
    (void)state;
    resume_everywhere("mean");
}

/* Raised before the first batch: nothing is written, and a resume starts there. */
static void test_stopped_at_once(void **state) {
    (void)state;
    ts_error err = {0};
    ts_capture_result r;
    int flag = 1;
    ts_capture_options co = options("once.safetensors", "last");
    assert_int_equal(run(&co, &flag, &r, &err), TS_ERR_INTERRUPTED);
    assert_int_equal(access(co.output_path, F_OK), -1);
    co.resume = true;
    e2e_ok(run(&co, NULL, &r, &err), &err);
    assert_int_equal(r.n_prompts, N_PROMPTS);
}

/* Partial files of other options or another corpus are refused by name, and left alone. */
static void test_other_plan(void **state) {
    (void)state;
    ts_error err = {0};
    ts_capture_result r;
    stopper s = {.after = 2};
    ts_capture_options co = options("plan.safetensors", "last");
    co.on_progress = on_progress;
    co.user = &s;
    assert_int_equal(run(&co, &s.flag, &r, &err), TS_ERR_INTERRUPTED);
    ts_capture_options other = options("plan.safetensors", "-1"); /* the same rows, asked for otherwise */
    other.resume = true;
    assert_int_equal(run(&other, NULL, &r, &err), TS_ERR_STATE);
    assert_non_null(strstr(err.message, "another corpus or options"));
    other = options("plan.safetensors", "last");
    json_t *list = prompts_ids(lengths, N_PROMPTS - 1, 160, 5);
    other.input_path = prompts_write(list, "fewer.jsonl");
    other.resume = true;
    assert_int_equal(run(&other, NULL, &r, &err), TS_ERR_STATE);
    json_decref(list);
    co.resume = true;
    co.on_progress = NULL;
    e2e_ok(run(&co, NULL, &r, &err), &err);
}

/* 600 prompts of one token: -ub 512 would hold them in two batches, sequence ids in three. */
static void test_sequence_limit(void **state) {
    (void)state;
    size_t ones[600];
    ts_error err = {0};
    ts_capture_result r;
    for (size_t i = 0; i < 600; i++) ones[i] = 1;
    json_t *list = prompts_ids(ones, 600, 160, 9);
    ts_session_options so = tiny_session(512);
    ts_capture_options co = TS_OPTIONS_INIT(ts_capture_options);
    co.input_path = prompts_write(list, "ones.jsonl");
    co.output_path = e2e_path("ones.json");
    e2e_ok(rows_capture(&so, &co, &r, &err), &err);
    assert_int_equal(r.n_batches, 3);
    assert_int_equal(r.n_rows, 600);
    rows packed;
    rows_read(co.output_path, &packed);
    rows_check_meta(co.output_path, &packed, list);
    rows_free(&packed);
    json_decref(list);
}

static int tests_of_arch(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume_last), cmocka_unit_test(test_resume_mean),    cmocka_unit_test(test_stopped_at_once),
        cmocka_unit_test(test_other_plan),  cmocka_unit_test(test_sequence_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
    static const char *const archs[] = {"llama", NULL};
    return tiny_each(archs, tests_of_arch) ? 1 : 0;
}
