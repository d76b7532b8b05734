/* Greedy generation for a group of prompts side by side. Owns the batches: prompts without their last tokens in
 * chunks of n_ubatch without output, then one token of each unfinished sequence a pass. */
#include "instrument/group.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

int ts_group_init(ts_group *g, ts_session *s, size_t capacity, ts_error *err) {
    memset(g, 0, sizeof(*g));
    g->session = s;
    g->capacity = capacity;
    g->room = s->opts.n_ubatch > capacity ? s->opts.n_ubatch : capacity;
    g->seqs = ts_calloc(capacity, sizeof(*g->seqs));
    g->batch_tokens = ts_calloc(g->room, sizeof(int32_t));
    g->batch_positions = ts_calloc(g->room, sizeof(int32_t));
    g->batch_seqs = ts_calloc(g->room, sizeof(int32_t));
    g->batch_output = ts_calloc(g->room, 1);
    g->batch_first = ts_calloc(g->room, sizeof(bool));
    if (!g->seqs || !g->batch_tokens || !g->batch_positions || !g->batch_seqs || !g->batch_output || !g->batch_first)
        return ts_fail_nomem(err, "batch", g->room * sizeof(int32_t));
    return TS_OK;
}

int ts_group_add(ts_group *g, const int32_t *tokens, size_t n, ts_error *err) {
    if (g->n == g->capacity) return ts_fail(err, TS_ERR_STATE, "the group holds %zu prompts already", g->n);
    ts_group_seq *seq = &g->seqs[g->n];
    *seq = (ts_group_seq){.n = n, .last = tokens[n - 1]};
    seq->tokens = ts_malloc(n * sizeof(*tokens));
    if (!seq->tokens) return ts_fail_nomem(err, "prompt", n * sizeof(*tokens));
    memcpy(seq->tokens, tokens, n * sizeof(*tokens));
    g->n++;
    return TS_OK;
}

static void empty(ts_group *g) {
    for (size_t i = 0; i < g->n; i++) free(g->seqs[i].tokens);
    g->n = 0;
}

void ts_group_free(ts_group *g) {
    empty(g);
    free(g->seqs);
    free(g->batch_tokens);
    free(g->batch_positions);
    free(g->batch_seqs);
    free(g->batch_output);
    free(g->batch_first);
    memset(g, 0, sizeof(*g));
}

static int on_run(const ts_run *run, void *user, ts_error *err) {
    ts_group *g = user;
    return g->on_pass ? g->on_pass(run, g->batch_seqs, g->batch_first, g->user, err) : TS_OK;
}

static int decode(ts_group *g, size_t n, bool headful, ts_error *err) {
    ts_decode d = {.tokens = g->batch_tokens, .positions = g->batch_positions, .seq_ids = g->batch_seqs, .n = n, .edit = g->edit,
                   .output = headful ? g->batch_output : NULL, .wanted = headful || g->prefill_too ? g->wanted : 0,
                   .on_run = (headful || g->prefill_too) && g->wanted ? on_run : NULL, .user = g};
    g->headful = headful;
    g->n_run += n;
    return ts_session_decode(g->session, &d, err);
}

static void put(ts_group *g, size_t at, int32_t token, size_t position, size_t seq, bool output, bool first) {
    g->batch_tokens[at] = token;
    g->batch_positions[at] = (int32_t)position;
    g->batch_seqs[at] = (int32_t)seq;
    g->batch_output[at] = output;
    g->batch_first[at] = first;
}

/* Every prompt but its last token. */
static int prefill(ts_group *g, ts_error *err) {
    size_t n = 0, chunk = g->session->opts.n_ubatch;
    int rc = TS_OK;
    for (size_t s = 0; s < g->n; s++)
        for (size_t i = 0; rc == TS_OK && i + 1 < g->seqs[s].n; i++) {
            put(g, n++, g->seqs[s].tokens[i], i, s, false, false);
            if (n < chunk) continue;
            rc = decode(g, n, false, err);
            n = 0;
            if (rc == TS_OK && ts_session_stopped(g->session)) rc = ts_fail(err, TS_ERR_INTERRUPTED, "interrupted in a prompt");
        }
    return rc == TS_OK && n > 0 ? decode(g, n, false, err) : rc;
}

static int32_t greedy(const float *logits, int32_t n_vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* One token of every unfinished sequence; takes the next ones. */
static int step(ts_group *g, bool first, size_t *active, ts_error *err) {
    const struct llama_vocab *vocab = g->session->model->vocab;
    size_t n = 0;
    for (size_t s = 0; s < g->n; s++)
        if (!g->seqs[s].done) put(g, n++, g->seqs[s].last, g->seqs[s].n - 1 + (size_t)g->seqs[s].n_generated, s, true, first);
    int rc = decode(g, n, true, err);
    *active = 0;
    for (size_t i = 0; rc == TS_OK && i < n; i++) {
        ts_group_seq *seq = &g->seqs[g->batch_seqs[i]];
        const float *logits = llama_get_logits_ith(g->session->ctx, (int32_t)i);
        if (!logits) return ts_fail(err, TS_ERR_ENGINE, "llama.cpp gave no logits for token %zu of a batch", i);
        seq->last = greedy(logits, llama_vocab_n_tokens(vocab));
        seq->n_generated++;
        if (g->on_token) g->on_token((size_t)g->batch_seqs[i], seq->last, g->user);
        seq->done = seq->n_generated >= g->n_predict || (llama_vocab_is_eog(vocab, seq->last) && !g->ignore_eos);
        *active += !seq->done;
    }
    return rc;
}

int ts_group_run(ts_group *g, ts_error *err) {
    size_t active = g->n;
    ts_session_clear(g->session);
    int rc = prefill(g, err);
    for (bool first = true; rc == TS_OK && active > 0; first = false) {
        if (ts_session_stopped(g->session)) rc = ts_fail(err, TS_ERR_INTERRUPTED, "interrupted while generating");
        if (rc == TS_OK) rc = step(g, first, &active, err);
    }
    if (rc == TS_OK) empty(g);
    return rc;
}
