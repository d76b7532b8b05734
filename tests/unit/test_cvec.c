/* Control vectors: what is written is read by us and by ggml's own reader, files in the layouts of
 * others load, and every wrong or damaged file is one error. Fixtures are made byte by byte here,
 * not by the code under test. */
#include "test_core_tmp.h"

#include <math.h>

#include <ggml.h>
#include <gguf.h>

#include "core/buf.h"
#include "core/file.h"
#include "store/cvec.h"
#include "store/inspect_gguf_index.h"
#include "store/resid_out.h"

enum { WIDTH = 6, F16 = 1 };

/* ---------------------------------------------------------------- a GGUF writer of its own */

typedef struct fixture {
    ts_buf keys, tensors;
    uint64_t n_keys, n_tensors, data;
    float value; /* the first of all directions; the others count up */
    uint32_t width;
} fixture;

static void u32(ts_buf *b, uint32_t v) {
    ts_buf_add(b, &v, 4);
}
static void u64(ts_buf *b, uint64_t v) {
    ts_buf_add(b, &v, 8);
}
static void string(ts_buf *b, const char *s) {
    u64(b, strlen(s));
    ts_buf_add(b, s, strlen(s));
}
static void key(fixture *f, const char *name, uint32_t type) {
    string(&f->keys, name);
    u32(&f->keys, type);
    f->n_keys++;
}
static void key_text(fixture *f, const char *name, const char *text) {
    key(f, name, TS_GGUF_STRING);
    string(&f->keys, text);
}
static void key_32(fixture *f, const char *name, uint32_t type, uint32_t value) {
    key(f, name, type);
    u32(&f->keys, value);
}
static void key_array(fixture *f, const char *name) {
    key(f, name, TS_GGUF_ARRAY);
    u32(&f->keys, TS_GGUF_U32);
    u64(&f->keys, 2);
    u64(&f->keys, 77);
}
static void tensor(fixture *f, const char *name, uint32_t n_dims, uint64_t width, uint32_t type) {
    string(&f->tensors, name);
    u32(&f->tensors, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        u64(&f->tensors, i ? 2 : width);
    u32(&f->tensors, type);
    u64(&f->tensors, f->data);
    f->data += (width * 4 * (n_dims > 1 ? 2 : 1) + 31) / 32 * 32;
    f->n_tensors++;
}
static void direction(fixture *f, int n) {
    char name[32];
    snprintf(name, sizeof name, "direction.%d", n);
    tensor(f, name, 1, f->width ? f->width : WIDTH, TS_GGUF_TENSOR_F32);
}
static void architecture(fixture *f) {
    key_text(f, "general.architecture", "controlvector");
}

/* The file's bytes; tensor data counts up from f->value. */
static ts_buf render(fixture *f) {
    ts_buf b = {0};
    ts_buf_add(&b, "GGUF", 4);
    u32(&b, 3);
    u64(&b, f->n_tensors);
    u64(&b, f->n_keys);
    ts_buf_add(&b, f->keys.data, f->keys.length);
    ts_buf_add(&b, f->tensors.data, f->tensors.length);
    while (b.length % 32)
        ts_buf_add(&b, "", 1);
    for (uint64_t i = 0; i < f->data / 4; i++) {
        float x = f->value + (float)i;
        ts_buf_add(&b, &x, 4);
    }
    ts_buf_free(&f->keys);
    ts_buf_free(&f->tensors);
    assert_false(b.failed);
    return b;
}

static void put(fixture *f, const char *path) {
    ts_buf b = render(f);
    tmp_write(path, b.data, b.length);
    ts_buf_free(&b);
}

/* ---------------------------------------------------------------- reading */

static ts_cvec *load(const char *path) {
    ts_cvec *c;
    ts_error err = {0};
    if (ts_cvec_read(path, &c, &err))
        fail_msg("%s", err.message);
    return c;
}

static void refuse(fixture *f, const char *what) {
    ts_cvec *c;
    ts_error err = {0};
    put(f, "bad.gguf");
    assert_int_equal(ts_cvec_read("bad.gguf", &c, &err), TS_ERR_FORMAT);
    assert_null(c);
    if (!strstr(err.message, what) || !strstr(err.message, "bad.gguf"))
        fail_msg("'%s' does not say '%s'", err.message, what);
}

/* repeng: u32 count of directions, model_hint the Hugging Face type, tensors in the order of the
 * layers asked for
 * (-1 downwards), block numbers as they are. */
static void repeng(void **state) {
    (void)state;
    fixture f = {.value = 1};
    architecture(&f);
    key_text(&f, "controlvector.model_hint", "mistral");
    key_32(&f, "controlvector.layer_count", TS_GGUF_U32, 3);
    direction(&f, 31);
    direction(&f, 30);
    direction(&f, 7);
    put(&f, "repeng.gguf");
    ts_cvec *c = load("repeng.gguf");
    assert_int_equal(c->n, 3);
    assert_int_equal(c->width, WIDTH);
    assert_int_equal(c->layer_count, 3);
    assert_int_equal(c->layer_base, 1);
    assert_int_equal(c->block[0], 7);
    assert_int_equal(c->block[2], 31);
    assert_string_equal(c->model_hint, "mistral");
    assert_null(c->mode);
    assert_null(c->model_hash);
    assert_true(ts_cvec_find(c, 31)[0] == 1 && ts_cvec_find(c, 30)[0] == 9 &&
                ts_cvec_find(c, 7)[5] == 22);
    assert_null(ts_cvec_find(c, 8));
    assert_null(ts_cvec_find(c, 0));
    ts_cvec_free(c);
}

/* llama.cpp's generator: i32 count, hint the GGUF architecture, directions 1 to n_layers - 1 in
 * order. */
static void generator(void **state) {
    (void)state;
    fixture f = {.value = 1};
    architecture(&f);
    key_text(&f, "controlvector.model_hint", "llama");
    key_32(&f, "controlvector.layer_count", TS_GGUF_I32, 29);
    for (int n = 1; n <= 29; n++)
        direction(&f, n);
    put(&f, "generator.gguf");
    ts_cvec *c = load("generator.gguf");
    assert_int_equal(c->n, 29);
    assert_int_equal(c->block[0], 1);
    assert_int_equal(c->block[28], 29);
    assert_int_equal(c->layer_count, 29);
    ts_cvec_free(c);
}

/* jukofyork's sets: u32 count of the model's layers, N = layer + 1, some left out; gguf-py writes
 * no alignment key. */
static void jukofyork(void **state) {
    (void)state;
    fixture f = {.value = 1};
    architecture(&f);
    key_text(&f, "controlvector.model_hint", "command-r");
    key_32(&f, "controlvector.layer_count", TS_GGUF_U32, 40);
    for (int n = 2; n <= 39; n += 3)
        direction(&f, n);
    put(&f, "jukofyork.gguf");
    ts_cvec *c = load("jukofyork.gguf");
    assert_int_equal(c->n, 13);
    assert_int_equal(c->block[12], 38);
    assert_int_equal(c->layer_count, 40);
    ts_cvec_free(c);
}

static void base_zero(void **state) {
    (void)state;
    for (uint32_t type = TS_GGUF_U32; type <= TS_GGUF_I32; type++) {
        fixture f = {.value = 1};
        architecture(&f);
        key_32(&f, "turbospark.layer_base", type, 0);
        key_text(&f, "turbospark.mode", "ablate");
        direction(&f, 1);
        direction(&f, 3);
        put(&f, "base.gguf");
        ts_cvec *c = load("base.gguf");
        assert_int_equal(c->layer_base, 0);
        assert_int_equal(c->block[0], 0);
        assert_int_equal(c->block[1], 2);
        assert_int_equal(c->layer_count, -1);
        assert_string_equal(c->mode, "ablate");
        ts_cvec_free(c);
    }
}

static fixture one(void) {
    fixture f = {.value = 1};
    architecture(&f);
    return f;
}

static void wrong_tensors(void **state) {
    (void)state;
    fixture f = one();
    refuse(&f, "got 0");
    f = one();
    direction(&f, 0);
    refuse(&f, "numbered from 1");
    static const char *const names[] = {"direction.",        "direction.x",       "direction.-1",
                                        "direction.1.5",     "direction. 1",      "directions.1",
                                        "direction.1000000", "token_embd.weight", "direction.1x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        f = one();
        tensor(&f, names[i], 1, WIDTH, TS_GGUF_TENSOR_F32);
        refuse(&f, "'direction.N'");
    }
    f = one();
    tensor(&f, "direction.01", 1, WIDTH, TS_GGUF_TENSOR_F32);
    refuse(&f, "numbered from 1");
    f = one();
    direction(&f, 4);
    direction(&f, 4);
    refuse(&f, "'direction.4' is there twice");
    f = one();
    direction(&f, 1);
    tensor(&f, "direction.2", 1, WIDTH + 1, TS_GGUF_TENSOR_F32);
    refuse(&f, "width 7, expected 6");
    f = one();
    tensor(&f, "direction.1", 1, WIDTH, F16);
    refuse(&f, "expected F32");
    f = one();
    tensor(&f, "direction.1", 2, WIDTH, TS_GGUF_TENSOR_F32);
    refuse(&f, "one-dimensional");
    f = one();
    tensor(&f, "direction.1", 1, 0, TS_GGUF_TENSOR_F32);
    refuse(&f, "one-dimensional");
    f = one();
    f.value = NAN;
    direction(&f, 3);
    refuse(&f, "'direction.3' is not finite");
    f = one();
    f.value = INFINITY;
    direction(&f, 3);
    refuse(&f, "'direction.3' is not finite");
    f = one();
    f.width = 1;
    f.value = 0;
    direction(&f, 3);
    refuse(&f, "'direction.3' is zero");
}

/* Many tensors that all lie in the same place would take more memory than the file has bytes. */
static void overlap(void **state) {
    (void)state;
    fixture f = one();
    for (int n = 1; n <= 400; n++) {
        char name[32];
        snprintf(name, sizeof name, "direction.%d", n);
        f.data = 0;
        tensor(&f, name, 1, 20000, TS_GGUF_TENSOR_F32);
    }
    refuse(&f, "overlap");
}

static void wrong_keys(void **state) {
    (void)state;
    static const char *const texts[] = {"controlvector.model_hint", "turbospark.extraction",
                                        "turbospark.mode", "turbospark.hook",
                                        "turbospark.model_hash"};
    static const char *const counts[] = {"controlvector.layer_count", "turbospark.layer_base"};
    fixture f;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        f = one();
        key_32(&f, texts[i], TS_GGUF_U32, 1);
        direction(&f, 1);
        refuse(&f, "is not a string");
        f = one();
        key_array(&f, texts[i]);
        direction(&f, 1);
        refuse(&f, "is not a string");
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        f = one();
        key_text(&f, counts[i], "1");
        direction(&f, 1);
        refuse(&f, "is not an i32 or u32");
        f = one();
        key_array(&f, counts[i]);
        direction(&f, 1);
        refuse(&f, "is not an i32 or u32");
        f = one();
        key_32(&f, counts[i], TS_GGUF_F32, 1);
        direction(&f, 1);
        refuse(&f, "is not an i32 or u32");
        f = one();
        key_32(&f, counts[i], TS_GGUF_I32, (uint32_t)-1);
        direction(&f, 1);
        refuse(&f, "is -1");
        f = one();
        key_32(&f, counts[i], TS_GGUF_U32, 1);
        key_32(&f, counts[i], TS_GGUF_U32, 1);
        direction(&f, 1);
        refuse(&f, "is there twice");
    }
    f = one();
    key_32(&f, "turbospark.layer_base", TS_GGUF_I32, 2);
    direction(&f, 1);
    refuse(&f, "is 2, expected 0 to 1");
    f = one();
    key_text(&f, "turbospark.mode", "rotate");
    direction(&f, 1);
    refuse(&f, "'rotate'");
    f = one();
    key_text(&f, "turbospark.hook", "attention output");
    direction(&f, 1);
    refuse(&f, "'attention output'");
    f = one();
    for (int i = 0; i < 300; i++)
        key_32(&f, "x", TS_GGUF_U32, 1);
    direction(&f, 1);
    refuse(&f, "at most 256 keys");
}

