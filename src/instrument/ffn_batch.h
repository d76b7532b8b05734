/* Passes on their way to the accumulators. A block's state (histogram, masses, last sets) is far larger than its row:
 * counted pass by pass, all blocks' states would go through the caches, and push the model's own data out, for every
 * token. So one-token runs are copied and counted some at a time, block by block. */
#ifndef TS_INSTRUMENT_FFN_BATCH_H
#define TS_INSTRUMENT_FFN_BATCH_H

#include "instrument/ffn.h"

int ts_ffn_batches_open(ts_ffn_census *c, ts_error *err); /* widths, stats and worker are there */
void ts_ffn_batches_close(ts_ffn_census *c);              /* drops what waits */
int ts_ffn_failed(int rc, ts_error *err);                 /* an accumulator's refusal in words; returns its code */

#endif
