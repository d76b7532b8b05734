/* Completes a session's provenance with what needs the store: the shards' fingerprints. */
#ifndef TS_INSTRUMENT_PROVENANCE_H
#define TS_INSTRUMENT_PROVENANCE_H

#include "host/session.h"

/* Reads every shard once (page cache speed). Freed by ts_provenance_free also after a failure. */
int ts_provenance_complete(const ts_session *s, ts_provenance *out, ts_error *err);

#endif
