/* A sweep's files: finished cells one a line in PATH.part.jsonl, the result at the end. Refuses a partial file of another
 * sweep; a last line that was cut off is dropped. Numbers are written so that they read back the same. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "instrument/provenance.h"
#include "instrument/sweep.h"
#include "store/meta.h"
#include "store/meta_json.h"

#define MAX_PART_BYTES ((size_t)1 << 30)

/* ---- a cell as JSON */

static void put_real(ts_buf *b, const char *key, double value) {
    if (isfinite(value)) ts_buf_printf(b, "\"%s\": %.17g, ", key, value);
    else ts_buf_printf(b, "\"%s\": null, ", key);
}

static void put_texts(ts_buf *b, const char *key, char *const *texts, size_t n) {
    ts_buf_printf(b, "\"%s\": [", key);
    for (size_t i = 0; i < n; i++) {
        ts_buf_text(b, i ? ", " : "");
        ts_buf_json_string(b, texts[i], strlen(texts[i]));
    }
    ts_buf_text(b, "]");
}

void ts_sweep_cell_write(ts_buf *b, const ts_sweep_cell *c, size_t n_texts, bool final) {
    ts_buf_text(b, "{");
    if (c->mode != TS_STEERING_DECLARED) {
        ts_buf_printf(b, "\"mode\": \"%s\", \"band\": [%d, %d], ", ts_steering_mode_name(c->mode), c->band.first, c->band.last);
        put_real(b, "scale", c->scale);
        ts_buf_printf(b, "\"arm\": %d, \"blocks\": %d, ", c->arm, c->n_blocks);
    }
    put_real(b, "perplexity", c->perplexity);
    ts_buf_printf(b, "\"tokens\": %lld, ", (long long)c->n_tokens);
    put_real(b, "distinct", c->distinct);
    ts_buf_printf(b, "\"diverged\": %d, \"first_divergence\": %d, ", c->n_diverged, c->first_divergence);
    put_real(b, "kl_max", c->kl_max);
    put_real(b, "kl_mean", c->kl_mean);
    ts_buf_printf(b, "\"no_effect\": %s, ", c->no_effect ? "true" : "false");
    put_real(b, "c", c->c);
    put_real(b, "c_unsteered", c->c_unsteered);
    put_real(b, "score_positive", c->score_positive);
    put_real(b, "score_negative", c->score_negative);
    put_real(b, "score", c->score);
    if (final) {
        put_real(b, "random_mean", c->random_mean);
        put_real(b, "random_sd", c->random_sd);
    }
    put_texts(b, "texts", c->texts, n_texts);
    ts_buf_text(b, "}");
}

static int get_real(const json_t *cell, const char *key, double otherwise, double *out, ts_error *err) {
    const json_t *value = json_object_get(cell, key);
    *out = json_is_number(value) ? json_number_value(value) : otherwise;
    return value && (json_is_number(value) || json_is_null(value)) ? TS_OK : ts_fail(err, TS_ERR_FORMAT, "'%s' is no number", key);
}

static int get_reals(const json_t *j, ts_sweep_cell *c, ts_error *err) {
    const struct {
        const char *key;
        double otherwise, *out;
    } reals[] = {{"perplexity", INFINITY, &c->perplexity}, {"distinct", NAN, &c->distinct}, {"kl_max", INFINITY, &c->kl_max},
                 {"kl_mean", INFINITY, &c->kl_mean}, {"c", NAN, &c->c}, {"c_unsteered", NAN, &c->c_unsteered},
                 {"score_positive", NAN, &c->score_positive}, {"score_negative", NAN, &c->score_negative}, {"score", NAN, &c->score}};
    int rc = TS_OK;
    for (size_t i = 0; rc == TS_OK && i < sizeof(reals) / sizeof(reals[0]); i++) rc = get_real(j, reals[i].key, reals[i].otherwise, reals[i].out, err);
    return rc;
}

