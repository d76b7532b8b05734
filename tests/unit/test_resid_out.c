/* The capture writer: the header to the byte, the safetensors columns, resume, refusals, flat
 * memory. What a kill does to it is test_resid_crash.c's. */
#include <sys/resource.h>

#include "store/safetensors.h"
#include "unit/test_resid_corpus.h"

static void header_to_the_byte(void **state) {
    static const char expected[] =
        "{\n  \"layers\": 3,\n  \"hidden\": 5,\n  \"snapshots\": 10,\n  \"dtype\": \"float32\",\n"
        "  \"layout\": \"[snapshot][layer][hidden]\",\n"
        "  \"hook\": \"residual stream at the OUTPUT of each layer (post-FFN join)\",\n"
        "  \"data\": \"x.f32\",\n  \"positions\": [0, 0, 1, 0, 0, 1, 0, 0, 1, 0]\n}\n";
    char path[NAME];
    ts_error err = {0};
    size_t n;
    (void)state;
    empty_folder("ro_a");
    assert_int_equal(capture(result_in(path, "ro_a", true), false, &err), TS_OK);
    char *text;
    slurp("ro_a", "x.json", &text, &n);
    assert_string_equal(text, expected);
    ts_free(text);
    slurp("ro_a", "x.f32", &text, &n);
    assert_int_equal(n, 10 * LAYERS * HIDDEN * 4);
    for (uint64_t r = 0; r < 10; r++)
        for (int32_t l = 0; l < LAYERS; l++)
            for (int32_t i = 0; i < HIDDEN; i++) {
                float v = value(r, l, i);
                assert_memory_equal(text + ((r * LAYERS + (uint64_t)l) * HIDDEN + (uint64_t)i) * 4,
                                    &v, 4);
            }
    ts_free(text);
    slurp("ro_a", "x.meta", &text, &n);
    assert_non_null(strstr(text, "\"piece\": \"\xef\xbf\xbd\\n\\\"\", \"piece_hex\": \"ff0a22\""));
    assert_non_null(strstr(text, "\"nonfinite\": [0, 2, 0]"));
    assert_non_null(strstr(text, "\"label\": \"pos \\\"[9]\\\"\""));
    assert_non_null(strstr(text, "\"shards\": [{\"file\": \"tiny.gguf\""));
    ts_free(text);
    assert_int_equal(count_files("ro_a"), 3);
}

static int open_with(ts_resid_spec spec, ts_error *err) {
    ts_resid_out *o;
    ts_resid_done done;
    int rc = ts_resid_out_open(&spec, &o, &done, err);
    if (rc == TS_OK)
        ts_resid_out_abandon(o, false);
    return rc;
}

static void refuse(ts_resid_spec spec, int code, const char *what) {
    ts_error err = {0};
    assert_int_equal(open_with(spec, &err), code);
    if (strstr(err.message, what) == NULL)
        fail_msg("'%s' does not say '%s'", err.message, what);
}

static void refusals(void **state) {
    ts_resid_spec s;
    (void)state;
    empty_folder("ro_b");
    s = spec_of("ro_b/x.json", false);
    s.path = "ro_b/x.f32";
    refuse(s, TS_ERR_ARG, "header and data");
    s.path = "ro_b/x.meta";
    refuse(s, TS_ERR_ARG, "meta data");
    s.path = "ro_b";
    refuse(s, TS_ERR_IO, "ro_b");
    s.path = "ro_b/none/x.json";
    refuse(s, TS_ERR_IO, "ro_b/none");
    s.path = "ro_b/\xff.json";
    refuse(s, TS_ERR_ARG, "UTF-8");
    s.path = NULL;
    refuse(s, TS_ERR_ARG, "path");
    s = spec_of("ro_b/x.json", false);
    s.layers_subset = true;
    refuse(s, TS_ERR_ARG, "which layers");
    s.layers_subset = false;
    s.mean = true;
    refuse(s, TS_ERR_ARG, "mean");
    s = spec_of("ro_b/x.json", false);
    s.n_hidden = 0;
    refuse(s, TS_ERR_ARG, "at least one");
    assert_int_equal(count_files("ro_b"), 0);
}

