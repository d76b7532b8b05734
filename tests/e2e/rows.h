/* Captured rows for the end-to-end tests: made by ts_capture_run, read back with what .meta says of them, compared;
 * and the prompt lists they come from. */
#ifndef TS_ROWS_H
#define TS_ROWS_H

#include "e2e.h"

#include <jansson.h>

typedef struct rows {
    ts_capture_shape shape;
    float *data;        /* [n_snapshots][n_layers][n_hidden] */
    int64_t *positions; /* [n_snapshots] */
} rows;

/* Through ts_capture_open, so that sizes and hashes are checked. Fails the test. */
void rows_read(const char *path, rows *out);
void rows_free(rows *r);
const float *rows_at(const rows *r, int64_t snapshot, int32_t layer);

/* |a - b| / |b|, Euclidean, in f64; huge when either is not finite or b is zero. */
double rows_error(const float *a, const float *b, int32_t n);
/* The largest such error of two captures of one shape, over every layer of every snapshot. */
double rows_worst(const rows *a, const rows *b);
/* The same bytes. */
void rows_assert_same(const rows *a, const rows *b);

/* The .meta beside PATH.json. */
json_t *rows_meta(const char *path);
/* Each snapshot is the last token of prompt i, and .meta tells all its tokens: `prompts` is [n] of the JSON Lines'
 * token_ids, as prompts_ids made them. */
void rows_check_meta(const char *path, const rows *r, const json_t *prompts);

/* JSON array of n prompts with these numbers of tokens, seeded ids below n_vocab. */
json_t *prompts_ids(const size_t *lengths, size_t n, int32_t n_vocab, unsigned seed);
/* Writes them as JSON Lines to a file of that name in the temporary folder, whose path is returned. */
const char *prompts_write(const json_t *prompts, const char *name);
int32_t *prompts_tokens(const json_t *prompt, size_t *n);

/* One corpus capture in a session of its own over `so`; TS_OK or the error. */
int rows_capture(const ts_session_options *so, const ts_capture_options *co, ts_capture_result *result, ts_error *err);
/* Captures `input` to `name` in the temporary folder and reads it. Fails the test. */
void rows_make(const ts_session_options *so, const char *input, bool exact, const char *name, rows *out);

#endif
