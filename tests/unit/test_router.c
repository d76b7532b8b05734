/* The routing census' files: what is written is read back, sums are exact, the CSV keeps the pass order; and files that are
 * damaged, edited or hostile give one line with the file and what is wrong. */
#include "test_core_tmp.h"

#include <stdbool.h>

#include "core/mem.h"
#include "instrument/analyze_router.h"
#include "store/router.h"

#define FAILED(rc, err) fail_msg("%d: %s", (rc), (err).message)

static uint32_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* Three layers: 5 experts of which 2, none, 7 of which 2; the last runs no prefill rows. A prime number of tokens in all. */
static void make(ts_router *r, bool traced, bool gated, uint64_t seed) {
    static const uint64_t generations[][2] = {{4, 3}, {0, 5}, {7, 4}};
    ts_error err = {0};
    assert_int_equal(ts_router_init(r, 3, traced, &err), TS_OK);
    assert_int_equal(ts_router_layer_init(&r->layers[0], 5, 2, gated, &err), TS_OK);
    assert_int_equal(ts_router_layer_init(&r->layers[2], 7, 2, gated, &err), TS_OK);
    for (size_t g = 0; g < 3; g++) {
        uint64_t rows[3][2] = {{generations[g][0], generations[g][1]}, {0, 0}, {0, generations[g][1]}};
        for (int i = 0; i < 3; i += 2)
            for (int p = 0; p < 2; p++)
                for (uint64_t t = 0; t < rows[i][p]; t++) {
                    int32_t ids[2] = {(int32_t)(next_random(&seed) % r->layers[i].n_experts), 0};
                    const float weights[2] = {0.7f, (float)next_random(&seed) * 0x1p-33f};
                    ids[1] = t == 1 && g == 0 ? ids[0] : (int32_t)((uint32_t)(ids[0] + 1) % r->layers[i].n_experts);
                    assert_int_equal(ts_router_count(&r->layers[i], (enum ts_router_phase)p, ids, weights, &err), TS_OK);
                    if (traced)
                        assert_int_equal(ts_router_trace(&r->layers[i], (const uint32_t *)ids, 2, &err), TS_OK);
                }
        assert_int_equal(ts_router_generation(r, &rows[0][0], &err), TS_OK);
    }
}

static void write_it(const ts_router *r, const char *path) {
    ts_error err = {0};
    int rc = ts_router_write(r, path, NULL, NULL, false, true, &err);
    if (rc != TS_OK)
        FAILED(rc, err);
}

static void read_it(const char *path, ts_router *r) {
    ts_error err = {0};
    int rc = ts_router_read(path, r, &err);
    if (rc != TS_OK)
        FAILED(rc, err);
}

static char *slurp(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    char *text = malloc(1 << 20);
    assert_non_null(f);
    assert_non_null(text);
    *n = fread(text, 1, (1 << 20) - 1, f);
    text[*n] = '\0';
    fclose(f);
    return text;
}

static void assert_same_files(const char *a, const char *b) {
    size_t n, m;
    char *x = slurp(a, &n), *y = slurp(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

/* ---- what is right */

static void test_round_trip(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        ts_router r, back;
        make(&r, i & 1, i & 2, 11 + (uint64_t)i);
        assert_int_equal(r.layers[0].duplicates, 2);
        write_it(&r, "a.json");
        read_it("a.json", &back);
        assert_int_equal(back.traced, i & 1);
        assert_true(back.split && back.n_generations == 3);
        write_it(&back, "b.json");
        assert_same_files("a.json", "b.json");
        ts_router_free(&r);
        ts_router_free(&back);
    }
    assert_int_equal(tmp_count(), 4);
}

static void test_layout(void **state) {
    (void)state;
    ts_router r;
    size_t n;
    make(&r, true, true, 3);
    write_it(&r, "a.json");
    char *text = slurp("a.json", &n);
    static const char *const order[] = {"{\"num_layers\":3,\"num_experts\":7,\"top_k\":2,\"counts\":[[", "],[],[", "\"trace\":[[",
                                        "\"format_version\":1", "\"rows\":[23,0,12]", "\"rows_prefill\":[11,0,0]",
                                        "\"rows_decode\":[12,0,12]", "\"generations\":3", "\"generation_rows\":[[4,3,0,5,7,4],[],[0,3,0,5,0,4]]}"};
    const char *at = text;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        at = strstr(at, order[i]);
        if (!at)
            fail_msg("no '%s' in its place in %s", order[i], text);
    }
    assert_null(strchr(text, '\n'));
    free(text);
    ts_router_free(&r);
}

