/* The census on every kind of model: which blocks count what, how wide; side by side and teacher-forced as one by one;
 * models without a dense FFN refused by name. */
#include "counted.h"
#include "tiny_each.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_FF 192
#define TEXT_TOKENS 150
#define MAX_BLOCKS 8

/* Widths of what is counted in each block; or, where the model is refused, what
 * the message holds. */
typedef struct expectation {
    const char *arch;
    size_t n;
    size_t width[MAX_BLOCKS];
    const char *refused;
} expectation;

static const expectation expectations[] = {
    {"llama", 4, {N_FF, N_FF, N_FF, N_FF}, NULL},
    {"gemma3", 8, {N_FF, N_FF, N_FF, N_FF, N_FF, N_FF, N_FF, N_FF}, NULL},
    {"qwen3", 4, {N_FF, N_FF, N_FF, N_FF}, NULL},
    {"qwen35", 5, {N_FF, N_FF, N_FF, N_FF, N_FF}, NULL},
    {"gpt2", 4, {N_FF, N_FF, N_FF, N_FF}, NULL},
    {"nemotron", 4, {N_FF, N_FF, N_FF, N_FF}, NULL},
    {"plamo2", 4, {N_FF, N_FF, N_FF, N_FF}, NULL},
    {"deepseek", 4, {N_FF, 2 * N_FF, 2 * N_FF, 2 * N_FF}, NULL}, /* a dense block, then two shared experts as one */
    {"deci", 5, {N_FF, N_FF / 2, 0, N_FF, N_FF}, NULL},
    {"qwen3moe", 4, {0}, NULL}, /* experts only: passes are counted, see test_expert */
    {"llama-moe", 4, {0}, NULL},
    {"mamba", 0, {0}, "'mamba' has no dense FFN (no ffn_down in its graph)"},
};

static const expectation *expected(void) {
    for (size_t i = 0; i < sizeof(expectations) / sizeof(expectations[0]); i++)
        if (strcmp(expectations[i].arch, tiny_arch()) == 0) return &expectations[i];
    return NULL;
}

/* 7 prompts of 4, 5, 6, ... tokens, to be read as text: the tiny tokenizer makes one of five bytes. */
static const char *write_prompts(int64_t *n_before) {
    const char *path = e2e_path("prompts.txt");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    *n_before = 0;
    for (int i = 0; i < 7; i++) {
        for (int k = 0; k < 4 + i; k++) fprintf(f, "%05d", 7919 * (i + 1) * (k + 3) % 100000);
        fputc('\n', f);
        *n_before += 4 + i - 1;
    }
    assert_int_equal(fclose(f), 0);
    return path;
}

static const char *write_text(void) {
    const char *path = e2e_path("text.txt");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int k = 0; k < TEXT_TOKENS; k++) fprintf(f, "%05d", 104729 * (k + 3) % 100000);
    assert_int_equal(fclose(f), 0);
    return path;
}

/* f32 keys and values, so that only the order of sums is left between one by one and side by side. */
static ts_session_options precise(uint32_t n_ubatch) {
    ts_session_options so = tiny_session(n_ubatch);
    so.type_k = so.type_v = "f32";
    so.flash_attn = TS_FLASH_OFF;
    return so;
}

static void check_widths(const json_t *census) {
    const expectation *e = expected();
    assert_int_equal(counted_int(census, "num_layers"), e->n);
    for (size_t i = 0; i < e->n; i++) assert_int_equal(counted_width(census, i), e->width[i]);
}

static bool any_wide(void) {
    for (size_t i = 0; i < expected()->n; i++)
        if (expected()->width[i]) return true;
    return false;
}

static void test_counts(void **state) {
    (void)state;
    int64_t n_before;
    ts_census_result r;
    ts_session_options so = precise(64);
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    co.input_path = write_prompts(&n_before);
    co.n_predict = 5;
    co.ignore_eos = true;
    co.trace = any_wide();
    json_t *one = counted_make(&so, co, "one.json", &r);
    counted_check(one, 35, n_before, 28);
    check_widths(one);
    co.parallel = 3;
    json_t *three = counted_make(&so, co, "three.json", &r);
    counted_check(three, 35, n_before, 28);
    print_message("  %s: side by side %.2e\n", tiny_arch(), counted_error(three, one));
    assert_true(counted_error(three, one) <= 2e-3);
    json_decref(one);
    json_decref(three);
}

