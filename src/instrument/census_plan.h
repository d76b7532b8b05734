/* What a census will do, decided before it computes: corpus or text, windows, sequences side by side, sizes. */
#ifndef TS_INSTRUMENT_CENSUS_PLAN_H
#define TS_INSTRUMENT_CENSUS_PLAN_H

#include "instrument/corpus.h"

typedef struct ts_census_plan {
    ts_corpus *corpus;         /* NULL for a text */
    ts_corpus_summary summary; /* of a text: one prompt */
    int32_t *text;             /* [n_text] */
    size_t n_text, window;     /* tokens; a window starts from an empty memory */
    int32_t parallel, n_predict;
    int trace_share;           /* index into ts_ffn_share_percent */
    uint64_t n_tokens, n_passes, trace_bytes; /* at most */
    char hash[33]; /* of corpus and options; the walk adds the model's */
} ts_census_plan;

/* Reads the corpus once and sizes the session's context. TS_ERR_ARG, TS_ERR_FORMAT with line. */
int ts_census_plan_make(ts_census_plan *p, ts_session *s, const ts_census_options *o, ts_error *err);
void ts_census_plan_free(ts_census_plan *p);

#endif