static void existing_result(void **state) {
    static const char *const names[] = {"ro_b/x.json", "ro_b/x.f32", "ro_b/x.meta"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        empty_folder("ro_b");
        assert_int_equal(ts_file_put(names[i], "keep", 4, NULL), TS_OK);
        refuse(spec_of("ro_b/x.json", false), TS_ERR_ARG, names[i]);
        assert_int_equal(count_files("ro_b"), 1);
        assert_int_equal(open_with(spec_of("ro_b/x.json", true), NULL), TS_OK);
        assert_int_equal(count_files("ro_b"), 1);
    }
}

/* Leaves a partial capture of four prompts behind. */
static void leave_partial(const char *path) {
    ts_resid_spec spec = spec_of(path, false);
    ts_resid_out *o;
    ts_resid_done done;
    uint64_t rows = 0;
    assert_int_equal(ts_resid_out_open(&spec, &o, &done, NULL), TS_OK);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(add_prompt(o, i, &rows, NULL), TS_OK);
    done = (ts_resid_done){.prompts = 4, .batches = 2, .tokens = 12};
    assert_int_equal(ts_resid_out_checkpoint(o, &done, NULL), TS_OK);
    assert_int_equal(add_prompt(o, 4, &rows, NULL), TS_OK);
    ts_resid_out_abandon(o, false);
}

static void foreign_partial(void **state) {
    ts_resid_spec s = spec_of("ro_b/x.json", false);
    ts_resid_done done;
    ts_resid_out *o, *second;
    ts_error err = {0};
    (void)state;
    empty_folder("ro_b");
    leave_partial("ro_b/x.json");
    s.plan_hash = "00fe";
    refuse(s, TS_ERR_STATE, "belongs to another corpus or options; remove it, or start over with --overwrite");
    s = spec_of("ro_b/x.json", false);
    s.n_hidden = HIDDEN + 1;
    refuse(s, TS_ERR_STATE, "belongs to another");
    s = spec_of("ro_b/x.json", false);
    assert_int_equal(ts_resid_out_open(&s, &o, &done, &err), TS_OK);
    assert_int_equal(done.prompts, 4);
    assert_int_equal(done.batches, 2);
    assert_int_equal(done.rows, 6);
    assert_int_equal(done.tokens, 12);
    assert_int_equal(ts_resid_out_rows(o), 6);
    assert_int_equal(ts_resid_out_nonfinite(o), 2);
    assert_int_equal(ts_resid_out_open(&s, &second, &done, &err), TS_ERR_STATE); /* locked */
    assert_null(second);
    ts_resid_out_abandon(o, false);
    s.resume = false; /* not thrown away unasked; told to, it starts over */
    refuse(s, TS_ERR_ARG, "is left of an unfinished run: go on with --resume, or start over with --overwrite");
    s.overwrite = true;
    assert_int_equal(ts_resid_out_open(&s, &o, &done, &err), TS_OK);
    assert_int_equal(done.rows, 0);
    ts_resid_out_abandon(o, false);
    assert_int_equal(count_files("ro_b"), 0);
}

static void damaged_partial(void **state) {
    static const struct {
        const char *from, *to, *what;
    } edits[] = {
        {"\"rows\": 6", "\"rows\": 7", "is damaged"},
        {"\"rows\": 6", "\"rows\": -6", "is damaged"},
        {"\"rows\": 6", "\"rows\": 9223372036854775807", "is damaged"},
        {"\"gen_bytes\"", "\"gen_pages\"", "is damaged"},
        {"\"nonfinite\": [0, 2, 0]", "\"nonfinite\": [0, 2]", "is damaged"},
        {"\"layers\": 3", "\"layers\": 3e9", "is damaged"},
        {"\"finishing\": 0\n}", "\"finishing\": 0", "not valid JSON"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        size_t n;
        char text[4096];
        empty_folder("ro_b");
        leave_partial("ro_b/x.json");
        char *old;
        slurp("ro_b", "x.json.part.state", &old, &n);
        char *at = strstr(old, edits[i].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - old), old, edits[i].to,
                 at + strlen(edits[i].from));
        assert_int_equal(ts_file_put("ro_b/x.json.part.state", text, strlen(text), NULL), TS_OK);
        ts_free(old);
        refuse(spec_of("ro_b/x.json", false), TS_ERR_FORMAT, edits[i].what);
        refuse(spec_of("ro_b/x.json", false), TS_ERR_FORMAT, "x.json.part.state");
    }
    empty_folder("ro_b");
    leave_partial("ro_b/x.json");
    assert_int_equal(truncate("ro_b/x.json.part", 11), 0);
    refuse(spec_of("ro_b/x.json", false), TS_ERR_FORMAT, "x.json.part");
    unlink("ro_b/x.json.part");
    refuse(spec_of("ro_b/x.json", false), TS_ERR_IO, "x.json.part");
}

