/* ts_inspect and ts_capture_*: what they say of good files, that every change of a byte that
 * matters is one error, and that no damaged file does worse than that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/buf.h"
#include "core/file.h"
#include "store/inspect_sniff.h"
#include "store/resid_out.h"
#include "store/safetensors.h"

enum { LAYERS = 2, HIDDEN = 4, ROWS = 3 };

#define PAIR "test_inspect.json"
#define DATA "test_inspect.f32"
#define META "test_inspect.meta"
#define TENSORS "test_inspect.safetensors"
#define OTHER "test_inspect.tmp"

static void write_capture(const char *path, bool safetensors) {
    static const int32_t ids[LAYERS] = {3, 4}, tokens[2] = {1, 7};
    ts_provenance p = {.architecture = "llama",
                       .name = "A name\x1b[31m",
                       .description = "llama 1M F32",
                       .engine = "llama.cpp 0.5.0",
                       .ggml = "ggml 0.25.1",
                       .devices = "CPU",
                       .flash_attn = "auto",
                       .type_k = "f16",
                       .type_v = "f16",
                       .tap = "redirect"};
    ts_resid_spec s = {.path = path,
                       .format = safetensors ? TS_CAPTURE_SAFETENSORS : TS_CAPTURE_F32,
                       .n_layers = LAYERS,
                       .n_hidden = HIDDEN,
                       .layer_ids = ids,
                       .layers_subset = safetensors,
                       .plan_hash = "aa",
                       .overwrite = true};
    ts_resid_out *o;
    ts_resid_done done;
    assert_int_equal(ts_resid_out_open(&s, &o, &done, NULL), TS_OK);
    for (int r = 0; r < ROWS; r++) {
        const float rows[LAYERS * HIDDEN] = {3, 4, 0, 0, (float)r, 0, r == 1 ? INFINITY : 0, -2};
        ts_resid_row row = {.prompt_index = r,
                            .position = 5 + r,
                            .token = 7,
                            .piece = "x",
                            .piece_length = 1,
                            .prompt_tokens = tokens,
                            .n_prompt_tokens = 2};
        assert_int_equal(ts_resid_out_add(o, rows, &row, NULL), TS_OK);
    }
    assert_int_equal(ts_resid_out_finish(o, &p, "[]", false, NULL), TS_OK);
}

static int setup(void **state) {
    (void)state;
    write_capture(PAIR, false);
    write_capture(TENSORS, true);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(PAIR);
    unlink(DATA);
    unlink(META);
    unlink(TENSORS);
    unlink(OTHER);
    return 0;
}

static void put(const char *path, const void *bytes, size_t n) {
    assert_int_equal(ts_file_put(path, bytes, n, NULL), TS_OK);
}

static void get(const char *path, char **bytes, size_t *n) {
    assert_int_equal(ts_file_get(path, 1 << 24, bytes, n, NULL), TS_OK);
}

/* The report as text, each line under 80 columns and free of control characters. */
static char *report(const char *path) {
    char *text;
    ts_error err = {0};
    if (ts_inspect(path, false, &text, &err) != TS_OK)
        fail_msg("%s", err.message);
    size_t column = 0;
    for (const char *c = text; *c; c++) {
        column = *c == '\n' ? 0 : column + 1;
        assert_true(column < 80 && (*c == '\n' || (unsigned char)*c >= 0x20));
    }
    return text;
}

static json_t *report_json(const char *path) {
    char *text;
    ts_error err = {0};
    json_error_t e;
    if (ts_inspect(path, true, &text, &err) != TS_OK)
        fail_msg("%s", err.message);
    json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (v == NULL)
        fail_msg("%s in %s", e.text, text);
    ts_free(text);
    return v;
}

static void says(const char *path, const char *what) {
    char *text = report(path);
    if (strstr(text, what) == NULL)
        fail_msg("'%s' is not in:\n%s", what, text);
    ts_free(text);
}

static void refuses(const char *path, const char *what) {
    char *text;
    ts_error err = {0};
    assert_int_equal(ts_inspect(path, false, &text, &err), TS_ERR_FORMAT);
    assert_null(text);
    if (strstr(err.message, what) == NULL)
        fail_msg("'%s' does not say '%s'", err.message, what);
}

/* ---------------------------------------------------------------- captures */