static void test_sum(void **state) {
    (void)state;
    ts_error err = {0};
    ts_router a, b, sum;
    make(&a, true, true, 5);
    make(&b, true, true, 6);
    write_it(&a, "a.json");
    write_it(&b, "b.json");
    read_it("a.json", &sum);
    ts_router_free(&b);
    read_it("b.json", &b);
    assert_int_equal(ts_router_add(&sum, &b, &err), TS_OK);
    assert_int_equal(ts_router_check(&sum, &err), TS_OK);
    assert_int_equal(sum.n_generations, 6);
    assert_int_equal(ts_router_rows(&sum.layers[0]), 46);
    for (uint32_t e = 0; e < 7; e++)
        assert_int_equal(sum.layers[2].counts[1][e], a.layers[2].counts[1][e] + b.layers[2].counts[1][e]);
    write_it(&sum, "sum.json"); /* and through the command's own way */
    const char *paths[] = {"a.json", "b.json"};
    assert_int_equal(ts_merge(paths, 2, "merged.json", false, &err), TS_OK);
    assert_same_files("sum.json", "merged.json");
    ts_router_free(&a);
    make(&a, false, false, 7); /* less is known of a sum with less */
    assert_int_equal(ts_router_add(&sum, &a, &err), TS_OK);
    assert_true(!sum.traced && sum.layers[0].gate_mass == NULL);
    assert_int_equal(ts_router_check(&sum, &err), TS_OK);
    ts_router_free(&a);
    ts_router_free(&b);
    ts_router_free(&sum);
}

/* Another program's file: five keys, any order, spaces. */
static void test_plain(void **state) {
    (void)state;
    static const char text[] = "{ \"top_k\": 2, \"num_experts\": 4, \"num_layers\": 3,\n \"trace\": [[0, 1, 1, 3], [], [2, 3]],"
                               " \"counts\": [[1, 2, 0, 1], [], [0, 0, 1, 1]], \"else\": {\"a\": [1, null]} }\n";
    ts_router r;
    tmp_write("p.json", text, sizeof text - 1);
    read_it("p.json", &r);
    assert_true(!r.split && r.traced && !r.bounded);
    assert_int_equal(ts_router_rows(&r.layers[0]), 2);
    assert_int_equal(ts_router_rows(&r.layers[2]), 1);
    write_it(&r, "q.json");
    ts_router_free(&r);
    read_it("q.json", &r);
    assert_true(!r.split && r.traced);
    ts_router_free(&r);
}

static void test_csv(void **state) {
    (void)state;
    const ts_router_csv_options defaults = {0};
    ts_error err = {0};
    ts_router r, back;
    size_t n;
    make(&r, true, false, 9);
    assert_int_equal(ts_router_write_csv(&r, "a.csv", false, &err), TS_OK);
    assert_int_equal(ts_router_write_csv(&r, "a.csv", false, &err), TS_ERR_ARG);
    char *text = slurp("a.csv", &n);
    assert_true(strncmp(text, "layer,expert\n0,", 15) == 0);
    free(text);
    int rc = ts_router_read_csv("a.csv", &defaults, &back, &err);
    if (rc != TS_OK)
        FAILED(rc, err);
    for (int i = 0; i < 3; i += 2) { /* per layer the order is that of the trace */
        assert_int_equal(back.layers[i].n_trace, r.layers[i].n_trace);
        assert_memory_equal(back.layers[i].trace, r.layers[i].trace, r.layers[i].n_trace * sizeof(uint32_t));
        assert_int_equal(back.layers[i].n_experts, 7);
    }
    assert_int_equal(back.layers[1].n_experts, 0);
    ts_router_free(&back);
    ts_router_free(&r);
}

