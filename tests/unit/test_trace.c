/* The trace: what is written comes back, its size is foretold, a killed one goes on, hostile ones
 * are errors. */
#include "test_census_make.h"

#include "store/trace.h"

/* deltas, none, a bitset, one with gaps of two bytes, a set of everything, one neuron */
static const uint32_t widths[] = {1536, 900, 100, 20000, 17, 1};
static const uint32_t ks[] = {154, 0, 50, 200, 17, 1};
enum { N = 6, RANK = 3 };

static const ts_trace_spec spec = {N, widths, ks, "00112233445566778899aabbccddeeff"};

/* At most k of the neurons, now and then fewer; n says how many. */
static uint32_t random_levels(uint8_t *level, uint32_t width, uint32_t k, uint64_t *seed) {
    uint32_t n = 0, want = make_random(seed) % 8 ? k : make_random(seed) % (k + 1);
    memset(level, RANK + 1, width);
    while (n < want) {
        uint32_t i = make_random(seed) % width;
        n += level[i] > RANK;
        level[i] = (uint8_t)(make_random(seed) % (RANK + 1));
    }
    return n;
}

static void put_pass(ts_trace_writer *w, uint32_t slot, bool first, uint64_t *seed) {
    static uint8_t level[20000];
    ts_error err = {0};
    make_ok(ts_trace_begin(w, slot, first, &err), &err);
    for (uint32_t b = 0; b < N; b++) {
        if (!ks[b])
            continue;
        random_levels(level, widths[b], ks[b], seed);
        make_ok(ts_trace_block(w, b, level, RANK, &err), &err);
    }
    make_ok(ts_trace_end(w, &err), &err);
}

static void expect_pass(const ts_trace_pass *p, uint32_t slot, bool first, uint64_t *seed) {
    static uint8_t level[20000];
    assert_int_equal(p->slot, slot);
    assert_int_equal(p->first, first);
    for (uint32_t b = 0; b < N; b++) {
        size_t at = p->begin[b];
        if (ks[b]) {
            random_levels(level, widths[b], ks[b], seed);
            for (uint32_t i = 0; i < widths[b]; i++)
                if (level[i] <= RANK) {
                    assert_true(at < p->begin[b + 1]);
                    assert_int_equal(p->ids[at], i);
                    at++;
                }
        }
        assert_int_equal(at, p->begin[b + 1]);
    }
}

/* A generation every 5 passes, two sequences. */
static void put_passes(ts_trace_writer *w, uint32_t from, uint32_t to, uint64_t *seed) {
    for (uint32_t i = from; i < to; i++)
        put_pass(w, i % 2 ? 200 : 0, i % 5 == 0, seed);
}

static void write_trace(const char *path, uint32_t n) {
    ts_trace_writer *w;
    uint64_t seed = 11;
    ts_error err = {0};
    make_ok(ts_trace_open("t.part", &spec, NULL, &w, &err), &err);
    put_passes(w, 0, n, &seed);
    make_ok(ts_trace_finish(w, path, &err), &err);
    assert_int_equal(access("t.part", F_OK), -1);
}

static void read_passes(ts_trace_reader *r, uint32_t n) {
    ts_trace_pass p;
    bool got;
    uint64_t seed = 11;
    ts_error err = {0};
    for (uint32_t i = 0; i < n; i++) {
        make_ok(ts_trace_next(r, &p, &got, &err), &err);
        assert_true(got);
        expect_pass(&p, i % 2 ? 200 : 0, i % 5 == 0, &seed);
    }
    make_ok(ts_trace_next(r, &p, &got, &err), &err);
    assert_false(got);
}

static void round_trip(void **state) {
    (void)state;
    ts_trace_reader *r;
    ts_error err = {0};
    write_trace("x.trace", 23);
    make_ok(ts_trace_read("x.trace", &r, &err), &err);
    const ts_trace_info *t = ts_trace_read_info(r);
    assert_int_equal(t->n_layers, N);
    assert_memory_equal(t->width, widths, sizeof widths);
    assert_memory_equal(t->k, ks, sizeof ks);
    assert_string_equal(t->model, spec.model);
    assert_int_equal(t->passes, 23);
    assert_int_equal(t->generations, 5);
    read_passes(r, 23);
    make_ok(ts_trace_rewind(r, &err), &err);
    read_passes(r, 23);
    ts_trace_read_close(r);
    write_trace("y.trace", 23);
    make_same_files("x.trace", "y.trace");
}

