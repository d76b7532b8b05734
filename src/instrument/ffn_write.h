/* Writing a census: accumulators, the model's FFN weights and provenance to PATH.json, .detail and .meta. */
#ifndef TS_INSTRUMENT_FFN_WRITE_H
#define TS_INSTRUMENT_FFN_WRITE_H

#include "instrument/ffn.h"

/* `prov` NULL: made here, which reads the whole model once. */
int ts_ffn_write(const ts_ffn_census *c, const ts_provenance *prov, const char *plan, const char *path, bool partial, bool overwrite,
                 ts_error *err);

#endif
