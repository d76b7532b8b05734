/* Teacher-forced scoring of sequences side by side, and the human text's perplexity by it. Owns the packing: sequences one
 * after the other into batches of n_ubatch tokens, a pure function of their lengths. */
#include <math.h>
#include <stdlib.h>

#include "core/mem.h"
#include "instrument/sweep.h"
#include "stats/kl.h"

#define MAX_ANCHOR 4096u /* tokens of the human text that are scored */

/* Decodes the batch and hands out its logits. */
static int flush(ts_sweep *w, size_t n, const ts_edit *edit, ts_sweep_row_fn on_row, void *user, ts_error *err) {
    ts_decode d = {.tokens = w->batch_tokens, .positions = w->batch_positions, .seq_ids = w->batch_seqs, .output = w->batch_output,
                   .n = n, .edit = edit};
    int rc = n > 0 ? ts_session_decode(w->s, &d, err) : TS_OK;
    for (size_t i = 0; rc == TS_OK && i < n; i++) {
        if (!w->batch_output[i]) continue;
        const float *logits = llama_get_logits_ith(w->s->ctx, (int32_t)i);
        if (!logits) return ts_fail(err, TS_ERR_ENGINE, "llama.cpp gave no logits for token %zu of a batch", i);
        rc = on_row((size_t)w->batch_seqs[i], (size_t)w->batch_row[i], logits, user, err);
    }
    return rc;
}

int ts_sweep_force(ts_sweep *w, const ts_sweep_forced *seqs, size_t n, const ts_edit *edit, ts_sweep_row_fn on_row, void *user,
                   ts_error *err) {
    size_t at = 0;
    int rc = TS_OK;
    ts_session_clear(w->s);
    for (size_t q = 0; q < n; q++) {
        const ts_sweep_forced *f = &seqs[q];
        for (size_t i = 0; rc == TS_OK && f->n_tail > 0 && i < f->n_head + f->n_tail - 1; i++) {
            w->batch_tokens[at] = i < f->n_head ? f->head[i] : f->tail[i - f->n_head];
            w->batch_positions[at] = (int32_t)i;
            w->batch_seqs[at] = (int32_t)q;
            w->batch_output[at] = i + 1 >= f->n_head;
            w->batch_row[at] = i + 1 >= f->n_head ? (int32_t)(i + 1 - f->n_head) : 0;
            if (++at < w->s->opts.n_ubatch) continue;
            rc = flush(w, at, edit, on_row, user, err);
            at = 0;
            if (rc == TS_OK && ts_session_stopped(w->s)) rc = ts_fail(err, TS_ERR_INTERRUPTED, "interrupted");
        }
    }
    return rc == TS_OK ? flush(w, at, edit, on_row, user, err) : rc;
}

/* ---- the human text */

typedef struct anchor {
    ts_sweep *w;
    const ts_sweep_forced *seqs;
    double nll;
    int64_t n;
} anchor;

static int add_row(size_t seq, size_t i, const float *logits, void *user, ts_error *err) {
    anchor *a = user;
    ts_kl_row row;
    int rc = ts_kl_single(logits, (int32_t)a->w->n_vocab, a->seqs[seq].tail[i], &row, err);
    if (rc != TS_OK) return rc;
    a->nll += row.nll_p;
    a->n++;
    return TS_OK;
}

/* Tokens that stand before a scored one: as many as a prompt has on average. */
static size_t mean_prompt(const ts_sweep *w) {
    size_t sum = 0;
    for (size_t i = 0; i < w->r->n_prompts; i++) sum += w->prompts[i].n;
    return (sum + w->r->n_prompts - 1) / w->r->n_prompts;
}

/* The next windows of the text, at most `parallel`. A window inside the text begins with BOS where the text does. */
static size_t cut(const ts_sweep *w, size_t *at, size_t head, ts_sweep_forced *seqs, int32_t *heads) {
    bool bos = llama_vocab_get_add_bos(w->s->model->vocab);
    size_t n = 0;
    for (; n < (size_t)w->parallel && *at < w->n_anchor; n++) {
        size_t left = w->n_anchor - *at, take = left < (size_t)w->n_predict ? left : (size_t)w->n_predict;
        int32_t *copy = heads + n * head;
        for (size_t i = 0; i < head; i++) copy[i] = w->anchor[*at - head + i];
        if (bos && *at > head) copy[0] = w->anchor[0];
        seqs[n] = (ts_sweep_forced){.head = copy, .n_head = head, .tail = w->anchor + *at, .n_tail = take};
        *at += take;
    }
    return n;
}

int ts_sweep_anchor(ts_sweep *w, ts_error *err) {
    size_t head = mean_prompt(w), at;
    if (w->n_anchor < head + 2 && w->n_anchor >= 2) head = w->n_anchor / 2;
    if (w->n_anchor > head + MAX_ANCHOR) w->n_anchor = head + MAX_ANCHOR;
    ts_sweep_forced *seqs = ts_calloc((size_t)w->parallel, sizeof(*seqs));
    int32_t *heads = ts_calloc((size_t)w->parallel * head, sizeof(*heads));
    anchor a = {.w = w, .seqs = seqs};
    int rc = seqs && heads ? TS_OK : ts_fail_nomem(err, "anchor", head * sizeof(*heads));
    for (at = head; rc == TS_OK && at < w->n_anchor;) {
        size_t n = cut(w, &at, head, seqs, heads);
        rc = ts_sweep_force(w, seqs, n, NULL, add_row, &a, err);
    }
    if (rc == TS_OK) {
        w->r->anchor = exp(a.nll / (double)a.n);
        w->r->n_anchor = a.n;
    }
    free(seqs);
    free(heads);
    return rc;
}