static void size_is_foretold(void **state) {
    (void)state;
    static const uint32_t width[] = {1000, 64}, k[] = {500, 60};
    const ts_trace_spec bitsets = {2, width, k, ""};
    static uint8_t level[1000];
    ts_trace_writer *w;
    uint64_t bound = ts_trace_bytes(&spec, 40);
    size_t n;
    ts_error err = {0};
    write_trace("x.trace", 40);
    free(make_slurp("x.trace", &n));
    if (!(n <= bound &&
          n >= bound * 7 /
                   10)) /* an eighth of the sets are smaller, and few gaps are at their worst */
        fail_msg("%zu bytes, foretold %llu", n, (unsigned long long)bound);
    memset(level + 60, 1, sizeof level - 60);
    make_ok(ts_trace_open("b.part", &bitsets, NULL, &w, &err), &err);
    make_ok(ts_trace_begin(w, 255, true, &err), &err);
    make_ok(ts_trace_block(w, 0, level, 0, &err), &err);
    make_ok(ts_trace_block(w, 1, level, 0, &err), &err);
    make_ok(ts_trace_end(w, &err), &err);
    make_ok(ts_trace_finish(w, "b.trace", &err), &err);
    free(make_slurp("b.trace", &n));
    assert_int_equal(n, ts_trace_bytes(&bitsets, 1));
    assert_true(ts_trace_bytes(&spec, UINT64_MAX / 2) == UINT64_MAX);
}

/* Every gap at its worst still fits what was foretold. */
static void worst_gaps(void **state) {
    (void)state;
    static uint8_t level[20000];
    for (uint32_t gap = 1; gap < 20000; gap = gap * 3 / 2 + 1) {
        uint32_t width = 20000, k = 0;
        ts_trace_writer *w;
        size_t n;
        ts_error err = {0};
        memset(level, 1, sizeof level);
        for (uint32_t i = gap - 1; i < width; i += gap, k++)
            level[i] = 0;
        const ts_trace_spec one = {1, &width, &k, ""};
        make_ok(ts_trace_open("g.part", &one, NULL, &w, &err), &err);
        make_ok(ts_trace_begin(w, 0, true, &err), &err);
        make_ok(ts_trace_block(w, 0, level, 0, &err), &err);
        make_ok(ts_trace_end(w, &err), &err);
        make_ok(ts_trace_finish(w, "g.trace", &err), &err);
        free(make_slurp("g.trace", &n));
        assert_true(n <= ts_trace_bytes(&one, 1));
    }
}

static void resumes(void **state) {
    (void)state;
    ts_trace_writer *w;
    ts_trace_at at;
    uint64_t seed = 11, kept;
    ts_error err = {0};
    write_trace("whole.trace", 20);
    make_ok(ts_trace_open("t.part", &spec, NULL, &w, &err), &err);
    put_passes(w, 0, 10, &seed);
    kept = seed;
    make_ok(ts_trace_sync(w, &at, &err), &err);
    put_passes(w, 10, 13, &seed); /* lost */
    make_ok(ts_trace_close(w, &err), &err);
    make_ok(ts_trace_open("t.part", &spec, &at, &w, &err), &err);
    put_passes(w, 10, 20, &kept);
    make_ok(ts_trace_finish(w, "parts.trace", &err), &err);
    make_same_files("whole.trace", "parts.trace");
}

static void refuse_open(const char *path, const ts_trace_spec *s, const ts_trace_at *at, int code,
                        const char *what) {
    ts_trace_writer *w;
    ts_error err = {0};
    assert_int_equal(ts_trace_open(path, s, at, &w, &err), code);
    assert_null(w);
    if (!strstr(err.message, what))
        fail_msg("'%s' does not say '%s'", err.message, what);
}

static void writer_refuses(void **state) {
    (void)state;
    static const uint32_t big[] = {2000, 0, 0, 0, 0, 0};
    static const uint8_t level[1536];
    const ts_trace_spec wide = {N, widths, big, ""}, other = {N, widths, ks, "other"};
    const ts_trace_at at = {2000, 1, 1}, early = {20, 1, 1};
    ts_trace_writer *w;
    uint64_t seed = 1;
    ts_error err = {0};
    refuse_open("t", &wide, NULL, TS_ERR_ARG, "cannot trace 2000 of the 1536 neurons of block 0");
    make_ok(ts_trace_open("t", &spec, NULL, &w, &err), &err);
    assert_int_equal(ts_trace_begin(w, 0, false, &err), TS_ERR_ARG);
    assert_int_equal(ts_trace_begin(w, 256, true, &err), TS_ERR_ARG);
    assert_int_equal(ts_trace_block(w, 0, level, 0, &err), TS_ERR_STATE);
    put_pass(w, 0, true, &seed);
    make_ok(ts_trace_begin(w, 0, false, &err), &err);
    assert_int_equal(ts_trace_block(w, 0, level, 0, &err), TS_ERR_ARG);
    assert_int_equal(ts_trace_begin(w, 0, false, &err), TS_ERR_STATE);
    assert_int_equal(ts_trace_block(w, 2, level, 0, &err), TS_ERR_STATE);
    assert_int_equal(ts_trace_end(w, &err), TS_ERR_STATE);
    make_ok(ts_trace_close(w, &err), &err);
    refuse_open("t", &other, &at, TS_ERR_STATE,
                "partial trace 't' belongs to another model or other options");
    refuse_open("t", &spec, &early, TS_ERR_FORMAT, "20 bytes are less than its header has");
    refuse_open("t", &spec, &(ts_trace_at){1 << 20, 1, 1}, TS_ERR_FORMAT, "'t' is too short");
    refuse_open("none", &spec, &at, TS_ERR_IO, "'none'");
}

