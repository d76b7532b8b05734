/* A sweep: one model load for all cells of scales x bands x modes of one direction file. Owns the walk: jobs (a prompt of a
 * cell) by cell and prompt, `parallel` of them a group. A finished cell is saved at once; a resumed sweep begins at the
 * group of its first unfinished job, so that every group holds what it would have held. */
#include "instrument/sweep.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/mem.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct walk {
    ts_sweep *w;
    double begin;
    size_t n_jobs, done; /* of the cells */
} walk;

static void report(const walk *k, ts_progress_fn fn) {
    const ts_sweep *w = k->w;
    uint64_t each = (uint64_t)w->n_predict, resumed = (uint64_t)w->r->n_resumed * w->r->n_prompts;
    ts_progress p = {.prompts_done = w->n_done, .prompts_total = w->r->n_cells, .tokens_done = (k->done > resumed ? k->done : resumed) * each,
                     .tokens_total = (uint64_t)k->n_jobs * each, .tokens_resumed = resumed * each, .seconds = now() - k->begin};
    if (fn) fn(&p, w->o->user);
}

/* ---- the unsteered model first: what everything is compared with */

static int run_unsteered(ts_sweep *w, ts_error *err) {
    int rc = TS_OK;
    for (size_t at = 0; rc == TS_OK && at < w->r->n_prompts; at += w->n_jobs) {
        size_t left = w->r->n_prompts - at;
        w->n_jobs = left < (size_t)w->parallel ? left : (size_t)w->parallel;
        for (size_t i = 0; i < w->n_jobs; i++) {
            w->jobs[i].cell = TS_SWEEP_UNSTEERED;
            w->jobs[i].prompt = at + i;
        }
        rc = ts_sweep_group_run(w, err);
        for (size_t i = 0; rc == TS_OK && i < w->n_jobs; i++) rc = ts_sweep_cell_add(w, &w->jobs[i], err);
    }
    return rc == TS_OK && w->r->anchor_given ? ts_sweep_anchor(w, err) : rc;
}

/* ---- cells */

/* The group's figures join their cells. Those of cells that an earlier process saved are there already. */
static int collect(ts_sweep *w, ts_error *err) {
    int rc = TS_OK;
    for (size_t i = 0; rc == TS_OK && i < w->n_jobs; i++) {
        const ts_sweep_job *j = &w->jobs[i];
        if (j->cell < w->n_done) continue;
        rc = ts_sweep_cell_add(w, j, err);
        if (rc != TS_OK || w->tallies[j->cell].n_prompts < w->r->n_prompts) continue;
        rc = ts_sweep_file_save(w, j->cell, err);
        w->n_done = j->cell + 1;
    }
    return rc;
}

static int interrupted(const ts_sweep *w, ts_error *err) {
    return ts_fail(err, TS_ERR_INTERRUPTED, w->part ? "interrupted after %zu of %zu cells: '%s' holds them; resume goes on from there"
                                                    : "interrupted after %zu of %zu cells",
                   w->n_done, w->r->n_cells, w->part_path ? w->part_path : "");
}

static int run_cells(walk *k, ts_error *err) {
    ts_sweep *w = k->w;
    size_t n_prompts = w->r->n_prompts, p = (size_t)w->parallel;
    int rc = TS_OK;
    for (size_t at = w->n_done * n_prompts / p * p; rc == TS_OK && w->n_done < w->r->n_cells; at += p) {
        if (ts_session_stopped(w->s)) return interrupted(w, err);
        w->n_jobs = k->n_jobs - at < p ? k->n_jobs - at : p;
        for (size_t i = 0; i < w->n_jobs; i++) {
            w->jobs[i].cell = (at + i) / n_prompts;
            w->jobs[i].prompt = (at + i) % n_prompts;
        }
        rc = ts_sweep_group_run(w, err);
        if (rc == TS_OK) rc = collect(w, err);
        k->done = at + w->n_jobs;
        if (rc == TS_OK) report(k, w->o->on_progress);
    }
    return rc == TS_ERR_INTERRUPTED ? interrupted(w, err) : rc;
}

/* ---- life */

static int start(ts_sweep *w, ts_error *err) {
    int rc = ts_session_want(w->s, 1u << TS_SITE_RESID, NULL, err);
    if (rc == TS_OK) rc = ts_session_start(w->s, err);
    for (int32_t il = 0; rc == TS_OK && il < w->n_layer; il++)
        if (w->mask[il]) rc = ts_sites_require(&w->s->tap->table, TS_SITE_RESID, il, il, w->s->model->architecture, err);
    ts_sweep_edits(w);
    return rc == TS_OK ? ts_sweep_group_init(w, err) : rc;
}

static int run(walk *k, ts_error *err) {
    ts_sweep *w = k->w;
    int rc = ts_sweep_plan(w, err);
    if (rc == TS_OK) rc = ts_sweep_file_check(w, err);
    if (rc == TS_OK) rc = start(w, err);
    if (rc == TS_OK) rc = ts_sweep_file_open(w, err);
    if (rc != TS_OK || w->r->complete) return rc;
    k->n_jobs = w->r->n_cells * w->r->n_prompts;
    k->begin = now();
    report(k, w->o->on_plan);
    rc = run_unsteered(w, err);
    if (rc == TS_ERR_INTERRUPTED) return interrupted(w, err);
    if (rc == TS_OK) rc = run_cells(k, err);
    if (rc == TS_OK) rc = ts_sweep_conclude(w, err);
    w->r->seconds = now() - k->begin;
    return rc == TS_OK ? ts_sweep_file_finish(w, err) : rc;
}

int ts_sweep_run(ts_session *s, const ts_sweep_options *opts, ts_sweep_result *out, ts_error *err) {
    ts_sweep w = {.s = s, .o = opts, .r = out};
    walk k = {.w = &w};
    memset(out, 0, sizeof(*out));
    int rc = run(&k, err);
    ts_sweep_file_free(&w);
    ts_sweep_group_free(&w);
    ts_sweep_plan_free(&w);
    if (rc != TS_OK) ts_sweep_free(out);
    return rc;
}

static void free_texts(ts_sweep_cell *c, size_t n) {
    for (size_t i = 0; c->texts && i < n; i++) free(c->texts[i]);
    free(c->texts);
}

void ts_sweep_free(ts_sweep_result *r) {
    if (!r) return;
    for (size_t i = 0; i < r->n_cells; i++) free_texts(&r->cells[i], r->n_prompts);
    free_texts(&r->unsteered, r->n_prompts);
    free(r->cells);
    free(r->bands);
    memset(r, 0, sizeof(*r));
}
