/* The edits of a sweep: each row of a batch belongs to a sequence, the sequence to a job, the job to a cell, and the cell
 * says what happens to the row. Refuses nothing: rows that are not finite stay as they are. */
#include "instrument/sweep.h"

const ts_steer_axis *ts_sweep_axis(const ts_sweep *w, size_t cell, int32_t block) {
    if (cell == TS_SWEEP_UNSTEERED) return NULL;
    const ts_sweep_cell *c = &w->r->cells[cell];
    const ts_steer_axis *axis = &w->arms[c->arm][block];
    return axis->n > 0 && block >= c->band.first && block <= c->band.last ? axis : NULL;
}

/* The window's rows: the last prompt token and what follows it. */
static bool in_window(const ts_sweep *w, const ts_sweep_job *j, int32_t position) {
    return position >= 0 && (size_t)position + 1 >= w->prompts[j->prompt].n;
}

static bool chosen(const ts_sweep *w, const ts_sweep_job *j, int32_t position) {
    bool prompt = position < 0 || (size_t)position < w->prompts[j->prompt].n;
    return w->o->from == TS_STEERING_ALL || (w->o->from == TS_STEERING_PROMPT) == prompt;
}

static int steer(const struct ts_run *run, const ts_site *site, float *rows, int64_t n_rows, int64_t width, const int32_t *token_index,
                 bool *changed, void *user, ts_error *err) {
    ts_sweep *w = user;
    (void)err;
    for (int64_t r = 0; r < n_rows; r++) {
        ts_sweep_job *j = &w->jobs[ts_run_seq_id(run, token_index[r])];
        const ts_steer_axis *axis = ts_sweep_axis(w, j->cell, site->block);
        int32_t position = ts_run_position(run, token_index[r]);
        double before = 0.0;
        if (!axis) continue;
        if (chosen(w, j, position) && ts_steer_row(axis, &w->rules[j->cell], rows + r * width, &before) == TS_STEER_EDITED) *changed = true;
        if (w->measuring && in_window(w, j, position)) j->c[site->block] += ts_steer_coefficient(axis, rows + r * width);
    }
    return TS_OK;
}

static int look(const struct ts_run *run, const ts_site *site, float *rows, int64_t n_rows, int64_t width, const int32_t *token_index,
                bool *changed, void *user, ts_error *err) {
    ts_sweep *w = user;
    (void)changed;
    (void)err;
    for (int64_t r = 0; r < n_rows; r++) {
        ts_sweep_job *j = &w->jobs[ts_run_seq_id(run, token_index[r])];
        if (!in_window(w, j, ts_run_position(run, token_index[r]))) continue;
        for (size_t a = 0; a < w->n_arms; a++)
            if (w->arms[a][site->block].n > 0)
                j->c_unsteered[a * (size_t)w->n_layer + (size_t)site->block] += ts_steer_coefficient(&w->arms[a][site->block], rows + r * width);
    }
    return TS_OK;
}

/* ---- the same on a device */

static bool steered(const ts_sweep *w, const ts_sweep_job *j, int32_t position) {
    return w->rules[j->cell].scale != 0 && chosen(w, j, position);
}

static bool steer_steps(const struct ts_run *run, int32_t block, int32_t token, ts_edit_step *steps, size_t *n, void *user) {
    const ts_sweep *w = user;
    const ts_sweep_job *j = &w->jobs[ts_run_seq_id(run, token)];
    const ts_steer_axis *axis = ts_sweep_axis(w, j->cell, block);
    int32_t position = ts_run_position(run, token);
    bool fits = true;
    if (axis && steered(w, j, position)) fits = ts_steering_step(axis, &w->rules[j->cell], &steps[(*n)++]);
    if (axis && w->measuring && in_window(w, j, position)) steps[(*n)++] = (ts_edit_step){.u = axis->u32, .v = axis->u32};
    return fits;
}

static int steer_taken(const struct ts_run *run, const ts_site *site, int32_t token, size_t step, float c, void *user, ts_error *err) {
    ts_sweep *w = user;
    ts_sweep_job *j = &w->jobs[ts_run_seq_id(run, token)];
    int32_t position = ts_run_position(run, token);
    (void)err;
    if (w->measuring && in_window(w, j, position) && step == steered(w, j, position)) j->c[site->block] += (double)c;
    return TS_OK;
}

/* The arms that have a direction at a block, in order. */
static bool look_steps(const struct ts_run *run, int32_t block, int32_t token, ts_edit_step *steps, size_t *n, void *user) {
    const ts_sweep *w = user;
    const ts_sweep_job *j = &w->jobs[ts_run_seq_id(run, token)];
    if (w->n_arms > TS_EDIT_STEPS) return false;
    if (!in_window(w, j, ts_run_position(run, token))) return true;
    for (size_t a = 0; a < w->n_arms; a++)
        if (w->arms[a][block].n > 0) steps[(*n)++] = (ts_edit_step){.u = w->arms[a][block].u32, .v = w->arms[a][block].u32};
    return true;
}

static int look_taken(const struct ts_run *run, const ts_site *site, int32_t token, size_t step, float c, void *user, ts_error *err) {
    ts_sweep *w = user;
    size_t a = 0;
    (void)err;
    for (; w->arms[a][site->block].n == 0 || step > 0; a++) step -= w->arms[a][site->block].n > 0;
    w->jobs[ts_run_seq_id(run, token)].c_unsteered[a * (size_t)w->n_layer + (size_t)site->block] += (double)c;
    return TS_OK;
}

void ts_sweep_edits(ts_sweep *w) {
    w->steer = (ts_edit){.fn = steer, .user = w, .kinds = 1u << TS_SITE_RESID, .blocks = {0, w->n_layer - 1}, .mask = w->mask,
                        .steps = steer_steps, .taken = steer_taken};
    w->look = w->steer;
    w->look.fn = look;
    w->look.steps = look_steps;
    w->look.taken = look_taken;
}
