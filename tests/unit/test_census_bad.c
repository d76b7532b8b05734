/* Reading what is damaged, edited, of another file or hostile: one line with the file and what is
 * wrong. */
#include "test_census_make.h"

#include <sys/stat.h>

#include "core/buf.h"

static const uint32_t widths[] = {40, 0, 24};

static void write_small(const char *path, uint64_t seed) {
    ts_ffn_stats *s = make_stats(widths, 3), *t = make_stats((const uint32_t[]){0, 8, 0}, 3);
    ts_census c;
    ts_shard shard;
    ts_provenance p = make_provenance(&shard);
    ts_error err = {0};
    make_generation(s, t, 3, &seed);
    make_generation(s, t, 2, &seed);
    make_census(s, t, &c);
    make_ok(ts_census_write(&c, path, &p, "[]", true, true, &err), &err);
    ts_census_free(&c);
    ts_ffn_stats_free(s);
    ts_ffn_stats_free(t);
}

static void refuse(const char *path, int code, const char *what) {
    ts_census c;
    char *key;
    ts_error err = {0};
    int rc = ts_census_read(path, &c, &key, &err);
    if (rc != code)
        fail_msg("'%s' gave %d '%s', expected '%s'", path, rc, err.message, what);
    if (!strstr(err.message, what) || strchr(err.message, '\n'))
        fail_msg("'%s' does not say '%s'", err.message, what);
    assert_null(c.dense);
    assert_null(key);
}

/* The file with the first `from` replaced by `to`. */
static void edit(const char *path, const char *from, const char *to, const char *out) {
    size_t n;
    char *text = make_slurp(path, &n), *at = strstr(text, from);
    ts_buf b = {0};
    if (!at)
        fail_msg("no '%s'", from);
    ts_buf_add(&b, text, (size_t)(at - text));
    ts_buf_text(&b, to);
    ts_buf_text(&b, at + strlen(from));
    make_write(out, b.data, b.length);
    ts_buf_free(&b);
    free(text);
}

/* A .json alone, edited in one place. */
static void refuse_edit(const char *from, const char *to, const char *what) {
    ts_census c;
    ts_error err = {0};
    edit("a.json", from, to, "e.json");
    refuse("e.json", TS_ERR_FORMAT, what);
    ts_census_read("e.json", &c, NULL, &err);
    assert_memory_equal(err.message, "'e.json': ", 10);
}

static void edited_json(void **state) {
    (void)state;
    write_small("a.json", 1);
    refuse("none.json", TS_ERR_IO, "cannot open 'none.json'");
    assert_int_equal(mkdir("d.json", 0777), 0);
    refuse("d.json", TS_ERR_IO, "a folder");
    make_write("e.json", "", 0);
    refuse("e.json", TS_ERR_FORMAT, "byte 0: the file ends too early: expected '{'");
    make_write("e.json", "GGUF", 4);
    refuse("e.json", TS_ERR_FORMAT, "byte 0: expected '{', got 'G'");
    make_write("e.json", "{}", 2);
    refuse("e.json", TS_ERR_FORMAT, "not an FFN census: it has no 'num_layers'");
    refuse_edit("\"num_layers\":3", "\"num_layers\":4",
                "overlap_hits has 3 rows, expected num_layers, 4");
    refuse_edit("\"num_layers\":3", "\"num_layers\":3.5", "byte 17: expected a whole number");
    refuse_edit("\"num_layers\":3", "\"num_layers\":-3", "expected a whole number from 0 to ");
    refuse_edit("\"num_layers\":3", "\"num_layers\":99999999999999999999999",
                "expected a whole number");
    refuse_edit("\"num_layers\":3", "\"num_layers\":03", "expected a whole number");
    refuse_edit("\"num_layers\":3", "\"num_layers\":3,\"num_layers\":3",
                "'num_layers' is there twice");
    refuse_edit("\"inter\":40", "\"inter\":41", "overlap_ks element 0 is 40, expected 41");
    refuse_edit("[40, 40, 40, 40]", "[40, 40, 40]", "overlap_ks: expected 4 elements, got 3");
    refuse_edit("\"decode_passes\":5", "\"decode_passes\":6",
                "block 0: hist_count adds up to 200, expected 6 passes x 40 neurons = 240");
    refuse_edit("\"decode_passes\":5", "\"decode_passes\":1000000000000000000",
                "too many to count");
    refuse_edit("\"bucket_exp_offset\":33", "\"bucket_exp_offset\":24",
                "bucket_exp_offset is 24, expected 33");
    refuse_edit("\"overlap_pairs\":3", "\"overlap_pairs\":5", "5 overlap pairs in 5 passes");
    refuse_edit("\"overlap_hits\":[[", "\"overlap_hits\":[[9", "overlap_hits is 9");
    refuse_edit("\"overlap_hits\":[[", "\"overlap_hits\":[[1,", "a row of more than 4 elements");
    refuse_edit("\"hist_count\":[[", "\"hist_count\":[[1",
                "block 0: hist_count adds up to more than 5 passes x 40 neurons = 200");
    refuse_edit("\"hist_mass\":[[0", "\"hist_mass\":[[NaN", "expected a number, got 'N'");
    refuse_edit("\"hist_mass\":[[0.00000e0", "\"hist_mass\":[[1e999",
                "expected a number from 0 to 1e+60, got '1e999'");
    refuse_edit("\"hist_mass\":[[0.00000e0", "\"hist_mass\":[[1e50",
                "hist_mass of bucket 0 is 1e+50");
    refuse_edit("\"mass\":[[", "\"mass\":[[1e30,", "inter is 40, the widest block has 41");
    refuse_edit("\"mass\":[[", "\"mass\":[[9", "mass adds up to ");
    refuse_edit(",\"mass\":[[", ",\"other\":[[", "it has no 'mass'");
    refuse_edit("}", "}x", "expected the end of the file, got 'x'");
    refuse_edit("],[],[", "],[],[],[", "rows, expected num_layers, 3");
    refuse_edit("],[],[", "],[1],[", "block 1: overlap_hits has 1 element, expected 4");
}

