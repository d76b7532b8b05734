/* An edit of a block's rows as a small ggml graph: for each step of a row, with c = u.x of the row as it then is,
 *
 *   f = a + b c,  0 where c is not finite or |c| < gate
 *   x += f v,     then back to the length it had, where the step says so
 *
 * A step with a = b = 0 leaves the row as it is and only gives c.
 */
#ifndef TS_HOST_EDIT_GRAPH_H
#define TS_HOST_EDIT_GRAPH_H

#include "core/error.h"
#include "ggml-backend.h"
#include "ggml.h"

#define TS_EDIT_STEPS 16

typedef struct ts_edit_step {
    const float *u, *v; /* [width], alive as long as the edit */
    float a, b, gate;
    bool restore;
} ts_edit_step;

/* What happens to which rows of a node. */
typedef struct ts_edit_plan {
    int64_t n_rows, n_changed; /* rows that have steps; those that may change stand first */
    size_t n_steps;            /* of the row with the most */
    bool alike;                /* every row has the steps of the first */
    bool whole;                /* the rows are the node's, in order, all changed or none */
    int32_t *row;              /* [n_rows] of the node */
    size_t *count;             /* [n_rows] steps of the row */
    ts_edit_step *steps;       /* [n_rows][TS_EDIT_STEPS], zero bytes where no step is */
} ts_edit_plan;

/* Where a step's coefficients are: [n_rows] floats, to be multiplied by `scale`. */
typedef struct ts_edit_place {
    struct ggml_tensor *tensor;
    size_t first;
    float scale;
} ts_edit_place;

typedef struct ts_edit_graph {
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    ggml_backend_buffer_t buffer; /* operands and results, where the graph owns them */
    struct ggml_tensor x;         /* the node's header, all its rows */
    ts_edit_plan plan;            /* own copy */
    ts_edit_place c[TS_EDIT_STEPS];
    struct ts_edit_input *inputs; /* [n_inputs] leaves and their values, until they are sent */
    size_t n_inputs, n_room;
} ts_edit_graph;

/* A coefficient of that size or more stands for one that is not finite. */
#define TS_EDIT_C_MAX 3e38f
/* Floats of one step's coefficients in a place of their own, and rows that fit. */
#define TS_EDIT_PLACE 32

/* Builds the graph that does `plan` to the rows of node `x` in place; nothing is allocated. `brief`: a single row in fewer
 * kernels, by operations that not every backend has. `c`, when not NULL, is where the coefficients go, TS_EDIT_PLACE floats
 * for each step, c_step bytes apart: for TS_EDIT_PLACE rows at most. */
int ts_edit_graph_build(ts_edit_graph *g, const struct ggml_tensor *x, const ts_edit_plan *plan, bool brief, const struct ggml_tensor *c,
                        size_t c_offset, size_t c_step, ts_error *err);
/* Whether it is the graph that would be built. */
bool ts_edit_graph_fits(const ts_edit_graph *g, const struct ggml_tensor *x, const ts_edit_plan *plan);
/* Sends directions and numbers; once the graph is allocated. */
void ts_edit_graph_fill(ts_edit_graph *g);
void ts_edit_graph_free(ts_edit_graph *g);

int ts_edit_plan_init(ts_edit_plan *p, int64_t rows, ts_error *err);
/* Whether the step changes a row. */
bool ts_edit_step_changes(const ts_edit_step *s);
/* The next row, with its n >= 1 steps; those that change first. */
void ts_edit_plan_add(ts_edit_plan *p, int32_t row, const ts_edit_step *steps, size_t n);
/* After the last row of a node of n_rows. */
void ts_edit_plan_end(ts_edit_plan *p, int64_t n_rows);
void ts_edit_plan_free(ts_edit_plan *p);

#endif
