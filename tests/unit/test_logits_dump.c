/* Logits dumps: half precision over all its values, rows there and back, and what must never be
 * left behind. */
#include "test_core_tmp.h"

#include <math.h>

#include "store/logits_dump.h"
#include "store/logits_dump_half.h"

enum { VOCAB = 301, N_TOKENS = 5, ROWS = N_TOKENS - 1 };

static const int32_t tokens[N_TOKENS] = {1, 300, 0, 7, 7};

/* ---------------------------------------------------------------- half precision */

static float value_of(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double x = exponent == 31 ? (mantissa ? (double)NAN : (double)INFINITY)
               : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                              : ldexp(mantissa, -24);
    return (float)(h & 0x8000 ? -x : x);
}

static void halves(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float x = ts_half_to_float(h), want = value_of(h);
        if (isnan(want)) {
            assert_true(isnan(x) && isnan(ts_half_to_float(ts_half_from_float(x))));
            assert_int_equal(ts_half_from_float(x) & 0x8000, h & 0x8000);
            continue;
        }
        assert_true(x == want && !signbit(x) == !signbit(want));
        assert_int_equal(ts_half_from_float(x), h);
    }
}

/* Between each two neighbours: the middle goes to the even one, a bit more or less to the nearer.
 */
static void rounding(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 0x7bff; i++) {
        uint16_t low = (uint16_t)i, high = (uint16_t)(i + 1);
        float middle = (float)(((double)value_of(low) + (double)value_of(high)) / 2);
        uint16_t even = low & 1 ? high : low;
        assert_int_equal(ts_half_from_float(middle), even);
        assert_int_equal(ts_half_from_float(-middle), even | 0x8000);
        assert_int_equal(ts_half_from_float(nextafterf(middle, 0)), low);
        assert_int_equal(ts_half_from_float(nextafterf(middle, INFINITY)), high);
    }
    assert_int_equal(ts_half_from_float(nextafterf(65520, 0)), 0x7bff);
    assert_int_equal(ts_half_from_float(65520), 0x7c00);
    assert_int_equal(ts_half_from_float(-3e38f), 0xfc00);
    assert_int_equal(ts_half_from_float(1e-45f), 0);
    assert_int_equal(ts_half_from_float(-1e-45f), 0x8000);
}

/* ---------------------------------------------------------------- dumps */

static void fill(float *row, int r) {
    for (int i = 0; i < VOCAB; i++)
        row[i] = (float)(r * 31 + i * 7 % 101) * 0.37f - 20;
    row[r] = -INFINITY;
}

static ts_logits_spec spec(enum ts_logits_dtype dtype) {
    return (ts_logits_spec){.folder = "dump",
                            .dtype = dtype,
                            .vocab_size = VOCAB,
                            .token_ids = tokens,
                            .n_tokens = N_TOKENS,
                            .first_scored_position = 2,
                            .prompt_len = 3};
}

static void write_dump(const ts_logits_spec *s, int shift) {
    float row[VOCAB];
    ts_logits_out *o;
    ts_error err = {0};
    if (ts_logits_out_open(s, &o, &err))
        fail_msg("%s", err.message);
    for (int r = 0; r < ROWS; r++) {
        fill(row, r + shift);
        assert_int_equal(ts_logits_out_add(o, row, &err), TS_OK);
    }
    assert_int_equal(ts_logits_out_rows(o), ROWS);
    assert_int_equal(ts_logits_out_add(o, row, &err), TS_ERR_STATE);
    if (ts_logits_out_finish(o, NULL, &err))
        fail_msg("%s", err.message);
}

static ts_logits_dump *load(const char *path) {
    ts_logits_dump *d;
    ts_error err = {0};
    if (ts_logits_open(path, true, &d, &err))
        fail_msg("%s", err.message);
    return d;
}

static void check_rows(ts_logits_dump *d, int shift) {
    float want[VOCAB], got[VOCAB];
    for (int r = ROWS - 1; r >= 0; r--) {
        fill(want, r + shift);
        assert_int_equal(ts_logits_read(d, r, got, NULL), TS_OK);
        for (int i = 0; i < VOCAB; i++)
            assert_true(got[i] == (d->dtype == TS_LOGITS_F32
                                       ? want[i]
                                       : ts_half_to_float(ts_half_from_float(want[i]))));
    }
    assert_int_equal(ts_logits_read(d, ROWS, got, NULL), TS_ERR_ARG);
    assert_int_equal(ts_logits_read(d, -1, got, NULL), TS_ERR_ARG);
}