static void pair_rows(void **state) {
    ts_capture_file *f;
    ts_capture_shape shape;
    ts_error err = {0};
    float rows[LAYERS * HIDDEN];
    (void)state;
    assert_int_equal(ts_capture_open(PAIR, &f, &shape, &err), TS_OK);
    assert_int_equal(shape.n_snapshots, ROWS);
    assert_int_equal(shape.n_layers, LAYERS);
    assert_int_equal(shape.n_hidden, HIDDEN);
    assert_int_equal(ts_capture_read(f, 2, rows, &err), TS_OK);
    assert_true(rows[1] == 4 && rows[4] == 2 && rows[7] == -2);
    assert_int_equal(ts_capture_position(f, 2), 7);
    assert_int_equal(ts_capture_position(f, 3), -1);
    assert_int_equal(ts_capture_layer(f, 1), 1);
    assert_int_equal(ts_capture_layer(f, 2), -1);
    assert_int_equal(ts_capture_read(f, 3, rows, &err), TS_ERR_ARG);
    assert_int_equal(ts_capture_read(f, -1, rows, &err), TS_ERR_ARG);
    ts_capture_close(f);
    ts_capture_close(NULL);
    assert_int_equal(ts_capture_open(NULL, &f, &shape, &err), TS_ERR_ARG);
    assert_int_equal(ts_capture_open("no-such-file", &f, &shape, &err), TS_ERR_IO);
    assert_int_equal(ts_capture_open(META, &f, &shape, &err), TS_ERR_FORMAT);
    assert_null(f);
}

static void safetensors_rows(void **state) {
    ts_capture_file *f;
    float rows[LAYERS * HIDDEN];
    (void)state;
    assert_int_equal(ts_capture_open(TENSORS, &f, NULL, NULL), TS_OK);
    assert_int_equal(ts_capture_read(f, 1, rows, NULL), TS_OK);
    assert_true(rows[0] == 3 && rows[4] == 1 && isinf(rows[6]));
    assert_int_equal(ts_capture_layer(f, 0), 3);
    assert_int_equal(ts_capture_layer(f, 1), 4);
    assert_int_equal(ts_capture_position(f, 0), 5);
    ts_capture_close(f);
}

static void reports(void **state) {
    static const char *const paths[] = {PAIR, TENSORS};
    (void)state;
    says(PAIR, "residual capture 'test_inspect.json'");
    says(PAIR, "size and hash");
    says(PAIR, "A name?[31m");
    says(PAIR, "      0              5              4             0\n");
    says(TENSORS, "      4        2.35483              2             1\n");
    says(META, "size and hash");
    for (size_t i = 0; i < 2; i++) {
        json_t *v = report_json(paths[i]), *b = json_array_get(json_object_get(v, "blocks"), 1);
        assert_string_equal(json_string_value(json_object_get(v, "kind")), "capture");
        assert_int_equal(json_integer_value(json_object_get(v, "snapshots")), ROWS);
        assert_int_equal(json_integer_value(json_object_get(b, "block")), i ? 4 : 1);
        assert_int_equal(json_integer_value(json_object_get(b, "nonfinite")), 1);
        double norm = json_number_value(json_object_get(b, "mean_norm"));
        assert_true(fabs(norm - (2 + sqrt(5) + sqrt(8)) / 3) < 1e-6);
        assert_non_null(json_object_get(json_object_get(v, "meta"), "engine"));
        json_decref(v);
    }
    json_decref(report_json(META));
}

