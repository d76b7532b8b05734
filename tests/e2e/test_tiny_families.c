/* The families that matter most, end to end: a packed corpus capture is the exact one within rounding, the census counts
 * every token in every block, scale 0 is the identity to the bit, and an ablated direction is gone from the row. Their
 * sites alone are checked by `make test-archs`. */
#include "counted.h"
#include "rows.h"
#include "steered.h"

#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 5e-6
#define TOLERANCE_GELU 5e-4 /* ggml's GELU on the CPU is a table over f16 */
#define LENGTH 6.0
#define MAX_WIDTH 256

static int32_t n_layer(void) { return llama_model_n_layer(tiny_loaded()); }
static int32_t width(void) { return llama_model_n_embd(tiny_loaded()); }

/* Only the order of sums is left between two shapes of a batch. */
static ts_session_options precise(uint32_t n_ubatch) {
    ts_session_options so = tiny_session(n_ubatch);
    so.type_k = so.type_v = "f32";
    so.flash_attn = TS_FLASH_OFF;
    return so;
}

/* ---- capture */

static void test_packed(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 2, 13, 64, 5, 33, 1, 90, 7};
    static const uint32_t sizes[] = {4, 64};
    json_t *prompts = prompts_ids(lengths, sizeof(lengths) / sizeof(lengths[0]), 160, 7);
    const char *input = prompts_write(prompts, "prompts.jsonl");
    bool gelu = strncmp(tiny_arch(), "gemma", 5) == 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ts_session_options so = precise(sizes[i]);
        rows packed, exact;
        rows_make(&so, input, false, "packed.json", &packed);
        rows_make(&so, input, true, "exact.json", &exact);
        rows_check_meta(e2e_path("packed.json"), &packed, prompts);
        double worst = rows_worst(&packed, &exact);
        print_message("  %s, -ub %u: worst error %.2e\n", tiny_arch(), sizes[i], worst);
        assert_int_equal(packed.shape.n_layers, n_layer());
        assert_true(worst <= (gelu ? TOLERANCE_GELU : TOLERANCE));
        rows_free(&packed);
        rows_free(&exact);
    }
    json_decref(prompts);
}

/* ---- census */

/* Where every block has a dense FFN or a shared expert. */
static bool counts_everywhere(void) { return strcmp(tiny_arch(), "gpt-oss") != 0; }

static void test_census(void **state) {
    (void)state;
    ts_census_result r;
    ts_session_options so = precise(64);
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    const char *path = e2e_path("text.txt");
    FILE *f = fopen(path, "w");
    if (!counts_everywhere()) skip();
    assert_non_null(f);
    for (int k = 0; k < 60; k++) fprintf(f, "%05d", 104729 * (k + 3) % 100000);
    assert_int_equal(fclose(f), 0);
    co.input_path = path;
    co.text = true;
    co.trace = true;
    json_t *census = counted_make(&so, co, "census.json", &r);
    counted_check(census, 60, 0, 59);
    assert_int_equal(counted_int(census, "num_layers"), n_layer());
    for (int32_t il = 0; il < n_layer(); il++) assert_true(counted_width(census, (size_t)il) > 0);
    json_decref(census);
}

/* ---- steering */

static const char *directions(int32_t first, int32_t last) {
    return steered_file("directions.gguf", width(), (ts_range){first, last}, 3, LENGTH);
}

static void test_scale_zero(void **state) {
    (void)state;
    steered plain, zero;
    ts_session_options so = tiny_session(4);
    steered_extra traced = {.trace = e2e_path("zero.jsonl")};
    steered_run(&so, NULL, 0, NULL, &plain);
    for (enum ts_steering_mode mode = TS_STEERING_ABLATE; mode <= TS_STEERING_RENORM; mode++) {
        ts_steering_options o = steered_by(directions(1, n_layer() - 1), mode, 0);
        steered_run(&so, &o, 1, &traced, &zero);
        steered_assert_same(&plain, &zero);
        assert_true(zero.callback);
        steered_free(&zero);
    }
    steered_free(&plain);
}

static double cosine(const float *x, const float *d) {
    double dot = 0, xx = 0, dd = 0;
    for (int32_t i = 0; i < width(); i++) {
        dot += (double)x[i] * (double)d[i];
        xx += (double)x[i] * (double)x[i];
        dd += (double)d[i] * (double)d[i];
    }
    return fabs(dot) / sqrt(xx * dd);
}

/* In every steered block, and the generation is another one. */
static void test_ablate(void **state) {
    (void)state;
    float d[MAX_WIDTH];
    steered got, plain;
    rows r;
    ts_session_options so = tiny_session(64);
    steered_extra extra = {.capture = e2e_path("row.json")};
    ts_steering_options o = steered_by(directions(1, n_layer() - 1), TS_STEERING_ABLATE, 1);
    assert_true(width() <= MAX_WIDTH);
    steered_run(&so, NULL, 0, NULL, &plain);
    steered_run(&so, &o, 1, &extra, &got);
    assert_true(steered_error(&got, &plain) > 1e-3);
    rows_read(extra.capture, &r);
    for (int32_t block = 1; block < n_layer(); block++) {
        steered_direction(d, width(), block, 3, LENGTH);
        assert_true(cosine(rows_at(&r, 0, block), d) < 1e-5);
    }
    rows_free(&r);
    steered_free(&got);
    steered_free(&plain);
}

static int run(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_census),
        cmocka_unit_test(test_scale_zero),
        cmocka_unit_test(test_ablate),
    };
    return cmocka_run_group_tests_name(tiny_arch(), tests, NULL, NULL);
}

int main(void) {
    static const char *const archs[] = {"llama",  "qwen3",   "phi3",     "mistral3",     "mistral4",  "deepseek2",       "gemma3",
                                        "gemma4", "gpt-oss", "qwen35",   "qwen35moe",    "muse-glimmer", "nanbeige/looped", "rwkv7", NULL};
    return tiny_each(archs, run) ? 1 : 0;
}