static int entries(const char *folder) {
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(folder), 0);
    int n = tmp_count();
    assert_int_equal(chdir(here), 0);
    return n;
}

static void round_trip(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        enum ts_logits_dtype dtype = k ? TS_LOGITS_F32 : TS_LOGITS_F16;
        ts_logits_spec s = spec(dtype);
        s.overwrite = k > 0; /* the f32 dump takes the f16 dump's place */
        assert_int_equal(ts_logits_out_predict(&s), ROWS * VOCAB * (k ? 4 : 2));
        write_dump(&s, k);
        assert_int_equal(entries("dump"), 2);
        ts_logits_dump *d = load(k ? "dump/meta.json" : "dump/");
        assert_int_equal(d->dtype, dtype);
        assert_int_equal(d->rows, ROWS);
        assert_int_equal(d->vocab_size, VOCAB);
        assert_int_equal(d->first_scored_position, 2);
        assert_int_equal(d->prompt_len, 3);
        assert_memory_equal(d->token_ids, tokens, sizeof tokens);
        assert_int_equal(strlen(d->hash), 32);
        check_rows(d, k);
        ts_logits_close(d);
    }
    ts_logits_close(NULL);
}

static void meta_text(void **state) {
    (void)state;
    ts_logits_spec s = spec(TS_LOGITS_F16);
    char text[4096] = "";
    s.members = "  \"windows\": [[0, 4]],\n";
    write_dump(&s, 0);
    FILE *f = fopen("dump/meta.json", "rb");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    static const char head[] =
        "{\n  \"rows\": 4,\n  \"vocab_size\": 301,\n  \"token_ids\": [1, 300, 0, 7, 7],\n"
        "  \"first_scored_position\": 2,\n  \"prompt_len\": 3,\n  \"dtype\": \"f16\",\n"
        "  \"format_version\": 1,\n  \"kind\": \"logits\",\n  \"windows\": [[0, 4]],\n"
        "  \"data\": {\"file\": \"logits.f16\", \"bytes\": 2408, \"xxh3_128\": \"";
    assert_memory_equal(text, head, sizeof head - 1);
}

/* A dump by others, who have the first five keys. */
static void foreign(void **state) {
    (void)state;
    uint16_t data[2 * 3] = {0x3c00, 0xc000, 0xfc00, 0, 0x8000, 0x7bff};
    static const char meta[] = "{\"rows\": 2, \"vocab_size\": 3, \"token_ids\": [0, 1, 2],"
                               "\"first_scored_position\": 1, \"prompt_len\": 1}";
    float row[3];
    assert_int_equal(system("mkdir theirs"), 0);
    tmp_write("theirs/meta.json", meta, sizeof meta - 1);
    tmp_write("theirs/logits.f16", data, sizeof data);
    ts_logits_dump *d = load("theirs");
    assert_int_equal(ts_logits_read(d, 0, row, NULL), TS_OK);
    assert_true(row[0] == 1 && row[1] == -2 && row[2] == -INFINITY);
    assert_int_equal(ts_logits_read(d, 1, row, NULL), TS_OK);
    assert_true(row[2] == 65504);
    ts_logits_close(d);
}

static void refuse_row(enum ts_logits_dtype dtype, float bad, const char *what) {
    ts_logits_spec s = spec(dtype);
    float row[VOCAB];
    ts_logits_out *o;
    ts_error err = {0};
    assert_int_equal(ts_logits_out_open(&s, &o, NULL), TS_OK);
    fill(row, 0);
    assert_int_equal(ts_logits_out_add(o, row, NULL), TS_OK);
    row[200] = bad;
    assert_int_equal(ts_logits_out_add(o, row, &err), TS_ERR_FORMAT);
    assert_int_equal(err.position, 1);
    if (!strstr(err.message, what) || !strstr(err.message, "row 1") ||
        !strstr(err.message, "token 200"))
        fail_msg("'%s' does not say '%s'", err.message, what);
    ts_logits_out_discard(o);
    assert_int_equal(tmp_count(), 0);
}

