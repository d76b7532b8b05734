/* From jobs to cells, from cells to what the scales are good for. Owns the figures' definitions; refuses nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "instrument/sweep.h"

/* ---- a job's figures */

static int64_t count_distinct(const int32_t *tokens, size_t n) {
    int64_t distinct = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < i && tokens[k] != tokens[i]) k++;
        distinct += k == i;
    }
    return distinct;
}

/* Index of the first token that is not the unsteered text's, -1 when there is none. */
static int32_t divergence(const ts_sweep_job *j, const ts_sweep_prompt *p) {
    size_t i = 0;
    while (i < j->n_text && i < p->n_text && j->text[i] == p->text[i]) i++;
    return i == j->n_text && i == p->n_text ? -1 : (int32_t)i;
}

static void add_c(const ts_sweep *w, const ts_sweep_job *j, ts_sweep_tally *t) {
    double with = 0.0, without = 0.0;
    int32_t n = 0;
    for (int32_t il = 0; il < w->n_layer; il++) {
        if (!ts_sweep_axis(w, j->cell, il)) continue;
        with += j->c[il];
        without += j->c_unsteered[(size_t)w->r->cells[j->cell].arm * (size_t)w->n_layer + (size_t)il];
        n++;
    }
    if (n == 0 || j->n_kl == 0) return;
    t->c += with / n / (double)j->n_kl;
    t->c_unsteered += without / n / (double)j->n_kl;
}

static void add(const ts_sweep *w, const ts_sweep_job *j, ts_sweep_tally *t) {
    int32_t first = divergence(j, &w->prompts[j->prompt]);
    if (first >= 0 && (t->n_diverged == 0 || first < t->first)) t->first = first;
    t->n_diverged += first >= 0;
    t->nll += j->nll;
    t->n_tokens += (int64_t)j->n_text;
    t->n_distinct += count_distinct(j->text, j->n_text);
    t->kl_sum += j->kl_sum;
    t->n_kl += (int64_t)j->n_kl;
    if (j->kl_max > t->kl_max) t->kl_max = j->kl_max;
    t->positive += j->positive;
    t->negative += j->negative;
    if (j->cell != TS_SWEEP_UNSTEERED) add_c(w, j, t);
    t->n_prompts++;
}

/* ---- a cell's record */

static double finite_or(double value, double otherwise) { return isfinite(value) ? value : otherwise; }

static void fill_scores(const ts_sweep *w, const ts_sweep_tally *t, ts_sweep_cell *c) {
    double n_positive = (double)(w->o->n_positive * t->n_prompts), n_negative = (double)(w->o->n_negative * t->n_prompts);
    c->score_positive = finite_or(t->positive / n_positive, NAN);
    c->score_negative = finite_or(t->negative / n_negative, NAN);
    c->score = NAN;
    if (w->o->n_positive && w->o->n_negative) c->score = c->score_positive - c->score_negative;
    else if (w->o->n_positive) c->score = c->score_positive;
    else if (w->o->n_negative) c->score = -c->score_negative;
}

static void fill(const ts_sweep *w, const ts_sweep_tally *t, ts_sweep_cell *c) {
    double n = (double)t->n_tokens, prompts = (double)t->n_prompts;
    c->n_tokens = t->n_tokens;
    c->perplexity = finite_or(exp(t->nll / n), INFINITY);
    c->distinct = (double)t->n_distinct / n;
    c->n_diverged = t->n_diverged;
    c->first_divergence = t->n_diverged ? t->first : -1;
    c->kl_max = finite_or(t->kl_max, INFINITY);
    c->kl_mean = t->n_kl ? finite_or(t->kl_sum / (double)t->n_kl, INFINITY) : 0.0;
    c->c = t->c / prompts;
    c->c_unsteered = t->c_unsteered / prompts;
    c->no_effect = c->mode != TS_STEERING_DECLARED && c->kl_max < TS_SWEEP_NO_EFFECT;
    fill_scores(w, t, c);
}

char *ts_sweep_text(const ts_sweep *w, const int32_t *tokens, size_t n) {
    ts_buf b = {0};
    char piece[512];
    if (n > 0 && llama_vocab_is_eog(w->s->model->vocab, tokens[n - 1])) n--;
    for (size_t i = 0; i < n; i++) {
        int length = ts_session_piece(w->s, tokens[i], piece, sizeof(piece), NULL);
        if (length > 0) ts_buf_add(&b, piece, (size_t)length);
    }
    return ts_buf_take(&b);
}

static int keep_unsteered(ts_sweep *w, const ts_sweep_job *j, ts_error *err) {
    ts_sweep_prompt *p = &w->prompts[j->prompt];
    p->text = ts_malloc(j->n_text * sizeof(*p->text));
    if (!p->text) return ts_fail_nomem(err, "text", j->n_text * sizeof(*p->text));
    memcpy(p->text, j->text, j->n_text * sizeof(*p->text));
    p->n_text = j->n_text;
    return TS_OK;
}

