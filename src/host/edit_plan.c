/* Which rows an edit takes in and what it does to each. Owns their arrays; refuses nothing. */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "host/edit_graph.h"

int ts_edit_plan_init(ts_edit_plan *p, int64_t rows, ts_error *err) {
    size_t n = (size_t)rows;
    *p = (ts_edit_plan){0};
    p->row = ts_calloc(n, sizeof(*p->row));
    p->count = ts_calloc(n, sizeof(*p->count));
    p->steps = ts_calloc(n * TS_EDIT_STEPS, sizeof(*p->steps));
    if (p->row && p->count && p->steps) return TS_OK;
    ts_edit_plan_free(p);
    return ts_fail_nomem(err, "rows of an edit", n * TS_EDIT_STEPS * sizeof(*p->steps));
}

bool ts_edit_step_changes(const ts_edit_step *s) { return s->a != 0.0f || s->b != 0.0f; }

void ts_edit_plan_add(ts_edit_plan *p, int32_t row, const ts_edit_step *steps, size_t n) {
    ts_edit_step *to = p->steps + p->n_rows * TS_EDIT_STEPS;
    bool changes = false;
    for (size_t i = 0; i < n; i++) { /* field by field: compared as bytes, and what lies between is zero */
        to[i].u = steps[i].u;
        to[i].v = steps[i].v;
        to[i].a = steps[i].a;
        to[i].b = steps[i].b;
        to[i].gate = steps[i].gate;
        to[i].restore = steps[i].restore;
        changes = changes || ts_edit_step_changes(&steps[i]);
    }
    p->row[p->n_rows] = row;
    p->count[p->n_rows] = n;
    p->n_rows++;
    p->n_changed += changes;
    if (n > p->n_steps) p->n_steps = n;
}

void ts_edit_plan_end(ts_edit_plan *p, int64_t n_rows) {
    p->alike = true;
    for (int64_t r = 1; r < p->n_rows && p->alike; r++)
        p->alike = memcmp(p->steps + r * TS_EDIT_STEPS, p->steps, TS_EDIT_STEPS * sizeof(*p->steps)) == 0;
    p->whole = p->n_rows == n_rows && (p->n_changed == n_rows || p->n_changed == 0);
}

void ts_edit_plan_free(ts_edit_plan *p) {
    free(p->row);
    free(p->count);
    free(p->steps);
    *p = (ts_edit_plan){0};
}
