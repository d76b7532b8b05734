/* Packed corpus capture equals the exact one, row by row, on every kind of model: full and sliding attention, a hybrid, a
 * recurrent one, mixtures of experts; prompts shorter and longer than -ub, -ub below and above the sliding window of 8. */
#include "rows.h"
#include "tiny_each.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Relative L2 a layer row. With an f32 cache and plain attention what is left is the order of sums; an f16 cache rounds
 * keys and values that differ in their last bit apart. */
#define TOLERANCE_F32 5e-6
#define TOLERANCE_GELU 5e-4 /* ggml's GELU on the CPU is a table over f16 */
#define TOLERANCE_F16 2e-3
/* Rows of different prompts are nothing like each other. */
#define DISTINCT 0.05

static const size_t lengths[] = {1, 2, 3, 64, 5, 8, 13, 1, 1, 21, 34, 65, 7, 130, 2, 3, 9, 16, 63, 11};
#define N_PROMPTS (sizeof(lengths) / sizeof(lengths[0]))

/* Every row is nearer to its own exact row than to any other prompt's. */
static void check_distinct(const rows *packed, const rows *exact) {
    int32_t last = packed->shape.n_layers - 1;
    for (int64_t i = 0; i < packed->shape.n_snapshots; i++)
        for (int64_t j = 0; j < packed->shape.n_snapshots; j++)
            if (i != j)
                assert_true(rows_error(rows_at(packed, i, last), rows_at(exact, j, last), packed->shape.n_hidden) > DISTINCT);
}

static double packed_equals_exact(const ts_session_options *so) {
    json_t *prompts = prompts_ids(lengths, N_PROMPTS, 160, 7);
    const char *input = prompts_write(prompts, "prompts.jsonl");
    rows packed, exact;
    rows_make(so, input, false, "packed.json", &packed);
    rows_make(so, input, true, "exact.json", &exact);
    rows_check_meta(e2e_path("packed.json"), &packed, prompts);
    rows_check_meta(e2e_path("exact.json"), &exact, prompts);
    double worst = rows_worst(&packed, &exact);
    print_message("  %s, -ub %u, %s: worst error %.2e\n", tiny_arch(), so->n_ubatch, so->type_k ? so->type_k : "f16", worst);
    check_distinct(&packed, &exact);
    rows_free(&packed);
    rows_free(&exact);
    json_decref(prompts);
    return worst;
}

static void test_f32(void **state) {
    (void)state;
    static const uint32_t sizes[] = {4, 64, 512};
    bool gelu = strcmp(tiny_arch(), "gemma3") == 0 || strcmp(tiny_arch(), "gpt2") == 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ts_session_options so = tiny_session(sizes[i]);
        so.type_k = so.type_v = "f32";
        so.flash_attn = TS_FLASH_OFF;
        assert_true(packed_equals_exact(&so) <= (gelu ? TOLERANCE_GELU : TOLERANCE_F32));
    }
}

/* The default cache. Not where a rounding may send a token to another expert, which is no small difference. */
static void test_f16(void **state) {
    (void)state;
    ts_session_options so = tiny_session(64);
    double worst = packed_equals_exact(&so);
    if (strcmp(tiny_arch(), "deepseek") != 0) assert_true(worst <= TOLERANCE_F16);
}

/* And the exact one is what a generation captures, to the bit. */
static void test_exact_is_run(void **state) {
    (void)state;
    ts_error err = {0};
    json_t *prompts = prompts_ids(lengths, N_PROMPTS, 160, 7);
    ts_session_options so = tiny_session(64);
    rows exact, run;
    rows_make(&so, prompts_write(prompts, "prompts.jsonl"), true, "exact.json", &exact);
    ts_session *s = e2e_open(&so);
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    ro.path = e2e_path("run.json");
    e2e_ok(ts_session_attach_resid(s, &ro, &err), &err);
    for (size_t i = 0; i < N_PROMPTS; i++) {
        ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
        int32_t *tokens = prompts_tokens(json_array_get(prompts, i), &g.n_tokens);
        g.tokens = tokens;
        g.n_predict = (int32_t)(i % 3);
        g.ignore_eos = true;
        g.prompt_index = (int32_t)i;
        e2e_ok(ts_session_generate(s, &g, NULL, &err), &err);
        free(tokens);
    }
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    rows_read(e2e_path("run.json"), &run);
    rows_check_meta(e2e_path("run.json"), &run, prompts);
    rows_assert_same(&run, &exact);
    rows_free(&run);
    rows_free(&exact);
    json_decref(prompts);
}

static int run(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_exact_is_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
    static const char *const archs[] = {"llama",    "gemma3",    "qwen3",    "qwen35", "gpt2",
                                        "qwen3moe", "llama-moe", "deepseek", "mamba",  "plamo2", NULL};
    return tiny_each(archs, run) ? 1 : 0;
}
