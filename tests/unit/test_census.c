/* The census' files: exact bytes, round trips, sums, checkpoints. */
#include "test_census_make.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "instrument/ffn_checkpoint.h"

static const uint32_t widths[] = {700, 0, 64, 1100};
static const uint32_t shared_widths[] = {0, 0, 48, 0};
enum { N_BLOCKS = 4 };

static void write_census(const ts_census *c, const char *path) {
    ts_shard shard;
    ts_provenance p = make_provenance(&shard);
    ts_error err = {0};
    make_ok(ts_census_write(c, path, &p, "[{\"site\": \"ffn\", \"block\": 0}]", false, true, &err),
            &err);
}

/* n "0," or "0.00000e0," */
static void repeat(char *out, const char *text, int n) {
    for (int i = 0; i < n; i++)
        strcat(out, text);
}

static void tiny_is_exact(void **state) {
    (void)state;
    const uint32_t width = 2;
    static const float row[] = {1.0f, 0.0f};
    ts_ffn_stats *s = make_stats(&width, 1);
    ts_census c;
    char expected[4096] = "{\"num_layers\":1,\"inter\":2,\"decode_passes\":1,\"prefill_passes\":1,"
                          "\"bucket_exp_offset\":33,"
                          "\"overlap_ks\":[2, 2, 2, "
                          "2],\"overlap_pairs\":0,\"overlap_hits\":[[0,0,0,0]],\"hist_count\":[[1,";
    repeat(expected, "0,", 32);
    strcat(expected, "1,");
    repeat(expected, "0,", 29);
    strcat(expected, "0]],\"hist_mass\":[[0.00000e0,");
    repeat(expected, "0.00000e0,", 32);
    strcat(expected, "1.00000e0,");
    repeat(expected, "0.00000e0,", 29);
    strcat(expected, "0.00000e0]],\"mass\":[[1.00000e0,0.00000e0]]}");
    ts_ffn_note_prefill(s, 1);
    assert_int_equal(ts_ffn_record_block(s, 0, 0, 0, row), 0);
    assert_int_equal(ts_ffn_end_pass(s, 0), 0);
    make_census(s, NULL, &c);
    write_census(&c, "tiny.json");
    tmp_expect("tiny.json", expected);
    ts_census_free(&c);
    ts_ffn_stats_free(s);
}

/* A value just under 2 stays in [1, 2); NaN and infinity count in bucket 63 and weigh nothing; the
 * pair across two generations is none; a narrow block has its own width, one without FFN empty
 * rows. */
static void corrections_are_exact(void **state) {
    (void)state;
    static const uint32_t width[] = {4, 0, 2};
    static const float first[] = {1.9999999f, NAN, -65504.0f, INFINITY},
                       narrow[] = {0.00123457f, 6.0e-8f};
    ts_ffn_stats *s = make_stats(width, 3);
    ts_census c;
    char expected[8192] =
        "{\"num_layers\":3,\"inter\":4,\"decode_passes\":2,\"prefill_passes\":0,\"bucket_exp_"
        "offset\":33,"
        "\"overlap_ks\":[4, 4, 4, 4],\"overlap_pairs\":0,\"overlap_hits\":[[0,0,0,0],[],[0,0,0,0]],"
        "\"hist_count\":[[";
    repeat(expected, "0,", 33);
    strcat(expected, "2,");
    repeat(expected, "0,", 14);
    strcat(expected, "2,");
    repeat(expected, "0,", 14);
    strcat(expected, "4],[],[");
    repeat(expected, "0,", 9);
    strcat(expected, "2,");
    repeat(expected, "0,", 13);
    strcat(expected, "2,");
    repeat(expected, "0,", 39);
    strcat(expected, "0]],\"hist_mass\":[[");
    repeat(expected, "0.00000e0,", 33);
    strcat(expected, "4.00000e0,");
    repeat(expected, "0.00000e0,", 14);
    strcat(expected, "1.31008e5,");
    repeat(expected, "0.00000e0,", 14);
    strcat(expected, "0.00000e0],[],[");
    repeat(expected, "0.00000e0,", 9);
    strcat(expected, "1.20000e-7,");
    repeat(expected, "0.00000e0,", 13);
    strcat(expected, "2.46914e-3,");
    repeat(expected, "0.00000e0,", 39);
    strcat(expected, "0.00000e0]],\"mass\":[[4.00000e0,0.00000e0,1.31008e5,0.00000e0],[],[2.46914e-"
                     "3,1.20000e-7]]}");
    for (int generation = 0; generation < 2; generation++) {
        ts_ffn_begin_generation(s, 0);
        ts_ffn_record_block(s, 0, 0, 0, first);
        ts_ffn_record_block(s, 0, 0, 2, narrow);
        ts_ffn_end_pass(s, 0);
    }
    make_census(s, NULL, &c);
    write_census(&c, "fixed.json");
    tmp_expect("fixed.json", expected);
    ts_census_free(&c);
    ts_ffn_stats_free(s);
}

