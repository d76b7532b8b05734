/* What a GPU does, without one: host memory is taken for a device's, so that rows are read back by strided copies and
 * edits run as graphs; an edit that went over the host all the same would be an error. On every kind of model: logits and
 * rows are the same bits as without, single, packed and picked; steering and sweeps agree with the host's arithmetic to
 * rounding, with gate and trace; zeroing does to the bit. */
#include "counted.h"
#include "rows.h"
#include "steered.h"

#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/session.h"

#define ROUNDING 2e-5 /* relative L2 of logits and rows; sums run in another order */
#define GELU 5e-4     /* where ggml's GELU on the CPU, a table over f16, tells neighbours apart */
#define LENGTH 6.0

/* Sessions over these options read back and edit as on a device. */
static ts_session *device(ts_session_options *so) {
    ts_session *base = e2e_open(so);
    base->as_device = true;
    so->model = NULL;
    so->share = base;
    return base;
}

static const char *all_blocks(void) {
    ts_range blocks = {1, llama_model_n_layer(tiny_loaded()) - 1};
    return steered_file("all.gguf", llama_model_n_embd(tiny_loaded()), blocks, 3, LENGTH);
}

/* ---- read back */

static void check_capture(const char *input, bool exact, ts_positions positions) {
    rows host, back;
    ts_error err = {0};
    ts_capture_options co = TS_OPTIONS_INIT(ts_capture_options);
    ts_session_options so = tiny_session(64);
    co.input_path = input;
    co.exact = exact;
    co.positions = positions;
    co.overwrite = true;
    co.output_path = e2e_path("host.json");
    e2e_ok(rows_capture(&so, &co, NULL, &err), &err);
    ts_session *base = device(&so);
    co.output_path = e2e_path("back.json");
    e2e_ok(rows_capture(&so, &co, NULL, &err), &err);
    ts_session_close(base);
    rows_read(e2e_path("host.json"), &host);
    rows_read(e2e_path("back.json"), &back);
    rows_assert_same(&host, &back);
    rows_free(&host);
    rows_free(&back);
}

static void test_rows(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 2, 30, 64, 5, 130, 3, 3, 7};
    json_t *prompts = prompts_ids(lengths, sizeof(lengths) / sizeof(lengths[0]), 160, 7);
    char *input = strdup(prompts_write(prompts, "prompts.jsonl"));
    assert_non_null(input);
    check_capture(input, false, (ts_positions){.kind = TS_POSITIONS_LAST});
    check_capture(input, true, (ts_positions){.kind = TS_POSITIONS_LAST});
    check_capture(input, false, (ts_positions){.kind = TS_POSITIONS_ALL});
    check_capture(input, false, (ts_positions){.kind = TS_POSITIONS_RANGE, .first = -1, .last = -1});
    free(input);
    json_decref(prompts);
}

static void test_identity(void **state) {
    (void)state;
    steered plain, captured;
    steered_extra extra = {.capture = e2e_path("row.json"), .n_predict = 60}; /* more than the ring holds */
    ts_session_options so = tiny_session(4);
    rows host, back;
    steered_run(&so, NULL, 0, &(steered_extra){.n_predict = 60}, &plain);
    steered_run(&so, NULL, 0, &extra, &captured);
    rows_read(extra.capture, &host);
    steered_assert_same(&plain, &captured);
    steered_free(&captured);
    ts_session *base = device(&so);
    steered_run(&so, NULL, 0, &extra, &captured);
    rows_read(extra.capture, &back);
    steered_assert_same(&plain, &captured);
    rows_assert_same(&host, &back);
    rows_free(&host);
    rows_free(&back);
    steered_free(&plain);
    steered_free(&captured);
    ts_session_close(base);
}

