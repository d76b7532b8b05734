/* What a sweep will do, decided before it computes: cells, directions, prompts, continuations, the human text, the size of
 * the context. Refuses sweeps with no cell, bands the model or the file has not, prompts the context cannot hold. */
#include "instrument/sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "store/fingerprint.h"
#include "store/meta.h"

#define DEFAULT_PREDICT 32
#define DEFAULT_PARALLEL 8
#define MAX_PARALLEL 256
#define MAX_RANDOM 64
#define MAX_CELLS 100000u
#define CTX_STEP 256u
#define DEFAULT_UBATCH 512u
#define UBATCH_LOGIT_BYTES ((size_t)128 << 20) /* of one batch whose every token is an output */
#define WINDOW_LOGIT_BYTES ((size_t)512 << 20) /* kept for comparing */

/* ---- options */

static int check_options(const ts_sweep_options *o, ts_error *err) {
    int rc = ts_options_check(o, sizeof(*o), "ts_sweep_options", err);
    if (rc != TS_OK) return rc;
    if (!o->path) return ts_fail(err, TS_ERR_ARG, "sweep: no direction file");
    if (!o->input_path) return ts_fail(err, TS_ERR_ARG, "sweep: no prompts");
    if (o->n_scales == 0) return ts_fail(err, TS_ERR_ARG, "a sweep with no cell: no scale is given");
    for (size_t i = 0; i < o->n_scales; i++)
        if (!isfinite(o->scales[i])) return ts_fail(err, TS_ERR_ARG, "--scales: expected finite numbers, got %g", o->scales[i]);
    if (o->n_predict < 0) return ts_fail(err, TS_ERR_ARG, "-n: expected 1 or more, got %d", o->n_predict);
    if (o->parallel < 0 || o->parallel > MAX_PARALLEL)
        return ts_fail(err, TS_ERR_ARG, "--parallel: expected 1 to %d, got %d", MAX_PARALLEL, o->parallel);
    if (o->n_random < 0 || o->n_random > MAX_RANDOM)
        return ts_fail(err, TS_ERR_ARG, "--random: expected 0 to %d, got %d", MAX_RANDOM, o->n_random);
    if (o->resume && !o->output_path) return ts_fail(err, TS_ERR_ARG, "only a sweep with an output can be resumed");
    if (o->from < TS_STEERING_ALL || o->from > TS_STEERING_DECODE)
        return ts_fail(err, TS_ERR_ARG, "sweep: unknown choice of tokens %d", (int)o->from);
    return TS_OK;
}

/* ---- cells */

static enum ts_steering_mode public_mode(enum ts_steer_mode mode) {
    static const enum ts_steering_mode modes[] = {[TS_STEER_ABLATE] = TS_STEERING_ABLATE, [TS_STEER_ADD] = TS_STEERING_ADD,
                                                  [TS_STEER_CLAMP] = TS_STEERING_CLAMP, [TS_STEER_RENORM] = TS_STEERING_RENORM};
    return modes[mode];
}

static bool find_mode(enum ts_steering_mode mode, enum ts_steer_mode *out) {
    for (int m = 0; m < TS_STEER_MODE_COUNT; m++)
        if (public_mode((enum ts_steer_mode)m) == mode) {
            *out = (enum ts_steer_mode)m;
            return true;
        }
    return false;
}

const char *ts_steering_mode_name(enum ts_steering_mode mode) {
    enum ts_steer_mode m;
    return find_mode(mode, &m) ? ts_steer_mode_name(m) : "unsteered";
}

/* Reads the file once for every mode and band. */
static int open_directions(ts_sweep *w, ts_error *err) {
    ts_steering_options so = TS_OPTIONS_INIT(ts_steering_options);
    so.path = w->o->path;
    so.mode = w->o->n_modes ? w->o->modes[0] : TS_STEERING_DECLARED;
    so.scale = 1.0;
    so.gate = w->o->gate;
    int rc = ts_steering_file_open(&w->file, w->s, &so, err);
    if (rc == TS_ERR_ARG && w->file.vectors && !w->file.vectors->mode && !w->o->n_modes)
        return ts_fail(err, rc, "'%s' declares no mode: its makers may mean add or ablate; say which with --modes", w->o->path);
    return rc == TS_OK ? ts_sweep_arms(w, w->o->n_random, w->o->seed, err) : rc;
}

