/* The expert census' file: recorded as a slow version counts, written, read back, added; damaged files give one line. */
#include "test_core_tmp.h"

#include <math.h>
#include <stdbool.h>

#include <turbospark/turbospark.h>

#include "stats/expert_stats.h"
#include "store/expert.h"

enum { EXPERTS = 5, TOP_K = 2, WIDTH = 7, PASSES = 23 };

static uint32_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

typedef struct slow {
    uint64_t rows[EXPERTS], finite;
    double mass[EXPERTS][WIDTH];
} slow;

static void record(ts_expert_layer *l, const int32_t *ids, const float *values, int expected) {
    ts_expert_counts c = {l->n_experts, l->top_k, l->width, l->rows, l->mass, l->bucket_count};
    assert_int_equal(ts_expert_count(&c, ids, values), expected);
}

/* Layer 1 has no experts; expert 4 of layer 0 is never chosen. */
static void make(ts_experts *x, slow *s, uint64_t seed) {
    ts_error err = {0};
    memset(s, 0, sizeof *s);
    assert_int_equal(ts_experts_init(x, 3, &err), TS_OK);
    assert_int_equal(ts_expert_layer_init(&x->layers[0], EXPERTS, TOP_K, WIDTH, &err), TS_OK);
    assert_int_equal(ts_expert_layer_init(&x->layers[2], 1, 1, 3, &err), TS_OK);
    for (int t = 0; t < PASSES; t++) {
        int32_t ids[TOP_K] = {(int32_t)(next_random(&seed) % 4), (int32_t)(next_random(&seed) % 4)};
        float values[TOP_K][WIDTH], small[3] = {0.0f, -1.5f, 3.0f};
        for (int k = 0; k < TOP_K; k++)
            for (int i = 0; i < WIDTH; i++) {
                values[k][i] = ((float)next_random(&seed) * 0x1p-31f - 0.5f) * 4.0f;
                if (t == 3 && k == 1 && i == 2)
                    values[k][i] = NAN;
                else
                    s->mass[ids[k]][i] += fabs((double)values[k][i]);
            }
        s->rows[ids[0]]++;
        s->rows[ids[1]]++;
        record(&x->layers[0], ids, &values[0][0], TS_OK);
        record(&x->layers[2], (const int32_t[]){0}, small, TS_OK);
        x->decode_passes++;
    }
}

static void test_recorded(void **state) {
    (void)state;
    ts_experts x;
    ts_error err = {0};
    slow s;
    make(&x, &s, 3);
    assert_int_equal(ts_experts_check(&x, &err), TS_OK);
    for (int e = 0; e < EXPERTS; e++) {
        assert_int_equal(x.layers[0].rows[e], s.rows[e]);
        for (int i = 0; i < WIDTH; i++)
            assert_true(x.layers[0].mass[e * WIDTH + i] == s.mass[e][i]);
    }
    assert_int_equal(x.layers[0].bucket_count[63], 1);
    assert_int_equal(x.layers[2].bucket_count[0], PASSES);
    record(&x.layers[0], (const int32_t[]){0, EXPERTS}, NULL, TS_ERR_ARG);
    record(&x.layers[0], (const int32_t[]){-1, 0}, NULL, TS_ERR_ARG);
    ts_experts_free(&x);
}

static void read_it(const char *path, ts_experts *x) {
    ts_error err = {0};
    if (ts_experts_read(path, x, &err) != TS_OK)
        fail_msg("%s", err.message);
}