static void damaged_pair(void **state) {
    static const struct {
        const char *from, *to, *what;
    } edits[] = {
        {"\"layers\": 2", "\"layers\": 3", "expected 144 bytes (3 x 3 x 4 floats), found 96"},
        {"\"layers\": 2", "\"layers\": -2", "'layers'"},
        {"\"layers\": 2", "\"layers\": \"2\"", "got a string"},
        {"\"layers\": 2", "\"layers\": 2147483647", "expected"},
        {"\"hidden\": 4", "\"hidden\": 1e9", "real number"},
        {"\"snapshots\": 3", "\"snapshots\": 9223372036854775807", "shape"},
        {"\"snapshots\": 3", "\"snapshots\": 2", "expected 2 elements"},
        {"float32", "float16", "'dtype': expected 'float32', got 'float16'"},
        {"[snapshot][layer]", "[layer][snapshot]", "'layout'"},
        {"OUTPUT", "INPUT", "'hook'"},
        {"test_inspect.f32", "../secret.f32", "beside it"},
        {"[5, 6", "[5, -6", "'positions' element 1"},
        {"[5, 6", "[5, [6]", "an array"},
        {"{\n", "{{\n", "not valid JSON"},
        {"\"positions\"", "\"places\"", "'positions': expected an array, got nothing"},
    };
    size_t n;
    char *good, text[2048];
    (void)state;
    get(PAIR, &good, &n);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        assert_non_null(strstr(good, edits[i].from));
        size_t before = (size_t)(strstr(good, edits[i].from) - good);
        snprintf(text, sizeof text, "%.*s%s%s", (int)before, good, edits[i].to,
                 good + before + strlen(edits[i].from));
        put(PAIR, text, strlen(text));
        refuses(PAIR, edits[i].what);
        refuses(PAIR, "test_inspect.");
    }
    put(PAIR, good, n);
    ts_free(good);
}

static void damaged_data(void **state) {
    size_t n, m;
    char *data, *meta;
    (void)state;
    get(DATA, &data, &n);
    get(META, &meta, &m);
    data[17] ^= 1;
    put(DATA, data, n);
    refuses(PAIR, "was changed or damaged: expected xxh3-128 ");
    refuses(META, "was changed or damaged");
    data[17] ^= 1;
    put(DATA, data, n - 1);
    refuses(PAIR, "expected 96 bytes (3 x 2 x 4 floats), found 95");
    refuses(META, "expected 96 bytes, found 95");
    put(DATA, data, n);
    unlink(META);
    says(PAIR, "size (no hash is recorded)");
    put(META, "{\"format_version\": 2, \"kind\": \"resid\"}", 39);
    refuses(PAIR, "'format_version': expected 1, got 2");
    put(META, meta, m / 2);
    refuses(PAIR, META);
    put(META, meta, m);
    unlink(DATA);
    assert_int_equal(ts_inspect(PAIR, false, &(char *){NULL}, NULL), TS_ERR_IO);
    put(DATA, data, n);
    ts_free(data);
    ts_free(meta);
    get(TENSORS, &data, &n);
    data[((size_t)128 << 10) + (LAYERS << 10) + 3] ^= 4;
    put(OTHER, data, n);
    refuses(OTHER, "was changed or damaged");
    ts_free(data);
}

/* vLLM's names, half precision, no provenance. */
static void foreign_safetensors(void **state) {
    static const uint16_t half[8] = {0x3c00, 0xc000, 0x0001, 0x8000,
                                     0x7bff, 0x7c00, 0x0400, 0x3555};
    static const uint16_t brain[8] = {0x3f80, 0xc000, 0, 0, 0, 0, 0, 0};
    ts_st_tensor t[2] = {
        {.name = "hidden_states", .dtype = "F16", .n_dims = 3, .shape = {2, 2, 2}, .end = 16},
        {.name = "token_ids", .dtype = "I64", .n_dims = 1, .shape = {2}, .begin = 16, .end = 32},
    };
    ts_capture_file *f;
    float rows[4];
    (void)state;
    for (int b = 0; b < 2; b++) {
        ts_buf out = {0};
        memcpy(t[0].dtype, b ? "BF16" : "F16", b ? 5 : 4);
        assert_int_equal(ts_st_header(t, 2, NULL, 512, &out, NULL), TS_OK);
        ts_buf_add(&out, b ? brain : half, 16);
        ts_buf_add(&out, "0123456789abcdef", 16);
        put(OTHER, out.data, out.length);
        ts_buf_free(&out);
        assert_int_equal(ts_capture_open(OTHER, &f, NULL, NULL), TS_OK);
        assert_int_equal(ts_capture_read(f, 0, rows, NULL), TS_OK);
        assert_true(rows[0] == 1.0f && rows[1] == -2.0f);
        if (!b) {
            assert_true(rows[2] == 0x1p-24f && rows[3] == 0 && signbit(rows[3]));
            assert_int_equal(ts_capture_read(f, 1, rows, NULL), TS_OK);
            assert_true(rows[0] == 65504.0f && isinf(rows[1]) && rows[2] == 0x1p-14f);
            assert_true(rows[3] == 0.333251953125f);
        }
        assert_int_equal(ts_capture_layer(f, 0), -1);
        assert_int_equal(ts_capture_position(f, 0), -1);
        ts_capture_close(f);
        says(OTHER, "block numbers  not recorded");
    }
    ts_buf out = {0};
    assert_int_equal(ts_st_header(&t[1], 1, NULL, 256, &out, NULL), TS_OK);
    put(OTHER, out.data, out.length);
    refuses(OTHER, "data_offsets");
    t[1].begin = 0;
    t[1].end = 16;
    ts_buf_free(&out);
    assert_int_equal(ts_st_header(&t[1], 1, NULL, 256, &out, NULL), TS_OK);
    ts_buf_add(&out, "0123456789abcdef", 16);
    put(OTHER, out.data, out.length);
    ts_buf_free(&out);
    says(OTHER, "I64      token_ids                    [2]");
    json_decref(report_json(OTHER));
    assert_int_equal(ts_capture_open(OTHER, &f, NULL, NULL), TS_ERR_FORMAT);
}

