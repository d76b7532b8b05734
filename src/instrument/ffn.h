/* The FFN census: counting what ffn_down reads. Shared by the instrument of `run` and by the corpus census. */
#ifndef TS_INSTRUMENT_FFN_H
#define TS_INSTRUMENT_FFN_H

#include "core/worker.h"
#include "host/session.h"
#include "stats/ffn_stats.h"
#include "store/trace.h"

/* Which sites are counted and where: block il's own row is its dense FFN, or its shared expert where it has no
 * dense one; a block with both counts the shared one apart. */
typedef struct ts_ffn_census {
    ts_session *session;
    int32_t n_layer;
    ts_ffn_stats *dense, *shared;  /* shared NULL when no block has both */
    enum ts_site_kind *dense_kind; /* [n_layer] */
    uint32_t *width, *shared_width; /* [n_layer], 0 = nothing counted */
    /* nullable: the ids of the set ts_ffn_share_percent[trace_share] of each pass go there */
    ts_trace_writer *trace;
    int trace_share;
    ts_worker *worker;
    struct ts_ffn_job *filling, *counting; /* passes that wait to be counted, and those being counted */
} ts_ffn_census;

#define TS_FFN_SITES ((1u << TS_SITE_FFN) | (1u << TS_SITE_FFN_SHEXP))

/* On a started session that tapped TS_FFN_SITES. `n_slots` sequences side by side. TS_ERR_UNSUPPORTED when no block
 * has a dense or shared FFN, naming what there is. */
int ts_ffn_census_open(ts_ffn_census *c, ts_session *s, uint32_t n_slots, ts_error *err);
/* The same, but a model that has experts only gives a census of empty blocks, which counts passes. */
int ts_ffn_census_open_beside(ts_ffn_census *c, ts_session *s, uint32_t n_slots, ts_error *err);
/* One graph run, every row of it a pass of the slot slots[token]; begins[token] starts a generation there.
 * Arrays are [n_tokens of the run]; begins nullable. A run of one token may be counted later, at the latest by a wait. */
int ts_ffn_census_run(ts_ffn_census *c, const ts_run *run, const int32_t *slots, const bool *begins, ts_error *err);
/* Prompt tokens that are not recorded. After a wait. */
void ts_ffn_census_prefill(ts_ffn_census *c, uint64_t n);
/* Everything given is counted when it returns. */
int ts_ffn_census_wait(ts_ffn_census *c, ts_error *err);
/* A warning naming the first non-finite value, when there is one. */
void ts_ffn_census_warn(const ts_ffn_census *c);
void ts_ffn_census_close(ts_ffn_census *c);

int ts_ffn_attach(ts_session *s, const char *path, bool gate, ts_error *err);

#endif