static void other_files(void **state) {
    (void)state;
    fixture f = {.value = 1};
    key_text(&f, "general.architecture", "llama");
    direction(&f, 1);
    refuse(&f, "a model of architecture 'llama'");
    f = (fixture){.value = 1};
    direction(&f, 1);
    refuse(&f, "names no architecture");
    f = (fixture){.value = 1};
    key_32(&f, "general.architecture", TS_GGUF_U32, 1);
    direction(&f, 1);
    refuse(&f, "names no architecture");
    static const char *const others[] = {"glp.mode", "dspark.layers", "dspark.anything"};
    for (size_t i = 0; i < 3; i++) {
        f = one();
        key_text(&f, others[i], "projective");
        direction(&f, 1);
        refuse(&f, others[i]);
        f = one();
        key_array(&f, others[i]);
        direction(&f, 1);
        refuse(&f, others[i]);
    }
    ts_cvec *c;
    ts_error err = {0};
    tmp_write("text.gguf", "GGUP and more", 13);
    assert_int_equal(ts_cvec_read("text.gguf", &c, &err), TS_ERR_FORMAT);
    assert_int_equal(ts_cvec_read("missing.gguf", &c, &err), TS_ERR_IO);
    assert_int_equal(ts_cvec_read(".", &c, &err), TS_ERR_IO);
}

