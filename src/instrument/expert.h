/* The expert-activation census: counting what the chosen experts' down projections read, beside the FFN census of a corpus. */
#ifndef TS_INSTRUMENT_EXPERT_H
#define TS_INSTRUMENT_EXPERT_H

#include "host/session.h"
#include "store/expert.h"

#define TS_EXPERT_SITES ((1u << TS_SITE_EXPERTS) | (1u << TS_SITE_ROUTER))

/* Whether some block of a started, tapped session has experts. */
bool ts_expert_any(const ts_session *s);
/* Layers of the model, for a session that tapped TS_EXPERT_SITES. TS_ERR_UNSUPPORTED when a block's experts cannot be read. */
int ts_expert_open(ts_experts *x, const ts_session *s, ts_error *err);
/* One graph run, every row of it a pass. */
int ts_expert_run(ts_experts *x, const ts_run *run, ts_error *err);

#endif