/* The census's bytes are the same: passes that wait in the read-back ring, more of them than it holds. */
static void test_census(void **state) {
    (void)state;
    char *file[2];
    size_t size[2];
    if (strstr(tiny_arch(), "moe") || strcmp(tiny_arch(), "mamba") == 0) return; /* nothing to count */
    for (int as = 0; as < 2; as++) {
        ts_error err = {0};
        ts_session_options so = tiny_session(64);
        ts_session *base = as ? device(&so) : NULL, *s = e2e_open(&so);
        ts_ffn_hist_options fo = TS_OPTIONS_INIT(ts_ffn_hist_options);
        ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
        fo.path = e2e_path(as ? "b.json" : "a.json");
        e2e_ok(ts_session_attach_ffn(s, &fo, &err), &err);
        g.tokens = steered_prompt();
        g.n_tokens = STEERED_PROMPT;
        g.n_predict = 150;
        g.ignore_eos = true;
        e2e_ok(ts_session_generate(s, &g, NULL, &err), &err);
        e2e_ok(ts_session_finish(s, &err), &err);
        file[as] = e2e_slurp(fo.path, &size[as]);
        ts_session_close(s);
        ts_session_close(base);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(file[0], file[1], size[0]);
    free(file[0]);
    free(file[1]);
}

/* ---- edits */

/* f32 keys and values: an f16 cache rounds values that differ in their last bit apart. */
static ts_session_options precise(void) {
    ts_session_options so = tiny_session(4);
    so.type_k = so.type_v = "f32";
    so.flash_attn = TS_FLASH_OFF;
    return so;
}

static double tolerance(void) { return strcmp(tiny_arch(), "gemma3") == 0 || strcmp(tiny_arch(), "gpt2") == 0 ? GELU : ROUNDING; }

static void both(const ts_steering_options *files, size_t n, const steered_extra *on_host, const steered_extra *on_device, steered *a,
                 steered *b) {
    ts_session_options so = precise();
    steered_run(&so, files, n, on_host, a);
    ts_session *base = device(&so);
    steered_run(&so, files, n, on_device, b);
    ts_session_close(base);
}

static void check_edit(const ts_steering_options *files, size_t n, const char *what) {
    steered host, dev, plain;
    rows a, b;
    steered_extra on_host = {.capture = e2e_path("h.json")}, on_device = {.capture = e2e_path("d.json")};
    ts_session_options so = precise();
    steered_run(&so, NULL, 0, NULL, &plain);
    both(files, n, &on_host, &on_device, &host, &dev);
    double error = steered_error(&dev, &host), apart = steered_error(&host, &plain);
    rows_read(on_host.capture, &a);
    rows_read(on_device.capture, &b);
    double worst = rows_worst(&b, &a);
    print_message("  %s, %s: logits %.1e, rows %.1e, steered %.1e\n", tiny_arch(), what, error, worst, apart);
    assert_true(error < tolerance());
    assert_true(worst < tolerance());
    assert_true(apart > 1e-3);
    rows_free(&a);
    rows_free(&b);
    steered_free(&host);
    steered_free(&dev);
    steered_free(&plain);
}

static void test_modes(void **state) {
    (void)state;
    static const char *const names[] = {"", "ablate", "add", "clamp", "renorm"};
    for (enum ts_steering_mode mode = TS_STEERING_ABLATE; mode <= TS_STEERING_RENORM; mode++) {
        ts_steering_options o = steered_by(all_blocks(), mode, 0.37);
        o.target = mode == TS_STEERING_CLAMP ? 4 : 0;
        o.gate = 1e-30; /* keeps add out of the adapter, and the gate's operations in */
        check_edit(&o, 1, names[mode]);
        o.gate = 0;
        if (mode == TS_STEERING_ABLATE || mode == TS_STEERING_RENORM) check_edit(&o, 1, names[mode]);
    }
    ts_steering_options files[] = {steered_by(all_blocks(), TS_STEERING_ABLATE, 1), steered_by(all_blocks(), TS_STEERING_ADD, 0.5),
                                   steered_by(all_blocks(), TS_STEERING_RENORM, 0.3)};
    check_edit(files, 3, "three files");
    files[0].from = TS_STEERING_DECODE;
    files[1].from = TS_STEERING_PROMPT;
    check_edit(files, 3, "decode and prompt");
}

/* The same lines: the same rows pass the gate, with the same c to rounding. */
static void test_trace(void **state) {
    (void)state;
    steered host, dev;
    size_t i, n_edited = 0;
    steered_extra on_host = {.trace = e2e_path("h.jsonl"), .n_predict = 5}, on_device = {.trace = e2e_path("d.jsonl"), .n_predict = 5};
    ts_steering_options o = steered_by(all_blocks(), TS_STEERING_CLAMP, 0.2);
    o.target = 1;
    o.gate = 0.7;
    both(&o, 1, &on_host, &on_device, &host, &dev);
    json_t *a = steered_trace(on_host.trace), *b = steered_trace(on_device.trace), *line;
    assert_int_equal(json_array_size(a), json_array_size(b));
    json_array_foreach(a, i, line) {
        json_t *other = json_array_get(b, i);
        double c = json_real_value(json_object_get(line, "c")), d = json_real_value(json_object_get(other, "c"));
        assert_true(fabs(c - d) < 1e-3 * (1 + fabs(c)));
        assert_true(json_equal(json_object_get(line, "position"), json_object_get(other, "position")));
        assert_true(json_equal(json_object_get(line, "block"), json_object_get(other, "block")));
        if (fabs(fabs(c) - 0.7) > 1e-3) assert_true(json_equal(json_object_get(line, "edited"), json_object_get(other, "edited")));
        n_edited += json_is_true(json_object_get(line, "edited"));
    }
    assert_true(n_edited > 0 && n_edited < json_array_size(a));
    json_decref(a);
    json_decref(b);
    steered_free(&host);
    steered_free(&dev);
}

/* Untouched to the bit, also beside a file that edits; the trace has every c. */
static void test_scale_zero(void **state) {
    (void)state;
    steered plain, zero;
    ts_session_options so = tiny_session(4), host = so;
    steered_run(&so, NULL, 0, NULL, &plain);
    ts_session *base = device(&so);
    for (enum ts_steering_mode mode = TS_STEERING_ABLATE; mode <= TS_STEERING_RENORM; mode++) {
        size_t i, n_c = 0;
        ts_steering_options o = steered_by(all_blocks(), mode, 0);
        steered_run(&so, &o, 1, &(steered_extra){.trace = e2e_path("zero.jsonl")}, &zero);
        steered_assert_same(&plain, &zero);
        steered_free(&zero);
        steered_run(&host, &o, 1, &(steered_extra){.trace = e2e_path("want.jsonl")}, &zero);
        steered_free(&zero);
        json_t *got = steered_trace(e2e_path("zero.jsonl")), *want = steered_trace(e2e_path("want.jsonl")), *line;
        assert_int_equal(json_array_size(got), json_array_size(want));
        json_array_foreach(want, i, line) {
            json_t *other = json_array_get(got, i);
            double c = json_real_value(json_object_get(line, "c")), d = json_real_value(json_object_get(other, "c"));
            assert_true(fabs(c - d) < 1e-5 * (1 + fabs(c)));
            assert_false(json_is_true(json_object_get(other, "edited")));
            assert_true(json_equal(json_object_get(line, "block"), json_object_get(other, "block")));
            assert_true(json_equal(json_object_get(line, "position"), json_object_get(other, "position")));
            n_c += c != 0;
        }
        assert_true(n_c > 0);
        json_decref(got);
        json_decref(want);
    }
    steered_free(&plain);
    ts_session_close(base);
    ts_steering_options files[] = {steered_by(all_blocks(), TS_STEERING_ABLATE, 1), steered_by(all_blocks(), TS_STEERING_ADD, 0),
                                   steered_by(all_blocks(), TS_STEERING_CLAMP, 0.5)};
    check_edit(files, 3, "one of three at scale 0");
}

/* ---- a sweep: each sequence of a batch has its own edit */

static const char *sweep_prompts(void) {
    const char *path = e2e_path("sweep.txt");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int k = 0; k < 5; k++) fprintf(f, "%.*s\n", 3 + 5 * k, "02571364810293847561029384756");
    assert_int_equal(fclose(f), 0);
    return path;
}

