/* A file on the way to its place that is hashed as it is written; the first failure sticks. For the
 * census' files and its checkpoint. */
#ifndef TS_STORE_CENSUS_SINK_H
#define TS_STORE_CENSUS_SINK_H

#include <stdint.h>

#include "core/error.h"

typedef struct ts_sink ts_sink;

/* `err` must outlive the sink. The calling thread has the C locale until the sink is finished or
 * discarded. */
int ts_sink_open(const char *path, ts_sink **out, ts_error *err);
void ts_sink_bytes(ts_sink *s, const void *bytes, size_t n);
void ts_sink_text(ts_sink *s, const char *text);
void ts_sink_printf(ts_sink *s, const char *fmt, ...) TS_PRINTF(2, 3); /* up to 255 bytes */
/* As a JSON string with quotes; NULL is null. */
void ts_sink_string(ts_sink *s, const char *text);
void ts_sink_count(ts_sink *s, uint64_t value);
/* "1.23457e-3": one digit, five decimals, an exponent without sign or zeros in front. */
void ts_sink_short(ts_sink *s, double value);
/* The shortest of the forms that read back as the same double. */
void ts_sink_exact(ts_sink *s, double value);
/* The hash of all bytes so far. */
void ts_sink_digest(ts_sink *s, char hex[33]);
/* All bytes are in the file, which is not in its place yet. */
int ts_sink_finish(ts_sink *s, char hex[33], uint64_t *bytes);
/* Puts it in its place and frees. */
int ts_sink_commit(ts_sink *s);
/* Both, for who wants no hash; after a failure nothing is in its place. Frees. */
int ts_sink_close(ts_sink *s);
void ts_sink_discard(ts_sink *s); /* NULL is fine */

#endif
