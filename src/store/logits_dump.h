/* Logits of a text, one row a token: a folder with meta.json and logits.f16 or logits.f32.
 *
 * meta.json: rows, vocab_size, token_ids [rows + 1], first_scored_position, prompt_len, dtype
 * ("f16", "f32"), then format_version (1), kind ("logits"), the members that every provenance has,
 * what the caller adds, and data {file, bytes, xxh3_128}. The data is little-endian
 * [rows][vocab_size]; row i follows token i, so it is about token i + 1.
 *
 * Owns: both ways, and that a folder with a meta.json is a whole dump: rows are streamed to a
 * temporary beside their place, which is renamed first, meta.json last. Refuses: NaN and +infinity,
 * what f16 cannot hold, fewer or more rows than tokens - 1, a folder that holds a dump (unless told
 * to replace it). */
#ifndef TS_STORE_LOGITS_DUMP_H
#define TS_STORE_LOGITS_DUMP_H

#include "core/error.h"
#include "core/provenance.h"

enum ts_logits_dtype { TS_LOGITS_F16 = 0, TS_LOGITS_F32 };

typedef struct ts_logits_spec {
    const char *folder; /* made if it is not there; its parent must be */
    enum ts_logits_dtype dtype;
    int32_t vocab_size;
    const int32_t *token_ids; /* [n_tokens], at least 2; kept by the caller until the end */
    size_t n_tokens;
    int64_t first_scored_position;   /* 0 to rows */
    int64_t prompt_len;              /* 0 to n_tokens */
    const ts_provenance *provenance; /* NULL = left out */
    const char
        *members; /* more JSON members, each on its line and followed by ",\n"; NULL = none */
    bool overwrite;
} ts_logits_spec;

typedef struct ts_logits_out ts_logits_out;

/* TS_ERR_ARG: too short a text, numbers out of range, a dump already there; TS_ERR_IO. */
int ts_logits_out_open(const ts_logits_spec *spec, ts_logits_out **out, ts_error *err);
/* The next row, [vocab_size]. TS_ERR_FORMAT names row and token (`position` the row) of a value
 * that is refused; -infinity is not. TS_ERR_STATE for a row too many; TS_ERR_IO. */
int ts_logits_out_add(ts_logits_out *o, const float *row, ts_error *err);
int64_t ts_logits_out_rows(const ts_logits_out *o);
/* The rows so far become all there are: of the first tokens, marked partial. TS_ERR_STATE when there are none, or when a
 * whole dump would be replaced. */
int ts_logits_out_cut(ts_logits_out *o, ts_error *err);
/* Puts data and meta.json in place; frees o whatever happens. TS_ERR_STATE when rows are missing
 * (nothing is left then). `members`, where not NULL, takes the place of the spec's. */
int ts_logits_out_finish(ts_logits_out *o, const char *members, ts_error *err);
/* Removes what was written, and the folder if it was made for it. NULL is fine. */
void ts_logits_out_discard(ts_logits_out *o);
/* Is `path` one of the files a dump in `folder` has or would have? *name (nullable): which. NULL paths are fine. */
bool ts_logits_dump_holds(const char *folder, const char *path, const char **name);
/* Bytes of the data. */
uint64_t ts_logits_out_predict(const ts_logits_spec *spec);

typedef struct ts_logits_dump {
    int64_t rows;
    int32_t vocab_size;
    int32_t *token_ids; /* [rows + 1] */
    int64_t first_scored_position, prompt_len;
    enum ts_logits_dtype dtype;
    char hash[33]; /* of the data, as recorded; "" = not */
    char *model;   /* name of the model, NULL = not recorded */
    bool partial;  /* interrupted: the rows of the first tokens */
    int fd;        /* private from here */
    void *row;
    char *data; /* path */
} ts_logits_dump;

/* Opens a folder (or its meta.json). A meta.json with only the first five keys is read as f16. The
 * data's size is always checked, its hash with `verify`, where there is one. TS_ERR_IO,
 * TS_ERR_FORMAT. */
int ts_logits_open(const char *path, bool verify, ts_logits_dump **out, ts_error *err);
/* Row 0..rows-1 to `to` [vocab_size]. */
int ts_logits_read(ts_logits_dump *d, int64_t row, float *to, ts_error *err);
void ts_logits_close(ts_logits_dump *d);

/* Can they be compared: the same vocabulary, tokens and first scored position? TS_ERR_ARG says what
 * differs first. */
int ts_logits_comparable(const ts_logits_dump *a, const char *a_name, const ts_logits_dump *b,
                         const char *b_name, ts_error *err);

#endif
