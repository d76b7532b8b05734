/* The routing census: which experts each token's router chose. Shared by the instrument of `run` and by the corpus command. */
#ifndef TS_INSTRUMENT_ROUTER_H
#define TS_INSTRUMENT_ROUTER_H

#include "host/session.h"
#include "store/router.h"

#define TS_ROUTER_SITES ((1u << TS_SITE_ROUTER) | (1u << TS_SITE_ROUTER_WEIGHTS))

/* What one sequence has traced since its generation began; appended to the record as a whole, so that the trace never
 * interleaves sequences that ran side by side. */
typedef struct ts_router_slot {
    uint32_t **ids;     /* [n_layer] */
    uint64_t *n, *room; /* [n_layer] */
    uint64_t *rows;     /* [n_layer][TS_ROUTER_PHASES] */
    bool open;          /* a generation has begun */
} ts_router_slot;

typedef struct ts_router_census {
    ts_session *session;
    int32_t n_layer;
    ts_router record;
    ts_router_slot *slots; /* [n_slots] */
    uint32_t n_slots;
    bool *weighed;         /* [n_layer] the weights are tapped */
} ts_router_census;

/* On a started session that tapped TS_ROUTER_SITES. TS_ERR_UNSUPPORTED when no block has experts, or one's ids cannot be
 * tapped. */
int ts_router_census_open(ts_router_census *c, ts_session *s, uint32_t n_slots, bool traced, ts_error *err);
/* A generation begins in this slot; the one before it ends. */
int ts_router_census_begin(ts_router_census *c, uint32_t slot, ts_error *err);
/* One graph run, every row of it; token t belongs to the slot of its sequence id. */
int ts_router_census_run(ts_router_census *c, const ts_run *run, enum ts_router_phase phase, ts_error *err);
/* Ends every open generation, in the order of the slots. Before the record is read. */
int ts_router_census_flush(ts_router_census *c, ts_error *err);
/* A warning where weights were not finite or an expert was listed twice for a token. */
void ts_router_census_warn(const ts_router_census *c);
/* `prov` NULL: made here, which reads the whole model once. */
int ts_router_census_write(const ts_router_census *c, const ts_provenance *prov, const char *path, bool partial, bool overwrite,
                           ts_error *err);
void ts_router_census_close(ts_router_census *c);

/* `trace` by option; the gate of the environment reads TURBOSPARK_ROUTER_TRACE as well. */
int ts_router_attach(ts_session *s, const char *path, bool trace, bool gate, ts_error *err);
int ts_router_attach_gate(ts_session *s, const char *path, bool gate, ts_error *err);
bool ts_router_is(const ts_instrument_class *class); /* is this what they attach? */

#endif