/* Every cut and many changed bytes: an error or, where only digits the checks allow changed, a
 * census. */
static void mutated(const char *path, const char *copy) {
    size_t n;
    char *text = make_slurp(path, &n);
    ts_census c;
    ts_error err = {0};
    uint64_t seed = 3;
    for (size_t i = 0; i < n; i += 1 + n / 3000) {
        make_write(copy, text, i);
        assert_int_equal(ts_census_read("m.json", &c, NULL, &err), TS_ERR_FORMAT);
        assert_null(strchr(err.message, '\n'));
    }
    for (int k = 0; k < 3000; k++) {
        size_t at = make_random(&seed) % n;
        char old = text[at];
        text[at] = (char)(k & 1 ? make_random(&seed)
                                : (uint32_t) "0123456789[]{},:\"e-."[make_random(&seed) % 20]);
        make_write(copy, text, n);
        if (ts_census_read("m.json", &c, NULL, &err) == TS_OK)
            ts_census_free(&c);
        text[at] = old;
    }
    free(text);
}

static void mutated_json(void **state) {
    (void)state;
    write_small("a.json", 2);
    mutated("a.json", "m.json");
}

static void mutated_detail(void **state) {
    (void)state;
    write_small("m.json", 2);
    unlink("m.meta");
    assert_int_equal(rename("m.detail", "original"), 0);
    mutated("original", "m.detail");
}

static void mutated_meta(void **state) {
    (void)state;
    write_small("m.json", 2);
    assert_int_equal(rename("m.meta", "original"), 0);
    size_t n;
    char *text = make_slurp("original", &n);
    ts_census c;
    ts_error err = {0};
    uint64_t seed = 8;
    for (int k = 0; k < 2000; k++) {
        size_t at = make_random(&seed) % n;
        char old = text[at];
        text[at] = (char)make_random(&seed);
        make_write("m.meta", text, n);
        if (ts_census_read("m.json", &c, NULL, &err) == TS_OK)
            ts_census_free(&c);
        text[at] = old;
    }
    for (size_t i = 0; i + 2 < n; i++) { /* without its last bracket */
        make_write("m.meta", text, i);
        assert_int_equal(ts_census_read("m.json", &c, NULL, &err), TS_ERR_FORMAT);
    }
    free(text);
}

/* The parts name each other: a swapped or edited one is told by its hash. */
static void of_another_file(void **state) {
    (void)state;
    write_small("a.json", 1);
    write_small("b.json", 2);
    assert_int_equal(rename("b.detail", "a.detail"), 0);
    refuse("a.json", TS_ERR_FORMAT, "'a.meta': 'a.detail' was changed: expected ");
    unlink("a.meta");
    refuse("a.json", TS_ERR_FORMAT, "'a.detail': the detail of another file: expected xxh3-128 ");
    unlink("a.detail");
    refuse("b.json", TS_ERR_FORMAT, "'b.meta': its detail file is missing");
    assert_int_equal(rename("b.meta", "a.meta"), 0);
    refuse("a.json", TS_ERR_FORMAT, "'a.meta': 'a.json' was changed: expected ");
    make_write("a.meta", "{\"format_version\": 1, \"kind\": \"resid\"}", 38);
    refuse("a.json", TS_ERR_FORMAT,
           "'a.meta': expected the meta data of an FFN census, got kind 'resid'");
    make_write("a.meta", "{", 1);
    refuse("a.json", TS_ERR_FORMAT, "'a.meta': not valid JSON");
}