/* ---------------------------------------------------------------- damage */

static ts_buf whole(void) {
    fixture f = {.value = 1};
    architecture(&f);
    key_text(&f, "controlvector.model_hint", "llama");
    key_32(&f, "controlvector.layer_count", TS_GGUF_I32, 3);
    key_32(&f, "turbospark.layer_base", TS_GGUF_I32, 1);
    key_text(&f, "turbospark.mode", "add");
    key_array(&f, "general.tags");
    for (int n = 1; n <= 3; n++)
        direction(&f, n);
    return render(&f);
}

static void truncated(void **state) {
    (void)state;
    ts_buf b = whole();
    size_t data_end = b.length - 8; /* behind the last direction is only padding */
    for (size_t n = 0; n < b.length; n++) {
        ts_cvec *c;
        ts_error err = {0};
        tmp_write("cut.gguf", b.data, n);
        int rc = ts_cvec_read("cut.gguf", &c, &err);
        if (n < data_end) {
            assert_int_equal(rc, TS_ERR_FORMAT);
            assert_non_null(strstr(err.message, "cut.gguf"));
        }
        ts_cvec_free(c);
    }
    ts_buf_free(&b);
}

/* No mutation may crash; what loads must be sound. */
static void fuzz(void **state) {
    (void)state;
    static const uint64_t words[] = {0,          1,          0x7fffffff,        0x80000000,
                                     0xffffffff, UINT64_MAX, (uint64_t)1 << 63, 1 << 20};
    ts_buf b = whole();
    char *bytes = malloc(b.length);
    uint64_t seed = 88172645463325252;
    int loaded = 0;
    assert_non_null(bytes);
    for (int round = 0; round < 6000; round++) {
        ts_cvec *c;
        ts_error err = {0};
        memcpy(bytes, b.data, b.length);
        for (int k = 0; k <= round % 3; k++) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            size_t at = (size_t)(seed >> 20) % (b.length - 8);
            if (seed & 1)
                bytes[at] = (char)(seed >> 8);
            else
                memcpy(bytes + at, &words[seed >> 8 & 7], seed & 2 ? 4 : 8);
        }
        tmp_write("fuzz.gguf", bytes, b.length);
        if (ts_cvec_read("fuzz.gguf", &c, &err)) {
            assert_null(c);
            assert_true(err.message[0] != '\0');
            continue;
        }
        loaded++;
        assert_true(c->n >= 1 && c->width >= 1);
        for (int32_t i = 0; i < c->n; i++) {
            assert_true(c->block[i] >= 0 && (i == 0 || c->block[i] > c->block[i - 1]));
            for (int32_t j = 0; j < c->width; j++)
                assert_true(isfinite(c->d[i * c->width + j]));
        }
        ts_cvec_free(c);
    }
    assert_true(loaded > 0 && loaded < 6000);
    free(bytes);
    ts_buf_free(&b);
}