static void sweep(const ts_session_options *so, const ts_sweep_options *o, ts_sweep_result *r) {
    ts_error err = {0};
    ts_session *s = e2e_open(so);
    e2e_ok(ts_sweep_run(s, o, r, &err), &err);
    ts_session_close(s);
}

static void assert_near(double a, double b) {
    if (!(fabs(a - b) <= 50 * tolerance() * (1 + fabs(b)))) fail_msg("%s: %.9g is not %.9g", tiny_arch(), a, b);
}

/* Where rounding moved no text the figures agree; scale 0 is the unsteered model, to the bit. */
static void compare_cells(const ts_sweep_result *a, const ts_sweep_result *b) {
    size_t n_same = 0;
    assert_int_equal(a->n_cells, b->n_cells);
    for (size_t i = 0; i < a->n_cells; i++) {
        const ts_sweep_cell *c = &a->cells[i], *d = &b->cells[i];
        bool same = true;
        for (size_t p = 0; p < a->n_prompts; p++) same = same && strcmp(c->texts[p], d->texts[p]) == 0;
        assert_near(d->c, c->c);
        assert_near(d->c_unsteered, c->c_unsteered);
        assert_near(d->kl_mean, c->kl_mean);
        if (same) assert_near(log(d->perplexity), log(c->perplexity));
        if (d->scale == 0) assert_true(d->kl_max == 0 && d->c == d->c_unsteered);
        else assert_true(d->kl_max > 1e-6);
        n_same += same;
    }
    assert_true(n_same > a->n_cells / 2);
}