static void unknown_files(void **state) {
    char *text;
    ts_error err = {0};
    (void)state;
    put(OTHER, "hello", 5);
    refuses(OTHER, "of an unknown kind");
    put(OTHER, "", 0);
    refuses(OTHER, "of an unknown kind");
    put(OTHER, "{\"a\": 1}", 8);
    refuses(OTHER, "JSON of another kind");
    refuses(DATA, "give the header");
    assert_int_equal(ts_inspect(".", false, &text, &err), TS_ERR_IO);
    assert_int_equal(ts_inspect("no-such-file", false, &text, &err), TS_ERR_IO);
    assert_int_equal(ts_inspect(NULL, false, &text, &err), TS_ERR_ARG);
    assert_int_equal(ts_inspect(PAIR, false, NULL, &err), TS_ERR_ARG);
    put(OTHER ".part.state", "{}", 2);
    unlink(OTHER);
    assert_int_equal(ts_inspect(OTHER, false, &text, &err), TS_ERR_IO);
    assert_non_null(strstr(err.message, "is unfinished, see"));
    unlink(OTHER ".part.state");
}

static void partial_state(void **state) {
    static const int32_t ids[LAYERS] = {0, 1};
    ts_resid_spec s = {.path = OTHER,
                       .n_layers = LAYERS,
                       .n_hidden = HIDDEN,
                       .layer_ids = ids,
                       .plan_hash = "aa",
                       .overwrite = true};
    const float rows[LAYERS * HIDDEN] = {0};
    const ts_resid_row row = {.piece = "x", .piece_length = 1};
    ts_resid_done done;
    ts_resid_out *o;
    (void)state;
    assert_int_equal(ts_resid_out_open(&s, &o, &done, NULL), TS_OK);
    assert_int_equal(ts_resid_out_add(o, rows, &row, NULL), TS_OK);
    assert_int_equal(ts_resid_out_checkpoint(o, &done, NULL), TS_OK);
    ts_resid_out_abandon(o, false);
    says(OTHER ".part.state", "rows           1");
    json_decref(report_json(OTHER ".part.state"));
    assert_int_equal(truncate(OTHER ".part", 3), 0);
    refuses(OTHER ".part.state", "expected at least 32 bytes, found 3");
    unlink(OTHER ".part");
    unlink(OTHER ".part.gen");
    unlink(OTHER ".part.state");
}

/* ---------------------------------------------------------------- GGUF */

static void add_u32(ts_buf *b, uint32_t v) {
    ts_buf_add(b, &v, 4);
}
static void add_u64(ts_buf *b, uint64_t v) {
    ts_buf_add(b, &v, 8);
}
static void add_name(ts_buf *b, const char *s) {
    add_u64(b, strlen(s));
    ts_buf_text(b, s);
}
static void add_text(ts_buf *b, const char *key, const char *value) {
    add_name(b, key);
    add_u32(b, 8);
    add_name(b, value);
}
static void add_int(ts_buf *b, const char *key, uint32_t type, uint32_t value) {
    add_name(b, key);
    add_u32(b, type);
    add_u32(b, value);
}
static void add_tensor(ts_buf *b, const char *name, uint64_t width, uint32_t type,
                       uint64_t offset) {
    add_name(b, name);
    add_u32(b, 1);
    add_u64(b, width);
    add_u32(b, type);
    add_u64(b, offset);
}

