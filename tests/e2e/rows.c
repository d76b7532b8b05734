/* Captured rows for the end-to-end tests. */
#include "rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rows_read(const char *path, rows *out) {
    ts_error err = {0};
    ts_capture_file *f;
    memset(out, 0, sizeof(*out));
    e2e_ok(ts_capture_open(path, &f, &out->shape, &err), &err);
    size_t n = (size_t)out->shape.n_snapshots, row = (size_t)out->shape.n_layers * (size_t)out->shape.n_hidden;
    out->data = calloc(n * row + 1, sizeof(float));
    out->positions = calloc(n + 1, sizeof(*out->positions));
    assert_non_null(out->data);
    assert_non_null(out->positions);
    for (size_t i = 0; i < n; i++) {
        e2e_ok(ts_capture_read(f, (int64_t)i, out->data + i * row, &err), &err);
        out->positions[i] = ts_capture_position(f, (int64_t)i);
    }
    ts_capture_close(f);
}

void rows_free(rows *r) {
    free(r->data);
    free(r->positions);
    memset(r, 0, sizeof(*r));
}

const float *rows_at(const rows *r, int64_t snapshot, int32_t layer) {
    return r->data + (snapshot * r->shape.n_layers + layer) * r->shape.n_hidden;
}

double rows_error(const float *a, const float *b, int32_t n) {
    double difference = 0, size = 0;
    for (int32_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    double error = sqrt(difference / size);
    return isfinite(error) ? error : 1e30;
}

double rows_worst(const rows *a, const rows *b) {
    double worst = 0;
    assert_int_equal(a->shape.n_snapshots, b->shape.n_snapshots);
    assert_int_equal(a->shape.n_layers, b->shape.n_layers);
    assert_int_equal(a->shape.n_hidden, b->shape.n_hidden);
    for (int64_t i = 0; i < a->shape.n_snapshots; i++)
        for (int32_t l = 0; l < a->shape.n_layers; l++) {
            double error = rows_error(rows_at(a, i, l), rows_at(b, i, l), a->shape.n_hidden);
            if (error > worst) worst = error;
        }
    return worst;
}

void rows_assert_same(const rows *a, const rows *b) {
    size_t n = (size_t)a->shape.n_snapshots * (size_t)a->shape.n_layers * (size_t)a->shape.n_hidden;
    assert_int_equal(a->shape.n_snapshots, b->shape.n_snapshots);
    assert_memory_equal(a->data, b->data, n * sizeof(float));
}

/* ---- what .meta says */

json_t *rows_meta(const char *path) {
    char meta[1024];
    json_error_t why;
    size_t stem = strlen(path) - strlen(".json");
    snprintf(meta, sizeof(meta), "%.*s.meta", (int)stem, path);
    json_t *v = json_load_file(meta, 0, &why);
    if (!v) print_error("%s: %s\n", meta, why.text);
    assert_non_null(v);
    return v;
}

void rows_check_meta(const char *path, const rows *r, const json_t *prompts) {
    json_t *meta = rows_meta(path);
    const json_t *generations = json_object_get(meta, "generations");
    assert_int_equal(json_array_size(generations), json_array_size(prompts));
    assert_int_equal(r->shape.n_snapshots, json_array_size(prompts));
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *g = json_array_get(generations, i), *ids = json_array_get(prompts, i);
        size_t last = json_array_size(ids) - 1;
        assert_int_equal(json_integer_value(json_object_get(g, "prompt_index")), i);
        assert_int_equal(json_integer_value(json_object_get(g, "position")), last);
        assert_int_equal(r->positions[i], last);
        assert_int_equal(json_integer_value(json_object_get(g, "token")), json_integer_value(json_array_get(ids, last)));
        assert_true(json_equal(json_object_get(g, "prompt_tokens"), ids));
    }
    json_decref(meta);
}

/* ---- prompt lists */

json_t *prompts_ids(const size_t *lengths, size_t n, int32_t n_vocab, unsigned seed) {
    json_t *prompts = json_array();
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; i++) {
        json_t *ids = json_array();
        for (size_t k = 0; k < lengths[i]; k++) {
            state = state * 1664525u + 1013904223u;
            json_array_append_new(ids, json_integer((state >> 8) % (uint32_t)n_vocab));
        }
        json_array_append_new(prompts, ids);
    }
    return prompts;
}

const char *prompts_write(const json_t *prompts, const char *name) {
    const char *path = e2e_path(name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        fputs("{\"token_ids\": ", f);
        json_dumpf(json_array_get(prompts, i), f, 0);
        fputs("}\n", f);
    }
    assert_int_equal(fclose(f), 0);
    return path;
}

int32_t *prompts_tokens(const json_t *prompt, size_t *n) {
    *n = json_array_size(prompt);
    int32_t *tokens = calloc(*n + 1, sizeof(*tokens));
    assert_non_null(tokens);
    for (size_t i = 0; i < *n; i++) tokens[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    return tokens;
}

/* ---- captures */

int rows_capture(const ts_session_options *so, const ts_capture_options *co, ts_capture_result *result, ts_error *err) {
    ts_session *s = e2e_open(so);
    int rc = ts_capture_run(s, co, result, err);
    ts_session_close(s);
    return rc;
}

void rows_make(const ts_session_options *so, const char *input, bool exact, const char *name, rows *out) {
    ts_error err = {0};
    ts_capture_options co = TS_OPTIONS_INIT(ts_capture_options);
    co.input_path = input;
    co.output_path = e2e_path(name);
    co.exact = exact;
    co.overwrite = true;
    e2e_ok(rows_capture(so, &co, NULL, &err), &err);
    rows_read(co.output_path, out);
}