/* ---------------------------------------------------------------- writing */

static const float rows[4][WIDTH] = {{9, 9, 9, 9, 9, 9},
                                     {1.5f, -2, 0, 0, 1e-30f, 3e30f},
                                     {0, 0, 0, 0, 0, 0.25f},
                                     {-1, 2, -3, 4, -5, 6}};

static ts_cvec_spec spec(void) {
    return (ts_cvec_spec){.width = WIDTH,
                          .n = 4,
                          .d = &rows[0][0],
                          .model_hint = "llama",
                          .extraction = "mean",
                          .mode = "renorm",
                          .hook = TS_RESID_HOOK,
                          .model_hash = "0123456789abcdef"};
}

static void round_trip(void **state) {
    (void)state;
    ts_cvec_spec s = spec();
    ts_error err = {0};
    bool dropped = false;
    assert_int_equal(ts_cvec_write("ours.gguf", &s, &dropped, &err), TS_OK);
    assert_true(dropped);
    assert_int_equal(tmp_count(), 1);
    ts_cvec *c = load("ours.gguf");
    assert_int_equal(c->n, 3);
    assert_int_equal(c->layer_count, 3);
    assert_int_equal(c->layer_base, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(c->block[i], i + 1);
    assert_memory_equal(c->d, rows[1], 3 * sizeof rows[0]);
    assert_string_equal(c->model_hint, "llama");
    assert_string_equal(c->extraction, "mean");
    assert_string_equal(c->mode, "renorm");
    assert_string_equal(c->hook, TS_RESID_HOOK);
    assert_string_equal(c->model_hash, "0123456789abcdef");
    ts_cvec_free(c);
    /* some blocks only, nothing optional */
    s = (ts_cvec_spec){.width = WIDTH, .n = 2, .d = &rows[1][0], .block = (int32_t[]){5, 17}};
    assert_int_equal(ts_cvec_write("ours.gguf", &s, &dropped, &err), TS_OK);
    assert_false(dropped);
    c = load("ours.gguf");
    assert_int_equal(c->block[0], 5);
    assert_int_equal(c->block[1], 17);
    assert_null(c->mode);
    assert_null(c->model_hint);
    ts_cvec_free(c);
}

/* What llama.cpp's loader asks of a file, asked through the same library. */
static void stock_reader(void **state) {
    (void)state;
    ts_cvec_spec s = spec();
    struct ggml_context *data = NULL;
    struct gguf_init_params params = {.no_alloc = false, .ctx = &data};
    assert_int_equal(ts_cvec_write("ours.gguf", &s, NULL, NULL), TS_OK);
    struct gguf_context *g = gguf_init_from_file("ours.gguf", params);
    assert_non_null(g);
    assert_string_equal(gguf_get_val_str(g, gguf_find_key(g, "general.architecture")),
                        "controlvector");
    assert_int_equal(gguf_get_val_i32(g, gguf_find_key(g, "turbospark.layer_base")), 1);
    assert_int_equal(gguf_get_n_tensors(g), 3);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "direction.%d", i + 1);
        assert_string_equal(gguf_get_tensor_name(g, i), name);
        struct ggml_tensor *t = ggml_get_tensor(data, name);
        assert_non_null(t);
        assert_int_equal(t->type, GGML_TYPE_F32);
        assert_int_equal(ggml_n_dims(t), 1);
        assert_int_equal(ggml_nelements(t), WIDTH);
        assert_memory_equal(ggml_get_data(t), rows[i + 1], sizeof rows[0]);
    }
    gguf_free(g);
    ggml_free(data);
}

