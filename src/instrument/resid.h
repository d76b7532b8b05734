/* Attaching the residual capture; `gate` when the environment asked for it. */
#ifndef TS_INSTRUMENT_RESID_H
#define TS_INSTRUMENT_RESID_H

#include "host/session.h"

int ts_resid_attach(ts_session *s, const char *path, bool gate, ts_error *err);

#endif
