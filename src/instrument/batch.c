/* Packs token sequences into decode batches. */
#include "instrument/batch.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

static int reserve(ts_batch *b, size_t capacity, ts_error *err) {
    if (capacity <= b->capacity) return TS_OK;
    int32_t **arrays[] = {&b->tokens, &b->positions, &b->seq_ids};
    for (size_t i = 0; i < 3; i++) {
        int32_t *grown = ts_realloc(*arrays[i], capacity, sizeof(**arrays[i]));
        if (!grown) return ts_fail_nomem(err, "batch", capacity * sizeof(*grown));
        *arrays[i] = grown;
    }
    int8_t *output = ts_realloc(b->output, capacity, 1);
    if (!output) return ts_fail_nomem(err, "batch", capacity);
    b->output = output;
    b->capacity = capacity;
    return TS_OK;
}

int ts_batch_init(ts_batch *b, size_t capacity, ts_error *err) {
    memset(b, 0, sizeof(*b));
    b->limit = capacity;
    return reserve(b, capacity, err);
}

/* By the limit, not by what an earlier long prompt made room for: a resumed capture never saw that prompt. */
bool ts_batch_fits(const ts_batch *b, size_t n) {
    return b->n_seqs < TS_BATCH_MAX_SEQ && b->n <= b->limit && n <= b->limit - b->n;
}

int ts_batch_add(ts_batch *b, int64_t prompt_index, const int32_t *tokens, size_t n, const char *label, ts_error *err) {
    int rc = reserve(b, b->n + n, err);
    if (rc != TS_OK) return rc;
    ts_batch_seq *seq = &b->seqs[b->n_seqs];
    *seq = (ts_batch_seq){.prompt_index = prompt_index, .begin = b->n, .n = n, .n_prompt = n};
    if (label && !(seq->label = ts_strdup(label))) return ts_fail_nomem(err, "label", strlen(label));
    for (size_t i = 0; i < n; i++) {
        b->tokens[b->n + i] = tokens[i];
        b->positions[b->n + i] = (int32_t)i;
        b->seq_ids[b->n + i] = (int32_t)b->n_seqs;
        b->output[b->n + i] = 0;
    }
    b->n += n;
    b->n_seqs++;
    return TS_OK;
}

void ts_batch_clear(ts_batch *b) {
    for (size_t i = 0; i < b->n_seqs; i++) free(b->seqs[i].label);
    b->n = b->n_seqs = 0;
}

void ts_batch_free(ts_batch *b) {
    ts_batch_clear(b);
    free(b->tokens);
    free(b->positions);
    free(b->seq_ids);
    free(b->output);
    memset(b, 0, sizeof(*b));
}
