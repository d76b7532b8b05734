/* Reads a control vector through the index of its header (inspect_gguf_index.h), which has checked
 * every length against the file. Here: what the keys and tensors mean, and whether they may be
 * used. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "store/cvec.h"
#include "store/cvec_names.h"
#include "store/inspect_gguf_index.h"
#include "store/meta_stream.h"
#include "store/resid_out.h"

static int check_kind(const ts_gguf_index *g, ts_error *err) {
    const ts_gguf_key *k = ts_gguf_find(g, "general.architecture");

    if (!k || !k->text)
        return ts_fail(err, TS_ERR_FORMAT, "expected a control vector, it names no architecture");
    if (strcmp(k->text, TS_CVEC_ARCHITECTURE) != 0)
        return ts_fail(err, TS_ERR_FORMAT,
                       "expected a control vector, it is a model of architecture '%.100s'",
                       k->text);
    if (g->intervention[0])
        return ts_fail(err, TS_ERR_FORMAT,
                       "it declares another intervention ('%s'), which is not steering along a "
                       "direction",
                       g->intervention);
    if (g->n_keys > TS_CVEC_MAX_KEYS)
        return ts_fail(err, TS_ERR_FORMAT, "expected at most %d keys, got %" PRIu64,
                       TS_CVEC_MAX_KEYS, g->n_keys);
    for (size_t i = 0; i < g->n_kept; i++)
        if (ts_gguf_find(g, g->keys[i].name) != &g->keys[i])
            return ts_fail(err, TS_ERR_FORMAT, "key '%s' is there twice", g->keys[i].name);
    return TS_OK;
}

static int take_text(const ts_gguf_index *g, const char *name, char **out, ts_error *err) {
    const ts_gguf_key *k = ts_gguf_find(g, name);

    if (!k)
        return TS_OK;
    if (k->type != TS_GGUF_STRING || !k->text)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' is not a string", name);
    *out = ts_strdup(k->text);
    return *out ? TS_OK : ts_fail_nomem(err, "a key", strlen(k->text));
}

/* Writers disagree on the sign of counts. */
static int take_count(const ts_gguf_index *g, const char *name, int64_t max, int64_t *out,
                      ts_error *err) {
    const ts_gguf_key *k = ts_gguf_find(g, name);

    if (!k)
        return TS_OK;
    if (k->type != TS_GGUF_I32 && k->type != TS_GGUF_U32)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' is not an i32 or u32", name);
    if (k->integer < 0 || k->integer > max)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' is %" PRId64 ", expected 0 to %" PRId64, name,
                       k->integer, max);
    *out = k->integer;
    return TS_OK;
}

static int take_keys(const ts_gguf_index *g, ts_cvec *c, ts_error *err) {
    int64_t base = 1;
    int rc;

    c->layer_count = -1;
    if ((rc = take_count(g, TS_CVEC_LAYER_COUNT, INT32_MAX, &c->layer_count, err)) ||
        (rc = take_count(g, TS_CVEC_LAYER_BASE, 1, &base, err)) ||
        (rc = take_text(g, TS_CVEC_MODEL_HINT, &c->model_hint, err)) ||
        (rc = take_text(g, TS_CVEC_EXTRACTION, &c->extraction, err)) ||
        (rc = take_text(g, TS_CVEC_MODE, &c->mode, err)) ||
        (rc = take_text(g, TS_CVEC_HOOK, &c->hook, err)) ||
        (rc = take_text(g, TS_CVEC_MODEL_HASH, &c->model_hash, err)))
        return rc;
    c->layer_base = (int32_t)base;
    if (c->mode && !ts_cvec_mode_known(c->mode))
        return ts_fail(err, TS_ERR_FORMAT,
                       "'" TS_CVEC_MODE "' is '%.100s', expected ablate, add, clamp or renorm",
                       c->mode);
    if (c->hook && strcmp(c->hook, TS_RESID_HOOK) != 0)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'" TS_CVEC_HOOK "' is '%.200s', expected '" TS_RESID_HOOK "'", c->hook);
    return TS_OK;
}

