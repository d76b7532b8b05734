/* From accumulators to the record that is written and analysed. */
#ifndef TS_INSTRUMENT_FFN_RECORD_H
#define TS_INSTRUMENT_FFN_RECORD_H

#include "stats/ffn_stats.h"
#include "store/census.h"

/* Copies what was counted; `shared` nullable, else of as many blocks. Sizes of the weights and the
 * note are left 0 for the caller. TS_ERR_NOMEM, *out is then empty; else freed by ts_census_free.
 */
int ts_ffn_to_census(const ts_ffn_stats *dense, const ts_ffn_stats *shared, ts_census *out,
                     ts_error *err);

#endif
