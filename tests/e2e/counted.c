/* Censuses for the end-to-end tests. */
#include "counted.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void counted_slurp(const char *path, counted_files *out) {
    static const char *const extensions[] = {"json", "detail", "meta", "trace"};
    char name[1024];
    size_t stem = strlen(path) - strlen("json");
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < COUNTED_FILES; i++) {
        assert_true((size_t)snprintf(name, sizeof(name), "%.*s%s", (int)stem, path, extensions[i]) < sizeof(name));
        if (i != COUNTED_TRACE || access(name, F_OK) == 0) out->bytes[i] = e2e_slurp(name, &out->n[i]);
    }
}

void counted_assert_same(const counted_files *a, const counted_files *b) {
    for (int i = 0; i < COUNTED_FILES; i++) {
        assert_int_equal(a->bytes[i] != NULL, b->bytes[i] != NULL);
        assert_int_equal(a->n[i], b->n[i]);
        if (a->bytes[i]) assert_memory_equal(a->bytes[i], b->bytes[i], a->n[i]);
    }
}

void counted_free(counted_files *f) {
    for (int i = 0; i < COUNTED_FILES; i++) free(f->bytes[i]);
    memset(f, 0, sizeof(*f));
}

int counted_run(const ts_session_options *so, const ts_census_options *co, ts_census_result *result, ts_error *err) {
    ts_session *s = e2e_open(so);
    int rc = ts_census_run(s, co, result, err);
    ts_session_close(s);
    return rc;
}

json_t *counted_make(const ts_session_options *so, ts_census_options co, const char *name, ts_census_result *result) {
    ts_error err = {0};
    json_error_t at;
    char path[1024];
    snprintf(path, sizeof(path), "%s", e2e_path(name));
    co.output_path = path;
    co.overwrite = true;
    e2e_ok(counted_run(so, &co, result, &err), &err);
    assert_false(result->partial);
    json_t *census = json_load_file(path, 0, &at);
    if (!census) print_error("%s:%d: %s\n", path, at.line, at.text);
    assert_non_null(census);
    counted_check(census, (int64_t)result->decode_passes, (int64_t)result->prefill_passes, (int64_t)result->overlap_pairs);
    return census;
}

int64_t counted_int(const json_t *census, const char *key) {
    const json_t *v = json_object_get(census, key);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

size_t counted_width(const json_t *census, size_t block) {
    return json_array_size(json_array_get(json_object_get(census, "mass"), block));
}

int64_t counted_bucket(const json_t *census, size_t block, size_t bucket) {
    return json_integer_value(json_array_get(json_array_get(json_object_get(census, "hist_count"), block), bucket));
}

static void check_block(const json_t *census, size_t block, int64_t decode, int64_t pairs) {
    const json_t *hits = json_array_get(json_object_get(census, "overlap_hits"), block);
    const json_t *ks = json_object_get(census, "overlap_ks");
    size_t width = counted_width(census, block);
    int64_t sum = 0;
    for (size_t b = 0; b < 64; b++) sum += counted_bucket(census, block, b);
    assert_int_equal(sum, decode * (int64_t)width);
    assert_int_equal(json_array_size(json_array_get(json_object_get(census, "hist_count"), block)), width ? 64 : 0);
    assert_int_equal(json_array_size(json_array_get(json_object_get(census, "hist_mass"), block)), width ? 64 : 0);
    assert_int_equal(json_array_size(hits), width ? 4 : 0);
    for (size_t k = 0; k < json_array_size(hits); k++)
        assert_true(json_integer_value(json_array_get(hits, k)) <= pairs * json_integer_value(json_array_get(ks, k)));
}

void counted_check(const json_t *census, int64_t decode, int64_t prefill, int64_t pairs) {
    assert_int_equal(counted_int(census, "decode_passes"), decode);
    assert_int_equal(counted_int(census, "prefill_passes"), prefill);
    assert_int_equal(counted_int(census, "overlap_pairs"), pairs);
    int64_t n = counted_int(census, "num_layers"), widest = 0;
    for (size_t block = 0; block < (size_t)n; block++) {
        check_block(census, block, decode, pairs);
        if ((int64_t)counted_width(census, block) > widest) widest = (int64_t)counted_width(census, block);
    }
    assert_int_equal(counted_int(census, "inter"), widest);
}

static double block_error(const json_t *a, const json_t *b) {
    double difference = 0, size = 0;
    assert_int_equal(json_array_size(a), json_array_size(b));
    if (json_array_size(b) == 0) return 0;
    for (size_t i = 0; i < json_array_size(b); i++) {
        double x = json_number_value(json_array_get(a, i)), y = json_number_value(json_array_get(b, i));
        difference += (x - y) * (x - y);
        size += y * y;
    }
    double error = sqrt(difference / size);
    return isfinite(error) ? error : 1e30;
}

double counted_error(const json_t *a, const json_t *b) {
    const json_t *blocks_a = json_object_get(a, "mass"), *blocks_b = json_object_get(b, "mass");
    double worst = 0;
    assert_int_equal(json_array_size(blocks_a), json_array_size(blocks_b));
    for (size_t i = 0; i < json_array_size(blocks_b); i++) {
        double error = block_error(json_array_get(blocks_a, i), json_array_get(blocks_b, i));
        if (error > worst) worst = error;
    }
    return worst;
}