/* ---- what is wrong */

static void refuse(const char *path, const char *what) {
    ts_router r;
    ts_error err = {0};
    int rc = ts_router_read(path, &r, &err);
    if (rc != TS_ERR_FORMAT || !strstr(err.message, what) || !strstr(err.message, path) || strchr(err.message, '\n'))
        fail_msg("%d '%s', expected '%s' of '%s'", rc, err.message, what, path);
    assert_null(r.layers);
}

static void refuse_text(const char *text, const char *what) {
    tmp_write("e.json", text, strlen(text));
    refuse("e.json", what);
}

/* The file with the first `from` replaced by `to`. */
static void refuse_edit(const char *from, const char *to, const char *what) {
    size_t n;
    char *text = slurp("a.json", &n), *at = strstr(text, from), *out = malloc(n + strlen(to) + 1);
    assert_non_null(out);
    if (!at)
        fail_msg("no '%s' in %s", from, text);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    refuse_text(out, what);
    free(out);
    free(text);
}

static void test_edited(void **state) {
    (void)state;
    ts_router r;
    make(&r, true, true, 3);
    write_it(&r, "a.json");
    ts_router_free(&r);
    refuse_edit("\"num_layers\":3", "\"num_layers\":4", "has 3 layers, expected num_layers, 4");
    refuse_edit("\"num_layers\":3", "\"num_layers\":1e9", "expected a whole number");
    refuse_edit("\"num_layers\":3,", "", "it has no 'num_layers'");
    refuse_edit("\"num_experts\":7", "\"num_experts\":8", "num_experts is 8, its counts have 7");
    refuse_edit("\"top_k\":2", "\"top_k\":1", "a top_k of 2");
    refuse_edit("\"layer_top_k\":[2,0,2]", "\"layer_top_k\":[0,0,2]", "a top_k of 0");
    refuse_edit("\"layer_top_k\":[2,0,2]", "\"layer_top_k\":[1,0,2]", "layer 0: its prefill counts add up to 22, expected 11");
    refuse_edit("\"rows\":[23,0,12]", "\"rows\":[24,0,12]", "layer 0 has 24 rows, prefill and decode 23");
    refuse_edit("\"rows_decode\":[12,0,12]", "\"rows_decode\":[12,0,13]", "layer 2 has 12 rows, prefill and decode 13");
    refuse_edit("\"counts\":[[", "\"counts\":[[1", "layer 0: expert 0 has ");
    refuse_edit("\"counts\":[[", "\"counts\":[[NaN,", "expected a number, got 'N'");
    refuse_edit("\"counts\":[[", "\"counts\":[[-1,", "expected a whole number");
    refuse_edit("\"counts\":[[", "\"counts\":[[99999999999999999999,", "expected a whole number");
    refuse_edit("\"trace\":[[", "\"trace\":[[7,", "layer 0: the elements of its trace are 47, expected 46");
    refuse_edit("\"gate_mass\":[[", "\"gate_mass\":[[1e999,", "expected a number from 0");
    refuse_edit("\"gate_mass\":[[", "\"gate_mass\":[[0,", "gate_mass has 6 elements, expected 5");
    refuse_edit("\"duplicates\":[2", "\"duplicates\":[1", "its duplicates are 1, expected 2");
    refuse_edit("\"generation_rows\":[[4,3", "\"generation_rows\":[[5,3", "its generations' prefill rows add up to 12, expected 11");
    refuse_edit("\"generations\":3", "\"generations\":4", "generation_rows has 6 elements, expected 8");
    refuse_edit("\"generations\":3", "\"generations\":1152921504606846976", "are too many");
    refuse_edit("\"format_version\":1", "\"counts\":[]", "'counts' is there twice");
}

