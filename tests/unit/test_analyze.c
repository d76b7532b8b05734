/* ts_analyze and ts_merge on files that the real accumulators and writers made: golden texts, sums, wrong input.
 * The golden texts stand in tests/cli/analyze; after a change that is meant, TS_REGENERATE=1 writes them anew. */
#include "test_core_tmp.h"

#include <jansson.h>
#include <math.h>

#include "core/file.h"
#include "instrument/ffn_record.h"
#include "store/trace.h"

enum { N_BLOCKS = 3, WIDEST = 96, N_PASSES = 41 /* a prime */, SET = 7 /* 10 % of the width */ };

static const uint32_t widths[N_BLOCKS] = {WIDEST, 0, 64}, shared_widths[N_BLOCKS] = {0, 0, 32};

static uint32_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* Halves and sixteenths only, so that every sum is exact: a few strong neurons that change slowly, weak others. */
static void make_row(float *row, uint32_t width, int pass, uint64_t *seed) {
    for (uint32_t i = 0; i < width; i++) {
        uint32_t r = next_random(seed);

        row[i] = r % 9 == 0 ? 0.0f : (float)(r % 64) / 65536.0f;
        if ((i + (uint32_t)pass / 6) % 12 == 0)
            row[i] = (float)(r % 32 + 32) / 16.0f * (r & 256 ? -1.0f : 1.0f);
    }
}

static void record_pass(ts_ffn_stats *s, int pass, uint64_t *seed, ts_trace_writer *trace) {
    float row[WIDEST];
    ts_error err;

    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        if (s->blocks[b].width == 0)
            continue;
        make_row(row, s->blocks[b].width, pass, seed);
        assert_int_equal(ts_ffn_record_block(s, 0, 0, b, row), 0);
        if (trace)
            assert_int_equal(ts_trace_block(trace, b, ts_ffn_levels(s, 0, b), s->blocks[b].rank[SET], &err), 0);
    }
    assert_int_equal(ts_ffn_end_pass(s, 0), 0);
}

/* Two generations, the second from pass 20 on. */
static ts_ffn_stats *record(const uint32_t *width, uint64_t seed, ts_trace_writer *trace) {
    ts_ffn_stats *s = NULL;
    ts_error err;

    assert_int_equal(ts_ffn_stats_create(&s, width, N_BLOCKS, NULL), 0);
    for (int pass = 0; pass < N_PASSES; pass++) {
        bool first = pass == 0 || pass == 20;

        if (first) {
            assert_int_equal(ts_ffn_begin_generation(s, 0), 0);
            ts_ffn_note_prefill(s, 6);
        }
        if (trace)
            assert_int_equal(ts_trace_begin(trace, 0, first, &err), 0);
        record_pass(s, pass, &seed, trace);
        if (trace)
            assert_int_equal(ts_trace_end(trace, &err), 0);
    }
    return s;
}

static void set_weights(ts_census *c) {
    for (uint32_t b = 0; b < N_BLOCKS; b += 2) { /* rows of 48 elements in f32, down in blocks of 32 elements */
        c->gate_bytes[b] = c->up_bytes[b] = (uint64_t)widths[b] * 192;
        c->down_bytes[b] = (uint64_t)widths[b] / 32 * 48 * 34;
        c->down_block[b] = 32;
    }
}

/* PATH.json, .detail, .meta and, with `hash` as the model, .trace. */
static void make_census(const char *stem, uint64_t seed, const char *hash) {
    char path[64], part[64], final[64], model_name[] = "model.gguf";
    ts_shard shard = {.path = model_name, .bytes = 4096};
    ts_provenance p = {.architecture = "llama", .name = "Tiny", .description = "tiny", .shards = &shard, .n_shards = 1,
                       .engine = "llama.cpp 0.5.0", .devices = "CPU", .n_threads = 2};
    uint32_t k[N_BLOCKS] = {10, 0, 7};
    ts_trace_spec spec = {.n_layers = N_BLOCKS, .width = widths, .k = k, .model = hash};
    ts_trace_writer *trace = NULL;
    ts_ffn_stats *dense, *shared;
    ts_census c;
    ts_error err;

    snprintf(path, sizeof path, "%s.json", stem);
    snprintf(part, sizeof part, "%s.trace.part", stem);
    snprintf(final, sizeof final, "%s.trace", stem);
    snprintf(shard.xxh3, sizeof shard.xxh3, "%s", hash);
    assert_int_equal(ts_trace_open(part, &spec, NULL, &trace, &err), 0);
    dense = record(widths, seed, trace);
    shared = record(shared_widths, seed + 1, NULL);
    assert_int_equal(ts_trace_finish(trace, final, &err), 0);
    assert_int_equal(ts_ffn_to_census(dense, shared, &c, &err), 0);
    set_weights(&c);
    if (ts_census_write(&c, path, &p, "[]", false, false, &err) != 0)
        fail_msg("%s", err.message);
    ts_census_free(&c);
    ts_ffn_stats_free(dense);
    ts_ffn_stats_free(shared);
}

