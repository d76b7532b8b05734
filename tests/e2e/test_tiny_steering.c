/* Steering where it happens, on every kind of model: the block of a direction is the one llama.cpp's adapter adds it to;
 * each mode does to the row what its equation says, before the capture; every row of a chunk is edited; scale 0 is the
 * identity; the gate, the choice of tokens, the order of files and the trace do what they say. Scales are 0.37 and
 * targets not zero: ablate at 1 and clamp to 0 are one function. */
#include "rows.h"
#include "steered.h"

#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAME 1e-5    /* relative L2 of logits: rounding */
#define CHUNKED 5e-3 /* likewise, where other kernels compute and an f16 cache rounds */
#define DIFFERENT 1e-2
#define LENGTH 6.0
#define SOMEWHERE 1e-30 /* a gate that every row passes, and the adapter cannot do */

static int32_t n_layer(void) { return llama_model_n_layer(tiny_loaded()); }
static int32_t width(void) { return llama_model_n_embd(tiny_loaded()); }
static bool has_adapter(void) { return strcmp(tiny_arch(), "plamo2") != 0; } /* the one that never looks at it */

static const char *one_block(int32_t block) {
    char name[32];
    snprintf(name, sizeof(name), "block%d.gguf", block);
    return steered_file(name, width(), (ts_range){block, block}, 3, LENGTH);
}

static const char *all_blocks(void) { return steered_file("all.gguf", width(), (ts_range){1, n_layer() - 1}, 3, LENGTH); }

/* ---- the block */

/* The direction of file `block` at `block`, by llama.cpp alone. */
static void stock(const ts_session_options *so, int32_t block, steered *out) {
    float *added = calloc((size_t)n_layer() * (size_t)width(), sizeof(*added));
    assert_non_null(added);
    steered_direction(added + (size_t)block * (size_t)width(), width(), block, 3, LENGTH);
    steered_stock(so, added, out);
    free(added);
}

/* The same direction one block off. */
static void shifted(const ts_session_options *so, int32_t block, int32_t by, const steered *want) {
    steered got;
    float *d = calloc((size_t)width(), sizeof(*d)), *added = calloc((size_t)n_layer() * (size_t)width(), sizeof(*added));
    assert_true(d && added);
    if (block + by >= 1 && block + by < n_layer()) {
        steered_direction(d, width(), block, 3, LENGTH);
        memcpy(added + (size_t)(block + by) * (size_t)width(), d, (size_t)width() * sizeof(*d));
        steered_stock(so, added, &got);
        assert_true(steered_error(&got, want) > DIFFERENT);
        steered_free(&got);
    }
    free(d);
    free(added);
}

static void check_block(const ts_session_options *so, int32_t block) {
    steered adapter, edited, reference;
    ts_steering_options o = steered_by(one_block(block), TS_STEERING_ADD, 1);
    steered_run(so, &o, 1, NULL, &adapter);
    o.gate = SOMEWHERE;
    steered_run(so, &o, 1, NULL, &edited);
    assert_null(strstr(edited.summary, "adapter"));
    assert_int_equal(strstr(adapter.summary, "adapter") != NULL, has_adapter());
    assert_int_equal(adapter.callback, !has_adapter()); /* by the adapter alone it costs no callback */
    assert_true(steered_error(&adapter, &edited) < SAME);
    if (has_adapter()) {
        stock(so, block, &reference);
        double error = steered_error(&edited, &reference);
        print_message("  %s, block %d: error %.2e\n", tiny_arch(), block, error);
        assert_true(error < SAME);
        shifted(so, block, -1, &edited);
        shifted(so, block, 1, &edited);
        steered_free(&reference);
    }
    steered_free(&adapter);
    steered_free(&edited);
}

static void test_block(void **state) {
    (void)state;
    ts_session_options so = tiny_session(64);
    check_block(&so, 1);
    check_block(&so, n_layer() / 2);
    check_block(&so, n_layer() - 1);
}

/* Bare llama.cpp computes what we do when nothing steers: the reference is one. */
static void test_reference(void **state) {
    (void)state;
    steered ours, theirs;
    ts_session_options so = tiny_session(64);
    steered_run(&so, NULL, 0, NULL, &ours);
    steered_stock(&so, NULL, &theirs);
    assert_true(steered_error(&ours, &theirs) < SAME);
    assert_false(ours.callback);
    steered_free(&ours);
    steered_free(&theirs);
}

/* ---- the row */

static double dot(const float *a, const double *u) {
    double sum = 0;
    for (int32_t i = 0; i < width(); i++) sum += (double)a[i] * u[i];
    return sum;
}

static double length(const float *a) {
    double sum = 0;
    for (int32_t i = 0; i < width(); i++) sum += (double)a[i] * (double)a[i];
    return sqrt(sum);
}

