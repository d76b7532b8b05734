/* Packs token sequences into decode batches. The packing is a pure function of the sequences' lengths, their
 * order and the options, so that a resumed capture makes the same batches. */
#ifndef TS_INSTRUMENT_BATCH_H
#define TS_INSTRUMENT_BATCH_H

#include "core/error.h"

#define TS_BATCH_MAX_SEQ 256 /* llama.cpp's limit of sequence ids */

/* One prompt in a batch, or the part of a long one that this batch runs. */
typedef struct ts_batch_seq {
    int64_t prompt_index;
    size_t begin, n;  /* its tokens in the batch */
    size_t n_prompt;  /* tokens of the whole prompt */
    char *label;      /* owned, nullable */
} ts_batch_seq;

typedef struct ts_batch {
    int32_t *tokens, *positions, *seq_ids; /* [capacity] */
    int8_t *output;                        /* [capacity]: a row of this token is wanted */
    size_t n, capacity;
    size_t limit;                          /* tokens of a full batch; only a longer prompt goes beyond, alone */
    ts_batch_seq seqs[TS_BATCH_MAX_SEQ];
    size_t n_seqs;
} ts_batch;

int ts_batch_init(ts_batch *b, size_t capacity, ts_error *err);
bool ts_batch_fits(const ts_batch *b, size_t n);
/* Appends a whole sequence as the next sequence id, no output marked. Grows for one longer than capacity. */
int ts_batch_add(ts_batch *b, int64_t prompt_index, const int32_t *tokens, size_t n, const char *label, ts_error *err);
void ts_batch_clear(ts_batch *b);
void ts_batch_free(ts_batch *b);

#endif
