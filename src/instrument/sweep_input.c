/* What a sweep reads as tokens: prompts, continuations to score, the human text. Refuses a continuation without a token and a
 * text shorter than two. */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "instrument/corpus.h"
#include "instrument/sweep.h"

static int add_prompt(const ts_corpus_entry *e, void *user, ts_error *err) {
    ts_sweep *w = user;
    ts_sweep_prompt *grown = ts_realloc(w->prompts, w->r->n_prompts + 1, sizeof(*grown));
    if (!grown) return ts_fail_nomem(err, "prompts", 0);
    w->prompts = grown;
    ts_sweep_prompt *p = &grown[w->r->n_prompts];
    *p = (ts_sweep_prompt){.n = e->n, .tokens = ts_malloc(e->n * sizeof(*p->tokens))};
    if (!p->tokens) return ts_fail_nomem(err, "prompt", e->n * sizeof(*p->tokens));
    memcpy(p->tokens, e->tokens, e->n * sizeof(*p->tokens));
    w->r->n_prompts++;
    return TS_OK;
}

static int read_prompts(ts_sweep *w, ts_error *err) {
    ts_corpus_options co = {w->o->input_path, w->o->column, w->o->chat_template, w->o->chat, w->o->special};
    ts_corpus_summary summary;
    ts_corpus *corpus = NULL;
    int rc = ts_corpus_open(w->s, &co, &corpus, err);
    if (rc == TS_OK) rc = ts_corpus_scan(corpus, add_prompt, w, &summary, err);
    ts_corpus_close(corpus);
    if (rc != TS_OK) return rc;
    w->longest = summary.longest;
    w->r->n_skipped_empty = summary.n_skipped;
    memcpy(w->corpus, summary.fingerprint, sizeof(w->corpus));
    return TS_OK;
}

static int read_tail(ts_sweep *w, const char *text, bool positive, ts_error *err) {
    ts_sweep_tail *t = &w->tails[w->n_tails];
    t->positive = positive;
    int rc = ts_session_tokenize(w->s, text, strlen(text), TS_TOKENIZE_NO_BOS, &t->tokens, &t->n, err);
    if (rc != TS_OK) return rc;
    w->n_tails++;
    return t->n > 0 ? TS_OK : ts_fail(err, TS_ERR_ARG, "%s: the continuation '%s' has no token", positive ? "--score-positive" : "--score-negative", text);
}

static int read_tails(ts_sweep *w, ts_error *err) {
    int rc = TS_OK;
    w->tails = ts_calloc(w->o->n_positive + w->o->n_negative, sizeof(*w->tails));
    if (!w->tails) return ts_fail_nomem(err, "continuations", 0);
    for (size_t i = 0; rc == TS_OK && i < w->o->n_positive; i++) rc = read_tail(w, w->o->positive[i], true, err);
    for (size_t i = 0; rc == TS_OK && i < w->o->n_negative; i++) rc = read_tail(w, w->o->negative[i], false, err);
    return rc;
}

static int read_anchor(ts_sweep *w, ts_error *err) {
    char *text = NULL;
    size_t length = 0;
    if (!w->o->anchor_path) return TS_OK;
    int rc = ts_text_file_read(w->o->anchor_path, &text, &length, err);
    if (rc == TS_OK) rc = ts_session_tokenize(w->s, text, length, 0, &w->anchor, &w->n_anchor, err);
    ts_free(text);
    if (rc == TS_OK && w->n_anchor < 2)
        rc = ts_fail(err, TS_ERR_ARG, "'%s' has %zu token(s): a human text needs at least two", w->o->anchor_path, w->n_anchor);
    w->r->anchor_given = rc == TS_OK;
    return rc;
}

int ts_sweep_read_inputs(ts_sweep *w, ts_error *err) {
    int rc = read_prompts(w, err);
    if (rc == TS_OK) rc = read_tails(w, err);
    return rc == TS_OK ? read_anchor(w, err) : rc;
}

void ts_sweep_free_inputs(ts_sweep *w) {
    for (size_t i = 0; w->prompts && i < w->r->n_prompts; i++) {
        free(w->prompts[i].tokens);
        free(w->prompts[i].text);
    }
    for (size_t i = 0; i < w->n_tails; i++) free(w->tails[i].tokens);
    free(w->prompts);
    free(w->tails);
    free(w->anchor);
}