/* What the mode's equation makes of x, in f64. */
static void expect(const float *x, const double *u, const ts_steering_options *o, float *out) {
    double c = dot(x, u), f = o->mode == TS_STEERING_ADD     ? o->scale * LENGTH
                              : o->mode == TS_STEERING_CLAMP ? o->scale * (o->target - c)
                                                             : -o->scale * c;
    for (int32_t i = 0; i < width(); i++) out[i] = (float)((double)x[i] + f * u[i]);
    double back = o->mode == TS_STEERING_RENORM ? length(x) / length(out) : 1;
    for (int32_t i = 0; i < width(); i++) out[i] = (float)((double)out[i] * back);
}

static void capture(const ts_session_options *so, const ts_steering_options *files, size_t n, rows *out) {
    steered got;
    steered_extra extra = {.capture = e2e_path("row.json"), .n_predict = 1};
    steered_run(so, files, n, &extra, &got);
    rows_read(extra.capture, out);
    steered_free(&got);
}

static void unit(int32_t block, double *u) {
    float d[1024];
    double size = 0;
    assert_true(width() <= 1024);
    steered_direction(d, width(), block, 3, LENGTH);
    for (int32_t i = 0; i < width(); i++) size += (double)d[i] * (double)d[i];
    for (int32_t i = 0; i < width(); i++) u[i] = (double)d[i] / sqrt(size);
}

/* The captured row of a block that alone is steered, against the one of no steering. */
static void check_row(const ts_session_options *so, int32_t block, ts_steering_options o, const rows *plain) {
    rows got;
    double u[1024];
    float want[1024];
    const float *before = rows_at(plain, 0, block);
    unit(block, u);
    capture(so, &o, 1, &got);
    const float *after = rows_at(&got, 0, block);
    expect(before, u, &o, want);
    assert_true(rows_error(after, want, width()) < 1e-6);
    assert_true(rows_error(after, before, width()) > 1e-3);
    if (o.mode == TS_STEERING_RENORM) assert_true(fabs(length(after) / length(before) - 1) < 1e-6);
    if (o.mode == TS_STEERING_ABLATE && o.scale == 1) assert_true(fabs(dot(after, u)) / length(after) < 1e-5);
    if (o.mode == TS_STEERING_CLAMP && o.scale == 1) assert_true(fabs(dot(after, u) - o.target) < 1e-5 * length(after));
    for (int32_t il = 0; il < block; il++) assert_memory_equal(rows_at(&got, 0, il), rows_at(plain, 0, il), (size_t)width() * sizeof(float));
    rows_free(&got);
}

static void test_row(void **state) {
    (void)state;
    static const double scales[] = {1, 0.37, -2};
    rows plain;
    ts_session_options so = tiny_session(64);
    capture(&so, NULL, 0, &plain);
    for (int32_t block = 1; block < n_layer(); block += n_layer() - 2)
        for (enum ts_steering_mode mode = TS_STEERING_ABLATE; mode <= TS_STEERING_RENORM; mode++)
            for (size_t i = 0; i < 3; i++)
                for (enum ts_tap_method tap = TS_TAP_REDIRECT; tap <= TS_TAP_ASK; tap++) {
                    ts_steering_options o = steered_by(one_block(block), mode, scales[i]);
                    o.target = mode == TS_STEERING_CLAMP ? 2.5 : 0;
                    so.tap = tap;
                    check_row(&so, block, o, &plain);
                }
    rows_free(&plain);
}

static int count(const char *text, const char *word) {
    int n = 0;
    for (; (text = strstr(text, word)); text++) n++;
    return n;
}

/* Adding before ablating is not ablating before adding, and the adapter only takes what nothing edits before: what it
 * takes adds up. */
static void test_order(void **state) {
    (void)state;
    int32_t block = n_layer() / 2;
    rows plain, got;
    double u[1024];
    float want[1024], half[1024];
    steered out;
    ts_session_options so = tiny_session(64);
    ts_steering_options add = steered_by(one_block(block), TS_STEERING_ADD, 0.37), ablate = steered_by(add.path, TS_STEERING_ABLATE, 0.5);
    ts_steering_options less = steered_by(add.path, TS_STEERING_ADD, -0.11);
    ts_steering_options first[] = {add, less, ablate, add}, second[] = {ablate, add};
    unit(block, u);
    capture(&so, NULL, 0, &plain);
    capture(&so, first, 4, &got);
    expect(rows_at(&plain, 0, block), u, &add, half);
    expect(half, u, &less, want);
    expect(want, u, &ablate, half);
    expect(half, u, &add, want);
    assert_true(rows_error(rows_at(&got, 0, block), want, width()) < 1e-6);
    rows_free(&got);
    capture(&so, second, 2, &got);
    expect(rows_at(&plain, 0, block), u, &ablate, half);
    expect(half, u, &add, want);
    assert_true(rows_error(rows_at(&got, 0, block), want, width()) < 1e-6);
    rows_free(&got);
    rows_free(&plain);
    steered_run(&so, second, 2, NULL, &out);
    assert_int_equal(count(out.summary, "adapter"), 0);
    steered_free(&out);
    steered_run(&so, first, 4, NULL, &out);
    assert_int_equal(count(out.summary, "adapter"), has_adapter() ? 2 : 0);
    steered_free(&out);
}