static void test_hostile(void **state) {
    (void)state;
    static const char deep[] = "{\"x\":[[[[[[[[[[[[[[[[[[[[";
    refuse_text("", "the file ends too early");
    refuse_text("[]", "expected '{', got '['");
    refuse_text("{}", "it has no 'num_layers'");
    refuse_text("not json", "expected '{'");
    refuse_text(deep, "nested deeper than");
    refuse_text("{\"num_layers\":1,\"num_experts\":0,\"top_k\":1,\"counts\":[[]]}", "no layer has experts");
    refuse_text("{\"num_layers\":1,\"num_experts\":2,\"top_k\":2,\"counts\":[[1,2]]}", "add up to 3, no multiple of top_k, 2");
    refuse_text("{\"num_layers\":1,\"num_experts\":2,\"top_k\":0,\"counts\":[[1,1]]}", "no multiple of top_k, 0");
    refuse_text("{\"num_layers\":1,\"num_experts\":2,\"top_k\":1,\"counts\":[[1152921504606846976,1]]}", "layer 0: its counts add up to more than 1152921504606846976");
    refuse_text("{\"num_layers\":1,\"num_experts\":2,\"top_k\":1,\"counts\":[[1,1]],\"trace\":[[0,0]]}", "its trace holds expert 0 2 times, its counts say 1");
    refuse_text("{\"num_layers\":1,\"num_experts\":2,\"top_k\":1,\"counts\":[[1,1]],\"trace\":[[0,5]]}", "is expert 5, it has 2");
    refuse_text("{\"num_layers\":2,\"num_experts\":2,\"top_k\":1,\"counts\":[[1,1],[]],\"trace\":[[0,1],[0]]}", "layer 1: trace has 1 element, expected 0");
    refuse_text("{\"num_layers\":1,\"num_experts\":2,\"top_k\":1,\"counts\":[[1,1]]} x", "expected the end of the file");
}

/* Every prefix of a good file, and every byte of it changed: an error of the right kind or, where the change is harmless, a
 * good reading; never a crash. */
static void test_cut_and_flipped(void **state) {
    (void)state;
    ts_router r, back;
    ts_error err = {0};
    size_t n;
    make(&r, true, true, 3);
    write_it(&r, "a.json");
    ts_router_free(&r);
    char *text = slurp("a.json", &n);
    for (size_t cut = 0; cut < n; cut++) {
        tmp_write("c.json", text, cut);
        assert_int_equal(ts_router_read("c.json", &back, &err), TS_ERR_FORMAT);
    }
    for (size_t at = 0; at < n; at++) {
        char was = text[at];
        text[at] = (char)(was == '0' ? '1' : was ^ 1);
        tmp_write("f.json", text, n);
        int rc = ts_router_read("f.json", &back, &err);
        assert_true(rc == TS_OK || rc == TS_ERR_FORMAT);
        if (rc == TS_OK)
            ts_router_free(&back);
        text[at] = was;
    }
    free(text);
}

static void test_meta(void **state) {
    (void)state;
    ts_router r, back;
    ts_error err = {0};
    size_t n;
    make(&r, false, true, 3);
    write_it(&r, "a.json");
    ts_router_free(&r);
    char *text = slurp("a.json", &n);
    char *at = strstr(text, "\"gate_mass\":[[0.7");
    if (!at)
        at = strstr(text, "\"gate_mass\":[[") ;
    char *digit = strchr(at, '.');
    digit[1] = digit[1] == '1' ? '2' : '1';
    tmp_write("a.json", text, n);
    assert_int_equal(ts_router_read("a.json", &back, &err), TS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "a.meta"));
    free(text);
}