int ts_sweep_cell_add(ts_sweep *w, const ts_sweep_job *j, ts_error *err) {
    bool base = j->cell == TS_SWEEP_UNSTEERED;
    ts_sweep_cell *c = base ? &w->r->unsteered : &w->r->cells[j->cell];
    ts_sweep_tally *t = base ? &w->unsteered : &w->tallies[j->cell];
    int rc = base ? keep_unsteered(w, j, err) : TS_OK;
    if (rc != TS_OK) return rc;
    if (!c->texts && !(c->texts = ts_calloc(w->r->n_prompts, sizeof(*c->texts)))) return ts_fail_nomem(err, "texts", 0);
    c->texts[j->prompt] = ts_sweep_text(w, j->text, j->n_text);
    if (!c->texts[j->prompt]) return ts_fail_nomem(err, "text", 0);
    add(w, j, t);
    if (t->n_prompts == w->r->n_prompts) fill(w, t, c);
    return TS_OK;
}

/* ---- the control arms' spread */

/* Mean and standard deviation over the arms that follow cell i, which is the file's own. */
static void spread(ts_sweep *w, size_t i) {
    ts_sweep_cell *c = &w->r->cells[i];
    double sum = 0.0, squares = 0.0;
    int32_t n = 0;
    for (size_t k = i + 1; k < w->r->n_cells && w->r->cells[k].arm > 0; k++, n++) sum += w->r->cells[k].score;
    for (size_t k = i + 1; k < w->r->n_cells && w->r->cells[k].arm > 0; k++) {
        double off = w->r->cells[k].score - sum / n;
        squares += off * off;
    }
    if (n > 0) c->random_mean = sum / n;
    if (n > 1) c->random_sd = sqrt(squares / (n - 1));
}

/* ---- bands */

static bool same_point(const ts_sweep_band *b, const ts_sweep_cell *c) {
    return c->arm == 0 && b->mode == c->mode && b->band.first == c->band.first && b->band.last == c->band.last;
}

/* The band's cell nearest to 0 beyond `from` on that side (sign); NULL at the end. */
static const ts_sweep_cell *next_out(const ts_sweep_result *r, const ts_sweep_band *b, double from, int sign) {
    const ts_sweep_cell *best = NULL;
    for (size_t i = 0; i < r->n_cells; i++) {
        const ts_sweep_cell *c = &r->cells[i];
        if (same_point(b, c) && sign * c->scale > from && (!best || sign * c->scale < sign * best->scale)) best = c;
    }
    return best;
}

static void walk_out(const ts_sweep_result *r, ts_sweep_band *b, int sign) {
    double *end = sign < 0 ? &b->low : &b->high, *crossed = sign < 0 ? &b->crossed_low : &b->crossed_high;
    double *collapsed = sign < 0 ? &b->collapsed_low : &b->collapsed_high;
    const ts_sweep_cell *c = next_out(r, b, 0.0, sign);
    while (c && c->perplexity <= r->limit) {
        if (isnan(*collapsed) && c->distinct < TS_SWEEP_COLLAPSE * r->unsteered.distinct) *collapsed = c->scale;
        b->usable = true;
        *end = c->scale;
        c = next_out(r, b, fabs(c->scale), sign);
    }
    if (c) *crossed = c->scale;
}

static void fill_band(const ts_sweep_result *r, ts_sweep_band *b) {
    b->crossed_low = b->crossed_high = b->collapsed_low = b->collapsed_high = NAN;
    b->no_effect = true;
    for (size_t i = 0; i < r->n_cells; i++)
        if (same_point(b, &r->cells[i]) && !r->cells[i].no_effect) b->no_effect = false;
    walk_out(r, b, -1);
    walk_out(r, b, 1);
}

static void find_bands(ts_sweep_result *r) {
    for (size_t i = 0; i < r->n_cells; i++) {
        const ts_sweep_cell *c = &r->cells[i];
        size_t k = 0;
        while (c->arm == 0 && k < r->n_bands && !same_point(&r->bands[k], c)) k++;
        if (c->arm == 0 && k == r->n_bands) r->bands[r->n_bands++] = (ts_sweep_band){.mode = c->mode, .band = c->band};
    }
    for (size_t k = 0; k < r->n_bands; k++) fill_band(r, &r->bands[k]);
}

int ts_sweep_conclude(ts_sweep *w, ts_error *err) {
    ts_sweep_result *r = w->r;
    r->unsteered.random_mean = r->unsteered.random_sd = NAN;
    for (size_t i = 0; i < r->n_cells; i++) {
        r->cells[i].random_mean = r->cells[i].random_sd = NAN;
        if (r->cells[i].arm == 0) spread(w, i);
    }
    if (!r->anchor_given) {
        r->anchor = r->unsteered.perplexity;
        r->n_anchor = r->unsteered.n_tokens;
    }
    r->limit = r->anchor_given ? r->anchor : TS_SWEEP_OWN_LIMIT * r->anchor;
    r->bands = ts_calloc(r->n_cells, sizeof(*r->bands));
    if (!r->bands) return ts_fail_nomem(err, "bands", r->n_cells * sizeof(*r->bands));
    find_bands(r);
    return TS_OK;
}