static void test_text(void **state) {
    (void)state;
    ts_census_result r;
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    co.input_path = write_text();
    co.text = true;
    co.trace = any_wide();
    ts_session_options so = precise(1);
    json_t *slow = counted_make(&so, co, "slow.json", &r);
    counted_check(slow, TEXT_TOKENS, 0, TEXT_TOKENS - 1);
    check_widths(slow);
    static const uint32_t sizes[] = {4, 64, 512};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        so = precise(sizes[i]);
        json_t *fast = counted_make(&so, co, "fast.json", &r);
        counted_check(fast, TEXT_TOKENS, 0, TEXT_TOKENS - 1);
        print_message("  %s: -ub %u %.2e\n", tiny_arch(), sizes[i], counted_error(fast, slow));
        assert_true(counted_error(fast, slow) <= 2e-3);
        json_decref(fast);
    }
    json_decref(slow);
}

/* A tap that asks gives the same file, to the byte. */
static void test_asked(void **state) {
    (void)state;
    ts_census_result r;
    counted_files files[2];
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    co.input_path = write_text();
    co.text = true;
    for (int i = 0; i < 2; i++) {
        ts_session_options so = precise(64);
        so.tap = i ? TS_TAP_ASK : TS_TAP_REDIRECT;
        json_decref(counted_make(&so, co, "tap.json", &r));
        counted_slurp(e2e_path("tap.json"), &files[i]);
    }
    assert_int_equal(files[0].n[COUNTED_DETAIL], files[1].n[COUNTED_DETAIL]);
    assert_memory_equal(files[0].bytes[COUNTED_DETAIL], files[1].bytes[COUNTED_DETAIL], files[0].n[COUNTED_DETAIL]);
    counted_free(&files[0]);
    counted_free(&files[1]);
}

/* By command: an error with the name, and nothing written. By environment: the generation goes on. */
static void test_refused(void **state) {
    (void)state;
    int64_t n_before;
    ts_error err = {0};
    ts_census_result r;
    ts_session_options so = tiny_session(64);
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    co.input_path = write_prompts(&n_before);
    co.output_path = e2e_path("refused.json");
    assert_int_equal(counted_run(&so, &co, &r, &err), TS_ERR_UNSUPPORTED);
    if (!strstr(err.message, expected()->refused)) print_error("%s\n", err.message);
    assert_non_null(strstr(err.message, expected()->refused));
    assert_null(fopen(e2e_path("refused.json"), "rb"));
    assert_null(fopen(e2e_path("refused.json.part.census"), "rb"));
    setenv("TURBOSPARK_FFN_HIST", e2e_path("refused.json"), 1);
    ts_session *s = e2e_open(&so);
    e2e_outcome o = {.logits = E2E_HASH};
    e2e_ok(ts_session_attach_env(s, &err), &err);
    unsetenv("TURBOSPARK_FFN_HIST");
    e2e_generate(s, "12345678901234567890", 3, false, &o);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    assert_int_equal(o.n_passes, 3);
    assert_null(fopen(e2e_path("refused.json"), "rb"));
}

/* By what is expected of the architecture. */
static int run(void) {
    const struct CMUnitTest served[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_asked),
    };
    const struct CMUnitTest refused[] = {cmocka_unit_test(test_refused)};
    return expected()->refused ? cmocka_run_group_tests(refused, NULL, NULL) : cmocka_run_group_tests(served, NULL, NULL);
}

int main(void) {
    const char *archs[sizeof(expectations) / sizeof(expectations[0]) + 1] = {NULL};
    for (size_t i = 0; i + 1 < sizeof(archs) / sizeof(archs[0]); i++) archs[i] = expectations[i].arch;
    return tiny_each(archs, run) ? 1 : 0;
}
