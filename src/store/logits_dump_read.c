/* Reads a logits dump (logits_dump.h). */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/mem.h"
#include "store/logits_dump.h"
#include "store/logits_dump_half.h"
#include "store/logits_dump_names.h"
#include "store/meta_json.h"
#include "store/meta_stream.h"

/* folder/name, where `path` is the folder or its meta.json. */
static char *beside(const char *path, const char *name) {
    const char *base = ts_path_base(path);
    size_t keep = strcmp(base, TS_LOGITS_META) == 0 ? (size_t)(base - path) : strlen(path),
           m = strlen(name);
    bool slash = keep > 0 && path[keep - 1] != '/';
    char *out = ts_malloc(keep + m + 2);

    if (!out)
        return NULL;
    memcpy(out, path, keep);
    if (slash)
        out[keep++] = '/';
    memcpy(out + keep, name, m + 1);
    return out;
}

static int take_tokens(const json_t *meta, ts_logits_dump *d, ts_error *err) {
    size_t n = (size_t)d->rows + 1;
    json_t *ids;
    int rc = ts_json_array(meta, "token_ids", n, &ids, err);

    if (rc)
        return rc;
    d->token_ids = ts_malloc(n * sizeof *d->token_ids);
    if (!d->token_ids)
        return ts_fail_nomem(err, "token ids", n * sizeof *d->token_ids);
    for (size_t i = 0; i < n; i++) {
        int64_t id;

        rc = ts_json_element(ids, "token_ids", i, 0, d->vocab_size - 1, &id, err);
        if (rc)
            return rc;
        d->token_ids[i] = (int32_t)id;
    }
    return TS_OK;
}

static int take_dtype(const json_t *meta, ts_logits_dump *d, ts_error *err) {
    const char *text = "f16";
    int rc = TS_OK;

    if (json_object_get(meta, "dtype"))
        rc = ts_json_text(meta, "dtype", &text, err);
    if (rc)
        return rc;
    if (strcmp(text, "f16") != 0 && strcmp(text, "f32") != 0)
        return ts_fail(err, TS_ERR_FORMAT, "'dtype' is '%.40s', expected f16 or f32", text);
    d->dtype = text[1] == '1' ? TS_LOGITS_F16 : TS_LOGITS_F32;
    return TS_OK;
}

static int take_meta(const json_t *meta, ts_logits_dump *d, ts_error *err) {
    const char *hash =
        json_string_value(json_object_get(json_object_get(meta, "data"), "xxh3_128"));
    d->partial = json_is_true(json_object_get(meta, "partial"));
    const char *model = json_string_value(json_object_get(json_object_get(meta, "model"), "name"));
    int64_t vocab = 0, version = 0;
    int rc;

    if ((rc = ts_json_int(meta, "rows", 1, INT32_MAX, &d->rows, err)) ||
        (rc = ts_json_int(meta, "vocab_size", 1, INT32_MAX, &vocab, err)))
        return rc;
    d->vocab_size = (int32_t)vocab;
    if ((rc = ts_json_int(meta, "first_scored_position", 0, d->rows, &d->first_scored_position,
                          err)) ||
        (rc = ts_json_int(meta, "prompt_len", 0, d->rows + 1, &d->prompt_len, err)) ||
        (rc = take_dtype(meta, d, err)) || (rc = take_tokens(meta, d, err)))
        return rc;
    if (json_object_get(meta, "format_version") &&
        (rc = ts_json_int(meta, "format_version", 1, 1, &version, err)))
        return rc;
    if (hash && strlen(hash) == 32)
        memcpy(d->hash, hash, sizeof d->hash);
    if (model && !(d->model = ts_strdup(model)))
        return ts_fail_nomem(err, "a name", strlen(model));
    return TS_OK;
}

static size_t element_bytes(const ts_logits_dump *d) {
    return d->dtype == TS_LOGITS_F16 ? sizeof(uint16_t) : sizeof(float);
}

static int check_hash(const ts_logits_dump *d, uint64_t bytes, ts_error *err) {
    char found[33];
    int rc = ts_stream_hash(d->data, 0, bytes, found, err);

    if (!rc && strcmp(d->hash, found) != 0)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s' was changed or damaged: expected xxh3-128 %s, found %s", d->data,
                       d->hash, found);
    return rc;
}