static ts_census random_census(uint64_t seed, uint32_t generations) {
    ts_ffn_stats *s = make_stats(widths, N_BLOCKS), *shared = make_stats(shared_widths, N_BLOCKS);
    ts_census c;
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (uint32_t g = 0; g < generations; g++)
        make_generation(s, shared, 3 + g, &state);
    make_census(s, shared, &c);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        c.gate_bytes[i] = c.up_bytes[i] = (uint64_t)widths[i] * 36;
        c.down_bytes[i] = (uint64_t)widths[i] * 40;
        c.down_block[i] = widths[i] ? 32 : 0;
    }
    c.site_note = strdup("after a norm, \"as\" ffn_down reads it\n");
    ts_ffn_stats_free(s);
    ts_ffn_stats_free(shared);
    return c;
}

static void round_trip(void **state) {
    (void)state;
    ts_census c = random_census(1, 3), back;
    char *key;
    ts_error err = {0};
    write_census(&c, "a.json");
    assert_int_equal(tmp_count(), 3);
    make_ok(ts_census_read("a.json", &back, &key, &err), &err);
    make_same(&c, &back);
    assert_string_equal(key, "llama/Tiny \"one\"/00112233445566778899aabbccddeeff");
    assert_string_equal(back.site_note, c.site_note);
    assert_string_equal(back.sites_json, "[{\"site\": \"ffn\", \"block\": 0}]");
    assert_memory_equal(back.gate_bytes, c.gate_bytes, sizeof(uint64_t) * N_BLOCKS);
    assert_memory_equal(back.down_bytes, c.down_bytes, sizeof(uint64_t) * N_BLOCKS);
    assert_memory_equal(back.down_block, c.down_block, sizeof(uint32_t) * N_BLOCKS);
    assert_int_equal(back.n_sources, 1);
    assert_string_equal(back.sources[0].path, "a.json");
    assert_string_equal(back.sources[0].engine, "llama.cpp 0.5.0");
    assert_false(back.partial);
    /* what was read writes the same bytes, but for the sources its .meta now lists */
    make_ok(ts_census_write(&back, "b.json", NULL, NULL, false, false, &err), &err);
    make_same_files("a.json", "b.json");
    write_census(&c, "c.json");
    make_same_files("a.json", "c.json");
    write_census(&c, "a.json");
    make_same_files("a.json", "c.json");
    ts_free(key);
    ts_census_free(&c);
    ts_census_free(&back);
}

static void widths_round_trip(void **state) {
    (void)state;
    static const uint32_t some[] = {1, 2, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 20000};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        uint64_t seed = i + 77;
        ts_ffn_stats *s = make_stats(&some[i], 1);
        ts_census c, back;
        ts_error err = {0};
        make_generation(s, NULL, 3, &seed);
        make_generation(s, NULL, 2, &seed);
        make_census(s, NULL, &c);
        write_census(&c, "w.json");
        make_ok(ts_census_read("w.json", &back, NULL, &err), &err);
        make_same(&c, &back);
        for (int q = 0; q <= 100; q++)
            assert_true(ts_census_quantile(&back.dense[0], q / 100.0) ==
                        ts_hist_quantile(&s->blocks[0].hist, q / 100.0));
        ts_census_free(&c);
        ts_census_free(&back);
        ts_ffn_stats_free(s);
    }
}

