/* Which rows a corpus capture takes: every kind of --positions through both formats, a subset of layers, what each format
 * refuses; rows of inner tokens equal what the prompt cut there gives. */
#include "rows.h"
#include "tiny_each.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t lengths[] = {7, 20, 3, 33, 2, 45};
#define N_PROMPTS (sizeof(lengths) / sizeof(lengths[0]))

/* f32 cache and plain attention; GELU is a table over f16 (test_tiny_packed). */
static double tolerance(void) { return strcmp(tiny_arch(), "gemma3") == 0 ? 5e-4 : 5e-6; }

static ts_session_options session(void) {
    ts_session_options so = tiny_session(32);
    so.type_k = so.type_v = "f32";
    so.flash_attn = TS_FLASH_OFF;
    return so;
}

static json_t *prompts(void) { return prompts_ids(lengths, N_PROMPTS, 160, 21); }

static ts_capture_options options(const char *positions, const char *output) {
    ts_error err = {0};
    ts_capture_options co = TS_OPTIONS_INIT(ts_capture_options);
    json_t *list = prompts();
    co.input_path = prompts_write(list, "prompts.jsonl");
    co.output_path = e2e_path(output);
    co.overwrite = true;
    co.format = strstr(output, ".safetensors") ? TS_CAPTURE_SAFETENSORS : TS_CAPTURE_F32;
    e2e_ok(ts_parse_positions("--positions", positions, &co.positions, &err), &err);
    json_decref(list);
    return co;
}

static void capture(const ts_capture_options *co, rows *out) {
    ts_error err = {0};
    ts_session_options so = session();
    e2e_ok(rows_capture(&so, co, NULL, &err), &err);
    rows_read(co->output_path, out);
}

static void take(const char *positions, const char *output, rows *out) {
    ts_capture_options co = options(positions, output);
    capture(&co, out);
}

/* Row of token `at` of prompt `p` in a capture of all. */
static int64_t row_of(size_t p, size_t at) {
    int64_t row = (int64_t)at;
    for (size_t i = 0; i < p; i++) row += (int64_t)lengths[i];
    return row;
}

static void assert_row(const rows *r, int64_t i, const rows *all, size_t prompt, size_t at) {
    size_t row = (size_t)all->shape.n_layers * (size_t)all->shape.n_hidden;
    assert_int_equal(r->positions[i], at);
    assert_int_equal(all->positions[row_of(prompt, at)], at);
    double worst = 0;
    for (int32_t l = 0; l < all->shape.n_layers; l++) {
        double error = rows_error(rows_at(r, i, l), rows_at(all, row_of(prompt, at), l), all->shape.n_hidden);
        worst = error > worst ? error : worst;
    }
    assert_true(row > 0 && worst <= tolerance());
}

/* ---- tests */

static void test_all_equals_prefixes(void **state) {
    (void)state;
    rows all, prefix;
    take("all", "all.json", &all);
    assert_int_equal(all.shape.n_snapshots, row_of(N_PROMPTS, 0));
    json_t *list = prompts(), *cut = json_array();
    for (size_t p = 0; p < N_PROMPTS; p++)
        for (size_t at = 0; at < lengths[p]; at++) {
            json_t *ids = json_array();
            for (size_t k = 0; k <= at; k++) json_array_append(ids, json_array_get(json_array_get(list, p), k));
            json_array_append_new(cut, ids);
        }
    ts_capture_options co = options("last", "prefix.json");
    co.input_path = prompts_write(cut, "prefixes.jsonl");
    capture(&co, &prefix);
    double worst = rows_worst(&all, &prefix);
    print_message("  %s: worst error %.2e\n", tiny_arch(), worst);
    assert_true(worst <= tolerance());
    assert_memory_equal(all.positions, prefix.positions, (size_t)all.shape.n_snapshots * sizeof(*all.positions));
    rows_free(&all);
    rows_free(&prefix);
    json_decref(list);
    json_decref(cut);
}

static void test_single_positions(void **state) {
    (void)state;
    rows all, r;
    take("all", "all.json", &all);
    const struct {
        const char *positions;
        int64_t at; /* from the end when negative */
    } cases[] = {{"last", -1}, {"-1", -1}, {"-2", -2}, {"0", 0}, {"1", 1}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        take(cases[c].positions, "one.json", &r);
        assert_int_equal(r.shape.n_snapshots, N_PROMPTS);
        for (size_t p = 0; p < N_PROMPTS; p++)
            assert_row(&r, (int64_t)p, &all, p, (size_t)(cases[c].at < 0 ? (int64_t)lengths[p] + cases[c].at : cases[c].at));
        rows_free(&r);
    }
    rows_free(&all);
}

