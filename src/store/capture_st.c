/* Opens a safetensors capture: ours, or one with vLLM's names (hidden_states [n, layers, hidden],
 * token_ids). Refuses other shapes and types, and rows that do not match a recorded hash. */
#include "store/capture_file.h"

#include <inttypes.h>
#include <string.h>

#include "core/mem.h"
#include "store/meta.h"
#include "store/meta_json.h"
#include "store/meta_stream.h"
#include "store/safetensors.h"

static int read_rows(const ts_st_index *index, ts_capture_file *f, ts_error *err) {
    const ts_st_tensor *t = ts_st_find(index, "hidden_states");
    if (t == NULL)
        return ts_fail(err, TS_ERR_FORMAT, "it has no tensor 'hidden_states'");
    if (t->n_dims != 3)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'hidden_states' has %" PRId32
                       " dimensions, expected 3: [n, layers, hidden]",
                       t->n_dims);
    if (strcmp(t->dtype, "F32") == 0)
        f->dtype = TS_CAPTURE_DTYPE_F32;
    else if (strcmp(t->dtype, "F16") == 0)
        f->dtype = TS_CAPTURE_DTYPE_F16;
    else if (strcmp(t->dtype, "BF16") == 0)
        f->dtype = TS_CAPTURE_DTYPE_BF16;
    else
        return ts_fail(err, TS_ERR_FORMAT, "'hidden_states' is %s, expected F32, F16 or BF16",
                       t->dtype);
    f->begin = t->begin;
    f->bytes = t->end - t->begin;
    return ts_capture_set_shape(f, t->shape[0], t->shape[1], t->shape[2], err);
}

/* A tensor of n I32 as memory of the caller's, NULL when the file has none. */
static int read_i32(const char *path, const ts_st_index *index, const char *name, int64_t n,
                    int32_t **out, ts_error *err) {
    const ts_st_tensor *t = ts_st_find(index, name);
    FILE *file;
    *out = NULL;
    if (t == NULL)
        return TS_OK;
    if (strcmp(t->dtype, "I32") != 0 || t->n_dims != 1 || t->shape[0] != n)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' is not I32 of %" PRId64 " elements", name, n);
    size_t bytes = (size_t)(t->end - t->begin);
    int rc = ts_stream_open(path, &file, NULL, err);
    if (rc < 0)
        return rc;
    *out = ts_malloc(bytes);
    if (*out == NULL)
        rc = ts_fail_nomem(err, name, bytes);
    else if (fseeko(file, (off_t)t->begin, SEEK_SET) != 0)
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", name);
    else
        rc = ts_stream_read(file, *out, bytes, err);
    fclose(file);
    return rc;
}

static int read_positions(const char *path, const ts_st_index *index, ts_capture_file *f,
                          ts_error *err) {
    int64_t n = f->shape.n_snapshots;
    int32_t *narrow;
    int rc = read_i32(path, index, "positions", n, &narrow, err);
    if (rc == TS_OK && narrow != NULL) {
        f->positions = ts_calloc((size_t)n, sizeof *f->positions);
        if (f->positions == NULL)
            rc = ts_fail_nomem(err, "positions", (size_t)n * sizeof *f->positions);
        for (int64_t i = 0; rc == TS_OK && i < n; i++)
            f->positions[i] = narrow[i];
    }
    ts_free(narrow);
    return rc;
}

/* Our provenance from __metadata__, NULL in f->meta when the file is another program's. */
static int read_meta(const char *path, const ts_st_index *index, ts_capture_file *f,
                     ts_error *err) {
    json_t *all;
    int64_t version;
    if (index->metadata == NULL)
        return TS_OK;
    int rc = ts_json_parse(index->metadata, strlen(index->metadata), &all, err);
    if (rc < 0)
        return rc;
    const char *text = json_string_value(json_object_get(all, "turbospark"));
    if (text != NULL) {
        rc = ts_json_parse(text, strlen(text), &f->meta, err);
        if (rc == TS_OK)
            rc = ts_json_int(f->meta, "format_version", 1, 1, &version, err);
        if (rc < 0)
            ts_error_prefix(err, "its meta data 'turbospark': ");
    }
    json_decref(all);
    if (rc == TS_OK && f->meta != NULL)
        rc = ts_meta_check_data(f->meta, path, f->begin, f->bytes, &f->hashed, err);
    return rc;
}

int ts_capture_open_st(const char *path, ts_capture_file *f, ts_error *err) {
    ts_st_index index;
    f->format = TS_CAPTURE_SAFETENSORS;
    int rc = ts_st_read_index(path, &index, err);
    if (rc < 0)
        return rc;
    f->data = ts_strdup(path);
    if (f->data == NULL)
        rc = ts_fail_nomem(err, "a path", strlen(path));
    if (rc == TS_OK)
        rc = read_rows(&index, f, err);
    if (rc == TS_OK)
        rc = read_i32(path, &index, "layer_ids", f->shape.n_layers, &f->layer_ids, err);
    if (rc == TS_OK)
        rc = read_positions(path, &index, f, err);
    if (rc == TS_OK)
        rc = read_meta(path, &index, f, err);
    if (rc < 0)
        ts_error_prefix(err, "'%s': ", path);
    ts_st_index_free(&index);
    return rc;
}
