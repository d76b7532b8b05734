/* Edits on the device that holds the rows: one small graph a block, built once for the same rows and steps where they are
 * few, its coefficients read once a run. */
#ifndef TS_HOST_DEVICE_EDIT_H
#define TS_HOST_DEVICE_EDIT_H

#include "host/edit_graph.h"

struct ts_tap;
struct ts_slot;

/* Of one arena. */
typedef struct ts_device_edit {
    ts_edit_graph *cached;        /* [n_slots] of up to TS_EDIT_PLACE rows */
    const struct ts_slot **taken; /* [n_slots] of the run at hand, their coefficients still on the device */
    size_t n_slots, n_taken;
    ggml_backend_buffer_t coefficients; /* [TS_EDIT_STEPS][n_slots] places */
    struct ggml_tensor whole;           /* all of it */
    size_t step;                        /* bytes from one to the next */
    ggml_backend_buffer_t host;         /* what came of it */
    struct ggml_gallocr *scratch;       /* of graphs for many rows */
} ts_device_edit;

/* Edits the rows of node `t` by tap->edit's steps, where they are. *done false: this backend, or these rows, need the way
 * over the host. */
int ts_device_edit_run(struct ts_tap *tap, struct ts_slot *slot, struct ggml_tensor *t, bool *done, ts_error *err);
/* At the end of a run: the coefficients of its single rows go to tap->edit.taken. */
int ts_device_edit_close(struct ts_tap *tap, ts_error *err);
void ts_device_edit_free(ts_device_edit *d);

#endif
