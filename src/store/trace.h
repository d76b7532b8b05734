/* The FFN census' trace, PATH.trace: the ids of each pass's top neurons, for replaying a neuron
 * cache.
 *
 * The file: one line of JSON, {"turbospark_trace":1, "model" (hash), "layers", "width" [layers],
 * "k" [layers] (0: the block is not traced), "encoding" [layers] ("delta", "bitset", "none"),
 * "passes", "generations", "bytes" (of the file; these three 0 while it is being written)}, then
 * the passes. A pass is 'G' (the first of a generation) or 'P', the sequence as a varint, and for
 * each traced block its ids, ascending: "delta" is a varint of how many, then of the first id and
 * of the gaps between the others less one; "bitset" is width / 8 bytes, id i being bit i % 8 of
 * byte i / 8. A varint is 7 bits a byte, least first, the top bit set where more follow. A block
 * has fewer than k ids only where fewer of its values were finite. */
#ifndef TS_STORE_TRACE_H
#define TS_STORE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"

#define TS_TRACE_MAX_MODEL 64
#define TS_TRACE_MAX_SLOT 255

typedef struct ts_trace_spec {
    uint32_t n_layers;
    const uint32_t *width; /* [n_layers] */
    const uint32_t *k;     /* [n_layers] at most the width; 0: not traced */
    const char *model;     /* hash, "" when unknown */
} ts_trace_spec;

/* What is durable after ts_trace_sync: the way back in after a kill. */
typedef struct ts_trace_at {
    uint64_t bytes, passes, generations;
} ts_trace_at;

/* The most that n_passes take; UINT64_MAX when that is more than 64 bits can say. Exact for
 * bitsets. */
uint64_t ts_trace_bytes(const ts_trace_spec *spec, uint64_t n_passes);

/* ---- writing: for each pass begin, block for each traced block in ascending order, end. Wrong
 * use: TS_ERR_STATE or TS_ERR_ARG. */

typedef struct ts_trace_writer ts_trace_writer;

/* `path`: the partial file. `at` NULL or zero: a new one; else it is cut to at->bytes and
 * continued, TS_ERR_STATE when it is the trace of something else. Nothing of `spec` needs to
 * outlive the call. */
int ts_trace_open(const char *path, const ts_trace_spec *spec, const ts_trace_at *at,
                  ts_trace_writer **out, ts_error *err);
int ts_trace_begin(ts_trace_writer *w, uint32_t slot, bool first_of_generation, ts_error *err);
/* Neuron i is in the set when level[i] <= rank; level is [width]. */
int ts_trace_block(ts_trace_writer *w, uint32_t block, const uint8_t *level, uint8_t rank,
                   ts_error *err);
int ts_trace_end(ts_trace_writer *w, ts_error *err);
int ts_trace_sync(ts_trace_writer *w, ts_trace_at *at, ts_error *err);
/* Completes the header, puts the file at `final` and frees, also after a failure. */
int ts_trace_finish(ts_trace_writer *w, const char *final, ts_error *err);
/* Keeps the partial file and frees. NULL is fine. */
int ts_trace_close(ts_trace_writer *w, ts_error *err);

/* ---- reading, in memory for one pass */

typedef struct ts_trace_info {
    uint32_t n_layers;
    uint32_t *width, *k; /* [n_layers] */
    uint64_t passes, generations, bytes;
    char model[TS_TRACE_MAX_MODEL + 1];
} ts_trace_info;

typedef struct ts_trace_pass {
    uint32_t slot;
    bool first; /* of its generation */
    const uint32_t
        *ids; /* of all blocks; those of block il: ids[begin[il]] to ids[begin[il + 1]] */
    const size_t *begin; /* [n_layers + 1] */
} ts_trace_pass;

typedef struct ts_trace_reader ts_trace_reader;

/* TS_ERR_FORMAT names what is wrong; an unfinished trace is refused. */
int ts_trace_read(const char *path, ts_trace_reader **out, ts_error *err);
const ts_trace_info *ts_trace_read_info(const ts_trace_reader *r);
/* The next pass, valid until the next call; *got false after the last. TS_ERR_FORMAT names the
 * pass. */
int ts_trace_next(ts_trace_reader *r, ts_trace_pass *out, bool *got, ts_error *err);
int ts_trace_rewind(ts_trace_reader *r, ts_error *err);
void ts_trace_read_close(ts_trace_reader *r); /* NULL is fine */

#endif
