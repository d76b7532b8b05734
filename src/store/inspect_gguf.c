/* Reports on GGUF files: control vectors direction by direction, models by name. Refuses a control
 * vector that could not be applied: no direction, direction.0, another type, unequal widths, a
 * direction given twice. */
#include "store/inspect_internal.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "store/inspect_gguf_index.h"
#include "store/meta_stream.h"

typedef struct direction {
    int32_t number; /* N of direction.N */
    uint64_t begin;
    double norm;
    float max_abs;
    uint64_t nonfinite;
} direction;

static void report_key(const ts_gguf_key *k, ts_report *r) {
    if (k->text != NULL)
        ts_report_text(r, k->name, "%s", k->text);
    else if (k->type == TS_GGUF_ARRAY)
        ts_report_text(r, k->name, "an array");
    else if (k->type != TS_GGUF_F32 && k->type != TS_GGUF_F64)
        ts_report_int(r, k->name, k->integer);
    else
        ts_report_text(r, k->name, "%.9g", k->real);
}

static bool is_other_intervention(const char *name) {
    return strcmp(name, "glp.mode") == 0 || strncmp(name, "dspark.", 7) == 0;
}

static int report_model(const char *path, const ts_gguf_index *g, ts_report *r) {
    const char *architecture = ts_gguf_text(g, "general.architecture"),
               *name = ts_gguf_text(g, "general.name");
    ts_report_begin(r, "model", "model", path);
    ts_report_text(r, "architecture", "%s", architecture ? architecture : "not named");
    ts_report_text(r, "name", "%s", name ? name : "not named");
    ts_report_int(r, "tensors", (int64_t)g->n_tensors);
    ts_report_int(r, "keys", (int64_t)g->n_keys);
    ts_report_int(r, "gguf_version", g->version);
    ts_report_int(r, "file_bytes", (int64_t)g->size);
    ts_report_line(r, "  not a result of turbospark: a model to run with -m");
    ts_report_end(r);
    return TS_OK;
}

static int parse_direction(const ts_gguf_tensor *t, int64_t width, direction *d, ts_error *err) {
    static const char prefix[] = "direction.";
    const char *digits = t->name + sizeof prefix - 1;
    if (strncmp(t->name, prefix, sizeof prefix - 1) != 0 || digits[0] == '\0' ||
        strlen(digits) > 6 || digits[strspn(digits, "0123456789")] != '\0')
        return ts_fail(err, TS_ERR_FORMAT, "tensor '%s' is not one of 'direction.N'", t->name);
    d->number = (int32_t)strtol(digits, NULL, 10);
    if (d->number == 0)
        return ts_fail(err, TS_ERR_FORMAT, "'%s': directions are numbered from 1", t->name);
    if (t->type != TS_GGUF_TENSOR_F32)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' has tensor type %" PRIu32 ", expected F32",
                       t->name, t->type);
    if (t->shape[0] < 1 || t->shape[1] != 1 || t->shape[2] != 1 || t->shape[3] != 1)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' is not one-dimensional", t->name);
    if (t->shape[0] != width)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s' has width %" PRId64 ", expected %" PRId64 " as the first", t->name,
                       t->shape[0], width);
    d->begin = t->begin;
    return TS_OK;
}