/* ---- the tokens */

/* Every row of a chunk is edited, not its first: one token a chunk has no other. */
static void test_chunks(void **state) {
    (void)state;
    static const uint32_t chunks[] = {4, 64};
    steered sequential, chunked, plain;
    ts_session_options so = tiny_session(1);
    for (enum ts_steering_mode mode = TS_STEERING_ABLATE; mode <= TS_STEERING_RENORM; mode++) {
        ts_steering_options o = steered_by(all_blocks(), mode, 0.37);
        o.target = mode == TS_STEERING_CLAMP ? 4 : 0;
        so.n_ubatch = 1;
        steered_run(&so, &o, 1, NULL, &sequential);
        steered_run(&so, NULL, 0, NULL, &plain);
        double apart = steered_error(&sequential, &plain);
        assert_true(apart > DIFFERENT);
        for (size_t i = 0; i < 2; i++) {
            so.n_ubatch = chunks[i];
            steered_run(&so, &o, 1, NULL, &chunked);
            double error = steered_error(&chunked, &sequential);
            print_message("  %s, mode %d, -ub %u: error %.2e, steered %.2e\n", tiny_arch(), mode, chunks[i], error, apart);
            assert_true(error < CHUNKED);
            steered_free(&chunked);
        }
        steered_free(&sequential);
        steered_free(&plain);
    }
}

/* Identical to the bit, and without a callback unless a trace asks for one. */
static void test_scale_zero(void **state) {
    (void)state;
    steered plain, zero;
    ts_session_options so = tiny_session(4);
    steered_extra traced = {.trace = e2e_path("zero.jsonl")};
    steered_run(&so, NULL, 0, NULL, &plain);
    for (enum ts_steering_mode mode = TS_STEERING_ABLATE; mode <= TS_STEERING_RENORM; mode++) {
        ts_steering_options o = steered_by(all_blocks(), mode, mode == TS_STEERING_ADD ? -0.0 : 0.0);
        o.target = mode == TS_STEERING_CLAMP ? 4 : 0;
        steered_run(&so, &o, 1, NULL, &zero);
        steered_assert_same(&plain, &zero);
        assert_false(zero.callback);
        steered_free(&zero);
        steered_run(&so, &o, 1, &traced, &zero);
        steered_assert_same(&plain, &zero);
        assert_true(zero.callback);
        steered_free(&zero);
    }
    steered_free(&plain);
}

static int64_t number(const json_t *line, const char *key) { return json_integer_value(json_object_get(line, key)); }

/* A line a token and block, none twice; of the last block llama.cpp may compute the output's row only. */
static void test_trace(void **state) {
    (void)state;
    steered out;
    ts_session_options so = tiny_session(4);
    steered_extra extra = {.trace = e2e_path("trace.jsonl"), .n_predict = 5};
    ts_steering_options o = steered_by(all_blocks(), TS_STEERING_ABLATE, 0.37);
    steered_run(&so, &o, 1, &extra, &out);
    assert_int_equal(out.n_passes, 5);
    json_t *lines = steered_trace(extra.trace), *line;
    int32_t n_tokens = STEERED_PROMPT + out.n_passes - 1;
    char *seen = calloc((size_t)n_layer() * (size_t)n_tokens, 1);
    size_t i;
    assert_non_null(seen);
    json_array_foreach(lines, i, line) {
        int64_t block = number(line, "block"), at = number(line, "position");
        assert_true(block >= 1 && block < n_layer() && at >= 0 && at < n_tokens);
        assert_int_equal(seen[block * n_tokens + at]++, 0);
        assert_true(json_is_true(json_object_get(line, "edited")));
        assert_true(json_is_real(json_object_get(line, "c")));
        if (at < STEERED_PROMPT) assert_int_equal(number(line, "token"), steered_prompt()[at]);
    }
    for (int32_t block = 1; block < n_layer(); block++)
        for (int32_t at = 0; at < n_tokens; at++)
            if (block < n_layer() - 1 || at >= STEERED_PROMPT - 1) assert_int_equal(seen[block * n_tokens + at], 1);
    free(seen);
    json_decref(lines);
    steered_free(&out);
}