static int get_texts(const json_t *j, ts_sweep_cell *c, size_t n, ts_error *err) {
    json_t *texts;
    int rc = ts_json_array(j, "texts", n, &texts, err);
    if (rc != TS_OK) return rc;
    c->texts = ts_calloc(n, sizeof(*c->texts));
    if (!c->texts) return ts_fail_nomem(err, "texts", n * sizeof(*c->texts));
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_array_get(texts, i);
        if (!json_is_string(text)) return ts_fail(err, TS_ERR_FORMAT, "'texts' holds something else than text");
        if (!(c->texts[i] = ts_strdup(json_string_value(text)))) return ts_fail_nomem(err, "text", 0);
    }
    return TS_OK;
}

int ts_sweep_cell_read(const char *line, size_t length, ts_sweep_cell *c, size_t n_texts, ts_error *err) {
    json_t *j = NULL;
    int64_t n_tokens = 0, diverged = 0, first = 0;
    int rc = ts_json_parse(line, length, &j, err);
    if (rc == TS_OK) rc = ts_json_int(j, "tokens", 0, INT64_MAX, &n_tokens, err);
    if (rc == TS_OK) rc = ts_json_int(j, "diverged", 0, INT32_MAX, &diverged, err);
    if (rc == TS_OK) rc = ts_json_int(j, "first_divergence", -1, INT32_MAX, &first, err);
    if (rc == TS_OK) rc = get_reals(j, c, err);
    if (rc == TS_OK) rc = get_texts(j, c, n_texts, err);
    c->n_tokens = n_tokens;
    c->n_diverged = (int32_t)diverged;
    c->first_divergence = (int32_t)first;
    c->no_effect = json_is_true(json_object_get(j, "no_effect"));
    json_decref(j);
    return rc;
}

/* ---- the partial file */

int ts_sweep_file_check(ts_sweep *w, ts_error *err) {
    const char *path = w->o->output_path;
    ts_buf b = {0};
    if (!path) return TS_OK;
    ts_buf_printf(&b, "%s.part.jsonl", path);
    w->part_path = ts_buf_take(&b);
    if (!w->part_path) return ts_fail_nomem(err, "path", 0);
    const char *const inputs[] = {w->o->path, w->o->input_path, w->o->anchor_path};
    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++)
        if (inputs[i] && (ts_file_same(path, inputs[i]) || ts_file_same(w->part_path, inputs[i])))
            return ts_fail(err, TS_ERR_ARG, "output '%s' is one of the inputs", path);
    static const char *const nothing_beside[] = {NULL};
    int rc = ts_session_keep_model(w->s, path, nothing_beside, err);
    if (rc != TS_OK) return rc;
    rc = ts_file_check_target(path, err);
    if (rc == TS_OK) rc = ts_lock_take(path, &w->lock, err); /* a partial file may be that of a run at work */
    if (rc == TS_OK && !w->o->resume && !w->o->overwrite) rc = ts_file_keep_unfinished(w->part_path, err);
    if (rc != TS_OK) return rc;
    bool unfinished = w->o->resume && ts_file_exists(w->part_path);
    w->finished = w->o->resume && !w->o->overwrite && !unfinished && ts_file_exists(path);
    return w->o->overwrite || unfinished || w->finished ? TS_OK : ts_file_vacant(path, err);
}

static int check_head(const ts_sweep *w, const char *line, size_t length, ts_error *err) {
    json_t *head = NULL;
    const char *plan = "";
    int rc = ts_json_parse(line, length, &head, err);
    if (rc == TS_OK) rc = ts_json_text(head, "plan", &plan, err);
    if (rc == TS_OK && strcmp(plan, w->plan) != 0)
        rc = ts_fail(err, TS_ERR_STATE, "it belongs to another sweep (prompts, directions, model or options differ); remove it, or start over with --overwrite");
    json_decref(head);
    return rc;
}

