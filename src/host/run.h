/* One graph run (one ubatch): which tokens it computes, at which positions, which of them are outputs, read
 * from the graph's own inputs; and the rows of the sites in it. */
#ifndef TS_HOST_RUN_H
#define TS_HOST_RUN_H

#include "host/tap.h"

/* Looks at a node being asked about: the token lookup opens a run (and closes the one before), ROPE or the
 * position lookup gives positions, the trimming of outputs their ids. */
int ts_run_visit(ts_tap *tap, const struct ggml_tensor *t, ts_error *err);
/* Checks the run at hand against what was sent and delivers it. Nothing when none is open. */
int ts_run_close(ts_tap *tap, ts_error *err);
void ts_run_free(struct ts_run *run);

#endif