static void edges_agree(void **state) {
    (void)state;
    for (int b = 0; b <= TS_HIST_N_BINS; b++)
        assert_true(ts_census_fine_edge((uint32_t)b) == ts_hist_edge(b));
    for (int b = 0; b < TS_HIST_N_BINS; b++) {
        double inside = 0.5 * (ts_hist_edge(b) + ts_hist_edge(b + 1));
        assert_int_equal(ts_census_fine_bucket((uint32_t)b), ts_hist_bucket((float)inside));
    }
}

/* Files of the runtime this replaces: no detail, no .meta. */
static void alone(void **state) {
    (void)state;
    ts_census c = random_census(2, 2), back, sum;
    char *key;
    ts_error err = {0};
    write_census(&c, "a.json");
    write_census(&c, "full.json");
    unlink("a.detail");
    unlink("a.meta");
    make_ok(ts_census_read("a.json", &back, &key, &err), &err);
    assert_null(key);
    assert_false(back.detailed);
    assert_null(back.provenance);
    assert_int_equal(back.dense[0].nonfinite, c.dense[0].nonfinite);
    assert_int_equal(back.dense[2].k[0], 64);
    for (uint32_t i = 0; i < widths[0]; i++)
        assert_true(fabs(back.dense[0].mass[i] - c.dense[0].mass[i]) <= 1e-5 * c.dense[0].mass[i]);
    /* sums with one without detail have none, whichever comes first */
    make_ok(ts_census_read("full.json", &sum, NULL, &err), &err);
    make_ok(ts_census_add(&sum, &back, &err), &err);
    assert_false(sum.detailed);
    make_ok(ts_census_write(&sum, "full.json", NULL, NULL, false, true, &err), &err);
    assert_int_equal(access("full.detail", F_OK), -1);
    ts_census_free(&sum);
    make_ok(ts_census_read("full.json", &sum, NULL, &err), &err);
    assert_int_equal(sum.decode_passes, 2 * c.decode_passes);
    assert_int_equal(sum.n_sources, 2);
    ts_census_free(&sum);
    ts_census_free(&back);
    ts_census_free(&c);
}

/* Two halves add up to the whole: counts exactly, masses to rounding. */
static void merge_is_whole(void **state) {
    (void)state;
    ts_ffn_stats *whole = make_stats(widths, N_BLOCKS),
                 *half[2] = {make_stats(widths, N_BLOCKS), make_stats(widths, N_BLOCKS)};
    ts_census c, a, b, sum;
    ts_error err = {0};
    uint64_t x = 5, y = 5;
    for (int i = 0; i < 2; i++) {
        make_generation(whole, NULL, 4, &x);
        make_generation(half[i], NULL, 4, &y);
    }
    make_census(whole, NULL, &c);
    make_census(half[0], NULL, &a);
    make_census(half[1], NULL, &b);
    write_census(&a, "a.json");
    write_census(&b, "b.json");
    ts_census_free(&a);
    ts_census_free(&b);
    make_ok(ts_census_read("a.json", &a, NULL, &err), &err);
    make_ok(ts_census_read("b.json", &b, NULL, &err), &err);
    make_ok(ts_census_add(&a, &b, &err), &err);
    make_ok(ts_census_write(&a, "sum.json", NULL, NULL, a.partial, false, &err), &err);
    make_ok(ts_census_read("sum.json", &sum, NULL, &err), &err);
    make_same(&a, &sum);
    assert_int_equal(sum.n_sources, 2);
    assert_string_equal(sum.sources[1].path, "b.json");
    for (uint32_t l = 0; l < N_BLOCKS; l++) {
        const ts_census_block *m = &sum.dense[l], *w = &c.dense[l];
        assert_memory_equal(m->bucket_count, w->bucket_count, sizeof m->bucket_count);
        assert_memory_equal(m->hits, w->hits, sizeof m->hits);
        assert_memory_equal(m->top_p, w->top_p, sizeof m->top_p);
        assert_int_equal(m->n_pairs, w->n_pairs);
        for (uint32_t i = 0; i < w->width; i++)
            assert_true(fabs(m->mass[i] - w->mass[i]) <= 1e-12 * w->mass[i]);
        for (uint32_t i = 0; w->width && i < TS_CENSUS_FINE_BINS; i++)
            assert_int_equal(m->fine_count[i], w->fine_count[i]);
    }
    ts_census_free(&a);
    ts_census_free(&b);
    ts_census_free(&c);
    ts_census_free(&sum);
    ts_ffn_stats_free(whole);
    ts_ffn_stats_free(half[0]);
    ts_ffn_stats_free(half[1]);
}