static const char hash_1[] = "00112233445566778899aabbccddeeff", hash_2[] = "ffeeddccbbaa99887766554433221100";

static int setup(void **state) {
    tmp_setup(state);
    make_census("a", 1, hash_1);
    make_census("b", 2, hash_1);
    make_census("other", 3, hash_2);
    return 0;
}

static char *analyze(const ts_analyze_options *o) {
    char *text = NULL;
    ts_error err;

    if (ts_analyze(o, &text, &err) != 0)
        fail_msg("%s", err.message);
    return text;
}

static void golden_path(char *path, size_t size, const char *name) {
    const char *source = getenv("TS_SOURCE_DIR");

    if (!source)
        skip();
    snprintf(path, size, "%s/tests/cli/analyze/%s", source, name);
}

static void check_golden(const char *name, const char *text) {
    char path[1024], *want = NULL;
    ts_error err;
    size_t n;

    golden_path(path, sizeof path, name);
    if (getenv("TS_REGENERATE"))
        assert_int_equal(ts_file_put(path, text, strlen(text), &err), 0);
    if (ts_file_get(path, 1 << 20, &want, &n, &err) != 0)
        fail_msg("%s", err.message);
    assert_string_equal(text, want);
    ts_free(want);
}

static void check_width(const char *text) {
    while (*text) {
        size_t n = strcspn(text, "\n");

        if (n > 79)
            fail_msg("%zu columns: %.*s", n, (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static void test_text(void **state) {
    const char *first[] = {"a.json"}, *second[] = {"b.json"};
    ts_analyze_options o = {.size = sizeof o, .paths = first, .n_paths = 1, .against = second, .n_against = 1,
                            .cache = true, .diffable = true};
    char *text = analyze(&o);

    (void)state;
    check_width(text);
    check_golden("detailed.txt", text);
    ts_free(text);
}

static void test_json(void **state) {
    const char *first[] = {"a.json", "b.json"}, *second[] = {"b.json"};
    ts_analyze_options o = {.size = sizeof o, .paths = first, .n_paths = 2, .against = second, .n_against = 1,
                            .cache = true, .as_json = true};
    char *text = analyze(&o);
    json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, NULL);

    (void)state;
    assert_non_null(v);
    assert_int_equal(json_array_size(json_object_get(v, "files")), 2);
    assert_int_equal(json_integer_value(json_object_get(v, "decode_passes")), 2 * N_PASSES);
    json_decref(v);
    check_golden("detailed.json", text);
    ts_free(text);
}

/* A merged file says what its parts say together. */
static void test_merge_is_sum(void **state) {
    const char *parts[] = {"a.json", "b.json"}, *whole[] = {"sum.json"};
    ts_analyze_options o = {.size = sizeof o, .paths = parts, .n_paths = 2, .diffable = true};
    char *of_parts = analyze(&o), *of_whole;
    ts_error err;

    (void)state;
    if (ts_merge(parts, 2, "sum.json", false, &err) != 0)
        fail_msg("%s", err.message);
    o.paths = whole;
    o.n_paths = 1;
    of_whole = analyze(&o);
    assert_string_equal(of_parts, of_whole);
    ts_free(of_parts);
    ts_free(of_whole);
    assert_int_equal(ts_merge(parts, 2, "sum.json", false, &err), TS_ERR_ARG);
    assert_int_equal(ts_merge(parts, 2, "sum.json", true, &err), 0);
}

static void expect_failure(int rc, int code, const ts_error *err, const char *part) {
    if (rc != code || !strstr(err->message, part))
        fail_msg("expected %d with '%s', got %d: %s", code, part, rc, rc ? err->message : "");
    assert_null(strchr(err->message, '\n'));
}

static void expect_refused(const char *path, const char *more, bool cache, int code, const char *part) {
    const char *paths[] = {path, more};
    ts_analyze_options o = {.size = sizeof o, .paths = paths, .n_paths = more ? 2 : 1, .cache = cache};
    char *text = NULL;
    ts_error err;

    expect_failure(ts_analyze(&o, &text, &err), code, &err, part);
    assert_null(text);
    if (!cache)
        expect_failure(ts_merge(paths, o.n_paths, "never.json", false, &err), code, &err, part);
    assert_int_not_equal(access("never.json", F_OK), 0);
}

/* `from` with the first `old` replaced, as `to`; without what stands beside it. */
static void edit_file(const char *from, const char *to, const char *old, const char *new_text) {
    char *bytes = NULL, *at, *edited;
    ts_error err;
    size_t n, room;

    assert_int_equal(ts_file_get(from, 1 << 20, &bytes, &n, &err), 0);
    at = strstr(bytes, old);
    assert_non_null(at);
    room = n + strlen(new_text) + 1;
    edited = malloc(room);
    assert_non_null(edited);
    snprintf(edited, room, "%.*s%s%s", (int)(at - bytes), bytes, new_text, at + strlen(old));
    tmp_write(to, edited, strlen(edited));
    free(edited);
    ts_free(bytes);
}

static void test_wrong_files(void **state) {
    char *bytes = NULL;
    ts_error err;
    size_t n;

    (void)state;
    assert_int_equal(ts_file_get("a.json", 1 << 20, &bytes, &n, &err), 0);
    for (size_t i = 1; i < 20; i++) {
        tmp_write("cut.json", bytes, n * i / 20);
        expect_refused("cut.json", NULL, false, TS_ERR_FORMAT, "cut.json");
    }
    ts_free(bytes);
    tmp_write("text.json", "no census\n", 10);
    expect_refused("text.json", NULL, false, TS_ERR_FORMAT, "text.json");
    tmp_write("none.json", "", 0);
    expect_refused("none.json", NULL, false, TS_ERR_FORMAT, "none.json");
    expect_refused("nowhere.json", NULL, false, TS_ERR_IO, "nowhere.json");
    edit_file("a.json", "count.json", "\"decode_passes\":41", "\"decode_passes\":43");
    expect_refused("count.json", NULL, false, TS_ERR_FORMAT, "count.json");
    edit_file("a.json", "nan.json", "\"mass\":[[", "\"mass\":[[NaN,");
    expect_refused("nan.json", NULL, false, TS_ERR_FORMAT, "nan.json");
    edit_file("a.json", "huge.json", "\"mass\":[[", "\"mass\":[[1e999,");
    expect_refused("huge.json", NULL, false, TS_ERR_FORMAT, "huge.json");
    expect_refused("a.meta", NULL, false, TS_ERR_FORMAT, "expected the .json of an FFN census");
    tmp_write("x.gguf", "GGUF....", 8);
    expect_refused("x.gguf", NULL, false, TS_ERR_FORMAT, "'x.gguf' is a GGUF file: expected an FFN census");
    tmp_write("resid.json", "{\"layers\": 1, \"hidden\": 2, \"layout\": \"x\"}", 42);
    expect_refused("resid.json", NULL, false, TS_ERR_FORMAT, "residual capture: expected an FFN census");
}

static void test_wrong_groups(void **state) {
    const char *first[] = {"a.json"}, *second[] = {"other.json"};
    ts_analyze_options o = {.size = sizeof o, .paths = first, .n_paths = 1, .against = second, .n_against = 1};
    char *text = NULL;
    ts_error err;

    (void)state;
    expect_refused("a.json", "other.json", false, TS_ERR_ARG, "'other.json'");
    expect_failure(ts_analyze(&o, &text, &err), TS_ERR_ARG, &err, "different models");
    expect_failure(ts_merge(first, 1, "a.json", true, &err), TS_ERR_ARG, &err, "one of the files");
    expect_failure(ts_merge(first, 0, "x.json", true, &err), TS_ERR_ARG, &err, "needs files");
    o.n_paths = 0;
    expect_failure(ts_analyze(&o, &text, &err), TS_ERR_ARG, &err, "needs files");
}

static void test_wrong_traces(void **state) {
    char *bytes = NULL;
    ts_error err;
    size_t n;

    (void)state;
    assert_int_equal(ts_file_get("a.trace", 1 << 20, &bytes, &n, &err), 0);
    assert_int_equal(rename("a.trace", "kept"), 0);
    expect_refused("a.json", NULL, true, TS_ERR_IO, "census --trace");
    tmp_write("a.trace", bytes, n - 3);
    expect_refused("a.json", NULL, true, TS_ERR_FORMAT, "a.trace");
    ts_free(bytes);
    assert_int_equal(rename("other.trace", "a.trace"), 0);
    expect_refused("a.json", NULL, true, TS_ERR_ARG, hash_2);
    assert_int_equal(rename("kept", "a.trace"), 0);
    assert_int_equal(system("cp a.trace sum.trace"), 0);
    expect_refused("sum.json", NULL, true, TS_ERR_ARG, "expected those of the censuses, 82");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),        cmocka_unit_test(test_json),         cmocka_unit_test(test_merge_is_sum),
        cmocka_unit_test(test_wrong_files), cmocka_unit_test(test_wrong_groups), cmocka_unit_test(test_wrong_traces),
    };

    return cmocka_run_group_tests(tests, setup, tmp_teardown);
}