static int resolve_band(const ts_sweep *w, size_t i, ts_range *band, int32_t *n_blocks, ts_error *err) {
    *band = w->o->n_bands ? w->o->bands[i] : (ts_range){0, -1};
    if (band->last < band->first) *band = (ts_range){0, w->n_layer - 1};
    if (band->first < 0 || band->last >= w->n_layer)
        return ts_fail(err, TS_ERR_ARG, "--bands %d:%d: the model has blocks 0:%d", band->first, band->last, w->n_layer - 1);
    *n_blocks = 0;
    for (int32_t il = band->first; il <= band->last; il++) {
        *n_blocks += w->file.axes[il].n > 0;
        if (w->file.axes[il].n > 0) w->mask[il] = true;
    }
    if (*n_blocks > 0) return TS_OK;
    return ts_fail(err, TS_ERR_ARG, "a band with no cell: '%s' has no direction for blocks %d:%d", w->o->path, band->first, band->last);
}

static int make_rule(const ts_sweep *w, size_t mode, double scale, ts_steer_rule *rule, ts_error *err) {
    enum ts_steering_mode wanted = w->o->n_modes ? w->o->modes[mode] : public_mode(w->file.rule.mode);
    *rule = (ts_steer_rule){.scale = scale, .gate = w->o->gate};
    if (!find_mode(wanted, &rule->mode)) return ts_fail(err, TS_ERR_ARG, "--modes: unknown steering mode %d", (int)wanted);
    if (rule->mode == TS_STEER_CLAMP) rule->target = w->o->target;
    return ts_steer_rule_check(rule, err);
}

/* Scale 0 needs no control arms: it edits nothing, whatever the direction. */
static int add_cells(ts_sweep *w, size_t mode, size_t band_index, ts_error *err) {
    ts_range band;
    int32_t n_blocks = 0;
    int rc = resolve_band(w, band_index, &band, &n_blocks, err);
    for (size_t i = 0; rc == TS_OK && i < w->o->n_scales; i++) {
        ts_steer_rule rule;
        rc = make_rule(w, mode, w->o->scales[i], &rule, err);
        for (int32_t arm = 0; rc == TS_OK && arm <= (rule.scale == 0 ? 0 : w->o->n_random); arm++) {
            w->rules[w->r->n_cells] = rule;
            w->r->cells[w->r->n_cells++] =
                (ts_sweep_cell){.mode = public_mode(rule.mode), .scale = rule.scale, .band = band, .arm = arm, .n_blocks = n_blocks};
        }
    }
    return rc;
}

static int make_cells(ts_sweep *w, ts_error *err) {
    size_t n_modes = w->o->n_modes ? w->o->n_modes : 1, n_bands = w->o->n_bands ? w->o->n_bands : 1;
    if (n_modes > MAX_CELLS || n_bands > MAX_CELLS / n_modes || w->o->n_scales > MAX_CELLS / (n_modes * n_bands) / w->n_arms)
        return ts_fail(err, TS_ERR_ARG, "a sweep of more than %u cells", MAX_CELLS);
    size_t n = n_modes * n_bands * w->o->n_scales * w->n_arms;
    w->r->cells = ts_calloc(n, sizeof(*w->r->cells));
    w->rules = ts_calloc(n, sizeof(*w->rules));
    w->tallies = ts_calloc(n, sizeof(*w->tallies));
    w->mask = ts_calloc((size_t)w->n_layer, sizeof(*w->mask));
    if (!w->r->cells || !w->rules || !w->tallies || !w->mask) return ts_fail_nomem(err, "cells", n * sizeof(*w->r->cells));
    int rc = TS_OK;
    bool clamps = false;
    for (size_t m = 0; rc == TS_OK && m < n_modes; m++)
        for (size_t b = 0; rc == TS_OK && b < n_bands; b++) rc = add_cells(w, m, b, err);
    for (size_t i = 0; i < w->r->n_cells; i++) clamps = clamps || w->r->cells[i].mode == TS_STEERING_CLAMP;
    if (rc == TS_OK && w->o->target != 0 && !clamps) rc = ts_fail(err, TS_ERR_ARG, "a target is for the mode clamp, which is not swept");
    return rc;
}

/* ---- the context */

static size_t longest_tail(const ts_sweep *w) {
    size_t most = (size_t)w->n_predict;
    for (size_t i = 0; i < w->n_tails; i++)
        if (w->tails[i].n > most) most = w->tails[i].n;
    return most;
}