/* The last prompt token belongs to the prompt, so with `decode` the first steered token is the first generated one, and
 * the text can differ from its second token on. */
static void test_from(void **state) {
    (void)state;
    steered plain, some, all;
    size_t vocab, i, n = 0;
    ts_session_options so = tiny_session(4);
    steered_extra extra = {.trace = e2e_path("from.jsonl")};
    ts_steering_options o = steered_by(all_blocks(), TS_STEERING_ADD, 1);
    steered_run(&so, NULL, 0, NULL, &plain);
    steered_run(&so, &o, 1, &extra, &all);
    vocab = (size_t)plain.n_vocab;
    for (enum ts_steering_from from = TS_STEERING_PROMPT; from <= TS_STEERING_DECODE; from++) {
        int64_t first = INT64_MAX, last = -1;
        json_t *lines, *line;
        o.from = from;
        steered_run(&so, &o, 1, &extra, &some);
        lines = steered_trace(extra.trace);
        n += json_array_size(lines);
        json_array_foreach(lines, i, line) {
            first = number(line, "position") < first ? number(line, "position") : first;
            last = number(line, "position") > last ? number(line, "position") : last;
        }
        json_decref(lines);
        assert_int_equal(first, from == TS_STEERING_PROMPT ? 0 : STEERED_PROMPT);
        assert_int_equal(last, from == TS_STEERING_PROMPT ? STEERED_PROMPT - 1 : STEERED_PROMPT + STEERED_PASSES - 2);
        assert_memory_equal(some.logits, from == TS_STEERING_PROMPT ? all.logits : plain.logits, vocab * sizeof(float));
        assert_memory_not_equal(some.logits, from == TS_STEERING_PROMPT ? plain.logits : all.logits, vocab * sizeof(float));
        assert_memory_not_equal(some.logits + vocab, plain.logits + vocab, vocab * sizeof(float));
        steered_free(&some);
    }
    o.from = TS_STEERING_ALL;
    steered_run(&so, &o, 1, &extra, &some);
    json_t *lines = steered_trace(extra.trace);
    assert_int_equal(json_array_size(lines), n);
    json_decref(lines);
    steered_free(&some);
    steered_free(&plain);
    steered_free(&all);
}

/* Rows on both sides of the gate; the trace says which were edited. */
static void test_gate(void **state) {
    (void)state;
    steered plain, gated, open;
    ts_session_options so = tiny_session(4);
    steered_extra extra = {.trace = e2e_path("gate.jsonl")};
    ts_steering_options o = steered_by(one_block(1), TS_STEERING_ABLATE, 0.37);
    json_t *lines, *line;
    size_t i, n_edited = 0;
    steered_run(&so, NULL, 0, NULL, &plain);
    steered_run(&so, &o, 1, &extra, &open);
    lines = steered_trace(extra.trace);
    o.gate = fabs(json_real_value(json_object_get(json_array_get(lines, STEERED_PROMPT / 2), "c")));
    json_decref(lines);
    steered_run(&so, &o, 1, &extra, &gated);
    lines = steered_trace(extra.trace);
    json_array_foreach(lines, i, line) {
        double c = fabs(json_real_value(json_object_get(line, "c")));
        bool edited = json_is_true(json_object_get(line, "edited"));
        n_edited += edited;
        if (fabs(c - o.gate) > 1e-6 * o.gate) assert_int_equal(edited, c >= o.gate);
    }
    assert_in_range(n_edited, 1, json_array_size(lines) - 1);
    json_decref(lines);
    assert_true(steered_error(&gated, &plain) > 0 && steered_error(&gated, &open) > 0);
    steered_free(&gated);
    o.gate = 1e9;
    steered_run(&so, &o, 1, NULL, &gated);
    steered_assert_same(&gated, &plain);
    steered_free(&gated);
    steered_free(&plain);
    steered_free(&open);
}

static int run(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference), cmocka_unit_test(test_block),      cmocka_unit_test(test_row),
        cmocka_unit_test(test_order),     cmocka_unit_test(test_chunks),     cmocka_unit_test(test_scale_zero),
        cmocka_unit_test(test_trace),     cmocka_unit_test(test_from),       cmocka_unit_test(test_gate),
    };
    return cmocka_run_group_tests_name(tiny_arch(), tests, NULL, NULL);
}

int main(void) {
    static const char *const archs[] = {"llama", "gemma3", "qwen3", "qwen35", "gpt2", "llama-moe", "deepseek", "mamba", "plamo2", NULL};
    return tiny_each(archs, run) ? 1 : 0;
}
