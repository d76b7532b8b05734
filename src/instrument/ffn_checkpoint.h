/* A census' raw state in one binary file, so that a resumed census ends with the same bytes as an
 * uninterrupted one. Taken between generations (a text: between windows): the top sets of the last
 * pass are not kept, and the next pass must begin a generation.
 *
 * Little-endian: "TSFFNCKP", u32 version, u32 length of the plan, the plan, u64 counters[8]; then
 * for dense and for shared (u32 n_blocks 0 = none): u32 n_blocks, u64 decode, prefill, pairs, and
 * per block u32 width, u64 n_rows, n_pairs, hits[9], top_p[3], f32 max_abs, u64 non-finite row, u32
 * neuron, u64 zeros, non-finite, u32 n_bins, n_bins x {u32 bin, u64 count, u64 mantissa}, f64
 * mass[width]; of a model with experts: u64 decode passes, u32 n_layers, and per layer u32 experts
 * (0 = none), top_k, width, u64 rows[experts], buckets[64], f64 mass[width] of each expert with rows;
 * at the end the xxh3-128 of all before it, in hex. One file, so that a kill never leaves two halves
 * of different moments. */
#ifndef TS_INSTRUMENT_FFN_CHECKPOINT_H
#define TS_INSTRUMENT_FFN_CHECKPOINT_H

#include "core/error.h"
#include "stats/ffn_stats.h"
#include "store/expert.h"

/* How far a corpus walk got; all of it the caller's to fill and read. */
typedef struct ts_ffn_progress {
    uint64_t prompts, tokens, batches, skipped;
    uint64_t trace_bytes, trace_passes, trace_generations; /* see store/trace.h, ts_trace_at */
    uint64_t spare;
} ts_ffn_progress;

/* Whole or not at all (by rename). `shared` and `experts` nullable. `plan`: hash of corpus and options, at most
 * 64 bytes. */
int ts_ffn_checkpoint_write(const char *path, const char *plan, const ts_ffn_stats *dense,
                            const ts_ffn_stats *shared, const ts_experts *experts,
                            const ts_ffn_progress *progress, ts_error *err);
/* Into accumulators just made for the same blocks. *found false and nothing changed when there is
 * no file. TS_ERR_STATE another plan or shape; TS_ERR_FORMAT a damaged file, named. After both the
 * accumulators are good for nothing but being freed. */
int ts_ffn_checkpoint_read(const char *path, const char *plan, ts_ffn_stats *dense,
                           ts_ffn_stats *shared, ts_experts *experts, ts_ffn_progress *progress,
                           bool *found, ts_error *err);

#endif
