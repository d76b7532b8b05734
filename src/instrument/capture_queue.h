/* Rows of a capture on their way to its file: written beside the computation of the next batch where a core is free. */
#ifndef TS_INSTRUMENT_CAPTURE_QUEUE_H
#define TS_INSTRUMENT_CAPTURE_QUEUE_H

#include "store/resid_out.h"

typedef struct ts_capture_queue ts_capture_queue;

/* Rows of `n_floats` values go to `out`, which nobody else uses between a flush and the next wait. */
int ts_capture_queue_open(ts_resid_out *out, size_t n_floats, bool threaded, ts_capture_queue **queue, ts_error *err);
/* Copies the row and its facts. Returns also what went wrong with rows before it. */
int ts_capture_queue_add(ts_capture_queue *q, const float *row, const ts_resid_row *facts, ts_error *err);
/* Hands over what was added. */
int ts_capture_queue_flush(ts_capture_queue *q, ts_error *err);
/* Everything handed over is written when it returns TS_OK. */
int ts_capture_queue_wait(ts_capture_queue *q, ts_error *err);
/* Waits; what was not handed over is dropped. NULL is fine. */
void ts_capture_queue_close(ts_capture_queue *q);

#endif