static void test_ranges(void **state) {
    (void)state;
    rows all, r;
    take("all", "all.json", &all);
    take("1:-1", "range.safetensors", &r);
    int64_t i = 0;
    for (size_t p = 0; p < N_PROMPTS; p++)
        for (size_t at = 1; at < lengths[p]; at++) assert_row(&r, i++, &all, p, at);
    assert_int_equal(r.shape.n_snapshots, i);
    rows_free(&r);
    rows_free(&all);
}

/* The mean is summed in f64 over the very rows that `all` gives. */
static void test_mean(void **state) {
    (void)state;
    rows all, mean;
    take("all", "all.safetensors", &all);
    take("mean", "mean.safetensors", &mean);
    assert_int_equal(mean.shape.n_snapshots, N_PROMPTS);
    for (size_t p = 0; p < N_PROMPTS; p++)
        for (int32_t l = 0; l < all.shape.n_layers; l++)
            for (int32_t h = 0; h < all.shape.n_hidden; h++) {
                double sum = 0;
                for (size_t at = 0; at < lengths[p]; at++) sum += (double)rows_at(&all, row_of(p, at), l)[h];
                assert_true(rows_at(&mean, (int64_t)p, l)[h] == (float)(sum / (double)lengths[p]));
            }
    rows_free(&all);
    rows_free(&mean);
}

static void test_formats_agree(void **state) {
    (void)state;
    static const char *const kinds[] = {"last", "-2", "0:1", "all"};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        rows pair, st;
        take(kinds[i], "both.json", &pair);
        take(kinds[i], "both.safetensors", &st);
        rows_assert_same(&pair, &st);
        assert_memory_equal(pair.positions, st.positions, (size_t)pair.shape.n_snapshots * sizeof(*pair.positions));
        rows_free(&pair);
        rows_free(&st);
    }
}

static void test_layers(void **state) {
    (void)state;
    ts_error err = {0};
    rows all, some;
    ts_range range = {1, 2};
    take("last", "all.json", &all);
    ts_capture_options co = options("last", "some.safetensors");
    co.layers = &range;
    capture(&co, &some);
    assert_int_equal(some.shape.n_layers, 2);
    for (int64_t i = 0; i < some.shape.n_snapshots; i++)
        for (int32_t l = 0; l < 2; l++)
            assert_memory_equal(rows_at(&some, i, l), rows_at(&all, i, l + 1), (size_t)all.shape.n_hidden * sizeof(float));
    ts_capture_file *f;
    ts_capture_shape shape;
    e2e_ok(ts_capture_open(co.output_path, &f, &shape, &err), &err);
    assert_int_equal(ts_capture_layer(f, 0), 1);
    assert_int_equal(ts_capture_layer(f, 1), 2);
    ts_capture_close(f);
    rows_free(&all);
    rows_free(&some);
}

static void test_exact_too(void **state) {
    (void)state;
    rows packed, exact;
    ts_capture_options co = options("all", "exact.json");
    co.exact = true;
    capture(&co, &exact);
    take("all", "packed.json", &packed);
    assert_true(rows_worst(&packed, &exact) <= tolerance());
    rows_free(&packed);
    rows_free(&exact);
}

/* ---- refusals */

static void refuse(const ts_capture_options *co, const char *says) {
    ts_error err = {0};
    ts_session_options so = session();
    assert_int_equal(rows_capture(&so, co, NULL, &err), TS_ERR_ARG);
    if (!strstr(err.message, says) || strchr(err.message, '\n')) fail_msg("got: %s", err.message);
    assert_int_equal(access(co->output_path, F_OK), -1);
}

static void test_refusals(void **state) {
    (void)state;
    ts_range subset = {0, 1}, beyond = {0, 999};
    ts_capture_options co = options("mean", "no.json");
    refuse(&co, "use safetensors");
    co = options("last", "no.json");
    co.layers = &subset;
    refuse(&co, "use safetensors");
    co = options("last", "no.safetensors");
    co.layers = &beyond;
    refuse(&co, "0:999");
    co = options("-3", "no.json"); /* the fifth prompt has two tokens */
    refuse(&co, "prompts.jsonl:5: the prompt has 2 tokens");
    co = options("2:4", "no.json");
    refuse(&co, "prompts.jsonl:3: the prompt has 3 tokens");
}

static int tests_of_arch(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_equals_prefixes), cmocka_unit_test(test_single_positions), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_mean),                cmocka_unit_test(test_formats_agree),    cmocka_unit_test(test_layers),
        cmocka_unit_test(test_exact_too),           cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Blocks whose last is trimmed to the outputs, a sliding window, a hybrid that trims after the blocks, a recurrent one. */
int main(void) {
    static const char *const archs[] = {"llama", "gemma3", "qwen35", "mamba", NULL};
    return tiny_each(archs, tests_of_arch) ? 1 : 0;
}