static void nothing_captured(void **state) {
    ts_resid_spec s = spec_of("ro_b/x.json", false);
    ts_resid_done done;
    ts_resid_out *o;
    ts_error err = {0};
    ts_shard shard;
    ts_provenance p = provenance(&shard);
    (void)state;
    empty_folder("ro_b");
    assert_int_equal(ts_resid_out_open(&s, &o, &done, &err), TS_OK);
    assert_int_equal(ts_resid_out_finish(o, &p, NULL, false, &err), TS_ERR_STATE);
    assert_non_null(strstr(err.message, "ro_b/x.json"));
    assert_int_equal(count_files("ro_b"), 0);
    ts_resid_out_abandon(NULL, true);
}

/* A table of sites larger than the space kept for the header costs the table, never the rows. */
static void huge_sites(void **state) {
    enum { N = 200000 };
    ts_resid_spec s = spec_of("ro_b/x.safetensors", false);
    ts_resid_done done;
    ts_resid_out *o;
    ts_capture_file *f;
    ts_shard shard;
    ts_provenance p = provenance(&shard);
    uint64_t rows = 0;
    char *sites = malloc(N + 8);
    (void)state;
    assert_non_null(sites);
    memset(sites, ' ', N);
    memcpy(sites, "[\"", 2);
    memcpy(sites + N, "\"]", 3);
    empty_folder("ro_b");
    assert_int_equal(ts_resid_out_open(&s, &o, &done, NULL), TS_OK);
    assert_int_equal(add_prompt(o, 0, &rows, NULL), TS_OK);
    assert_int_equal(ts_resid_out_finish(o, &p, sites, true, NULL), TS_OK);
    assert_int_equal(ts_capture_open("ro_b/x.safetensors", &f, NULL, NULL), TS_OK);
    ts_capture_close(f);
    free(sites);
}

