/* An open residual capture as the store sees it: what ts_inspect needs beyond the public calls. */
#ifndef TS_STORE_CAPTURE_FILE_H
#define TS_STORE_CAPTURE_FILE_H

#include <jansson.h>

#include "core/error.h"

enum ts_capture_dtype { TS_CAPTURE_DTYPE_F32, TS_CAPTURE_DTYPE_F16, TS_CAPTURE_DTYPE_BF16 };

struct ts_capture_file {
    ts_capture_shape shape;
    enum ts_capture_format format;
    enum ts_capture_dtype dtype;
    int fd;
    char *data;         /* path of the file that holds the rows */
    uint64_t begin;     /* offset of row 0 */
    uint64_t bytes;     /* of all rows */
    void *row;          /* one snapshot as stored, for dtypes narrower than float */
    int32_t *layer_ids; /* [n_layers], NULL when not recorded */
    int64_t *positions; /* [n_snapshots], NULL when not recorded */
    json_t *meta;       /* provenance without generations, NULL when there is none */
    bool hashed;        /* the rows were checked against a recorded hash */
};

/* capture_pair.c, capture_st.c: fill a zeroed file; what they allocated is freed by
 * ts_capture_close. */
int ts_capture_open_pair(const char *path, ts_capture_file *f, ts_error *err);
int ts_capture_open_st(const char *path, ts_capture_file *f, ts_error *err);
/* Takes n_snapshots, n_layers, n_hidden into the shape; TS_ERR_FORMAT when a snapshot cannot be
 * held in memory. */
int ts_capture_set_shape(ts_capture_file *f, int64_t n, int64_t layers, int64_t hidden,
                         ts_error *err);
/* Bytes of one snapshot as stored. */
uint64_t ts_capture_row_bytes(const ts_capture_file *f);
/* Layers [layer, layer + n) of a snapshot, [n][hidden]; the caller keeps both within the shape. */
int ts_capture_read_layers(ts_capture_file *f, int64_t index, int32_t layer, int32_t n, float *rows, ts_error *err);

#endif