/* N of direction.N: digits without a sign or a leading zero, so that no block has two names. */
static int take_number(const ts_gguf_tensor *t, int32_t *out, ts_error *err) {
    static const char prefix[] = "direction.";
    const char *digits = t->name + sizeof prefix - 1;

    if (strncmp(t->name, prefix, sizeof prefix - 1) != 0 || !*digits || strlen(digits) > 6 ||
        digits[strspn(digits, "0123456789")])
        return ts_fail(err, TS_ERR_FORMAT, "tensor '%s' is not one of 'direction.N'", t->name);
    if (*digits == '0')
        return ts_fail(err, TS_ERR_FORMAT, "'%s': directions are numbered from 1", t->name);
    *out = (int32_t)strtol(digits, NULL, 10);
    return TS_OK;
}

static int check_tensor(const ts_gguf_tensor *t, const ts_gguf_tensor *first, ts_error *err) {
    if (t->type != TS_GGUF_TENSOR_F32)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' has tensor type %" PRIu32 ", expected F32",
                       t->name, t->type);
    if (t->shape[0] < 1 || t->shape[0] > INT32_MAX || t->shape[1] != 1 || t->shape[2] != 1 ||
        t->shape[3] != 1)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' is not one-dimensional", t->name);
    if (t->shape[0] != first->shape[0])
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s' has width %" PRId64 ", expected %" PRId64 " as the first", t->name,
                       t->shape[0], first->shape[0]);
    return TS_OK;
}

typedef struct entry {
    int32_t number;
    uint64_t begin;
} entry;

static int by_number(const void *x, const void *y) {
    int32_t a = ((const entry *)x)->number, b = ((const entry *)y)->number;

    return (a > b) - (a < b);
}

/* Names and shapes, in order of N. */
static int take_entries(const ts_gguf_index *g, entry *e, ts_error *err) {
    size_t n = (size_t)g->n_tensors;

    for (size_t i = 0; i < n; i++) {
        int rc = take_number(&g->tensors[i], &e[i].number, err);

        if (!rc)
            rc = check_tensor(&g->tensors[i], &g->tensors[0], err);
        if (rc)
            return rc;
        e[i].begin = g->tensors[i].begin;
    }
    qsort(e, n, sizeof *e, by_number);
    for (size_t i = 1; i < n; i++)
        if (e[i].number == e[i - 1].number)
            return ts_fail(err, TS_ERR_FORMAT, "'direction.%" PRId32 "' is there twice",
                           e[i].number);
    return TS_OK;
}

static int take_row(FILE *f, const entry *e, int32_t width, float *d, ts_error *err) {
    bool zero = true;
    int rc;

    if (fseeko(f, (off_t)e->begin, SEEK_SET) != 0)
        return ts_fail_errno(err, TS_ERR_IO, "cannot read");
    rc = ts_stream_read(f, d, (size_t)width * sizeof *d, err);
    if (rc)
        return rc;
    for (int32_t j = 0; j < width; j++) {
        if (!isfinite(d[j]))
            return ts_fail(err, TS_ERR_FORMAT,
                           "'direction.%" PRId32 "' is not finite: value %" PRId32 " is %g",
                           e->number, j, (double)d[j]);
        zero = zero && d[j] == 0;
    }
    if (zero)
        return ts_fail(err, TS_ERR_FORMAT, "'direction.%" PRId32 "' is zero", e->number);
    return TS_OK;
}

static int take_rows(const char *path, const entry *e, ts_cvec *c, ts_error *err) {
    FILE *f;
    int rc = ts_stream_open(path, &f, NULL, err);

    if (rc)
        return rc;
    for (int32_t i = 0; !rc && i < c->n; i++) {
        c->block[i] = c->layer_base == 0 ? e[i].number - 1 : e[i].number;
        rc = take_row(f, &e[i], c->width, c->d + (size_t)i * (size_t)c->width, err);
    }
    fclose(f);
    return rc;
}