/* Reads to the end; the first error. */
static int read_all(const char *path, ts_error *err) {
    ts_trace_reader *r;
    ts_trace_pass p;
    bool got = true;
    int rc = ts_trace_read(path, &r, err);
    if (rc != TS_OK) {
        assert_null(r);
        return rc;
    }
    const ts_trace_info *t = ts_trace_read_info(r);
    while ((rc = ts_trace_next(r, &p, &got, err)) == TS_OK && got)
        for (uint32_t b = 0; b < t->n_layers; b++) {
            assert_true(p.begin[b + 1] - p.begin[b] <= t->k[b]);
            for (size_t i = p.begin[b]; i < p.begin[b + 1]; i++)
                assert_true(p.ids[i] < t->width[b] && (i == p.begin[b] || p.ids[i] > p.ids[i - 1]));
        }
    ts_trace_read_close(r);
    return rc;
}

static void hostile(void **state) {
    (void)state;
    size_t n;
    uint64_t seed = 21;
    ts_error err = {0};
    ts_trace_writer *w;
    write_trace("x.trace", 12);
    char *bytes = make_slurp("x.trace", &n);
    for (size_t i = 0; i < n; i += 1 + n / 2000) { /* also with a header that agrees */
        make_write("m.trace", bytes, i);
        assert_int_equal(read_all("m.trace", &err), TS_ERR_FORMAT);
        assert_non_null(strstr(err.message, "'m.trace'"));
        assert_null(strchr(err.message, '\n'));
    }
    for (int k = 0; k < 4000; k++) {
        size_t at = make_random(&seed) % (k & 1 ? 500 : n);
        char old = bytes[at];
        bytes[at] = (char)make_random(&seed);
        make_write("m.trace", bytes, n);
        read_all("m.trace", &err);
        bytes[at] = old;
    }
    free(bytes);
    make_ok(ts_trace_open("u.trace", &spec, NULL, &w, &err), &err);
    put_pass(w, 0, true, &seed);
    make_ok(ts_trace_close(w, &err), &err);
    assert_int_equal(read_all("u.trace", &err), TS_ERR_FORMAT);
    assert_string_equal(err.message, "'u.trace': it was not finished");
    make_write("m.trace", "{}\n", 3);
    assert_int_equal(read_all("m.trace", &err), TS_ERR_FORMAT);
    assert_int_equal(read_all("none", &err), TS_ERR_IO);
}

/* Passes of a hand-made file: "width 16, k 4, bitset" has two bytes a pass after tag and sequence.
 */
static void refuse_pass(const char *pass, size_t n, uint64_t passes, const char *what) {
    char text[512];
    ts_error err = {0};
    int header = snprintf(text, sizeof text,
                          "{\"turbospark_trace\":1,\"model\":\"\",\"layers\":1,\"width\":[16],"
                          "\"k\":[4],\"encoding\":[\"bitset\"],"
                          "\"passes\":%llu,\"generations\":1,\"bytes\":%3d}\n",
                          (unsigned long long)passes, 0);
    snprintf(text + header - 5, 8, "%3d}\n", header + (int)n);
    memcpy(text + header, pass, n);
    make_write("h.trace", text, (size_t)header + n);
    int rc = read_all("h.trace", &err);
    if (what == NULL) {
        make_ok(rc, &err);
        return;
    }
    assert_int_equal(rc, TS_ERR_FORMAT);
    if (!strstr(err.message, what))
        fail_msg("'%s' does not say '%s'", err.message, what);
}

static void hand_made(void **state) {
    (void)state;
    refuse_pass("G\0\3\x80", 4, 1, NULL);
    refuse_pass("G\0\x1f\0", 4, 1, "pass 0 of 1: a block has more than k ids");
    refuse_pass("X\0\1\0", 4, 1, "it does not begin as a pass");
    refuse_pass("G\0\1", 3, 1, "the file ends too early");
    refuse_pass("G\0\1\0", 4, 2, "pass 1 of 2: the file ends too early");
    refuse_pass("G\0\1\0y", 5, 1, "something follows its 1 passes");
    refuse_pass("P\0\1\0", 4, 1, "expected 1 generations, found 0");
    refuse_pass("G\xff\xff\xff\xff\xff\xff\xff\xff", 9, 1, "a number is out of range");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trip, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(size_is_foretold, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(worst_gaps, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(resumes, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(writer_refuses, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(hostile, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(hand_made, tmp_setup, tmp_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
