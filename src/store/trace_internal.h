/* What the trace's writer and reader share. Only trace_*.c include this. */
#ifndef TS_STORE_TRACE_INTERNAL_H
#define TS_STORE_TRACE_INTERNAL_H

#include "core/buf.h"
#include "store/trace.h"

enum ts_trace_encoding { TS_TRACE_NONE, TS_TRACE_DELTA, TS_TRACE_BITSET };

/* The smaller one at worst: a delta costs a byte an id, and one more for each gap of 128 or more.
 */
enum ts_trace_encoding ts_trace_choose(uint32_t width, uint32_t k);
const char *ts_trace_encoding_name(enum ts_trace_encoding e);
/* The header line; its length does not depend on `at`. `bytes` 0 while unfinished. */
void ts_trace_header(ts_buf *b, const ts_trace_spec *spec, const ts_trace_at *at);

#endif
