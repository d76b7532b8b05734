/* Streams generated pieces as whole UTF-8 characters. */
#include "host/stream.h"

#include <string.h>

#include "core/utf8.h"

int ts_stream_add(ts_stream *st, const char *bytes, size_t n, ts_error *err) {
    if (!st->on_text || n == 0) return TS_OK;
    ts_buf_add(&st->held, bytes, n);
    if (st->held.failed) return ts_fail_nomem(err, "text", n);
    size_t whole = ts_utf8_complete(st->held.data, st->held.length);
    if (whole == 0) return TS_OK;
    st->on_text(st->held.data, whole, st->user);
    memmove(st->held.data, st->held.data + whole, st->held.length - whole);
    st->held.length -= whole;
    return TS_OK;
}

void ts_stream_end(ts_stream *st) {
    if (st->on_text && st->held.length > 0) st->on_text(st->held.data, st->held.length, st->user);
    ts_buf_free(&st->held);
}
