/*
 * The FFN census's accumulator: what a pass's activations add up to, per block and neuron.
 *
 * Owns: counts, masses, overlaps and their merging. Refuses: files, models, and anything but rows
 * of floats.
 *
 * A *pass* is one headful token; a block records one row (what its ffn_down reads) in each. A
 * *slot* is one sequence; several may be decoded side by side, and overlap compares consecutive
 * passes of one slot within one generation. A driver's life:
 *
 *     ts_ffn_stats_create
 *     for each generation:  ts_ffn_begin_generation(slot); ts_ffn_note_prefill(n - 1)
 *         for each pass:    ts_ffn_record_block(worker, slot, block, row) for its blocks;
 * ts_ffn_end_pass(slot) read the structs, or ts_ffn_stats_merge them; ts_ffn_stats_free
 *
 * Threads: ts_ffn_record_block may run at once for *different blocks*, each thread with a worker
 * number of its own (working memory); every other function wants the accumulator to itself, with a
 * happens-before to the recording. All results depend only on the order of the rows within each
 * block: not on threads, blocks, or the instruction set. Counts are exact; masses are plain f64
 * sums in that order, bucket masses exact.
 */
#ifndef TS_STATS_FFN_STATS_H
#define TS_STATS_FFN_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "stats/ffn_kernel.h"
#include "stats/hist.h"

enum {
    TS_FFN_N_FIXED = 4,  /* sets of 512, 1024, 2048, 4096, clamped to the width */
    TS_FFN_N_SHARES = 5, /* sets of 1, 2, 5, 10, 20 % of the width, rounded up */
    TS_FFN_N_TOP_P = 3,  /* 90, 95, 99 % of a row's L1 */
    TS_FFN_MAX_WIDTH = TS_HIST_MAX_ROW,
};

extern const uint32_t ts_ffn_fixed_k[TS_FFN_N_FIXED];
extern const uint32_t ts_ffn_share_percent[TS_FFN_N_SHARES];
extern const double ts_ffn_top_p[TS_FFN_N_TOP_P];

/* Why a function of this file says no, told apart for the caller's message. */
enum {
    TS_FFN_ERR_MEMORY = TS_ERR_NOMEM,
    TS_FFN_ERR_ARGUMENT = TS_ERR_ARG, /* out of range, no such kernel, a block twice in a pass */
    TS_FFN_ERR_SHAPE = TS_ERR_FORMAT, /* accumulators of different blocks or widths */
    TS_FFN_ERR_FULL = TS_ERR_STATE,   /* a block would reach TS_HIST_MAX_COUNT values */
};

/* Where a non-finite value was met first: row (0-based, counted per block; UINT64_MAX: none was)
 * and neuron. */
typedef struct ts_ffn_place {
    uint64_t row;
    uint32_t neuron;
} ts_ffn_place;

/*
 * One block. Sets 0..3 are ts_ffn_fixed_k, 4..8 ts_ffn_share_percent. Sums of counts, so two blocks
 * of one width add up field by field.
 */
typedef struct ts_ffn_block {
    uint32_t width;
    uint32_t k[TS_FFN_N_SETS];    /* size of each set */
    uint8_t rank[TS_FFN_N_SETS];  /* set j is the rank[j]-th smallest: it holds levels <= rank[j] */
    uint64_t n_rows;              /* rows recorded: each has width values in hist */
    uint64_t n_pairs;             /* consecutive rows compared */
    uint64_t hits[TS_FFN_N_SETS]; /* neurons in the set of both rows, summed over pairs */
    uint64_t
        top_p[TS_FFN_N_TOP_P]; /* neurons that hold that share of a row's L1, summed over rows */
    float max_abs;             /* largest finite magnitude */
    ts_ffn_place nonfinite;
    double *mass; /* [width] sum of |a| per neuron, finite values only */
    ts_hist hist; /* magnitudes of all values; zero and non-finite counts */
} ts_ffn_block;

typedef struct ts_ffn_options {
    uint32_t n_slots;   /* sequences side by side; 0: 1 */
    uint32_t n_workers; /* threads that may record at once; 0: 1 */
    const char *kernel; /* see ts_ffn_kernel_find; NULL: the fastest */
} ts_ffn_options;