static void bad_rows(void **state) {
    (void)state;
    refuse_row(TS_LOGITS_F16, NAN, "nan");
    refuse_row(TS_LOGITS_F32, NAN, "nan");
    refuse_row(TS_LOGITS_F32, INFINITY, "inf");
    refuse_row(TS_LOGITS_F16, 70000, "f32 would");
    refuse_row(TS_LOGITS_F16, -70000, "f32 would");
}

static void refuse_spec(ts_logits_spec s, int code, const char *what) {
    ts_logits_out *o;
    ts_error err = {0};
    assert_int_equal(ts_logits_out_open(&s, &o, &err), code);
    assert_null(o);
    if (!strstr(err.message, what))
        fail_msg("'%s' does not say '%s'", err.message, what);
}

static void wrong_specs(void **state) {
    (void)state;
    ts_logits_spec s = spec(TS_LOGITS_F16);
    s.n_tokens = 1;
    refuse_spec(s, TS_ERR_ARG, "too short");
    s = spec(TS_LOGITS_F16);
    s.vocab_size = 0;
    refuse_spec(s, TS_ERR_ARG, "vocab_size");
    s = spec(TS_LOGITS_F16);
    s.first_scored_position = ROWS + 1;
    refuse_spec(s, TS_ERR_ARG, "first_scored_position");
    s = spec(TS_LOGITS_F16);
    s.prompt_len = N_TOKENS + 1;
    refuse_spec(s, TS_ERR_ARG, "prompt_len");
    s = spec(TS_LOGITS_F16);
    s.folder = "no/such/folder";
    refuse_spec(s, TS_ERR_IO, "no/such/folder");
    tmp_write("file", "x", 1);
    s.folder = "file";
    refuse_spec(s, TS_ERR_IO, "expected a folder");
    assert_int_equal(tmp_count(), 1);
    s = spec(TS_LOGITS_F16);
    write_dump(&s, 0);
    refuse_spec(s, TS_ERR_ARG, "a dump already");
    ts_logits_close(load("dump"));
}

/* A replacement that does not come to its end leaves the dump that was there. */
static void given_up(void **state) {
    (void)state;
    ts_logits_spec s = spec(TS_LOGITS_F16);
    float row[VOCAB];
    ts_logits_out *o;
    ts_error err = {0};
    assert_int_equal(ts_logits_out_open(&s, &o, NULL), TS_OK);
    fill(row, 0);
    assert_int_equal(ts_logits_out_add(o, row, NULL), TS_OK);
    assert_int_equal(ts_logits_out_finish(o, NULL, &err), TS_ERR_STATE);
    assert_non_null(strstr(err.message, "1 rows, expected 4"));
    assert_int_equal(tmp_count(), 0);
    write_dump(&s, 0);
    s.overwrite = true;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(ts_logits_out_open(&s, &o, NULL), TS_OK);
        assert_int_equal(ts_logits_out_add(o, row, NULL), TS_OK);
        if (k == 0)
            ts_logits_out_discard(o);
        else
            assert_int_equal(ts_logits_out_finish(o, NULL, NULL), TS_ERR_STATE);
        assert_int_equal(entries("dump"), 2);
        ts_logits_dump *d = load("dump");
        check_rows(d, 0);
        ts_logits_close(d);
    }
    ts_logits_out_discard(NULL);
}

/* ---------------------------------------------------------------- damage */

static void refuse_meta(const char *meta, const char *what) {
    ts_logits_dump *d;
    ts_error err = {0};
    tmp_write("dump/meta.json", meta, strlen(meta));
    assert_int_equal(ts_logits_open("dump", true, &d, &err), TS_ERR_FORMAT);
    assert_null(d);
    if (!strstr(err.message, what))
        fail_msg("'%s' does not say '%s'", err.message, what);
}