/* Whole lines; *kept: the bytes they take. */
static int take_over(ts_sweep *w, const char *bytes, size_t n, uint64_t *kept, ts_error *err) {
    int rc = TS_OK;
    size_t at = 0;
    for (const char *end; rc == TS_OK && at < n && (end = memchr(bytes + at, '\n', n - at)); at = *kept) {
        size_t length = (size_t)(end - bytes) - at;
        if (at == 0) rc = check_head(w, bytes, length, err);
        else if (w->n_done == w->r->n_cells) rc = ts_fail(err, TS_ERR_FORMAT, "it holds more cells than the sweep");
        else rc = ts_sweep_cell_read(bytes + at, length, &w->r->cells[w->n_done], w->r->n_prompts, err);
        w->n_done += rc == TS_OK && at > 0;
        *kept = (uint64_t)(end - bytes) + 1;
    }
    w->r->n_resumed = w->n_done;
    return rc;
}

static int resume(ts_sweep *w, uint64_t *kept, ts_error *err) {
    char *bytes = NULL;
    size_t n = 0;
    if (!w->o->resume || !ts_file_exists(w->part_path)) return TS_OK;
    int rc = ts_file_get(w->part_path, MAX_PART_BYTES, &bytes, &n, err);
    if (rc != TS_OK) return rc;
    rc = take_over(w, bytes, n, kept, err);
    if (rc != TS_OK) ts_error_prefix(err, "'%s', cell %zu: ", w->part_path, w->n_done);
    free(bytes);
    return rc;
}

static int append_line(ts_sweep *w, ts_buf *b, ts_error *err) {
    ts_buf_text(b, "\n");
    int rc = b->failed ? ts_fail_nomem(err, "cell", 0) : ts_append_write(w->part, b->data, b->length, err);
    if (rc == TS_OK) rc = ts_append_sync(w->part, err);
    ts_buf_free(b);
    return rc;
}

/* What stands there already: all of this sweep, or another's. */
static int settle(ts_sweep *w, ts_error *err) {
    w->r->complete = ts_meta_complete(w->o->output_path, w->plan);
    return ts_result_settle(w->o->output_path, w->r->complete, err);
}

int ts_sweep_file_open(ts_sweep *w, ts_error *err) {
    uint64_t kept = 0;
    ts_buf b = {0};
    if (!w->o->output_path) return TS_OK;
    int rc = ts_provenance_complete(w->s, &w->prov, err);
    if (rc == TS_OK) rc = ts_sweep_plan_hash(w, err);
    if (rc == TS_OK && w->finished) return settle(w, err);
    if (rc == TS_OK) rc = resume(w, &kept, err);
    if (rc == TS_OK) rc = ts_append_open(w->part_path, kept, &w->part, err);
    if (rc != TS_OK || kept > 0) return rc;
    ts_buf_printf(&b, "{\"plan\": \"%s\", \"cells\": %zu}", w->plan, w->r->n_cells);
    return append_line(w, &b, err);
}

int ts_sweep_file_save(ts_sweep *w, size_t cell, ts_error *err) {
    ts_buf b = {0};
    if (!w->part) return TS_OK;
    ts_sweep_cell_write(&b, &w->r->cells[cell], w->r->n_prompts, false);
    return append_line(w, &b, err);
}

/* ---- the result */

static void put_list(ts_buf *b, const char *key, const char *const *texts, size_t n) {
    ts_buf_text(b, "  ");
    put_texts(b, key, (char *const *)(uintptr_t)texts, n);
    ts_buf_text(b, ",\n");
}

static int put_prompts(const ts_sweep *w, ts_buf *b, ts_error *err) {
    ts_buf_text(b, "  \"prompts\": [");
    for (size_t i = 0; i < w->r->n_prompts; i++) {
        char *text = ts_sweep_text(w, w->prompts[i].tokens, w->prompts[i].n);
        if (!text) return ts_fail_nomem(err, "prompt", 0);
        ts_buf_text(b, i ? ", " : "");
        ts_buf_json_string(b, text, strlen(text));
        free(text);
    }
    ts_buf_text(b, "],\n");
    return TS_OK;
}

