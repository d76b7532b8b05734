/* The comparison of two dumps as JSON. */
#ifndef TS_INSTRUMENT_KLD_H
#define TS_INSTRUMENT_KLD_H

#include "core/error.h"

/* One object into `path`, whole or not at all; what is infinite is null. TS_ERR_IO, TS_ERR_NOMEM. */
int ts_kld_write_json(const char *path, const ts_kld_options *o, const ts_kld_result *r, ts_error *err);

#endif
