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

void ts_sweep_edits(ts_sweep *w) {
    w->steer = (ts_edit){.fn = steer, .user = w, .kinds = 1u << TS_SITE_RESID, .blocks = {0, w->n_layer - 1}, .mask = w->mask};
    w->look = w->steer;
    w->look.fn = look;
}