static int take_directions(const char *path, const ts_gguf_index *g, ts_cvec *c, ts_error *err) {
    size_t n = (size_t)g->n_tensors, width, bytes;
    entry *e = NULL;
    int rc = TS_OK;

    if (n == 0 || n > TS_CVEC_MAX_BLOCK + 1)
        return ts_fail(err, TS_ERR_FORMAT, "expected 1 to %d directions, got %" PRIu64,
                       TS_CVEC_MAX_BLOCK + 1, g->n_tensors);
    e = ts_calloc(n, sizeof *e);
    if (!e)
        return ts_fail_nomem(err, "directions", n * sizeof *e);
    rc = take_entries(g, e, err);
    if (rc)
        goto cleanup;
    width = (size_t)g->tensors[0].shape[0];
    /* each lies within the file, but they could all lie in one place */
    if (__builtin_mul_overflow(n, width * sizeof(float), &bytes) || bytes > g->size) {
        rc = ts_fail(err, TS_ERR_FORMAT,
                     "its directions overlap: %zu of %zu values do not fit %" PRIu64 " bytes", n,
                     width, g->size);
        goto cleanup;
    }
    c->n = (int32_t)n;
    c->width = (int32_t)width;
    c->block = ts_malloc(n * sizeof *c->block);
    c->d = ts_malloc(bytes);
    rc = c->block && c->d ? take_rows(path, e, c, err) : ts_fail_nomem(err, "directions", bytes);
cleanup:
    ts_free(e);
    return rc;
}

int ts_cvec_read(const char *path, ts_cvec **out, ts_error *err) {
    ts_gguf_index g;
    ts_cvec *c = NULL;
    int rc = ts_gguf_index_read(path, &g, err);

    *out = NULL;
    if (rc)
        return rc;
    rc = check_kind(&g, err);
    if (!rc && !(c = ts_calloc(1, sizeof *c)))
        rc = ts_fail_nomem(err, "a control vector", sizeof *c);
    if (!rc)
        rc = take_keys(&g, c, err);
    if (!rc)
        rc = take_directions(path, &g, c, err);
    ts_gguf_index_free(&g);
    if (rc) {
        ts_error_prefix(err, "'%s': ", path);
        ts_cvec_free(c);
        return rc;
    }
    *out = c;
    return TS_OK;
}

void ts_cvec_free(ts_cvec *c) {
    if (!c)
        return;
    ts_free(c->block);
    ts_free(c->d);
    ts_free(c->model_hint);
    ts_free(c->extraction);
    ts_free(c->mode);
    ts_free(c->hook);
    ts_free(c->model_hash);
    ts_free(c);
}

const float *ts_cvec_find(const ts_cvec *c, int32_t block) {
    for (int32_t i = 0; i < c->n && c->block[i] <= block; i++)
        if (c->block[i] == block)
            return c->d + (size_t)i * (size_t)c->width;
    return NULL;
}

int ts_cvec_check_model(const ts_cvec *c, const char *path, const ts_cvec_model *m,
                        bool *hint_differs, ts_error *err) {
    int32_t last = c->block[c->n - 1];

    if (hint_differs)
        *hint_differs =
            c->model_hint && m->architecture && strcmp(c->model_hint, m->architecture) != 0;
    if (c->width != m->width)
        return ts_fail(err, TS_ERR_MODEL,
                       "'%s' has directions of width %" PRId32 ", the model's is %" PRId32, path,
                       c->width, m->width);
    if (last >= m->n_blocks)
        return ts_fail(err, TS_ERR_MODEL,
                       "'%s' has a direction for block %" PRId32 ", the model's last is %" PRId32,
                       path, last, m->n_blocks - 1);
    if (c->model_hash && c->model_hash[0] && m->hash && m->hash[0] &&
        strcmp(c->model_hash, m->hash) != 0)
        return ts_fail(err, TS_ERR_MODEL,
                       "'%s' was made with another model: its hash is %.64s, this model's %.64s",
                       path, c->model_hash, m->hash);
    return TS_OK;
}