static void refuse_add(ts_census *dst, const ts_census *src, const char *what) {
    ts_error err = {0};
    uint64_t passes = dst->decode_passes;
    assert_int_equal(ts_census_add(dst, src, &err), TS_ERR_ARG);
    if (!strstr(err.message, what))
        fail_msg("'%s' does not say '%s'", err.message, what);
    assert_int_equal(dst->decode_passes, passes);
}

static void other_models(void **state) {
    (void)state;
    ts_census c = random_census(3, 1), a, b;
    ts_error err = {0};
    write_census(&c, "a.json");
    make_ok(ts_census_read("a.json", &a, NULL, &err), &err);
    make_ok(ts_census_read("a.json", &b, NULL, &err), &err);
    b.provenance->shards[0].xxh3[0] = 'f';
    refuse_add(
        &a, &b,
        "'a.json' cannot be added to 'a.json': its model file 'model.gguf' has xxh3-128 f0112233");
    b.provenance->shards[0].xxh3[0] = '0';
    b.provenance->name[0] = 'S';
    refuse_add(&a, &b, "its model is 'Siny \"one\"', expected 'Tiny \"one\"'");
    b.provenance->name[0] = 'T';
    b.dense[2].width = 63;
    refuse_add(&a, &b, "block 2 has 63 neurons, expected 64");
    b.dense[2].width = 64;
    b.down_bytes[0]++;
    refuse_add(&a, &b, "block 0 has 78401 bytes of FFN weights in blocks of 32, expected 78400");
    b.down_bytes[0]--;
    b.decode_passes = UINT64_MAX - 1;
    refuse_add(&a, &b, "too many to count");
    ts_census_free(&a);
    ts_census_free(&b);
    ts_census_free(&c);
}

static void refuse_write(const ts_census *c, const char *path, bool overwrite, const char *what) {
    ts_error err = {0};
    assert_int_not_equal(ts_census_write(c, path, NULL, NULL, false, overwrite, &err), TS_OK);
    if (!strstr(err.message, what))
        fail_msg("'%s' does not say '%s'", err.message, what);
}

static void writer_refuses(void **state) {
    (void)state;
    ts_census c = random_census(4, 1);
    ts_error err = {0};
    refuse_write(&c, "x.detail", true,
                 "'x.detail' would be both census and detail file; name the census .json");
    refuse_write(&c, "x.meta", true, "'x.meta' would be both census and meta data");
    assert_int_equal(mkdir("d.json", 0777), 0);
    refuse_write(&c, "d.json", true, "a folder");
    make_write("b.meta", "x", 1);
    refuse_write(&c, "b.json", false, "'b.meta' exists already");
    assert_int_equal(ts_census_check_target("b.json", false, &err), TS_ERR_ARG);
    assert_int_equal(ts_census_check_target("b.json", true, &err), TS_OK);
    c.dense[2].bucket_count[40]++;
    refuse_write(&c, "e.json", true, "cannot write 'e.json': block 2: hist_count adds up to ");
    c.dense[2].bucket_count[40]--;
    c.decode_passes++;
    refuse_write(&c, "e.json", true, "block 0: 3 rows were counted in 4 passes");
    c.decode_passes--;
    c.dense[3].mass[7] = NAN;
    refuse_write(&c, "e.json", true, "block 3: mass of neuron 7 is nan");
    assert_int_equal(tmp_count(), 2);
    ts_census_free(&c);
}