static void refuse_csv(const char *text, const ts_router_csv_options *o, const char *what) {
    ts_router r;
    ts_error err = {0};
    tmp_write("e.csv", text, strlen(text));
    int rc = ts_router_read_csv("e.csv", o, &r, &err);
    if (rc != TS_ERR_FORMAT || !strstr(err.message, what) || !strstr(err.message, "e.csv"))
        fail_msg("%d '%s', expected '%s'", rc, err.message, what);
    assert_null(r.layers);
}

static void test_csv_wrong(void **state) {
    (void)state;
    const ts_router_csv_options none = {0}, two = {.top_k = 2}, few = {.n_experts = 3};
    refuse_csv("", &none, "no line");
    refuse_csv("layer,expert\n", &none, "no line");
    refuse_csv("layer,expert\n0,1\n0;2\n", &none, "line 3: expected 'layer,expert', two whole numbers");
    refuse_csv("0,1\n0,-2\n", &none, "line 2");
    refuse_csv("0,1\n0,2,3\n", &none, "line 2: expected 'layer,expert', two columns, got '0,2,3'");
    refuse_csv("0,1\n0\n", &none, "line 2: expected 'layer,expert', two whole numbers, got '0'");
    refuse_csv("0,nan\n", &none, "line 1: expected 'layer,expert', two whole numbers, got '0,nan'");
    refuse_csv("0,1.5\n", &none, "line 1: expected 'layer,expert', two whole numbers, got '0,1.5'");
    refuse_csv("0, 1\n", &none, "line 1: expected 'layer,expert', two whole numbers, got '0, 1'");
    refuse_csv("0,1\nlayer,expert\n", &none, "line 2: expected 'layer,expert', two whole numbers, got 'layer,expert'");
    refuse_csv("0,99999999999999999999999\n", &none, "line 1: expert 99999999999999999999999, expected 0 to 1048575");
    refuse_csv("0,1048576\n", &none, "line 1: expert 1048576, expected 0 to 1048575");
    refuse_csv("2048,1\n", &none, "line 1: layer 2048, expected 0 to 2047");
    refuse_csv("0,1\n\xEF\xBB\xBF" "0,1\n", &none, "line 2: expected");
    refuse_csv("0,1\n0,1\n1,2\n0,3\n0,4\n", &two, "line 4: before it stands 1 line of one layer, no multiple of 2 experts");
    refuse_csv("0,1\n0,2\n0,1\n0,2\n", &none, "at least 4 lines of one layer stand together, more than its 3 experts: say how many");
    refuse_csv("0,1048575\n1,0\n", &none, "2 layers of 1048576 experts are 2097152 counts, expected at most 1048576");
    refuse_csv("0,0\n0,0\n", &two, "has 1 expert, expected at least the 2 a token gets");
    refuse_csv("0,5\n", &few, "has expert 5, expected ids below 3");
    refuse_csv("0,111111111111111111111111111111111111111111111111111111111111111111111111111111111\n", &none, "line 1: a line of more than");
}

static void test_csv_nul(void **state) {
    (void)state;
    const ts_router_csv_options none = {0};
    ts_router r;
    ts_error err = {0};
    tmp_write("e.csv", "0,1\n0,2\0003\n", 10);
    assert_int_equal(ts_router_read_csv("e.csv", &none, &r, &err), TS_ERR_FORMAT);
    assert_string_equal(err.message, "'e.csv': line 2: a NUL byte, expected text");
    assert_int_equal(err.position, 2);
}

/* A spreadsheet's mark and line ends, with and without the header, no end at the last line. */
static void test_csv_spreadsheet(void **state) {
    (void)state;
    static const char *const texts[] = {"\xEF\xBB\xBFlayer,expert\r\n0,1\r\n0,2\r\n1,3\r\n1,0\r\n", "\xEF\xBB\xBF" "0,1\r\n0,2\r\n\r\n1,3\n1,0",
                                        "layer,expert\n0,1\n0,2\n1,3\n1,0\n"};
    const ts_router_csv_options two = {.top_k = 2};
    for (size_t i = 0; i < 3; i++) {
        ts_router r;
        ts_error err = {0};
        tmp_write("e.csv", texts[i], strlen(texts[i]));
        if (ts_router_read_csv("e.csv", &two, &r, &err) != TS_OK)
            fail_msg("%zu: %s", i, err.message);
        assert_int_equal(r.n_layers, 2);
        assert_int_equal(r.layers[1].n_experts, 4);
        assert_true(r.layers[1].trace[0] == 3 && r.layers[1].trace[1] == 0);
        ts_router_free(&r);
    }
}