static void damaged(void **state) {
    (void)state;
    ts_logits_spec s = spec(TS_LOGITS_F16);
    ts_logits_dump *d;
    ts_error err = {0};
    write_dump(&s, 0);
    FILE *f = fopen("dump/logits.f16", "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 100, SEEK_SET), 0);
    fputc(0x55, f);
    fclose(f);
    assert_int_equal(ts_logits_open("dump", true, &d, &err), TS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "changed or damaged"));
    assert_int_equal(ts_logits_open("dump", false, &d, &err), TS_OK);
    ts_logits_close(d);
    assert_int_equal(truncate("dump/logits.f16", 100), 0);
    assert_int_equal(ts_logits_open("dump", false, &d, &err), TS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "100 bytes, expected 2408"));
#define HEAD "{\"rows\": 1, \"vocab_size\": 50, "
#define TAIL "\"first_scored_position\": 0, \"prompt_len\": 0}"
    refuse_meta("{", "meta.json");
    refuse_meta("[]", "meta.json");
    refuse_meta("{}", "'rows'");
    refuse_meta("{\"rows\": 1.5}", "'rows'");
    refuse_meta("{\"rows\": 99999999999}", "'rows'");
    refuse_meta(HEAD "\"token_ids\": [1], " TAIL, "expected 2 elements");
    refuse_meta(HEAD "\"token_ids\": [1, 50], " TAIL, "element 1");
    refuse_meta(HEAD "\"token_ids\": [1, -1], " TAIL, "element 1");
    refuse_meta(HEAD "\"token_ids\": \"1\", " TAIL, "'token_ids'");
    refuse_meta(HEAD "\"token_ids\": [1, 2], \"dtype\": \"f8\", " TAIL, "'f8'");
    refuse_meta(HEAD "\"token_ids\": [1, 2], \"dtype\": 16, " TAIL, "'dtype'");
    refuse_meta(HEAD "\"token_ids\": [1, 2], \"first_scored_position\": 2, \"prompt_len\": 0}",
                "first_scored");
    refuse_meta(HEAD "\"token_ids\": [1, 2], \"format_version\": 2, " TAIL, "format_version");
    tmp_write("dump/meta.json", HEAD "\"token_ids\": [1, 2], " TAIL,
              sizeof(HEAD "\"token_ids\": [1, 2], " TAIL) - 1);
    assert_int_equal(ts_logits_open("dump", true, &d, &err), TS_OK);
    ts_logits_close(d);
    assert_int_equal(unlink("dump/logits.f16"), 0);
    assert_int_equal(ts_logits_open("dump", true, &d, &err), TS_ERR_IO);
    assert_int_equal(ts_logits_open("nowhere", true, &d, &err), TS_ERR_IO);
}

static void comparable(void **state) {
    (void)state;
    ts_logits_spec s = spec(TS_LOGITS_F16);
    ts_error err = {0};
    int32_t others[N_TOKENS] = {1, 300, 0, 8, 7};
    write_dump(&s, 0);
    s.folder = "f32";
    s.dtype = TS_LOGITS_F32;
    write_dump(&s, 0);
    s.folder = "other";
    s.token_ids = others;
    write_dump(&s, 0);
    ts_logits_dump *a = load("dump"), *b = load("f32"), *c = load("other");
    assert_int_equal(ts_logits_comparable(a, "dump", b, "f32", &err), TS_OK);
    assert_int_equal(ts_logits_comparable(a, "dump", c, "other", &err), TS_ERR_ARG);
    assert_int_equal(err.position, 3);
    assert_non_null(strstr(err.message, "token 3 is 7 in 'dump', 8 in 'other'"));
    b->vocab_size++;
    assert_int_equal(ts_logits_comparable(a, "dump", b, "f32", &err), TS_ERR_ARG);
    b->vocab_size--;
    b->first_scored_position++;
    assert_int_equal(ts_logits_comparable(a, "dump", b, "f32", &err), TS_ERR_ARG);
    ts_logits_close(a);
    ts_logits_close(b);
    ts_logits_close(c);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, tmp_setup, tmp_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves),
        cmocka_unit_test(rounding),
        TEST(round_trip),
        TEST(meta_text),
        TEST(foreign),
        TEST(bad_rows),
        TEST(wrong_specs),
        TEST(given_up),
        TEST(damaged),
        TEST(comparable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
