/* Streams generated pieces as whole UTF-8 characters. */
#ifndef TS_HOST_STREAM_H
#define TS_HOST_STREAM_H

#include "core/buf.h"
#include "core/error.h"

typedef struct ts_stream {
    ts_buf held; /* the start of a character whose rest has not come */
    ts_text_fn on_text;
    void *user;
} ts_stream;

int ts_stream_add(ts_stream *st, const char *bytes, size_t n, ts_error *err);
void ts_stream_end(ts_stream *st); /* what is still held comes out as it is; frees */

#endif