static int by_number(const void *a, const void *b) {
    const direction *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

static int measure(FILE *f, int64_t width, direction *d, ts_error *err) {
    float chunk[1024];
    double sum = 0;
    if (fseeko(f, (off_t)d->begin, SEEK_SET) != 0)
        return ts_fail_errno(err, TS_ERR_IO, "cannot read");
    for (int64_t left = width; left > 0;) {
        size_t n = left < 1024 ? (size_t)left : 1024;
        int rc = ts_stream_read(f, chunk, n * sizeof *chunk, err);
        if (rc < 0)
            return rc;
        for (size_t i = 0; i < n; i++) {
            float a = fabsf(chunk[i]);
            if (!(a <= FLT_MAX)) {
                d->nonfinite++;
                continue;
            }
            sum += (double)a * (double)a;
            if (a > d->max_abs)
                d->max_abs = a;
        }
        left -= (int64_t)n;
    }
    d->norm = sqrt(sum);
    return TS_OK;
}

/* All directions in order of N, with their norms. */
static int read_directions(const char *path, const ts_gguf_index *g, direction *d, ts_error *err) {
    size_t n = (size_t)g->n_tensors;
    FILE *f;
    int rc = TS_OK;
    for (size_t i = 0; rc == TS_OK && i < n; i++)
        rc = parse_direction(&g->tensors[i], g->tensors[0].shape[0], &d[i], err);
    if (rc < 0)
        return rc;
    qsort(d, n, sizeof *d, by_number);
    for (size_t i = 1; i < n; i++)
        if (d[i].number == d[i - 1].number)
            return ts_fail(err, TS_ERR_FORMAT, "'direction.%" PRId32 "' is there twice",
                           d[i].number);
    rc = ts_stream_open(path, &f, NULL, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == TS_OK && i < n; i++)
        rc = measure(f, g->tensors[0].shape[0], &d[i], err);
    fclose(f);
    return rc;
}

static void report_directions(const direction *d, size_t n, int32_t base, ts_report *r) {
    ts_report_table(r, "directions",
                    "  direction  block           norm        max |x|    non-finite");
    for (size_t i = 0; i < n; i++) {
        int32_t block = base == 0 ? d[i].number - 1 : d[i].number;
        ts_report_row(r, i == 0);
        if (r->json)
            ts_buf_printf(&r->b,
                          "{\"direction\": %" PRId32 ", \"block\": %" PRId32 ", \"norm\": %.9g, "
                          "\"max_abs\": %.9g, \"nonfinite\": %" PRIu64 "}",
                          d[i].number, block, d[i].norm, (double)d[i].max_abs, d[i].nonfinite);
        else
            ts_buf_printf(&r->b, "  %9" PRId32 "  %5" PRId32 "  %13.6g  %13.6g  %12" PRIu64 "\n",
                          d[i].number, block, d[i].norm, (double)d[i].max_abs, d[i].nonfinite);
    }
    ts_report_table_end(r);
}

/* What an integer key may be; other writers store counts as i32 or u32. */
static int check_key(const ts_gguf_index *g, const char *name, int64_t max, int64_t *out,
                     ts_error *err) {
    const ts_gguf_key *k = ts_gguf_find(g, name);
    if (k == NULL)
        return TS_OK;
    if (k->type != TS_GGUF_I32 && k->type != TS_GGUF_U32)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' is not an i32 or u32", name);
    if (k->integer < 0 || k->integer > max)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' is %" PRId64 ", expected 0 to %" PRId64, name,
                       k->integer, max);
    *out = k->integer;
    return TS_OK;
}

static void report_vector(const char *path, const ts_gguf_index *g, const direction *d,
                          int64_t base, ts_report *r) {
    size_t n = (size_t)g->n_tensors;
    ts_report_begin(r, "control_vector", "control vector", path);
    ts_report_int(r, "n_directions", (int64_t)n);
    ts_report_int(r, "width", g->tensors[0].shape[0]);
    ts_report_int(r, "layer_base", base);
    for (size_t i = 0; i < g->n_kept; i++)
        if (strncmp(g->keys[i].name, "general.", 8) != 0)
            report_key(&g->keys[i], r);
    for (size_t i = 0; i < g->n_kept; i++)
        if (is_other_intervention(g->keys[i].name))
            ts_report_line(r, "  '%s' declares another intervention: it is not steered with here",
                           g->keys[i].name);
    if (ts_gguf_find(g, "turbospark.mode") == NULL)
        ts_report_line(r, "  declares no mode: steering has to be told one");
    report_directions(d, n, (int32_t)base, r);
    ts_report_end(r);
}

static int inspect_vector(const char *path, const ts_gguf_index *g, ts_report *r, ts_error *err) {
    int64_t count = 0, base = 1;
    direction *d = NULL;
    int rc = TS_OK;
    if (g->n_tensors == 0)
        rc = ts_fail(err, TS_ERR_FORMAT, "it has no direction");
    if (rc == TS_OK)
        rc = check_key(g, "controlvector.layer_count", INT32_MAX, &count, err);
    if (rc == TS_OK)
        rc = check_key(g, "turbospark.layer_base", 1, &base, err);
    if (rc == TS_OK && (d = ts_calloc((size_t)g->n_tensors, sizeof *d)) == NULL)
        rc = ts_fail_nomem(err, "directions", (size_t)g->n_tensors * sizeof *d);
    if (rc == TS_OK)
        rc = read_directions(path, g, d, err);
    if (rc == TS_OK)
        report_vector(path, g, d, base, r);
    else
        ts_error_prefix(err, "control vector '%s': ", path);
    ts_free(d);
    return rc;
}

int ts_inspect_gguf(const char *path, ts_report *r, ts_error *err) {
    ts_gguf_index g;
    int rc = ts_gguf_index_read(path, &g, err);
    if (rc < 0)
        return rc;
    rc = g.tensors != NULL ? inspect_vector(path, &g, r, err) : report_model(path, &g, r);
    ts_gguf_index_free(&g);
    return rc;
}