static void refuse_spec(ts_cvec_spec s, const char *what) {
    ts_error err = {0};
    assert_int_equal(ts_cvec_write("never.gguf", &s, NULL, &err), TS_ERR_ARG);
    if (!strstr(err.message, what) || !strstr(err.message, "never.gguf"))
        fail_msg("'%s' does not say '%s'", err.message, what);
    assert_int_equal(access("never.gguf", F_OK), -1);
}

static void wrong_spec(void **state) {
    (void)state;
    static const float zero[2][WIDTH] = {{1, 1, 1, 1, 1, 1}, {0}};
    static const float nan_[2][WIDTH] = {{1, 1, 1, 1, 1, 1}, {0, NAN}};
    ts_cvec_spec s = spec();
    s.n = 1;
    refuse_spec(s, "no name for block 0");
    s = spec();
    s.n = 2;
    s.d = &zero[0][0];
    refuse_spec(s, "block 1 is zero");
    s.d = &nan_[0][0];
    refuse_spec(s, "block 1 is not finite: value 1");
    s = spec();
    s.mode = "rotate";
    refuse_spec(s, "'rotate'");
    s = spec();
    s.block = (int32_t[]){1, 3, 3, 4};
    refuse_spec(s, "got 3 after 3");
    s.block = (int32_t[]){-1, 3, 4, 5};
    refuse_spec(s, "got -1");
    s = spec();
    s.n = 0;
    refuse_spec(s, "at least one");
    ts_error err = {0};
    s = spec();
    assert_int_equal(ts_cvec_write("no/such/folder.gguf", &s, NULL, &err), TS_ERR_IO);
}

