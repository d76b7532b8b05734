/* The process-wide log receiver (llama.cpp's own is process-wide too, the one piece of global state). */
#ifndef TS_CORE_LOG_H
#define TS_CORE_LOG_H

#include "core/error.h"

void ts_log(enum ts_log_level level, const char *fmt, ...) TS_PRINTF(2, 3);
/* A piece of an engine line as llama.cpp hands it over; pieces are joined up to the newline. */
void ts_log_engine(enum ts_log_level level, const char *piece);

#endif
