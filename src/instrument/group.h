/* Greedy generation for a group of prompts side by side, as sequences of one batch. With one prompt the passes are
 * those of `run`. Used by corpus commands that count what decoding does. */
#ifndef TS_INSTRUMENT_GROUP_H
#define TS_INSTRUMENT_GROUP_H

#include "host/session.h"

/* One prompt of the group. */
typedef struct ts_group_seq {
    int32_t *tokens; /* owned, [n] */
    size_t n;
    int32_t last, n_generated;
    bool done;
} ts_group_seq;

typedef struct ts_group {
    ts_session *session;
    ts_group_seq *seqs; /* [capacity]; sequence id = index */
    size_t n, capacity;
    int32_t n_predict;
    bool ignore_eos;
    uint64_t n_run;     /* tokens run through the model */
    unsigned wanted;    /* site kinds read in headful passes */
    bool prefill_too;   /* and in the prompts' passes: on_pass sees them, with `headful` false */
    bool headful;       /* of the pass at hand */
    const ts_edit *edit; /* nullable; in every pass */
    /* A pass: token t of the run belongs to sequence seqs[t]; first[t]: its first headful one. */
    int (*on_pass)(const ts_run *run, const int32_t *seqs, const bool *first, void *user, ts_error *err);
    void (*on_token)(size_t seq, int32_t token, void *user); /* nullable: each one generated */
    void *user;
    /* the pass at hand */
    int32_t *batch_tokens, *batch_positions, *batch_seqs; /* [room] */
    int8_t *batch_output;
    bool *batch_first;
    size_t room;
} ts_group;

int ts_group_init(ts_group *g, ts_session *s, size_t capacity, ts_error *err);
int ts_group_add(ts_group *g, const int32_t *tokens, size_t n, ts_error *err); /* copies; TS_ERR_STATE when full */
/* Empties the memory, runs every sequence to its end, empties the group. TS_ERR_INTERRUPTED when stopped. */
int ts_group_run(ts_group *g, ts_error *err);
void ts_group_free(ts_group *g);

#endif