static void test_sweep(void **state) {
    (void)state;
    static const double scales[] = {-0.5, 0, 0.3, 1};
    static const enum ts_steering_mode modes[] = {TS_STEERING_ABLATE, TS_STEERING_ADD, TS_STEERING_CLAMP, TS_STEERING_RENORM};
    ts_sweep_result host, dev;
    ts_sweep_options o = TS_OPTIONS_INIT(ts_sweep_options);
    ts_session_options so = precise();
    if (strcmp(tiny_arch(), "gemma3") == 0) return; /* its GELU moves texts */
    so.n_ubatch = 0;
    so.n_ctx = 0;
    o.path = all_blocks();
    o.input_path = sweep_prompts();
    o.scales = scales;
    o.n_scales = 4;
    o.modes = modes;
    o.n_modes = 4;
    o.target = 2;
    o.gate = 0.05;
    o.n_predict = 6;
    o.n_random = 2;
    o.ignore_eos = true;
    for (int from = TS_STEERING_ALL; from <= TS_STEERING_DECODE; from += TS_STEERING_DECODE - TS_STEERING_ALL) {
        ts_session_options at = so;
        o.from = (enum ts_steering_from)from;
        sweep(&at, &o, &host);
        ts_session *base = device(&at);
        sweep(&at, &o, &dev);
        compare_cells(&host, &dev);
        ts_session_close(base);
        ts_sweep_free(&host);
        ts_sweep_free(&dev);
    }
}

/* ---- zeroing: the same logits, to the bit */

static void zero(const ts_session_options *so, const ts_zero_options *zo, ts_zero_row *out) {
    ts_error err = {0};
    ts_session *s = e2e_open(so);
    e2e_ok(ts_zero_run(s, zo, out, &err), &err);
    ts_session_close(s);
}

static void test_zero(void **state) {
    (void)state;
    static const double percents[] = {0, 10, 50, 100}, below[] = {0, 1e-3, 0.1, 1e30};
    ts_zero_row host[8], dev[8];
    ts_zero_options zo = TS_OPTIONS_INIT(ts_zero_options);
    ts_session_options so = tiny_session(64);
    if (strstr(tiny_arch(), "moe")) return;
    zo.input_path = sweep_prompts();
    zo.percents = percents;
    zo.below = below;
    zo.n_percents = zo.n_below = 4;
    zero(&so, &zo, host);
    ts_session *base = device(&so);
    zero(&so, &zo, dev);
    ts_session_close(base);
    for (int i = 0; i < 8; i++) {
        assert_true(dev[i].zeroed == host[i].zeroed);
        assert_true(dev[i].perplexity == host[i].perplexity);
        assert_true(dev[i].kl_mean == host[i].kl_mean && dev[i].kl_max == host[i].kl_max);
        assert_int_equal(dev[i].identical, host[i].identical);
    }
}

static int tests_of_arch(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),  cmocka_unit_test(test_identity),   cmocka_unit_test(test_census),      cmocka_unit_test(test_modes),
        cmocka_unit_test(test_trace), cmocka_unit_test(test_scale_zero), cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
    static const char *const archs[] = {"llama", "gemma3", "qwen35", "llama-moe", "plamo2", NULL};
    return tiny_each(archs, tests_of_arch) ? 1 : 0;
}
