/* A growable byte buffer for text that becomes a file or message. A failed allocation is sticky: check
 * `failed` once at the end. */
#ifndef TS_CORE_BUF_H
#define TS_CORE_BUF_H

#include <stdbool.h>
#include <stddef.h>

#include "core/error.h"

typedef struct ts_buf {
    char *data;    /* NUL-terminated once anything was added */
    size_t length; /* bytes without the NUL */
    size_t capacity;
    bool failed;
} ts_buf;

void ts_buf_add(ts_buf *b, const void *bytes, size_t n);
void ts_buf_text(ts_buf *b, const char *text);
void ts_buf_printf(ts_buf *b, const char *fmt, ...) TS_PRINTF(2, 3);
/* The text as a JSON string with quotes: control characters, quote and backslash escaped; bytes that are not
 * UTF-8 become U+FFFD. */
void ts_buf_json_string(ts_buf *b, const char *bytes, size_t n);
void ts_buf_free(ts_buf *b);
/* Gives up the bytes (NUL-terminated, caller frees) or NULL when failed; the buffer is empty afterwards. */
char *ts_buf_take(ts_buf *b);

#endif
