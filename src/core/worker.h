/* One background thread with room for one job: the analysis of a pass beside the computation of the next.
 * Refuses nothing: without a thread (`threaded` false) a job runs at once in the caller. */
#ifndef TS_CORE_WORKER_H
#define TS_CORE_WORKER_H

#include "core/error.h"

typedef struct ts_worker ts_worker;
typedef int (*ts_job_fn)(void *user, ts_error *err);

int ts_worker_create(bool threaded, ts_worker **out, ts_error *err);
bool ts_worker_threaded(const ts_worker *w);
/* Waits for the job before, whose failure it returns, then starts this one. */
int ts_worker_submit(ts_worker *w, ts_job_fn fn, void *user, ts_error *err);
/* Waits for the job at hand and returns its failure once. */
int ts_worker_wait(ts_worker *w, ts_error *err);
void ts_worker_free(ts_worker *w); /* waits; NULL is fine */

#endif
