/* Zeroing in the real graph: level 0 is bit-identical; the share zeroed is the share asked for; a share that is zero
 * already changes nothing, one neuron more does; everything zeroed is a model without FFN; thresholds do what the shares
 * they amount to do; larger shares are further from the model. */
#include "counted.h"
#include "tiny.h"
#include "tiny_each.h"

#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_FF 192
#define TEXT_TOKENS 150

static const char *write_text(void) {
    const char *path = e2e_path("text.txt");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int k = 0; k < TEXT_TOKENS; k++) fprintf(f, "%05d", 104729 * (k + 3) % 100000);
    assert_int_equal(fclose(f), 0);
    return path;
}

static int zero(struct llama_model *model, uint32_t n_ctx, const ts_zero_options *zo, ts_zero_row *rows, ts_error *err) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.model = model;
    so.n_ctx = n_ctx;
    so.n_threads = 1;
    ts_session *s = e2e_open(&so);
    int rc = ts_zero_run(s, zo, rows, err);
    ts_session_close(s);
    return rc;
}

/* Levels in percent, then thresholds, over the text in windows of 64 tokens. */
static void measure(struct llama_model *model, const double *percents, size_t n, const double *below, size_t n_below, ts_zero_row *rows) {
    ts_error err = {0};
    ts_zero_options zo = TS_OPTIONS_INIT(ts_zero_options);
    zo.input_path = write_text();
    zo.percents = percents;
    zo.n_percents = n;
    zo.below = below;
    zo.n_below = n_below;
    e2e_ok(zero(model, 64, &zo, rows, &err), &err);
    for (size_t i = 0; i < n + n_below; i++) {
        assert_int_equal(rows[i].n_scored, TEXT_TOKENS - 3); /* not the last token of each window */
        assert_int_equal(rows[i].threshold, i >= n);
        assert_true(rows[i].perplexity_base == rows[0].perplexity_base);
        assert_true(isfinite(rows[i].perplexity) && isfinite(rows[i].kl_max) && rows[i].kl_mean <= rows[i].kl_max);
    }
}

static void assert_untouched(const ts_zero_row *row) {
    assert_true(row->identical);
    assert_true(row->perplexity == row->perplexity_base);
    assert_true(row->kl_mean == 0 && row->kl_max == 0 && row->top1 == 1);
}

/* ---- on every architecture */

static void test_levels(void **state) {
    (void)state;
    static const double percents[] = {0, 25, 50, 75, 90, 100}, below[] = {0, 1e-3, 1e30};
    ts_zero_row rows[9];
    measure(tiny_loaded(), percents, 6, below, 3, rows);
    for (int i = 0; i < 9; i++)
        print_message("  %s: %g %s: %.4f zeroed, perplexity %.3f, KL %.3g, top-1 %.3f\n", tiny_arch(), rows[i].level,
                      rows[i].threshold ? "threshold" : "%", rows[i].zeroed, rows[i].perplexity, rows[i].kl_mean, rows[i].top1);
    assert_untouched(&rows[0]);
    for (int i = 0; i < 6; i++) {
        double share = percents[i] / 100; /* rounded down in each row; rows are N_FF / 2 wide or more */
        assert_true(rows[i].zeroed <= share + 1e-9 && rows[i].zeroed > share - 2.0 / N_FF);
        if (i > 0) assert_true(!rows[i].identical && rows[i].kl_mean > rows[i - 1].kl_mean);
    }
    assert_untouched(&rows[6]);
    assert_true(rows[7].zeroed > 0 && rows[7].zeroed < 0.5);
    assert_true(rows[8].zeroed == 1);
    assert_true(rows[8].perplexity == rows[5].perplexity && rows[8].kl_mean == rows[5].kl_mean); /* the same edit */
}

