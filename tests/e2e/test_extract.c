/* Extraction on the real model: one call over prompt lists equals capture and extract to the byte, for a session that has
 * started too; the model's hash goes along; mood is told apart and shuffled labels are not; an interruption leaves nothing. */
#include "e2e.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/cvec.h"
#include "store/fingerprint.h"

static ts_session *model;
static char positive[4096], negative[4096], mixed[2][4096];

static ts_session *open_shared(void) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.share = model;
    return e2e_open(&so);
}

static ts_extract_options options(const char *const *a, const char *const *b, const char *output) {
    ts_extract_options o = TS_OPTIONS_INIT(ts_extract_options);
    o.positive = a;
    o.n_positive = 1;
    o.negative = b;
    o.n_negative = 1;
    o.output_path = output;
    return o;
}

static void same_bytes(const char *a, const char *b) {
    size_t n, m;
    char *x = e2e_slurp(a, &n), *y = e2e_slurp(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

static size_t files_in_tmp(void) {
    DIR *d = opendir(e2e_tmp());
    size_t n = 0;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void capture(const char *input, const char *output, enum ts_capture_format format) {
    ts_capture_options co = TS_OPTIONS_INIT(ts_capture_options);
    ts_error err = {0};
    ts_session *s = open_shared();
    co.input_path = input;
    co.output_path = output;
    co.format = format;
    e2e_ok(ts_capture_run(s, &co, NULL, &err), &err);
    ts_session_close(s);
}

static void test_one_call_is_two_steps(void **state) {
    (void)state;
    ts_error err = {0};
    const char *lists[] = {positive, negative};
    char captures[2][4096];
    snprintf(captures[0], sizeof(captures[0]), "%s", e2e_path("pos.json"));
    snprintf(captures[1], sizeof(captures[1]), "%s", e2e_path("neg.safetensors"));
    const char *files[] = {captures[0], captures[1]};
    capture(positive, files[0], TS_CAPTURE_F32);
    capture(negative, files[1], TS_CAPTURE_SAFETENSORS);
    ts_session *started = open_shared();
    e2e_ok(ts_session_start(started, &err), &err);
    for (int method = TS_EXTRACT_MEAN; method <= TS_EXTRACT_LDA; method += TS_EXTRACT_LDA) {
        ts_extract_result one = {0}, two = {0};
        ts_extract_options o = options(&lists[0], &lists[1], e2e_path("one.gguf")), t = options(&files[0], &files[1], e2e_path("two.gguf"));
        o.method = t.method = (enum ts_extract_method)method;
        o.overwrite = t.overwrite = true;
        e2e_ok(ts_extract_run(method ? started : model, &o, &one, &err), &err);
        e2e_ok(ts_extract_run(NULL, &t, &two, &err), &err);
        same_bytes(o.output_path, t.output_path);
        assert_int_equal(one.n_blocks, 30);
        assert_int_equal(one.width, 576);
        assert_int_equal(one.n_positive, 24);
        assert_false(one.blocks[0].written);
        assert_true(one.blocks[1].written);
        assert_true(one.blocks[29].norm == two.blocks[29].norm);
        ts_free(one.blocks);
        ts_free(two.blocks);
    }
    ts_session_close(started);
    assert_int_equal(files_in_tmp(), 3 + 1 + 2 + 2); /* pair, safetensors, two lists of mixed labels, two results */
}

static void test_model_goes_along(void **state) {
    (void)state;
    ts_error err = {0};
    ts_cvec *c;
    char hash[33];
    uint64_t bytes;
    bool hint_differs = true;
    e2e_ok(ts_cvec_read(e2e_path("one.gguf"), &c, &err), &err);
    e2e_ok(ts_fingerprint_file(e2e_model_path(), hash, &bytes, &err), &err);
    assert_string_equal(c->model_hash, hash);
    assert_string_equal(c->mode, "add");
    assert_string_equal(c->extraction, "lda, shrinkage 0.1");
    assert_int_equal(c->n, 29);
    assert_int_equal(c->block[0], 1);
    ts_cvec_model m = {576, 30, "llama", hash};
    e2e_ok(ts_cvec_check_model(c, "one.gguf", &m, &hint_differs, &err), &err);
    assert_false(hint_differs);
    hash[0] = hash[0] == '0' ? '1' : '0';
    assert_int_equal(ts_cvec_check_model(c, "one.gguf", &m, NULL, &err), TS_ERR_MODEL);
    ts_cvec_free(c);
}

/* Mean over blocks 16 to 25, where mood stands; held-out rows, so chance is 0.5. */
static double auc_of(const char *a, const char *b, const char *output) {
    ts_error err = {0};
    ts_extract_result r = {0};
    ts_extract_options o = options(&a, &b, output);
    double sum = 0;
    o.overwrite = true;
    e2e_ok(ts_extract_run(model, &o, &r, &err), &err);
    for (int i = 16; i <= 25; i++) sum += r.blocks[i].auc;
    ts_free(r.blocks);
    return sum / 10;
}

/* Both lists half and half: the pairs stay, every second one is swapped. */
static void mix_labels(void) {
    const char *from[] = {positive, negative};
    FILE *in[2], *out[2];
    for (int i = 0; i < 2; i++) {
        snprintf(mixed[i], sizeof(mixed[i]), "%s", e2e_path(i ? "mixed-b.txt" : "mixed-a.txt"));
        in[i] = fopen(from[i], "r");
        out[i] = fopen(mixed[i], "w");
        assert_true(in[i] && out[i]);
    }
    char line[512];
    for (int row = 0; row < 24; row++)
        for (int i = 0; i < 2; i++) {
            assert_non_null(fgets(line, sizeof(line), in[i]));
            fputs(line, out[(row + i) % 2]);
        }
    for (int i = 0; i < 2; i++) {
        assert_null(fgets(line, sizeof(line), in[i]));
        fclose(in[i]);
        assert_int_equal(fclose(out[i]), 0);
    }
}

static void test_mood_is_told_apart(void **state) {
    (void)state;
    double real = auc_of(e2e_path("pos.json"), e2e_path("neg.safetensors"), e2e_path("real.gguf"));
    double shuffled = auc_of(mixed[0], mixed[1], e2e_path("mixed.gguf"));
    print_message("  AUC on held-out rows: %.3f, of shuffled labels %.3f\n", real, shuffled);
    assert_true(real > 0.85);
    assert_true(fabs(shuffled - 0.5) < 0.2);
}

static int stop;

static void raise_stop(const ts_progress *p, void *user) {
    (void)p;
    (void)user;
    stop = 1;
}

/* Raised while the first list is captured, and, with captures, before the first row. */
static void test_interruption_leaves_nothing(void **state) {
    (void)state;
    ts_error err = {0};
    ts_extract_result r;
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.share = model;
    so.stop = &stop;
    so.n_ubatch = 16;
    ts_session *s = e2e_open(&so);
    const char *lists[] = {positive, negative}, *files[] = {e2e_path("pos.json"), e2e_path("neg.safetensors")};
    ts_extract_options o = options(&lists[0], &lists[1], e2e_path("stopped.gguf"));
    size_t before = files_in_tmp();
    o.on_progress = raise_stop;
    stop = 0;
    assert_int_equal(ts_extract_run(s, &o, &r, &err), TS_ERR_INTERRUPTED);
    assert_null(r.blocks);
    assert_int_equal(files_in_tmp(), before);
    ts_session_close(s);
    o = options(&files[0], &files[1], e2e_path("stopped.gguf"));
    o.stop = &stop;
    assert_int_equal(ts_extract_run(NULL, &o, &r, &err), TS_ERR_INTERRUPTED);
    assert_int_equal(files_in_tmp(), before);
}

static void expect(int code, const char *part, ts_extract_options *o) {
    ts_error err = {0};
    assert_int_equal(ts_extract_run(NULL, o, NULL, &err), code);
    if (!strstr(err.message, part)) fail_msg("expected '%s' in '%s'", part, err.message);
}

static void test_wrong_options(void **state) {
    (void)state;
    const char *files[] = {e2e_path("pos.json"), e2e_path("neg.safetensors"), NULL};
    ts_extract_options good = options(&files[0], &files[1], e2e_path("wrong.gguf")), o;
    expect(TS_ERR_ARG, "the positive set is empty", (o = good, o.n_positive = 0, &o));
    expect(TS_ERR_ARG, "the negative set is empty", (o = good, o.negative = NULL, &o));
    expect(TS_ERR_ARG, "is NULL", (o = good, o.negative = &files[2], &o));
    expect(TS_ERR_ARG, "needs an output", (o = good, o.output_path = NULL, &o));
    expect(TS_ERR_ARG, "method", (o = good, o.method = (enum ts_extract_method)5, &o));
    expect(TS_ERR_ARG, "mode", (o = good, o.mode = (enum ts_steering_mode)9, &o));
    expect(TS_ERR_ARG, "shrinkage", (o = good, o.shrinkage = 0.5, &o));
    expect(TS_ERR_ARG, "shrinkage", (o = good, o.method = TS_EXTRACT_LDA, o.shrinkage = NAN, &o));
    expect(TS_ERR_ARG, "threads", (o = good, o.n_threads = -1, &o));
    expect(TS_ERR_FORMAT, "a model is needed", (o = good, o.size = sizeof(o), files[0] = positive, &o));
    assert_string_equal(ts_extract_method_name(TS_EXTRACT_PCA_REPENG), "pca-repeng");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_call_is_two_steps),       cmocka_unit_test(test_model_goes_along),
        cmocka_unit_test(test_mood_is_told_apart),          cmocka_unit_test(test_interruption_leaves_nothing),
        cmocka_unit_test(test_wrong_options),
    };
    const char *source = getenv("TS_SOURCE_DIR");
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    if (!e2e_model_path() || !source) return E2E_SKIP;
    snprintf(positive, sizeof(positive), "%s/examples/positive.txt", source);
    snprintf(negative, sizeof(negative), "%s/examples/negative.txt", source);
    so.model_path = e2e_model_path();
    model = e2e_open(&so);
    mix_labels();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ts_session_close(model);
    e2e_remove_tmp();
    return failed;
}