/* An edited detail without a .meta that knows its hash is still held against the census. */
static void edited_detail(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *what;
    } cases[] = {
        {"\"format_version\":1", "\"format_version\":2",
         "not the detail of an FFN census this version knows"},
        {"ffn-detail", "resid", "not the detail of an FFN census this version knows"},
        {"\"fixed_k\":[512", "\"fixed_k\":[511", "not the detail"},
        {"\"inter\":40", "\"inter\":41", "inter is 41, the census has 40"},
        {"\"decode_passes\":5", "\"decode_passes\":6", "layers or passes are not the census'"},
        {"\"num_layers\":3", "\"num_layers\":2", "layers or passes are not the census'"},
        {"\"width\":40", "\"width\":41", "width is 41, the census has 40"},
        {"\"n_rows\":5", "\"n_rows\":4", "block 0: 4 rows were counted in 5 passes"},
        {"\"n_pairs\":3", "\"n_pairs\":2", "block 0: 2 pairs were compared, expected 3"},
        {"\"k\":[40", "\"k\":[39", "block 0: overlap at 40 is not the census'"},
        {"\"zeros\":", "\"zeros\":1", "zeros or nonfinite are not those of hist_count"},
        {"\"max_abs\":", "\"max_abs\":1", "block 0: max_abs is 1"},
        {"\"bucket_count\":[", "\"bucket_count\":[1", "block 0: bucket 0 is not the census'"},
        {"\"fine\":[[", "\"fine\":[[8000,1,1e30],[", "bins of the finer histogram do not ascend"},
        {"\"fine\":[[", "\"fine\":[[1,1,1e-30],[",
         "bin 1 has mass 1e-30, which its 1 values cannot have"},
        {"\"mass\":[", "\"mass\":[1", "block 0: mass of neuron 0 is 1"},
        {"\"mass\":[", "\"mass\":[1,", "an array is longer than expected"},
        {"\nnull,", "\n{},", "block 1 is one the census does not have"},
        {"\"gate_bytes\":[0,", "\"gate_bytes\":[", "an array is shorter than expected"},
        {"\"width\":8", "\"width\":9", "shorter than expected"},
        {"\"site_note\":null", "\"site_note\":nul", "expected true, false or null"},
        {"\"site_note\":null,", "", "it has no 'site_note'"},
        {"\"n_rows\":5,", "\"n_rows\":5,\"n_rows\":5,", "'n_rows' is there twice"},
    };
    write_small("a.json", 1);
    unlink("a.meta");
    assert_int_equal(rename("a.detail", "original"), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        edit("original", cases[i].from, cases[i].to, "a.detail");
        ts_census c;
        ts_error err = {0};
        assert_int_equal(ts_census_read("a.json", &c, NULL, &err), TS_ERR_FORMAT);
        if (!strstr(err.message, cases[i].what) || !strstr(err.message, "'a.detail'"))
            fail_msg("'%s' does not say '%s'", err.message, cases[i].what);
    }
}

/* White space, another key order and keys of others are JSON too. */
static void other_layout(void **state) {
    (void)state;
    ts_census a, b;
    ts_error err = {0};
    write_small("a.json", 1);
    edit(
        "a.json", "{\"num_layers\":3,",
        "{ \"x\\u00e9\\n\" : [ {\"a\":[true,false,null,{\"b\":{}}],\"c\":-1.5E-3} , \"\\\"\" ] ,\n",
        "t");
    edit("t", "]]}", "]] ,\t\"num_layers\" :3 }\r\n ", "b.json");
    make_ok(ts_census_read("a.json", &a, NULL, &err), &err);
    make_ok(ts_census_read("b.json", &b, NULL, &err), &err);
    assert_int_equal(a.decode_passes, b.decode_passes);
    assert_memory_equal(a.dense[0].bucket_count, b.dense[0].bucket_count,
                        sizeof a.dense[0].bucket_count);
    assert_true(a.partial);
    ts_census_free(&a);
    ts_census_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(edited_json, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(mutated_json, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(mutated_detail, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(mutated_meta, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(of_another_file, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(edited_detail, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(other_layout, tmp_setup, tmp_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