static void fits(void **state) {
    (void)state;
    ts_cvec_spec s = spec();
    ts_cvec_model m = {
        .width = WIDTH, .n_blocks = 4, .architecture = "llama", .hash = "0123456789abcdef"};
    ts_error err = {0};
    bool differs = true;
    assert_int_equal(ts_cvec_write("ours.gguf", &s, NULL, NULL), TS_OK);
    ts_cvec *c = load("ours.gguf");
    assert_int_equal(ts_cvec_check_model(c, "ours.gguf", &m, &differs, &err), TS_OK);
    assert_false(differs);
    m.architecture = "qwen2";
    assert_int_equal(ts_cvec_check_model(c, "ours.gguf", &m, &differs, &err), TS_OK);
    assert_true(differs);
    m.hash = "";
    assert_int_equal(ts_cvec_check_model(c, "ours.gguf", &m, NULL, &err), TS_OK);
    m.hash = "fedc";
    assert_int_equal(ts_cvec_check_model(c, "ours.gguf", &m, NULL, &err), TS_ERR_MODEL);
    assert_non_null(strstr(err.message, "another model"));
    m.n_blocks = 3;
    assert_int_equal(ts_cvec_check_model(c, "ours.gguf", &m, NULL, &err), TS_ERR_MODEL);
    assert_non_null(strstr(err.message, "block 3"));
    m.width = WIDTH - 1;
    assert_int_equal(ts_cvec_check_model(c, "ours.gguf", &m, NULL, &err), TS_ERR_MODEL);
    assert_non_null(strstr(err.message, "width 6"));
    ts_cvec_free(c);
    ts_cvec_free(NULL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, tmp_setup, tmp_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(repeng),        TEST(generator), TEST(jukofyork),  TEST(base_zero),
        TEST(wrong_tensors), TEST(overlap),   TEST(wrong_keys), TEST(other_files),
        TEST(truncated),     TEST(fuzz),      TEST(round_trip), TEST(stock_reader),
        TEST(wrong_spec),    TEST(fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