static void put_settings(const ts_sweep *w, ts_buf *b) {
    static const char *const from[] = {"all", "prompt", "decode"};
    const ts_sweep_options *o = w->o;
    ts_buf_printf(b, "  \"plan\": \"%s\",\n  \"partial\": false,\n  \"direction\": ", w->plan);
    ts_buf_json_string(b, w->file.name, strlen(w->file.name));
    ts_buf_printf(b, ",\n  \"n_predict\": %d,\n  \"parallel\": %d,\n  \"window\": %zu,\n  \"ignore_eos\": %s,\n  \"from\": \"%s\",\n"
                     "  \"gate\": %.17g,\n  \"target\": %.17g,\n  \"random\": %d,\n  \"seed\": %u,\n",
                  w->n_predict, w->parallel, w->window, o->ignore_eos ? "true" : "false", from[o->from], o->gate, o->target, o->n_random, o->seed);
    put_list(b, "positive", o->positive, o->n_positive);
    put_list(b, "negative", o->negative, o->n_negative);
    ts_buf_printf(b, "  \"anchor\": {\"given\": %s, ", w->r->anchor_given ? "true" : "false");
    put_real(b, "perplexity", w->r->anchor);
    put_real(b, "limit", w->r->limit);
    ts_buf_printf(b, "\"tokens\": %lld},\n", (long long)w->r->n_anchor);
}

static void put_band(ts_buf *b, const ts_sweep_band *k) {
    ts_buf_printf(b, "{\"mode\": \"%s\", \"band\": [%d, %d], ", ts_steering_mode_name(k->mode), k->band.first, k->band.last);
    put_real(b, "low", k->low);
    put_real(b, "high", k->high);
    put_real(b, "crossed_low", k->crossed_low);
    put_real(b, "crossed_high", k->crossed_high);
    put_real(b, "collapsed_low", k->collapsed_low);
    put_real(b, "collapsed_high", k->collapsed_high);
    ts_buf_printf(b, "\"usable\": %s, \"no_effect\": %s}", k->usable ? "true" : "false", k->no_effect ? "true" : "false");
}

static int render(const ts_sweep *w, ts_buf *b, ts_error *err) {
    const ts_sweep_result *r = w->r;
    ts_buf_text(b, "{\n  \"format_version\": 1,\n  \"kind\": \"sweep\",\n");
    ts_meta_provenance(b, &w->prov);
    put_settings(w, b);
    int rc = put_prompts(w, b, err);
    ts_buf_text(b, "  \"unsteered\": ");
    ts_sweep_cell_write(b, &r->unsteered, r->n_prompts, false);
    ts_buf_text(b, ",\n  \"cells\": [");
    for (size_t i = 0; i < r->n_cells; i++) {
        ts_buf_text(b, i ? ",\n    " : "\n    ");
        ts_sweep_cell_write(b, &r->cells[i], r->n_prompts, true);
    }
    ts_buf_text(b, "\n  ],\n  \"bands\": [");
    for (size_t i = 0; i < r->n_bands; i++) {
        ts_buf_text(b, i ? ",\n    " : "\n    ");
        put_band(b, &r->bands[i]);
    }
    ts_buf_text(b, "\n  ]\n}\n");
    return rc == TS_OK && b->failed ? ts_fail_nomem(err, "result", 0) : rc;
}

int ts_sweep_file_finish(ts_sweep *w, ts_error *err) {
    ts_buf b = {0};
    if (!w->o->output_path) return TS_OK;
    int rc = render(w, &b, err);
    if (rc == TS_OK) rc = ts_file_put(w->o->output_path, b.data, b.length, err);
    ts_buf_free(&b);
    if (rc == TS_OK) remove(w->part_path);
    return rc;
}

void ts_sweep_file_free(ts_sweep *w) {
    if (w->part) ts_append_close(w->part, NULL);
    ts_lock_release(w->lock);
    ts_provenance_free(&w->prov);
    free(w->part_path);
}