/* The columns, and that the I64 one is aligned for odd and even row sizes. */
static void columns(void **state) {
    ts_st_index index;
    char path[NAME];
    size_t n;
    (void)state;
    empty_folder("ro_a");
    assert_int_equal(capture(result_in(path, "ro_a", false), false, NULL), TS_OK);
    assert_int_equal(ts_st_read_index(path, &index, NULL), TS_OK);
    char *bytes;
    slurp("ro_a", "x.safetensors", &bytes, &n);
    const ts_st_tensor *t = ts_st_find(&index, "prompt_offsets");
    assert_non_null(t);
    assert_int_equal(t->begin % 8, 0);
    assert_int_equal(t->shape[0], PROMPTS + 1);
    for (int64_t i = 0; i <= PROMPTS; i++) {
        int64_t v;
        memcpy(&v, bytes + t->begin + (uint64_t)i * 8, 8);
        assert_int_equal(v, 3 * i);
    }
    t = ts_st_find(&index, "prompt_tokens");
    assert_non_null(t);
    assert_int_equal(t->shape[0], 3 * PROMPTS);
    for (int32_t i = 0; i < 3 * PROMPTS; i++) {
        int32_t v, expected = i % 3 == 0 ? 1 : i % 3 == 1 ? i / 3 : 31999;
        memcpy(&v, bytes + t->begin + (uint64_t)i * 4, 4);
        assert_int_equal(v, expected);
    }
    t = ts_st_find(&index, "labels");
    assert_non_null(t);
    assert_int_equal(bytes[t->begin], '[');
    assert_memory_equal(bytes + t->begin, "[null, null, \"pos \\\"[9]\\\"\", null", 32);
    assert_int_equal(bytes[t->end - 1], ']');
    t = ts_st_find(&index, "prompt_index");
    assert_int_equal(bytes[t->begin + 8], 1);
    assert_int_equal(ts_st_find(&index, "hidden_states")->shape[0], 10);
    assert_int_equal(ts_st_find(&index, "layer_ids")->shape[0], LAYERS);
    ts_st_index_free(&index);
    ts_free(bytes);
    /* one row: 3 x 5 floats, an odd count */
    ts_resid_spec s = spec_of("ro_b/x.safetensors", false);
    ts_resid_done done;
    ts_resid_out *o;
    ts_shard shard;
    ts_provenance p = provenance(&shard);
    uint64_t rows = 0;
    empty_folder("ro_b");
    assert_int_equal(ts_resid_out_open(&s, &o, &done, NULL), TS_OK);
    assert_int_equal(add_prompt(o, 0, &rows, NULL), TS_OK);
    assert_int_equal(ts_resid_out_finish(o, &p, NULL, false, NULL), TS_OK);
    assert_int_equal(ts_st_read_index("ro_b/x.safetensors", &index, NULL), TS_OK);
    assert_int_equal(ts_st_find(&index, "prompt_offsets")->begin % 8, 0);
    assert_null(ts_st_find(&index, "labels"));
    ts_st_index_free(&index);
}

/* The address sanitizer's quarantine grows whatever we do. */
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED __has_feature(address_sanitizer)
#else
#define SANITIZED 0
#endif

static long peak_kib(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

static void many_rows(const char *path, uint64_t n) {
    static int32_t tokens[64];
    ts_resid_spec s = spec_of(path, true);
    ts_resid_done done;
    ts_resid_out *o;
    ts_shard shard;
    ts_provenance p = provenance(&shard);
    float x[LAYERS * HIDDEN] = {1};
    assert_int_equal(ts_resid_out_open(&s, &o, &done, NULL), TS_OK);
    for (uint64_t i = 0; i < n; i++) {
        ts_resid_row row = {.prompt_index = (int64_t)i,
                            .position = 63,
                            .piece = "x",
                            .piece_length = 1,
                            .prompt_tokens = tokens,
                            .n_prompt_tokens = 64,
                            .label = "a"};
        assert_int_equal(ts_resid_out_add(o, x, &row, NULL), TS_OK);
    }
    done = (ts_resid_done){.prompts = n};
    assert_int_equal(ts_resid_out_checkpoint(o, &done, NULL), TS_OK);
    uint64_t predicted = ts_resid_out_predict(&s, n, n * 64);
    assert_int_equal(ts_resid_out_finish(o, &p, NULL, false, NULL), TS_OK);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(predicted >= (uint64_t)st.st_size);
}

/* 100,000 snapshots peak within 2 MiB of 1,000, with all their prompt tokens. */
static void flat_memory(void **state) {
    (void)state;
    for (int pair = 0; pair < 2; pair++) {
        char path[NAME];
        empty_folder("ro_b");
        many_rows(result_in(path, "ro_b", pair), 1000);
        long before = peak_kib();
        many_rows(path, 100000);
        long grown = peak_kib() - before;
        assert_true(SANITIZED || grown < 2048);
    }
}

static int clean(void **state) {
    (void)state;
    empty_folder("ro_a");
    empty_folder("ro_b");
    rmdir("ro_a");
    rmdir("ro_b");
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_to_the_byte), cmocka_unit_test(columns),
        cmocka_unit_test(refusals),           cmocka_unit_test(existing_result),
        cmocka_unit_test(foreign_partial),    cmocka_unit_test(damaged_partial),
        cmocka_unit_test(nothing_captured),   cmocka_unit_test(huge_sites),
        cmocka_unit_test(flat_memory),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