typedef struct ts_ffn_slot ts_ffn_slot;
typedef struct ts_ffn_worker ts_ffn_worker;

/* Read freely; a checkpoint is n_blocks, the pass counts and every field of the blocks. */
typedef struct ts_ffn_stats {
    uint32_t n_blocks;
    ts_ffn_block *blocks;    /* [n_blocks] */
    uint64_t decode_passes;  /* ended passes of all slots */
    uint64_t prefill_passes; /* prompt tokens not recorded */
    uint64_t overlap_pairs;  /* ended passes that followed another of their generation */
    const ts_ffn_kernel *kernel;
    uint32_t n_slots, n_workers;
    ts_ffn_slot *slots;     /* [n_slots], private */
    ts_ffn_worker *workers; /* [n_workers], private */
} ts_ffn_stats;

/*
 * Makes an empty accumulator for blocks of width[n_blocks] neurons each (0: no dense FFN there; at
 * most TS_FFN_MAX_WIDTH). o may be NULL. Memory: 8 bytes a neuron, 128 KiB a block, two bytes a
 * neuron and slot, and 132 KiB plus 14 bytes per neuron of the widest block for each worker. 0;
 * TS_FFN_ERR_MEMORY; TS_FFN_ERR_ARGUMENT for a width that is too large or a kernel that does not
 * run here. *out is set on success only.
 */
int ts_ffn_stats_create(ts_ffn_stats **out, const uint32_t *width, uint32_t n_blocks,
                        const ts_ffn_options *o);
void ts_ffn_stats_free(ts_ffn_stats *s);

/* The slot's next pass is the first of a generation: it forms no pair with the one before. 0, or
 * TS_FFN_ERR_ARGUMENT: no such slot. */
int ts_ffn_begin_generation(ts_ffn_stats *s, uint32_t slot);
/* Counts n prompt tokens that are not recorded. */
void ts_ffn_note_prefill(ts_ffn_stats *s, uint64_t n);
/*
 * Adds one row of the block's width to the current pass of a slot, at most once a pass; a pass need
 * not have all blocks. 0, or TS_FFN_ERR_ARGUMENT or
 * TS_FFN_ERR_FULL with nothing changed.
 */
int ts_ffn_record_block(ts_ffn_stats *s, uint32_t worker, uint32_t slot, uint32_t block,
                        const float *row);
/* Ends the slot's pass. 0, or TS_FFN_ERR_ARGUMENT: no such slot. */
int ts_ffn_end_pass(ts_ffn_stats *s, uint32_t slot);
/*
 * The same work block by block over many passes, so that a block's state is fetched once: first every
 * pass is numbered, in order, and thereby ended; then each block records its rows in that order. The
 * first pass of a generation (`begins`) has number 1. TS_FFN_ERR_ARGUMENT also for a number that is not
 * above the last of slot and block; TS_FFN_ERR_FULL.
 */
int ts_ffn_number_pass(ts_ffn_stats *s, uint32_t slot, bool begins, uint64_t *pass);
int ts_ffn_record_numbered(ts_ffn_stats *s, uint32_t worker, uint32_t slot, uint32_t block, uint64_t pass,
                           const float *row);

/*
 * The sets of the row last recorded for slot and block, [width] bytes: neuron i is in set j if
 * level[i] <= block.rank[j]. Valid until the next record of that slot and block; NULL if nothing
 * was recorded in this generation.
 */
const uint8_t *ts_ffn_levels(const ts_ffn_stats *s, uint32_t slot, uint32_t block);
/* The earliest non-finite value of all blocks (by row, then block). Returns its block, or -1 if
 * there was none. */
int64_t ts_ffn_first_nonfinite(const ts_ffn_stats *s, ts_ffn_place *place);
/*
 * Adds src to dst: counts exactly, masses as f64 sums; src's rows count as later ones. Slots,
 * generations in progress and levels of dst stay as they are. 0, or TS_FFN_ERR_SHAPE or
 * TS_FFN_ERR_FULL with dst unchanged.
 */
int ts_ffn_stats_merge(ts_ffn_stats *dst, const ts_ffn_stats *src);

#endif
