/* Opens a residual pair by its header and checks data and .meta beside it. Refuses another layout,
 * type or hook, data outside the header's folder, and sizes or a hash that do not match. */
#include "store/capture_file.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/mem.h"
#include "store/meta.h"
#include "store/meta_json.h"
#include "store/resid_out.h"

static int expect_text(const json_t *v, const char *key, const char *expected, ts_error *err) {
    const char *found;
    int rc = ts_json_text(v, key, &found, err);
    if (rc < 0)
        return rc;
    if (strcmp(found, expected) != 0)
        return ts_fail(err, TS_ERR_FORMAT, "'%s': expected '%s', got '%.100s'", key, expected,
                       found);
    return TS_OK;
}

static int read_shape(const json_t *v, ts_capture_file *f, ts_error *err) {
    int64_t layers = 0, hidden = 0, snapshots = 0;
    int rc = ts_json_int(v, "layers", 1, INT32_MAX, &layers, err);
    if (rc == TS_OK)
        rc = ts_json_int(v, "hidden", 1, INT32_MAX, &hidden, err);
    if (rc == TS_OK)
        rc = ts_json_int(v, "snapshots", 1, INT64_MAX, &snapshots, err);
    if (rc == TS_OK)
        rc = expect_text(v, "dtype", "float32", err);
    if (rc == TS_OK)
        rc = expect_text(v, "layout", "[snapshot][layer][hidden]", err);
    if (rc == TS_OK)
        rc = expect_text(v, "hook", TS_RESID_HOOK, err);
    return rc == TS_OK ? ts_capture_set_shape(f, snapshots, layers, hidden, err) : rc;
}

static int read_positions(const json_t *v, ts_capture_file *f, ts_error *err) {
    json_t *positions;
    size_t n = (size_t)f->shape.n_snapshots;
    int rc =
        ts_json_array(v, "positions", n, &positions, err); /* its size bounds what is taken below */
    if (rc < 0)
        return rc;
    f->positions = ts_calloc(n, sizeof *f->positions);
    if (f->positions == NULL)
        return ts_fail_nomem(err, "positions", n * sizeof *f->positions);
    for (size_t i = 0; rc == TS_OK && i < n; i++)
        rc = ts_json_element(positions, "positions", i, 0, INT64_MAX, &f->positions[i], err);
    return rc;
}

/* A pair holds every block, so layer i is block i. */
static int number_layers(ts_capture_file *f, ts_error *err) {
    uint64_t bytes = (uint64_t)f->shape.n_layers * sizeof *f->layer_ids;
    if (bytes > f->bytes)
        return ts_fail(err, TS_ERR_FORMAT, "more layers than values");
    f->layer_ids = ts_malloc((size_t)bytes);
    if (f->layer_ids == NULL)
        return ts_fail_nomem(err, "layer numbers", (size_t)bytes);
    for (int32_t i = 0; i < f->shape.n_layers; i++)
        f->layer_ids[i] = i;
    return TS_OK;
}

/* The data file lies beside the header: a name with a folder in it could lead anywhere. */
static int find_data(const json_t *v, const char *path, ts_capture_file *f, ts_error *err) {
    const char *name;
    int rc = ts_json_text(v, "data", &name, err);
    if (rc < 0)
        return rc;
    if (name[0] == '\0' || strchr(name, '/') != NULL || strcmp(name, "..") == 0)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'data': expected the name of a file beside it, got '%.100s'", name);
    size_t folder = (size_t)(ts_path_base(path) - path), n = strlen(name) + 1;
    f->data = ts_malloc(folder + n);
    if (f->data == NULL)
        return ts_fail_nomem(err, "a path", folder + n);
    memcpy(f->data, path, folder);
    memcpy(f->data + folder, name, n);
    return TS_OK;
}

static int check_size(ts_capture_file *f, ts_error *err) {
    uint64_t size;
    int fd;
    int rc = ts_file_open_read(f->data, &fd, &size, err);
    if (rc < 0)
        return rc;
    f->fd = fd;
    f->bytes = ts_capture_row_bytes(f) * (uint64_t)f->shape.n_snapshots;
    if (size != f->bytes)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s': expected %" PRIu64 " bytes (%" PRId64 " x %" PRId32 " x %" PRId32
                       " floats), found %" PRIu64,
                       f->data, f->bytes, f->shape.n_snapshots, f->shape.n_layers,
                       f->shape.n_hidden, size);
    return TS_OK;
}

/* A header without .meta (another program's) is fine; one that contradicts it is not. */
static int check_meta(const char *path, ts_capture_file *f, ts_error *err) {
    char *meta = ts_path_with_extension(path, "meta");
    struct stat st;
    int64_t n;
    int rc = TS_OK;
    if (meta == NULL)
        return ts_fail_nomem(err, "a path", strlen(path));
    if (stat(meta, &st) == 0 || errno != ENOENT) {
        rc = ts_meta_read(meta, &f->meta, err);
        if (rc == TS_OK && (rc = ts_json_int(f->meta, "snapshots", f->shape.n_snapshots,
                                             f->shape.n_snapshots, &n, err)) < 0)
            ts_error_prefix(err, "'%s' is not of '%s': ", meta, path);
        if (rc == TS_OK)
            rc = ts_meta_check_data(f->meta, f->data, 0, f->bytes, &f->hashed, err);
    }
    ts_free(meta);
    return rc;
}

int ts_capture_open_pair(const char *path, ts_capture_file *f, ts_error *err) {
    json_t *v;
    f->format = TS_CAPTURE_F32;
    int rc = ts_json_file(path, &v, err);
    if (rc < 0)
        return rc;
    rc = read_shape(v, f, err);
    if (rc == TS_OK)
        rc = read_positions(v, f, err);
    if (rc == TS_OK)
        rc = find_data(v, path, f, err);
    if (rc < 0)
        ts_error_prefix(err, "'%s': ", path);
    if (rc == TS_OK)
        rc = check_size(f, err);
    if (rc == TS_OK)
        rc = number_layers(f, err);
    if (rc == TS_OK)
        rc = check_meta(path, f, err);
    json_decref(v);
    return rc;
}
