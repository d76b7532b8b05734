/* The safetensors container (https://github.com/huggingface/safetensors, format section): 8-byte
 * little-endian header length, JSON header, raw data. Reads any valid file's index; refuses
 * overlaps, holes, wrong sizes, headers over 100 MB. */
#ifndef TS_STORE_SAFETENSORS_H
#define TS_STORE_SAFETENSORS_H

#include "core/buf.h"
#include "core/error.h"

typedef struct ts_st_tensor {
    char name[192];
    char dtype[8]; /* "F32", "I32", "I64", "U8", "F16", "BF16", ... */
    int32_t n_dims;
    int64_t shape[8];
    uint64_t begin, end; /* byte offsets in the file (absolute) */
} ts_st_tensor;

typedef struct ts_st_index {
    ts_st_tensor *tensors; /* [n] */
    size_t n;
    char *metadata; /* JSON object text of __metadata__, or NULL */
} ts_st_index;

int ts_st_read_index(const char *path, ts_st_index *out, ts_error *err);
const ts_st_tensor *ts_st_find(const ts_st_index *index, const char *name);
void ts_st_index_free(ts_st_index *index);

/* Header bytes (length prefix + JSON padded with spaces) of exactly `reserve` bytes for tensors
 * whose begin and end are relative to the data section. TS_ERR_ARG when it does not fit. */
int ts_st_header(const ts_st_tensor *tensors, size_t n, const char *metadata_json, size_t reserve,
                 ts_buf *out, ts_error *err);

#endif