static int run_levels(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_levels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* ---- against models that know the answer */

static struct llama_model *special(const char *arch, const tiny_opts *o) {
    const char *why = "";
    struct llama_model *model = tiny_model(arch, o, &why);
    if (!model) print_error("%s: %s\n", arch, why);
    assert_non_null(model);
    return model;
}

/* Three of eight neurons never fire: 37.5 % are zero already, one neuron more is not. */
static void test_known_zeros(void **state) {
    (void)state;
    static const double percents[] = {0, 37.5, 37.9, 38.03, 100}, below[] = {1, 1000};
    ts_zero_row rows[7];
    struct llama_model *model = special("nemotron", &(tiny_opts){.dead_of_8 = 3});
    measure(model, percents, 5, below, 2, rows);
    for (int i = 0; i < 3; i++) {
        assert_untouched(&rows[i]);
        assert_true(rows[i].zeroed == 72.0 / N_FF); /* what is zero counts, by whom it was made so */
    }
    assert_false(rows[3].identical);
    assert_true(rows[3].zeroed == 73.0 / N_FF);
    assert_true(rows[4].zeroed == 1);
    assert_untouched(&rows[5]); /* those that fire are about 100 squared */
    assert_true(rows[5].zeroed == 72.0 / N_FF);
    assert_untouched(&rows[6]);
    llama_model_free(model);
}

/* The census counts those zeros, exactly. */
static void test_census_of_known_zeros(void **state) {
    (void)state;
    ts_census_result r;
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    static const uint32_t dead[] = {1, 3, 4, 7};
    for (size_t i = 0; i < sizeof(dead) / sizeof(dead[0]); i++) {
        so.model = special("nemotron", &(tiny_opts){.dead_of_8 = dead[i]});
        so.n_ctx = 64;
        so.n_threads = 1;
        co.input_path = write_text();
        co.text = true;
        json_t *census = counted_make(&so, co, "zeros.json", &r);
        assert_int_equal(r.decode_passes, TEXT_TOKENS);
        for (size_t block = 0; block < 4; block++) {
            assert_int_equal(counted_bucket(census, block, 0), TEXT_TOKENS * N_FF * dead[i] / 8);
            assert_int_equal(counted_bucket(census, block, 63), 0);
            const json_t *mass = json_array_get(json_object_get(census, "mass"), block);
            for (size_t j = 0; j < N_FF; j++)
                assert_int_equal(json_number_value(json_array_get(mass, j)) == 0, j % 8 < dead[i]);
        }
        json_decref(census);
        llama_model_free(so.model);
    }
}

/* Everything zeroed is the model whose ffn_down is zero. */
static void test_everything(void **state) {
    (void)state;
    static const double all[] = {100}, none[] = {0};
    ts_zero_row zeroed, without;
    struct llama_model *model = special("llama", NULL), *no_ffn = special("llama", &(tiny_opts){.no_ffn = 1});
    measure(model, all, 1, NULL, 0, &zeroed);
    measure(no_ffn, none, 1, NULL, 0, &without);
    print_message("  everything zeroed: perplexity %.9g, without FFN %.9g\n", zeroed.perplexity, without.perplexity_base);
    assert_true(zeroed.perplexity == without.perplexity_base);
    assert_true(zeroed.perplexity != zeroed.perplexity_base);
    llama_model_free(model);
    llama_model_free(no_ffn);
}

/* ---- a NaN in the weights */

static int n_warnings;
static char warning[256];

static void on_log(enum ts_log_level level, bool from_engine, const char *line, void *user) {
    (void)user;
    if (from_engine || level != TS_LOG_WARN) return;
    n_warnings++;
    snprintf(warning, sizeof(warning), "%s", line);
}

/* Block 2 has one such neuron; what block 3 reads is NaN all over. Counted in bucket 63, in no mass; one warning that
 * names the first; the file is JSON, which counted_make parses. */
static void test_nan(void **state) {
    (void)state;
    ts_census_result r;
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    so.model = special("llama", &(tiny_opts){.nan_block = 3});
    so.n_ctx = 256;
    so.n_threads = 1;
    co.input_path = write_text();
    co.text = true;
    ts_log_set(on_log, NULL);
    json_t *census = counted_make(&so, co, "nan.json", &r);
    ts_log_set(NULL, NULL);
    static const int64_t nonfinite[] = {0, 0, TEXT_TOKENS, TEXT_TOKENS * N_FF};
    for (size_t block = 0; block < 4; block++) {
        assert_int_equal(counted_bucket(census, block, 63), nonfinite[block]);
        assert_int_equal(json_array_size(json_array_get(json_object_get(census, "hist_mass"), block)), 64);
        assert_true(json_number_value(json_array_get(json_array_get(json_object_get(census, "hist_mass"), block), 63)) == 0);
    }
    assert_true(json_number_value(json_array_get(json_array_get(json_object_get(census, "mass"), 2), 7)) == 0);
    assert_true(json_number_value(json_array_get(json_array_get(json_object_get(census, "mass"), 2), 8)) > 0);
    assert_int_equal(r.n_nonfinite, TEXT_TOKENS * (1 + N_FF));
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warning, "block 2, neuron 7"));
    json_decref(census);
    llama_model_free(so.model);
}

/* ---- wrong use */

static void test_wrong(void **state) {
    (void)state;
    static const double good[] = {0}, over[] = {101}, under[] = {-1}, nan[] = {NAN};
    struct {
        const double *percents;
        size_t n;
        const double *below;
        size_t n_below;
        const char *part;
    } cases[] = {{good, 0, NULL, 0, "at least one level"}, {over, 1, NULL, 0, "0 to 100"}, {under, 1, NULL, 0, "0 to 100"},
                 {nan, 1, NULL, 0, "0 to 100"}, {NULL, 0, under, 1, "0 or more"}, {NULL, 0, nan, 1, "0 or more"}};
    struct llama_model *model = special("llama", NULL);
    ts_zero_row row;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ts_error err = {0};
        ts_zero_options zo = TS_OPTIONS_INIT(ts_zero_options);
        zo.input_path = write_text();
        zo.percents = cases[i].percents;
        zo.n_percents = cases[i].n;
        zo.below = cases[i].below;
        zo.n_below = cases[i].n_below;
        assert_int_equal(zero(model, 64, &zo, &row, &err), TS_ERR_ARG);
        assert_non_null(strstr(err.message, cases[i].part));
    }
    ts_error err = {0};
    ts_zero_options zo = TS_OPTIONS_INIT(ts_zero_options);
    zo.input_path = write_text();
    zo.percents = good;
    zo.n_percents = 1;
    assert_int_equal(zero(model, 1, &zo, &row, &err), TS_ERR_ARG);
    assert_non_null(strstr(err.message, "-c"));
    llama_model_free(model);
    model = special("qwen3moe", NULL);
    assert_int_equal(zero(model, 64, &zo, &row, &err), TS_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "turbospark router"));
    llama_model_free(model);
}

static int run_special(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_zeros), cmocka_unit_test(test_census_of_known_zeros), cmocka_unit_test(test_everything),
        cmocka_unit_test(test_nan),         cmocka_unit_test(test_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
    static const char *const archs[] = {"llama", "gemma3", "qwen35", "gpt2", "deepseek", "deci", NULL};
    static const char *const once[] = {"llama", NULL};
    return tiny_each(archs, run_levels) + tiny_each(once, run_special) ? 1 : 0;
}