static int open_data(const char *path, bool verify, ts_logits_dump *d, ts_error *err) {
    /* rows and vocab_size are below 2^31 each, an element has at most 4 bytes */
    uint64_t size, row = (uint64_t)d->vocab_size * element_bytes(d),
                   expected = (uint64_t)d->rows * row;
    int rc;

    d->data = beside(path, d->dtype == TS_LOGITS_F16 ? TS_LOGITS_DATA_F16 : TS_LOGITS_DATA_F32);
    if (!d->data)
        return ts_fail_nomem(err, "a path", strlen(path));
    rc = ts_file_open_read(d->data, &d->fd, &size, err);
    if (rc)
        return rc;
    if (size != expected)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s' has %" PRIu64 " bytes, expected %" PRIu64 ": %" PRId64
                       " rows of %" PRId32 " logits",
                       d->data, size, expected, d->rows, d->vocab_size);
    d->row = ts_malloc((size_t)row);
    if (!d->row)
        return ts_fail_nomem(err, "a row of logits", (size_t)row);
    return verify && d->hash[0] ? check_hash(d, expected, err) : TS_OK;
}

int ts_logits_open(const char *path, bool verify, ts_logits_dump **out, ts_error *err) {
    ts_logits_dump *d = ts_calloc(1, sizeof *d);
    char *name = beside(path, TS_LOGITS_META);
    json_t *meta = NULL;
    int rc;

    *out = NULL;
    if (!d || !name) {
        rc = ts_fail_nomem(err, "a logits dump", sizeof *d);
        goto cleanup;
    }
    d->fd = -1;
    rc = ts_json_file(name, &meta, err);
    if (rc)
        goto cleanup;
    rc = take_meta(meta, d, err);
    if (rc) {
        ts_error_prefix(err, "'%s': ", name);
        goto cleanup;
    }
    rc = open_data(path, verify, d, err);
cleanup:
    json_decref(meta);
    ts_free(name);
    if (rc)
        ts_logits_close(d);
    else
        *out = d;
    return rc;
}

int ts_logits_read(ts_logits_dump *d, int64_t row, float *to, ts_error *err) {
    size_t bytes = (size_t)d->vocab_size * element_bytes(d), done = 0;
    char *at = d->dtype == TS_LOGITS_F32 ? (char *)to : d->row;

    if (row != 0 && d->rows == 1)
        return ts_fail(err, TS_ERR_ARG, "row %" PRId64 ": expected 0", row);
    if (row < 0 || row >= d->rows)
        return ts_fail(err, TS_ERR_ARG, "row %" PRId64 ": expected 0 to %" PRId64, row,
                       d->rows - 1);
    while (done < bytes) {
        ssize_t got = pread(d->fd, at + done, bytes - done, (off_t)((uint64_t)row * bytes + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", d->data);
        if (got == 0)
            return ts_fail(err, TS_ERR_FORMAT, "'%s' was cut short at row %" PRId64, d->data, row);
        done += (size_t)got;
    }
    for (int32_t i = 0; d->dtype == TS_LOGITS_F16 && i < d->vocab_size; i++)
        to[i] = ts_half_to_float(((const uint16_t *)d->row)[i]);
    return TS_OK;
}

void ts_logits_close(ts_logits_dump *d) {
    if (!d)
        return;
    if (d->fd >= 0)
        close(d->fd);
    ts_free(d->token_ids);
    ts_free(d->model);
    ts_free(d->row);
    ts_free(d->data);
    ts_free(d);
}

int ts_logits_comparable(const ts_logits_dump *a, const char *a_name, const ts_logits_dump *b,
                         const char *b_name, ts_error *err) {
    if (a->vocab_size != b->vocab_size)
        return ts_fail(err, TS_ERR_ARG,
                       "the dumps differ in vocabulary: '%s' has %" PRId32
                       " logits a row, '%s' %" PRId32,
                       a_name, a->vocab_size, b_name, b->vocab_size);
    if (a->rows != b->rows)
        return ts_fail(err, TS_ERR_ARG,
                       "the dumps differ in length: '%s' has %" PRId64 " rows, '%s' %" PRId64,
                       a_name, a->rows, b_name, b->rows);
    for (int64_t i = 0; i <= a->rows; i++)
        if (a->token_ids[i] != b->token_ids[i])
            return ts_fail_at(err, TS_ERR_ARG, i,
                              "the dumps are of different texts: token %" PRId64 " is %" PRId32
                              " in '%s', %" PRId32 " in '%s'",
                              i, a->token_ids[i], a_name, b->token_ids[i], b_name);
    if (a->first_scored_position != b->first_scored_position)
        return ts_fail(err, TS_ERR_ARG,
                       "the dumps differ in what is scored: '%s' from %" PRId64
                       ", '%s' from %" PRId64,
                       a_name, a->first_scored_position, b_name, b->first_scored_position);
    return TS_OK;
}
