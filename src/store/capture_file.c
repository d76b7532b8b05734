/* Owns the reading of captures as rows, whatever their file. Refuses files whose sizes or hashes do
 * not match, before a row is handed out. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "store/capture_file.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/mem.h"
#include "store/inspect_sniff.h"

uint64_t ts_capture_row_bytes(const ts_capture_file *f) {
    uint64_t width = f->dtype == TS_CAPTURE_DTYPE_F32 ? 4 : 2;
    return (uint64_t)f->shape.n_layers * (uint64_t)f->shape.n_hidden * width;
}

int ts_capture_set_shape(ts_capture_file *f, int64_t n, int64_t layers, int64_t hidden,
                         ts_error *err) {
    const int64_t row_max = PTRDIFF_MAX / (int64_t)sizeof(float);
    if (n < 1 || layers < 1 || hidden < 1 || layers > INT32_MAX || hidden > INT32_MAX ||
        layers > row_max / hidden || n > row_max / (layers * hidden))
        return ts_fail(err, TS_ERR_FORMAT,
                       "its shape [%" PRId64 ", %" PRId64 ", %" PRId64
                       "] is not one of [snapshot][layer][hidden]",
                       n, layers, hidden);
    f->shape = (ts_capture_shape){n, (int32_t)layers, (int32_t)hidden};
    return TS_OK;
}

static int open_rows(ts_capture_file *f, ts_error *err) {
    uint64_t size;
    int rc = f->fd < 0 ? ts_file_open_read(f->data, &f->fd, &size, err) : TS_OK; /* a pair's data is open */
    if (rc < 0 || f->dtype == TS_CAPTURE_DTYPE_F32)
        return rc;
    f->row = ts_malloc((size_t)ts_capture_row_bytes(f));
    return f->row ? TS_OK : ts_fail_nomem(err, "a row", (size_t)ts_capture_row_bytes(f));
}

TS_API int ts_capture_open(const char *path, ts_capture_file **out, ts_capture_shape *shape,
                           ts_error *err) {
    enum ts_file_sort sort;
    if (out == NULL)
        return ts_fail(err, TS_ERR_ARG, "a capture needs a place to go to");
    *out = NULL;
    if (path == NULL)
        return ts_fail(err, TS_ERR_ARG, "a capture needs a path");
    int rc = ts_sniff(path, &sort, err);
    if (rc < 0)
        return rc;
    if (sort != TS_SORT_PAIR && sort != TS_SORT_SAFETENSORS)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s' is not a capture: expected a header .json or a .safetensors, it is %s",
                       path, ts_sort_name(sort));
    ts_capture_file *f = ts_calloc(1, sizeof *f);
    if (f == NULL)
        return ts_fail_nomem(err, "a capture", sizeof *f);
    f->fd = -1;
    rc = sort == TS_SORT_PAIR ? ts_capture_open_pair(path, f, err)
                              : ts_capture_open_st(path, f, err);
    if (rc == TS_OK)
        rc = open_rows(f, err);
    if (rc < 0) {
        ts_capture_close(f);
        return rc;
    }
    if (shape != NULL)
        *shape = f->shape;
    *out = f;
    return TS_OK;
}

static int read_bytes(ts_capture_file *f, uint64_t offset, void *bytes, size_t n, ts_error *err) {
    for (char *at = bytes; n > 0;) {
        ssize_t got = pread(f->fd, at, n, (off_t)offset);
        if (got < 0)
            return ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", f->data);
        if (got == 0)
            return ts_fail(err, TS_ERR_FORMAT,
                           "'%s' became shorter: %zu bytes of a row are missing", f->data, n);
        at += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return TS_OK;
}

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31)
        return from_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent != 0)
        return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float x = (float)mantissa * 0x1p-24f;
    return sign ? -x : x;
}

static void widen(const ts_capture_file *f, const uint16_t *from, size_t n, float *to) {
    for (size_t i = 0; i < n; i++)
        to[i] = f->dtype == TS_CAPTURE_DTYPE_F16 ? from_f16(from[i])
                                                 : from_bits((uint32_t)from[i] << 16);
}

int ts_capture_read_layers(ts_capture_file *f, int64_t index, int32_t layer, int32_t n, float *rows,
                           ts_error *err) {
    size_t values = (size_t)n * (size_t)f->shape.n_hidden;
    uint64_t width = f->dtype == TS_CAPTURE_DTYPE_F32 ? 4 : 2;
    uint64_t offset = f->begin + (uint64_t)index * ts_capture_row_bytes(f) +
                      (uint64_t)layer * (uint64_t)f->shape.n_hidden * width;
    if (f->dtype == TS_CAPTURE_DTYPE_F32)
        return read_bytes(f, offset, rows, values * width, err);
    int rc = read_bytes(f, offset, f->row, values * width, err);
    if (rc == TS_OK)
        widen(f, f->row, values, rows);
    return rc;
}

TS_API int ts_capture_read(ts_capture_file *f, int64_t index, float *rows, ts_error *err) {
    if (f == NULL || rows == NULL)
        return ts_fail(err, TS_ERR_ARG, "a snapshot needs a capture and a place to go to");
    if (index != 0 && f->shape.n_snapshots == 1)
        return ts_fail(err, TS_ERR_ARG, "'%s' has no snapshot %" PRId64 ": expected 0", f->data, index);
    if (index < 0 || index >= f->shape.n_snapshots)
        return ts_fail(err, TS_ERR_ARG, "'%s' has no snapshot %" PRId64 ": expected 0 to %" PRId64,
                       f->data, index, f->shape.n_snapshots - 1);
    return ts_capture_read_layers(f, index, 0, f->shape.n_layers, rows, err);
}

TS_API int32_t ts_capture_layer(const ts_capture_file *f, int32_t i) {
    if (f == NULL || i < 0 || i >= f->shape.n_layers || f->layer_ids == NULL)
        return -1;
    return f->layer_ids[i];
}

TS_API int64_t ts_capture_position(const ts_capture_file *f, int64_t index) {
    if (f == NULL || index < 0 || index >= f->shape.n_snapshots || f->positions == NULL)
        return -1;
    return f->positions[index];
}

TS_API void ts_capture_close(ts_capture_file *f) {
    if (f == NULL)
        return;
    if (f->fd >= 0)
        close(f->fd);
    json_decref(f->meta);
    ts_free(f->data);
    ts_free(f->row);
    ts_free(f->layer_ids);
    ts_free(f->positions);
    ts_free(f);
}
