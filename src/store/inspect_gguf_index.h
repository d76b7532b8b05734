/* The header of a GGUF file, walked without loading it: the keys that say what it is, and the
 * tensors of a control vector. Every count and length is checked against the file's size before
 * memory is taken. */
#ifndef TS_STORE_INSPECT_GGUF_INDEX_H
#define TS_STORE_INSPECT_GGUF_INDEX_H

#include "core/error.h"

/* Value types of the format. */
enum ts_gguf_type {
    TS_GGUF_U8 = 0,
    TS_GGUF_I8,
    TS_GGUF_U16,
    TS_GGUF_I16,
    TS_GGUF_U32,
    TS_GGUF_I32,
    TS_GGUF_F32,
    TS_GGUF_BOOL,
    TS_GGUF_STRING,
    TS_GGUF_ARRAY,
    TS_GGUF_U64,
    TS_GGUF_I64,
    TS_GGUF_F64,
    TS_GGUF_TYPE_COUNT
};

enum { TS_GGUF_TENSOR_F32 = 0 }; /* tensor type number */

typedef struct ts_gguf_key {
    char name[96];
    enum ts_gguf_type type;
    int64_t integer; /* integers and booleans; a u64 above INT64_MAX is INT64_MAX */
    double real;     /* floats */
    char *text;      /* strings, cut at 1000 bytes; else NULL */
} ts_gguf_key;

typedef struct ts_gguf_tensor {
    char name[64];
    uint32_t n_dims, type;
    int64_t shape[4];
    uint64_t begin; /* absolute */
} ts_gguf_tensor;

typedef struct ts_gguf_index {
    uint32_t version;
    uint64_t n_keys, n_tensors, size;
    ts_gguf_key
        *keys; /* [n_kept]: those under general., controlvector., turbospark., glp., dspark.; of arrays only name and type */
    size_t n_kept;
    char intervention[96];    /* first key that declares another intervention (glp.mode, dspark.*), of any type; else "" */
    ts_gguf_tensor *tensors; /* [n_tensors] of a control vector, NULL for others */
} ts_gguf_index;

/* TS_ERR_FORMAT with the byte position. */
int ts_gguf_index_read(const char *path, ts_gguf_index *out, ts_error *err);
const ts_gguf_key *ts_gguf_find(const ts_gguf_index *g, const char *name);
/* A string key's text, NULL when it is not there or not a string. */
const char *ts_gguf_text(const ts_gguf_index *g, const char *name);
void ts_gguf_index_free(ts_gguf_index *g);

#endif