typedef struct vector_spec {
    const char *first, *second; /* tensor names */
    uint64_t width;             /* of the second */
    uint32_t type, count_type;  /* of the second; of layer_count */
    uint32_t base;
    bool other;
} vector_spec;

static void put_vector(const vector_spec *v) {
    static const float data[16] = {3, 4, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0};
    ts_buf b = {0};
    ts_buf_text(&b, "GGUF");
    add_u32(&b, 3);
    add_u64(&b, 2);
    add_u64(&b, v->other ? 6 : 5);
    add_text(&b, "general.architecture", "controlvector");
    add_text(&b, "controlvector.model_hint", "llama");
    add_int(&b, "controlvector.layer_count", v->count_type, 2);
    add_text(&b, "turbospark.mode", "add");
    add_int(&b, "turbospark.layer_base", 4, v->base);
    if (v->other)
        add_text(&b, "glp.mode", "project");
    add_tensor(&b, v->first, 4, 0, 0);
    add_tensor(&b, v->second, v->width, v->type, 32);
    while (b.length % 32)
        ts_buf_add(&b, "", 1);
    ts_buf_add(&b, data, 48);
    put(OTHER, b.data, b.length);
    ts_buf_free(&b);
}

static void control_vectors(void **state) {
    vector_spec v = {"direction.1", "direction.2", 4, 0, 5, 1, false};
    (void)state;
    put_vector(&v);
    says(OTHER, "control vector 'test_inspect.tmp'");
    says(OTHER, "  controlvector.model_hint llama\n");
    says(OTHER, "          1      1              5              4             0\n");
    v = (vector_spec){"direction.2", "direction.1", 4, 0, 4, 0, true};
    put_vector(&v);
    says(OTHER, "          1      0              1              1             0\n");
    says(OTHER, "'glp.mode' declares another intervention");
    json_t *j = report_json(OTHER);
    assert_int_equal(json_array_size(json_object_get(j, "directions")), 2);
    json_decref(j);
    const struct {
        vector_spec v;
        const char *what;
    } bad[] = {
        {{"direction.0", "direction.2", 4, 0, 5, 1, false}, "numbered from 1"},
        {{"direction.1", "direction.x", 4, 0, 5, 1, false}, "not one of 'direction.N'"},
        {{"direction.1", "direction.1", 4, 0, 5, 1, false}, "is there twice"},
        {{"direction.1", "direction.2", 3, 0, 5, 1, false}, "has width 3, expected 4"},
        {{"direction.1", "direction.2", 4, 1, 5, 1, false}, "expected F32"},
        {{"direction.1", "direction.2", 4, 0, 6, 1, false}, "not an i32 or u32"},
        {{"direction.1", "direction.2", 4, 0, 5, 7, false}, "'turbospark.layer_base' is 7"},
        {{"direction.1", "direction.2", 5000, 0, 5, 1, false}, "lies outside the file"},
        {{"direction.1", "direction.2", (uint64_t)1 << 62, 0, 5, 1, false},
         "lies outside the file"},
        {{"direction.1", "direction.2", UINT64_MAX, 0, 5, 1, false}, "out of range"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_vector(&bad[i].v);
        refuses(OTHER, bad[i].what);
    }
}

static void gguf_headers(void **state) {
    ts_buf b = {0};
    (void)state;
    put(OTHER, "GGUF", 4);
    refuses(OTHER, "cut short");
    ts_buf_text(&b, "GGUF");
    add_u32(&b, 3);
    add_u64(&b, (uint64_t)1 << 60);
    add_u64(&b, 1);
    put(OTHER, b.data, b.length);
    refuses(OTHER, "do not fit a file");
    b.length = 4;
    add_u32(&b, 1);
    add_u64(&b, 0);
    add_u64(&b, 0);
    put(OTHER, b.data, b.length);
    refuses(OTHER, "GGUF version 1");
    b.length = 4;
    add_u32(&b, 3);
    add_u64(&b, 0);
    add_u64(&b, 2);
    add_text(&b, "general.architecture", "llama");
    add_name(&b, "tokenizer.list");
    add_u32(&b, 9);
    add_u32(&b, 8);
    add_u64(&b, 2);
    add_name(&b, "a");
    add_name(&b, "b");
    put(OTHER, b.data, b.length);
    says(OTHER, "architecture   llama");
    json_decref(report_json(OTHER));
    uint64_t huge = UINT64_MAX;
    memcpy(b.data + b.length - 26, &huge, 8); /* the list's length */
    put(OTHER, b.data, b.length);
    refuses(OTHER, "more elements");
    ts_buf_free(&b);
    const char *model = getenv("TS_MODEL");
    if (model != NULL && access(model, R_OK) == 0)
        says(model, "architecture   llama");
}

/* ---------------------------------------------------------------- damage of every sort */

static uint32_t next(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Whatever comes out, it is a report or an error with a message; the sanitizers watch the rest. */
static void any(const char *path) {
    for (int json = 0; json < 2; json++) {
        char *text = NULL;
        ts_error err = {0};
        int rc = ts_inspect(path, json, &text, &err);
        assert_true((rc == TS_OK) == (text != NULL));
        assert_true(rc == TS_OK || (rc < 0 && err.message[0] != '\0'));
        for (const char *c = err.message; *c; c++)
            assert_true((unsigned char)*c >= 0x20);
        ts_free(text);
    }
}

static void damage(const char *path) {
    size_t n;
    char *good, *bad;
    uint32_t seed = 7;
    get(path, &good, &n);
    bad = malloc(n + 1);
    assert_non_null(bad);
    for (int i = 0; i < 600; i++) {
        size_t head = n < 4096 ? n : 4096, length = n;
        memcpy(bad, good, n);
        if (i % 3 == 0)
            length = next(&seed) % n;
        for (uint32_t k = next(&seed) % 4; i % 3 && k < 4; k++)
            bad[next(&seed) % head] =
                (char)(k % 2 ? next(&seed) : (uint32_t) "{}[]\",:-9\xff"[next(&seed) % 11]);
        FILE *f = fopen(OTHER, "wb"); /* no fsync: there are many */
        assert_non_null(f);
        assert_int_equal(fwrite(bad, 1, length, f), length);
        fclose(f);
        any(OTHER);
    }
    free(bad);
    ts_free(good);
}

static void damaged_files(void **state) {
    static const char copy[] = "test_inspect.copy";
    const vector_spec v = {"direction.1", "direction.2", 4, 0, 5, 1, true};
    (void)state;
    damage(PAIR);
    damage(META);
    damage(TENSORS);
    put_vector(&v);
    assert_int_equal(rename(OTHER, copy), 0);
    damage(copy);
    unlink(copy);
}

static void deep_json(void **state) {
    enum { DEPTH = 100000 };
    char *text = malloc(DEPTH + 64);
    (void)state;
    assert_non_null(text);
    int n = sprintf(text, "{\"layers\":1,\"hidden\":1,\"layout\":");
    memset(text + n, '[', DEPTH);
    put(OTHER, text, (size_t)n + DEPTH);
    refuses(OTHER, "not valid JSON");
    free(text);
}

/* The kind of a file is told by its keys, whatever their order and the white space: what another program wrote anew keeps it. */
static void sorts(void **state) {
    static const struct {
        const char *text;
        enum ts_file_sort sort;
    } files[] = {
        {"{\"format_version\":1,\"kind\":\"experts\",\"layers\":[[1,2],null]}", TS_SORT_EXPERTS},
        {"{\"format_version\":1,\"kind\":\"ffn-detail\",\"of\":{\"kind\":\"ffn\",\"file\":\"a\\\"}\"}}", TS_SORT_DETAIL},
        {"{\"format_version\":1,\"kind\":\"ffn\",\"model\":{\"layers\":1,\"hidden\":2,\"layout\":3}}", TS_SORT_META},
        {"{\"format_version\":1,\"kind\":\"router\"}", TS_SORT_META},
        {"{\"format_version\":1,\"kind\":\"sweep\",\"cells\":[]}", TS_SORT_REPORT},
        {"{\"turbospark_partial\":1,\"kind\":\"resid\"}", TS_SORT_PARTIAL},
        {"{\"num_layers\":1,\"inter\":2,\"overlap_ks\":[1,1,1,1]}", TS_SORT_CENSUS},
        {"{\"num_layers\":1,\"num_experts\":2,\"top_k\":1,\"counts\":[[1,0]]}", TS_SORT_ROUTER},
        {"{\"rows\":1,\"vocab_size\":2,\"token_ids\":[1,0]}", TS_SORT_LOGITS},
        {"{\"layers\":1,\"hidden\":2,\"layout\":\"x\"}", TS_SORT_PAIR},
        {"{\"model\":{\"format_version\":1,\"kind\":\"ffn\"}}", TS_SORT_JSON},
        {"{\"a\":[{\"num_layers\":1,\"num_experts\":2,\"top_k\":1}]}", TS_SORT_JSON},
        {"{\"kind\":\"ffn\",", TS_SORT_JSON},
        {"{\"kind", TS_SORT_JSON},
    };
    static const size_t flags[] = {JSON_COMPACT, JSON_INDENT(4), JSON_INDENT(2), JSON_SORT_KEYS, JSON_SORT_KEYS | JSON_INDENT(7)};
    enum ts_file_sort sort;
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        json_t *v = json_loads(files[i].text, 0, NULL);
        put(OTHER, files[i].text, strlen(files[i].text));
        assert_int_equal(ts_sniff(OTHER, &sort, NULL), TS_OK);
        assert_int_equal(sort, files[i].sort);
        for (size_t k = 0; v && k < sizeof flags / sizeof *flags; k++) {
            char *text = json_dumps(v, flags[k]);
            put(OTHER, text, strlen(text));
            assert_int_equal(ts_sniff(OTHER, &sort, NULL), TS_OK);
            if (sort != files[i].sort)
                fail_msg("%d, expected %d: %s", sort, files[i].sort, text);
            free(text);
        }
        json_decref(v);
    }
}

/* Also where the keys come after what is long. */
static void sorts_late_keys(void **state) {
    ts_buf b = {0};
    enum ts_file_sort sort;
    (void)state;
    ts_buf_text(&b, "{\n    \"counts\": [");
    for (int i = 0; i < 100000; i++)
        ts_buf_printf(&b, "%s\n        [\n            %d\n        ]", i ? "," : "", i);
    ts_buf_text(&b, "\n    ],\n    \"num_experts\": 1,\n    \"num_layers\": 100000,\n    \"top_k\": 1\n}\n");
    assert_false(b.failed);
    put(OTHER, b.data, b.length);
    ts_buf_free(&b);
    assert_int_equal(ts_sniff(OTHER, &sort, NULL), TS_OK);
    assert_int_equal(sort, TS_SORT_ROUTER);
}

static void sorts_lists(void **state) {
    static const struct {
        const char *text;
        enum ts_file_sort sort;
    } files[] = {{"layer,expert\n0,1\n", TS_SORT_ROUTER_CSV},       {"\xEF\xBB\xBFlayer,expert\r\n", TS_SORT_ROUTER_CSV},
                 {"\xEF\xBB\xBF" "0,1\r\n", TS_SORT_ROUTER_CSV}, {"0,1,2\n", TS_SORT_ROUTER_CSV},
                 {"0,1.5\n", TS_SORT_ROUTER_CSV},                  {"0,1", TS_SORT_ROUTER_CSV},
                 {"layer,expert,weight\n", TS_SORT_ROUTER_CSV},    {"1,2, many\n", TS_SORT_UNKNOWN},
                 {"layer,expertise\n", TS_SORT_UNKNOWN},           {"", TS_SORT_UNKNOWN},
                 {"12\n", TS_SORT_UNKNOWN}};
    enum ts_file_sort sort;
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        put(OTHER, files[i].text, strlen(files[i].text));
        assert_int_equal(ts_sniff(OTHER, &sort, NULL), TS_OK);
        if (sort != files[i].sort)
            fail_msg("%d, expected %d: %s", sort, files[i].sort, files[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sorts),           cmocka_unit_test(sorts_late_keys),
        cmocka_unit_test(sorts_lists),
        cmocka_unit_test(pair_rows),       cmocka_unit_test(safetensors_rows),
        cmocka_unit_test(reports),         cmocka_unit_test(damaged_pair),
        cmocka_unit_test(damaged_data),    cmocka_unit_test(foreign_safetensors),
        cmocka_unit_test(unknown_files),   cmocka_unit_test(partial_state),
        cmocka_unit_test(control_vectors), cmocka_unit_test(gguf_headers),
        cmocka_unit_test(damaged_files),   cmocka_unit_test(deep_json),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
