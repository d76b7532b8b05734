/* One group of jobs as sequences of one batch: the text under steering, that text under the unsteered model, the window
 * with and without steering in the same batch (so that scale 0 differs by exactly nothing), the continuations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "instrument/sweep.h"
#include "stats/kl.h"

int ts_sweep_group_init(ts_sweep *w, ts_error *err) {
    size_t room = w->s->opts.n_ubatch, p = (size_t)w->parallel, n_layer = (size_t)w->n_layer;
    w->jobs = ts_calloc(p, sizeof(*w->jobs));
    w->logits = ts_calloc(p * w->window, w->n_vocab * sizeof(float));
    w->looked = ts_calloc(p, sizeof(*w->looked));
    w->batch_tokens = ts_calloc(room, sizeof(int32_t));
    w->batch_positions = ts_calloc(room, sizeof(int32_t));
    w->batch_seqs = ts_calloc(room, sizeof(int32_t));
    w->batch_row = ts_calloc(room, sizeof(int32_t));
    w->batch_output = ts_calloc(room, 1);
    if (!w->jobs || !w->logits || !w->looked || !w->batch_tokens || !w->batch_positions || !w->batch_seqs || !w->batch_row || !w->batch_output)
        return ts_fail_nomem(err, "logits of the windows", p * w->window * w->n_vocab * sizeof(float));
    for (size_t i = 0; i < p; i++) {
        ts_sweep_job *j = &w->jobs[i];
        j->text = ts_calloc((size_t)w->n_predict, sizeof(*j->text));
        j->c = ts_calloc(n_layer, sizeof(*j->c));
        j->c_unsteered = ts_calloc(w->n_arms * n_layer, sizeof(*j->c_unsteered));
        if (!j->text || !j->c || !j->c_unsteered) return ts_fail_nomem(err, "sweep", n_layer * sizeof(*j->c));
    }
    return ts_group_init(&w->group, w->s, p, err);
}

void ts_sweep_group_free(ts_sweep *w) {
    for (int32_t i = 0; w->jobs && i < w->parallel; i++) {
        free(w->jobs[i].text);
        free(w->jobs[i].c);
        free(w->jobs[i].c_unsteered);
    }
    free(w->jobs);
    free(w->logits);
    free(w->looked);
    free(w->batch_tokens);
    free(w->batch_positions);
    free(w->batch_seqs);
    free(w->batch_row);
    free(w->batch_output);
    if (w->group.session) ts_group_free(&w->group);
}

/* ---- continuations: the first token of each is predicted by the row after the prompt, which the passes below compute
 * anyway; what follows in longer ones needs a pass of its own */

static int score_token(ts_sweep *w, const ts_sweep_tail *tail, size_t i, const float *logits, ts_sweep_job *j, ts_error *err) {
    ts_kl_row row;
    int rc = ts_kl_single(logits, (int32_t)w->n_vocab, tail->tokens[i], &row, err);
    double share = rc == TS_OK ? -row.nll_p / (double)tail->n : -INFINITY;
    if (tail->positive) j->positive += share;
    else j->negative += share;
    return rc == TS_ERR_FORMAT ? TS_OK : rc;
}

static int score_first(ts_sweep *w, const float *logits, ts_sweep_job *j, ts_error *err) {
    int rc = TS_OK;
    for (size_t t = 0; rc == TS_OK && t < w->n_tails; t++) rc = score_token(w, &w->tails[t], 0, logits, j, err);
    return rc;
}

typedef struct scoring {
    ts_sweep *w;
    const ts_sweep_tail *tail;
} scoring;

static int score_row(size_t seq, size_t i, const float *logits, void *user, ts_error *err) {
    const scoring *sc = user;
    return i > 0 ? score_token(sc->w, sc->tail, i, logits, &sc->w->jobs[seq], err) : TS_OK;
}

static int score_rest(ts_sweep *w, ts_sweep_forced *seqs, ts_error *err) {
    int rc = TS_OK;
    for (size_t t = 0; rc == TS_OK && t < w->n_tails; t++) {
        scoring sc = {w, &w->tails[t]};
        if (sc.tail->n < 2) continue;
        for (size_t i = 0; i < w->n_jobs; i++) {
            const ts_sweep_prompt *p = &w->prompts[w->jobs[i].prompt];
            seqs[i] = (ts_sweep_forced){.head = p->tokens, .n_head = p->n, .tail = sc.tail->tokens, .n_tail = sc.tail->n};
        }
        rc = ts_sweep_force(w, seqs, w->n_jobs, &w->steer, score_row, &sc, err);
    }
    return rc;
}

/* ---- the text, and its perplexity without steering */

static void on_token(size_t seq, int32_t token, void *user) {
    ts_sweep *w = user;
    ts_sweep_job *j = &w->jobs[seq];
    j->text[j->n_text++] = token;
}

static int generate(ts_sweep *w, ts_error *err) {
    int rc = TS_OK;
    w->group.n_predict = w->n_predict;
    w->group.ignore_eos = w->o->ignore_eos;
    w->group.edit = &w->steer;
    w->group.on_token = on_token;
    w->group.user = w;
    for (size_t i = 0; rc == TS_OK && i < w->n_jobs; i++) {
        const ts_sweep_prompt *p = &w->prompts[w->jobs[i].prompt];
        rc = ts_group_add(&w->group, p->tokens, p->n, err);
    }
    return rc == TS_OK ? ts_group_run(&w->group, err) : rc;
}

