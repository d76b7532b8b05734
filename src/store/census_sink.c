/* Owns the writing side of a census' files: bytes, numbers, hash. Refuses to finish after any
 * failure. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "store/census_sink.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/buf.h"
#include "core/file.h"
#include "core/locale_c.h"
#include "core/mem.h"

enum { CHUNK = 1 << 16, PIECE = 256 };

struct ts_sink {
    ts_file *file;
    XXH3_state_t *hash;
    ts_error *err;
    int rc;
    bool finished;
    uint64_t bytes;
    ts_locale_c locale;
    size_t used;
    char chunk[CHUNK];
};

int ts_sink_open(const char *path, ts_sink **out, ts_error *err) {
    ts_sink *s = ts_calloc(1, sizeof *s);
    int rc = TS_OK;
    *out = NULL;
    if (s == NULL)
        return ts_fail_nomem(err, path, sizeof *s);
    s->err = err;
    s->hash = XXH3_createState();
    if (s->hash == NULL || XXH3_128bits_reset(s->hash) == XXH_ERROR)
        rc = ts_fail_nomem(err, "a hash", sizeof *s);
    if (rc == TS_OK)
        rc = ts_file_create(path, &s->file, err);
    if (rc < 0) {
        XXH3_freeState(s->hash);
        ts_free(s);
        return rc;
    }
    s->locale = ts_locale_c_enter();
    *out = s;
    return TS_OK;
}

static void flush(ts_sink *s) {
    if (s->rc == TS_OK)
        s->rc = ts_file_write(s->file, s->chunk, s->used, s->err);
    XXH3_128bits_update(s->hash, s->chunk, s->used);
    s->bytes += s->used;
    s->used = 0;
}

void ts_sink_bytes(ts_sink *s, const void *bytes, size_t n) {
    const char *from = bytes;
    for (size_t done = 0, part; done < n; done += part) {
        size_t room = CHUNK - s->used;
        part = n - done < room ? n - done : room;
        memcpy(s->chunk + s->used, from + done, part);
        s->used += part;
        if (s->used == CHUNK)
            flush(s);
    }
}

void ts_sink_text(ts_sink *s, const char *text) {
    ts_sink_bytes(s, text, strlen(text));
}

void ts_sink_printf(ts_sink *s, const char *fmt, ...) {
    char piece[PIECE];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(piece, sizeof piece, fmt, args);
    va_end(args);
    if (n >= 0 && n < PIECE)
        ts_sink_bytes(s, piece, (size_t)n);
    else if (s->rc == TS_OK)
        s->rc = ts_fail(s->err, TS_ERR_ARG, "more than %d bytes in one piece", PIECE - 1);
}

void ts_sink_string(ts_sink *s, const char *text) {
    ts_buf b = {0};
    if (text == NULL) {
        ts_sink_text(s, "null");
        return;
    }
    ts_buf_json_string(&b, text, strlen(text));
    if (!b.failed)
        ts_sink_bytes(s, b.data, b.length);
    else if (s->rc == TS_OK)
        s->rc = ts_fail_nomem(s->err, "a string", strlen(text));
    ts_buf_free(&b);
}

void ts_sink_count(ts_sink *s, uint64_t value) {
    ts_sink_printf(s, "%" PRIu64, value);
}

void ts_sink_short(ts_sink *s, double value) {
    char text[64];
    int n = snprintf(text, sizeof text, "%.5e", value);
    char *e = n > 0 ? strchr(text, 'e') : NULL;
    if (e == NULL) { /* not finite: ts_census_check lets none through */
        s->rc = s->rc ? s->rc : ts_fail(s->err, TS_ERR_ARG, "a mass is not finite");
        return;
    }
    ts_sink_bytes(s, text, (size_t)(e + 1 - text));
    ts_sink_printf(s, "%d", (int)strtol(e + 1, NULL, 10));
}

void ts_sink_exact(ts_sink *s, double value) {
    ts_sink_printf(s, "%.17g", value);
}

void ts_sink_digest(ts_sink *s, char hex[33]) {
    XXH128_canonical_t digest;
    flush(s);
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(s->hash));
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest.digest[i]);
}

int ts_sink_finish(ts_sink *s, char hex[33], uint64_t *bytes) {
    ts_sink_digest(s, hex);
    ts_locale_c_leave(s->locale);
    s->finished = true;
    *bytes = s->bytes;
    return s->rc;
}

static void free_sink(ts_sink *s) {
    if (!s->finished)
        ts_locale_c_leave(s->locale);
    XXH3_freeState(s->hash);
    ts_free(s);
}

int ts_sink_commit(ts_sink *s) {
    ts_file *file = s->file;
    int rc = s->rc;
    ts_error *err = s->err;
    free_sink(s);
    if (rc < 0) {
        ts_file_discard(file);
        return rc;
    }
    return ts_file_commit(file, err);
}

int ts_sink_close(ts_sink *s) {
    char hex[33];
    uint64_t bytes;
    ts_sink_finish(s, hex, &bytes);
    return ts_sink_commit(s);
}

void ts_sink_discard(ts_sink *s) {
    if (s == NULL)
        return;
    ts_file_discard(s->file);
    free_sink(s);
}