static int size_session(ts_sweep *w, ts_error *err) {
    ts_session_options *so = &w->s->opts;
    uint64_t each = w->longest + longest_tail(w), need = each * (uint64_t)w->parallel;
    uint64_t trained = (uint64_t)llama_model_n_ctx_train(w->s->model->llama), limit = so->n_ctx ? so->n_ctx : trained;
    if (each > limit || (so->n_ctx && need > limit))
        return ts_fail(err, TS_ERR_ARG, "'%s': a prompt of %zu tokens and %zu after it, %d side by side, exceed the context of %llu: raise -c, or lower -n or --parallel",
                       w->o->input_path, w->longest, longest_tail(w), w->parallel, (unsigned long long)limit);
    if (!so->n_ctx) so->n_ctx = (uint32_t)((need + CTX_STEP - 1) / CTX_STEP * CTX_STEP);
    size_t fits = UBATCH_LOGIT_BYTES / (w->n_vocab * sizeof(float));
    if (fits < (size_t)w->parallel) fits = (size_t)w->parallel;
    if (!so->n_ubatch) so->n_ubatch = fits < DEFAULT_UBATCH ? (uint32_t)fits : DEFAULT_UBATCH;
    if (so->n_ubatch > so->n_ctx) so->n_ubatch = so->n_ctx;
    so->n_batch = so->n_ubatch;
    so->n_seq_max = (uint32_t)w->parallel;
    if (w->parallel > (int32_t)so->n_ubatch)
        return ts_fail(err, TS_ERR_ARG, "--parallel %d exceeds the ubatch size %u", w->parallel, so->n_ubatch);
    fits = WINDOW_LOGIT_BYTES / ((size_t)w->parallel * w->n_vocab * sizeof(float));
    w->window = fits < (size_t)w->n_predict ? fits : (size_t)w->n_predict;
    if (w->window == 0) return ts_fail(err, TS_ERR_ARG, "--parallel %d: the logits of so many sequences do not fit; lower it", w->parallel);
    w->r->window = (int32_t)w->window;
    return TS_OK;
}

int ts_sweep_plan(ts_sweep *w, ts_error *err) {
    int rc = check_options(w->o, err);
    if (rc == TS_OK && (w->s->started || w->s->n_attached))
        rc = ts_fail(err, TS_ERR_STATE, "a sweep needs a session that has not started and has nothing attached");
    if (rc != TS_OK) return rc;
    const struct llama_model *model = w->s->model->llama;
    bool alone = llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
    w->r->n_layer = w->n_layer = llama_model_n_layer(model);
    w->n_vocab = (size_t)llama_vocab_n_tokens(w->s->model->vocab);
    w->n_predict = w->o->n_predict ? w->o->n_predict : DEFAULT_PREDICT;
    w->parallel = alone ? 1 : w->o->parallel ? w->o->parallel : DEFAULT_PARALLEL;
    rc = open_directions(w, err);
    if (rc == TS_OK) rc = make_cells(w, err);
    if (rc == TS_OK) rc = ts_sweep_read_inputs(w, err);
    return rc == TS_OK ? size_session(w, err) : rc;
}

void ts_sweep_plan_free(ts_sweep *w) {
    ts_sweep_free_inputs(w);
    ts_sweep_arms_free(w);
    ts_steering_file_free(&w->file, w->n_layer);
    free(w->mask);
    free(w->rules);
    free(w->tallies);
}

/* ---- fingerprint */

static void hash_cells(const ts_sweep *w, ts_buf *b) {
    for (size_t i = 0; i < w->r->n_cells; i++) {
        const ts_sweep_cell *c = &w->r->cells[i];
        ts_buf_printf(b, "%d %.17g %d:%d %d|", (int)c->mode, c->scale, c->band.first, c->band.last, c->arm);
    }
    for (int32_t il = 0; il < w->n_layer; il++) {
        const ts_steer_axis *axis = &w->file.axes[il];
        ts_buf_add(b, axis->d, axis->n > 0 ? (size_t)axis->n * sizeof(*axis->d) : 0);
    }
}

int ts_sweep_plan_hash(ts_sweep *w, ts_error *err) {
    ts_buf b = {0};
    ts_buf_printf(&b, "%s|%d|%d|%d|%d|%.17g|%.17g|%u|", w->corpus, w->n_predict, w->parallel, w->o->ignore_eos, (int)w->o->from,
                  w->o->target, w->o->gate, w->o->seed);
    hash_cells(w, &b);
    for (size_t i = 0; i < w->n_tails; i++) {
        ts_buf_printf(&b, "|%d %zu ", w->tails[i].positive, w->tails[i].n);
        ts_buf_add(&b, w->tails[i].tokens, w->tails[i].n * sizeof(int32_t));
    }
    ts_buf_add(&b, w->anchor, w->n_anchor * sizeof(*w->anchor));
    ts_meta_provenance(&b, &w->prov);
    int rc = b.failed ? ts_fail_nomem(err, "plan", 0) : TS_OK;
    if (rc == TS_OK) ts_fingerprint_bytes(b.data, b.length, w->plan);
    ts_buf_free(&b);
    return rc;
}
