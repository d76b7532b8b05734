/* An edit of a block's rows as a small ggml graph: for each step, with c = u.x of a row x,
 *
 *   f = a + b c,  0 where c is not finite or |c| < gate
 *   x += f v,     then back to the length it had, where the step says so
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

typedef struct ts_edit_graph {
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    ggml_backend_buffer_t buffer; /* operands and results, where the graph owns them */
    struct ggml_tensor x, *c[TS_EDIT_STEPS], *u[TS_EDIT_STEPS], *v[TS_EDIT_STEPS];
    ts_edit_step steps[TS_EDIT_STEPS];
    size_t n;
} ts_edit_graph;

/* A coefficient of that size or more stands for one that is not finite. */
#define TS_EDIT_C_MAX 3e38f

/* Builds the graph that edits the rows of node `x` in place; nothing is allocated. `c`, when not NULL, is where the
 * coefficients of the steps go, [n] floats one alignment apart: only for a single row. */
int ts_edit_graph_build(ts_edit_graph *g, const struct ggml_tensor *x, const ts_edit_step *steps, size_t n, const struct ggml_tensor *c,
                        size_t c_offset, size_t c_step, ts_error *err);
/* Whether the backend computes all of it. */
bool ts_edit_graph_served(const ts_edit_graph *g, ggml_backend_t backend);
/* Sends the vectors; once the graph is allocated. */
int ts_edit_graph_fill(const ts_edit_graph *g, ts_error *err);
void ts_edit_graph_free(ts_edit_graph *g);

#endif