static void test_top_k(void **state) {
    (void)state;
    refuse_text("{\"num_layers\":1,\"num_experts\":3,\"top_k\":4,\"counts\":[[1,1,2]]}", "top_k is 4, expected at most num_experts, 3");
    refuse_text("{\"num_layers\":2,\"num_experts\":3,\"top_k\":2,\"counts\":[[1,1,2],[4]]}", "layer 1: its top_k is 2, expected at most its 1 expert");
}

/* ---- the analysis */

static void test_analysis(void **state) {
    (void)state;
    ts_router a, b;
    ts_error err = {0};
    ts_route_analysis x;
    make(&a, true, true, 5);
    make(&b, false, true, 6);
    assert_int_equal(ts_route_analyze(&x, &a, &b, &err), TS_OK);
    assert_int_equal(x.n, 2);
    assert_int_equal(x.rows[1].block, 2);
    /* pairs stay within generations: layer 2 has 3, 5 and 4 rows, so none at lag 8, and windows of 4 in two of them */
    assert_true(x.rows[1].value[TS_ROUTE_LAG8] != x.rows[1].value[TS_ROUTE_LAG8]);
    assert_true(x.rows[1].value[TS_ROUTE_W4] == x.rows[1].value[TS_ROUTE_W4]);
    assert_true(x.rows[1].value[TS_ROUTE_W8] != x.rows[1].value[TS_ROUTE_W8]);
    assert_true(x.rows[0].uniform[TS_ROUTE_LAG1] == 2.0 / 5);
    assert_true(x.rows[0].rate[TS_ROUTE_CAPACITIES - 1][TS_CACHE_LRU] == 1.0);
    assert_true(x.rows[0].value[TS_ROUTE_JACCARD] >= 0.0 && x.rows[0].value[TS_ROUTE_JACCARD] <= 1.0);
    ts_route_analysis_free(&x);
    ts_router_free(&a);
    ts_router_free(&b);
}

static void test_commands(void **state) {
    (void)state;
    ts_router r;
    ts_error err = {0};
    char *text = NULL;
    make(&r, true, true, 5);
    write_it(&r, "a.json");
    ts_router_free(&r);
    const char *paths[] = {"a.json", "a.json"};
    ts_analyze_options o = TS_OPTIONS_INIT(ts_analyze_options);
    o.paths = paths;
    o.n_paths = 2;
    o.against = paths;
    o.n_against = 1;
    assert_int_equal(ts_analyze(&o, &text, &err), TS_OK);
    assert_non_null(strstr(text, "6 generations"));
    for (const char *line = text; *line;) {
        const char *end = strchr(line, '\n');
        assert_non_null(end);
        assert_true(end - line < 80);
        line = end + 1;
    }
    ts_free(text);
    o.as_json = true;
    assert_int_equal(ts_analyze(&o, &text, &err), TS_OK);
    assert_non_null(strstr(text, "\"jaccard\": {\"value\": 1, "));
    ts_free(text);
    assert_int_equal(ts_inspect("a.json", false, &text, &err), TS_OK);
    ts_free(text);
    assert_int_equal(ts_inspect("a.meta", false, &text, &err), TS_OK);
    ts_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_layout, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_sum, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_plain, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_csv, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_edited, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_hostile, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_cut_and_flipped, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_meta, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_csv_wrong, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_csv_nul, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_csv_spreadsheet, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_top_k, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_analysis, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(test_commands, tmp_setup, tmp_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