static void test_file(void **state) {
    (void)state;
    ts_experts x, back;
    ts_error err = {0};
    slow s;
    make(&x, &s, 5);
    strcpy(x.model, "0123456789abcdef0123456789abcdef");
    assert_int_equal(ts_experts_write(&x, "short", &err), TS_OK);
    read_it("short", &back);
    assert_string_equal(back.model, x.model);
    assert_int_equal(back.layers[1].n_experts, 0);
    for (int i = 0; i < EXPERTS * WIDTH; i++)
        assert_true(fabs(back.layers[0].mass[i] - x.layers[0].mass[i]) <= 1e-5 * x.layers[0].mass[i]);
    assert_int_equal(ts_experts_add(&back, &x, &err), TS_OK);
    assert_int_equal(back.decode_passes, 2 * PASSES);
    assert_int_equal(ts_experts_check(&back, &err), TS_OK);
    x.model[0] = 'f';
    assert_int_equal(ts_experts_add(&back, &x, &err), TS_ERR_ARG);
    assert_non_null(strstr(err.message, "of model f123"));
    ts_experts_free(&back);
    ts_experts_free(&x);
}

/* "a" with the first `from` replaced by `to`. */
static void refuse_edit(const char *from, const char *to, const char *what) {
    static char text[1 << 16], out[1 << 17];
    ts_experts x;
    ts_error err = {0};
    FILE *f = fopen("a", "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    char *at = strstr(text, from);
    if (!at)
        fail_msg("no '%s' in %s", from, text);
    int length = sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    tmp_write("e", out, (size_t)length);
    int rc = ts_experts_read("e", &x, &err);
    if (rc != TS_ERR_FORMAT || !strstr(err.message, what) || !strstr(err.message, "'e'"))
        fail_msg("%d '%s', expected '%s'", rc, err.message, what);
    assert_null(x.layers);
}

static void test_wrong(void **state) {
    (void)state;
    ts_experts x;
    ts_error err = {0};
    slow s;
    make(&x, &s, 7);
    assert_int_equal(ts_experts_write(&x, "a", &err), TS_OK);
    ts_experts_free(&x);
    refuse_edit("\"format_version\":1", "\"format_version\":2", "format_version is 2, expected 1");
    refuse_edit("\"num_layers\":3", "\"num_layers\":4", "it has 3 layers, num_layers is 4");
    refuse_edit("\"decode_passes\":23", "\"decode_passes\":24", "layer 0: rows adds up to 46, expected 48");
    refuse_edit("\"decode_passes\":23,", "", "a key is missing");
    refuse_edit("\"decode_passes\":23", "\"decode_passes\":1152921504606846976", "cannot be counted");
    refuse_edit("\"experts\":5", "\"experts\":6", "rows has 5 elements, expected 6");
    refuse_edit("\"experts\":5", "\"experts\":0", "experts is 0");
    refuse_edit("\"width\":7", "\"width\":8", "masses, expected 8");
    refuse_edit("\"experts\":5,\"top_k\":2,\"width\":7", "\"experts\":1000000,\"top_k\":2,\"width\":1000000", "are too many");
    refuse_edit("\"top_k\":2", "\"k\":2", "expected 'top_k', got 'k'");
    refuse_edit("\"bucket_count\":[", "\"bucket_count\":[1,", "bucket_count has 65 elements, expected 64");
    refuse_edit("\"bucket_count\":[0", "\"bucket_count\":[1", "bucket_count adds up to");
    refuse_edit("\"mass\":[[", "\"mass\":[[NaN,", "expected a number");
    refuse_edit("\"mass\":[[", "\"mass\":[[1e70,", "expected a number from 0");
    refuse_edit("\"mass\":[[", "\"mass\":[[1],[", "masses, expected 7");
    refuse_edit(",[]]", ",[1,1,1,1,1,1,1]]", "expert 4 has masses, but no row chose it");
    refuse_edit("{\"format", "[\"format", "expected '{'");
    for (size_t n = 0; n < 700; n += 7) { /* cut anywhere */
        static char text[1 << 16];
        FILE *f = fopen("a", "rb");
        assert_non_null(f);
        assert_true(fread(text, 1, sizeof text, f) > 700);
        fclose(f);
        tmp_write("c", text, n);
        assert_int_equal(ts_experts_read("c", &x, &err), TS_ERR_FORMAT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded),
        cmocka_unit_test_setup_teardown(test_file, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_wrong, tmp_setup, tmp_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