static int add_nll(size_t seq, size_t i, const float *logits, void *user, ts_error *err) {
    ts_sweep *w = user;
    ts_kl_row row;
    int rc = ts_kl_single(logits, (int32_t)w->n_vocab, w->jobs[seq].text[i], &row, err);
    if (rc != TS_OK) return rc;
    w->jobs[seq].nll += row.nll_p;
    return i == 0 && w->jobs[seq].cell == TS_SWEEP_UNSTEERED ? score_first(w, logits, &w->jobs[seq], err) : TS_OK;
}

static int judge(ts_sweep *w, ts_sweep_forced *seqs, ts_error *err) {
    for (size_t i = 0; i < w->n_jobs; i++) {
        const ts_sweep_job *j = &w->jobs[i];
        const ts_sweep_prompt *p = &w->prompts[j->prompt];
        seqs[i] = (ts_sweep_forced){.head = p->tokens, .n_head = p->n, .tail = j->text, .n_tail = j->n_text};
    }
    return ts_sweep_force(w, seqs, w->n_jobs, NULL, add_nll, w, err);
}

/* ---- the window */

static int keep_row(size_t seq, size_t i, const float *logits, void *user, ts_error *err) {
    ts_sweep *w = user;
    (void)err;
    memcpy(w->logits + (seq * w->window + i) * w->n_vocab, logits, w->n_vocab * sizeof(float));
    return TS_OK;
}

/* Logits that are not numbers are the cell's own doing and no reason to end the sweep. */
static int compare_row(size_t seq, size_t i, const float *logits, void *user, ts_error *err) {
    ts_sweep *w = user;
    ts_sweep_job *j = &w->jobs[seq];
    ts_kl_row row = {.kl_pq = INFINITY};
    int rc = ts_kl_compare(w->logits + (seq * w->window + i) * w->n_vocab, logits, (int32_t)w->n_vocab, -1, &row, err);
    if (rc == TS_ERR_FORMAT) row.kl_pq = INFINITY;
    if (row.kl_pq > j->kl_max) j->kl_max = row.kl_pq;
    j->kl_sum += row.kl_pq;
    j->n_kl++;
    if (rc != TS_OK && rc != TS_ERR_FORMAT) return rc;
    return i == 0 ? score_first(w, logits, j, err) : TS_OK;
}

/* The same prompts in the same order as in the group before: their unsteered rows are here already. */
static bool known(const ts_sweep *w) {
    bool same = w->n_looked == w->n_jobs;
    for (size_t i = 0; same && i < w->n_jobs; i++) same = w->looked[i] == w->jobs[i].prompt;
    return same;
}

static int look(ts_sweep *w, const ts_sweep_forced *seqs, ts_error *err) {
    w->n_looked = 0;
    for (size_t i = 0; i < w->n_jobs; i++) memset(w->jobs[i].c_unsteered, 0, w->n_arms * (size_t)w->n_layer * sizeof(double));
    int rc = ts_sweep_force(w, seqs, w->n_jobs, &w->look, keep_row, w, err);
    for (size_t i = 0; i < w->n_jobs; i++) w->looked[i] = w->jobs[i].prompt;
    if (rc == TS_OK) w->n_looked = w->n_jobs;
    return rc;
}

static int watch(ts_sweep *w, ts_sweep_forced *seqs, ts_error *err) {
    for (size_t i = 0; i < w->n_jobs; i++) {
        const ts_sweep_prompt *p = &w->prompts[w->jobs[i].prompt];
        size_t n = p->n_text < w->window ? p->n_text : w->window;
        seqs[i] = (ts_sweep_forced){.head = p->tokens, .n_head = p->n, .tail = p->text, .n_tail = n};
    }
    int rc = known(w) ? TS_OK : look(w, seqs, err);
    w->measuring = true;
    if (rc == TS_OK) rc = ts_sweep_force(w, seqs, w->n_jobs, &w->steer, compare_row, w, err);
    w->measuring = false;
    return rc;
}

/* ---- all of it */

static void reset(ts_sweep *w, ts_sweep_job *j) {
    j->n_text = j->n_kl = 0;
    j->nll = j->kl_max = j->kl_sum = j->positive = j->negative = 0.0;
    memset(j->c, 0, (size_t)w->n_layer * sizeof(*j->c));
}

int ts_sweep_group_run(ts_sweep *w, ts_error *err) {
    ts_sweep_forced *seqs = ts_calloc(w->n_jobs, sizeof(*seqs));
    if (!seqs) return ts_fail_nomem(err, "sweep", w->n_jobs * sizeof(*seqs));
    for (size_t i = 0; i < w->n_jobs; i++) reset(w, &w->jobs[i]);
    int rc = generate(w, err);
    if (rc == TS_OK) rc = judge(w, seqs, err);
    if (rc == TS_OK && w->jobs[0].cell != TS_SWEEP_UNSTEERED) rc = watch(w, seqs, err);
    if (rc == TS_OK) rc = score_rest(w, seqs, err);
    free(seqs);
    return rc;
}