/* An old census goes before its parts do; a link stays one. */
static void overwrites_a_link(void **state) {
    (void)state;
    ts_census c = random_census(6, 1), back;
    struct stat st;
    ts_error err = {0};
    assert_int_equal(mkdir("real", 0777), 0);
    make_write("real/x.json", "old", 3);
    assert_int_equal(symlink("real/x.json", "x.json"), 0);
    write_census(&c, "x.json");
    assert_int_equal(lstat("x.json", &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    make_ok(ts_census_read("x.json", &back, NULL, &err), &err);
    make_same(&c, &back);
    ts_census_free(&back);
    ts_census_free(&c);
}

/* Interrupted between generations and resumed: the same bytes. */
static void checkpoint_resumes(void **state) {
    (void)state;
    uint64_t x = 9, y = 9;
    ts_ffn_stats *s = make_stats(widths, N_BLOCKS), *t = make_stats(shared_widths, N_BLOCKS);
    ts_ffn_stats *s2 = make_stats(widths, N_BLOCKS), *t2 = make_stats(shared_widths, N_BLOCKS);
    ts_ffn_progress at = {.prompts = 2, .tokens = 11, .trace_bytes = 99}, back;
    ts_census c;
    bool found;
    ts_error err = {0};
    for (uint32_t g = 0; g < 4; g++)
        make_generation(s, t, 3, &x);
    make_census(s, t, &c);
    assert_int_equal(mkdir("whole", 0777), 0);
    assert_int_equal(mkdir("parts", 0777), 0);
    write_census(&c, "whole/x.json");
    ts_census_free(&c);
    for (uint32_t g = 0; g < 2; g++)
        make_generation(s2, t2, 3, &y);
    make_ok(ts_ffn_checkpoint_write("x.state", "plan", s2, t2, NULL, &at, &err), &err);
    ts_ffn_stats_free(s2);
    ts_ffn_stats_free(t2);
    s2 = make_stats(widths, N_BLOCKS);
    t2 = make_stats(shared_widths, N_BLOCKS);
    make_ok(ts_ffn_checkpoint_read("x.state", "plan", s2, t2, NULL, &back, &found, &err), &err);
    assert_true(found);
    assert_memory_equal(&at, &back, sizeof at);
    make_ok(ts_ffn_checkpoint_write("y.state", "plan", s2, t2, NULL, &at, &err), &err);
    make_same_files("x.state", "y.state");
    for (uint32_t g = 0; g < 2; g++)
        make_generation(s2, t2, 3, &y);
    make_census(s2, t2, &c);
    write_census(&c, "parts/x.json");
    make_same_files("whole/x.json", "parts/x.json");
    make_same_files("whole/x.detail", "parts/x.detail");
    make_same_files("whole/x.meta", "parts/x.meta");
    ts_census_free(&c);
    ts_ffn_stats_free(s);
    ts_ffn_stats_free(t);
    ts_ffn_stats_free(s2);
    ts_ffn_stats_free(t2);
}

static int read_checkpoint_of(const char *path, const char *plan, const uint32_t *w, bool with_shared,
                              ts_experts *x, ts_error *err) {
    ts_ffn_stats *s = make_stats(w, N_BLOCKS),
                 *t = with_shared ? make_stats(shared_widths, N_BLOCKS) : NULL;
    ts_ffn_progress at;
    bool found;
    int rc = ts_ffn_checkpoint_read(path, plan, s, t, x, &at, &found, err);
    assert_int_equal(found, rc == TS_OK && access(path, F_OK) == 0);
    ts_ffn_stats_free(s);
    ts_ffn_stats_free(t);
    return rc;
}

static int read_checkpoint(const char *path, const char *plan, const uint32_t *w, bool with_shared,
                           ts_error *err) {
    return read_checkpoint_of(path, plan, w, with_shared, NULL, err);
}

static void make_experts(ts_experts *x, uint32_t width) {
    ts_error err = {0};
    make_ok(ts_experts_init(x, 3, &err), &err);
    make_ok(ts_expert_layer_init(&x->layers[1], 5, 2, width, &err), &err);
}

/* A model's experts lie in the same file, every digit of them. */
static void checkpoint_has_experts(void **state) {
    (void)state;
    enum { WIDTH = 3 };
    ts_ffn_stats *s = make_stats(widths, N_BLOCKS);
    ts_ffn_progress at = {0};
    ts_experts x, back, wide;
    ts_error err = {0};
    make_experts(&x, WIDTH);
    make_experts(&back, WIDTH);
    make_experts(&wide, WIDTH + 1);
    ts_expert_layer *l = &x.layers[1];
    x.decode_passes = 7;
    l->rows[0] = 4;
    l->rows[3] = 10;
    l->bucket_count[20] = 14 * WIDTH;
    for (int i = 0; i < WIDTH; i++)
        l->mass[i] = 1.0 / 3.0 + i;
    l->mass[3 * WIDTH] = 1e-300;
    make_ok(ts_ffn_checkpoint_write("x", "plan", s, NULL, &x, &at, &err), &err);
    make_ok(read_checkpoint_of("x", "plan", widths, false, &back, &err), &err);
    assert_int_equal(back.decode_passes, 7);
    assert_memory_equal(back.layers[1].rows, l->rows, 5 * sizeof *l->rows);
    assert_memory_equal(back.layers[1].mass, l->mass, 5 * WIDTH * sizeof *l->mass);
    assert_int_equal(back.layers[1].bucket_count[20], 14 * WIDTH);
    assert_int_equal(read_checkpoint_of("x", "plan", widths, false, &wide, &err), TS_ERR_STATE);
    assert_non_null(strstr(err.message, "another shape of the experts"));
    assert_int_equal(read_checkpoint("x", "plan", widths, false, &err), TS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "longer than its blocks"));
    l->rows[0]++;
    make_ok(ts_ffn_checkpoint_write("x", "plan", s, NULL, &x, &at, &err), &err);
    assert_int_equal(read_checkpoint_of("x", "plan", widths, false, &back, &err), TS_ERR_FORMAT);
    make_ok(ts_ffn_checkpoint_write("x", "plan", s, NULL, NULL, &at, &err), &err);
    assert_true(read_checkpoint_of("x", "plan", widths, false, &back, &err) < 0);
    ts_experts_free(&x);
    ts_experts_free(&back);
    ts_experts_free(&wide);
    ts_ffn_stats_free(s);
}

static void checkpoint_refuses(void **state) {
    (void)state;
    static const uint32_t other[] = {700, 0, 65, 1100};
    ts_ffn_stats *s = make_stats(widths, N_BLOCKS);
    ts_ffn_progress at = {0};
    uint64_t x = 4;
    ts_error err = {0};
    assert_int_equal(read_checkpoint("none", "plan", widths, false, &err), TS_OK);
    make_generation(s, NULL, 3, &x);
    make_ok(ts_ffn_checkpoint_write("c", "plan", s, NULL, NULL, &at, &err), &err);
    make_ok(read_checkpoint("c", "plan", widths, false, &err), &err);
    assert_int_equal(read_checkpoint("c", "other", widths, false, &err), TS_ERR_STATE);
    assert_non_null(strstr(err.message, "checkpoint 'c': it belongs to another corpus or options"));
    assert_int_equal(read_checkpoint("c", "plan", other, false, &err), TS_ERR_STATE);
    assert_non_null(strstr(err.message, "another width"));
    assert_int_equal(read_checkpoint("c", "plan", widths, true, &err), TS_ERR_STATE);
    size_t n;
    char *bytes = make_slurp("c", &n);
    for (size_t i = 0; i < n; i += i < 200 || i + 200 > n ? 1 : 97) {
        bytes[i] = (char)(bytes[i] ^ 4);
        make_write("m", bytes, n);
        assert_int_equal(read_checkpoint("m", "plan", widths, false, &err), TS_ERR_FORMAT);
        bytes[i] = (char)(bytes[i] ^ 4);
        make_write("m", bytes, i);
        assert_int_equal(read_checkpoint("m", "plan", widths, false, &err), TS_ERR_FORMAT);
    }
    free(bytes);
    ts_ffn_stats_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tiny_is_exact, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(corrections_are_exact, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(round_trip, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(widths_round_trip, tmp_setup, tmp_teardown),
        cmocka_unit_test(edges_agree),
        cmocka_unit_test_setup_teardown(alone, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(merge_is_whole, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(other_models, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(writer_refuses, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(overwrites_a_link, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(checkpoint_resumes, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(checkpoint_has_experts, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(checkpoint_refuses, tmp_setup, tmp_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
