/* Owns growth of a byte buffer and JSON string escaping. Refuses nothing but memory it cannot get,
 * once and for all. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/locale_c.h"
#include "core/mem.h"
#include "core/utf8.h"

/* Makes room for n more bytes and a NUL. */
static bool reserve(ts_buf *b, size_t n) {
    size_t need = b->length + n + 1, capacity = b->capacity ? b->capacity : 256;
    char *data;

    if (b->failed || need <= b->length) {
        b->failed = true;
        return false;
    }
    if (need <= b->capacity)
        return true;
    while (capacity < need)
        capacity = capacity > need / 2 ? capacity * 2 : need;
    data = ts_realloc(b->data, capacity, 1);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->capacity = capacity;
    return true;
}

void ts_buf_add(ts_buf *b, const void *bytes, size_t n) {
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->data + b->length, bytes, n);
    b->length += n;
    b->data[b->length] = '\0';
}

void ts_buf_text(ts_buf *b, const char *text) {
    ts_buf_add(b, text, strlen(text));
}

void ts_buf_printf(ts_buf *b, const char *fmt, ...) {
    ts_locale_c l = ts_locale_c_enter();
    va_list args, again;
    int n;

    va_start(args, fmt);
    va_copy(again, args);
    n = vsnprintf(NULL, 0, fmt, args);
    if (n < 0) {
        b->failed = true;
    } else if (reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->length, (size_t)n + 1, fmt, again);
        b->length += (size_t)n;
    }
    va_end(again);
    va_end(args);
    ts_locale_c_leave(l);
}

static void add_escape(ts_buf *b, unsigned char c) {
    static const char short_form[] =
        "\"\"\\\\\bb\ff\nn\rr\tt"; /* byte, letter after the backslash */

    for (size_t i = 0; i + 1 < sizeof short_form; i += 2) {
        if (c == (unsigned char)short_form[i]) {
            char pair[2] = {'\\', short_form[i + 1]};

            ts_buf_add(b, pair, sizeof pair);
            return;
        }
    }
    ts_buf_printf(b, "\\u%04x", c);
}

/* Bytes from the start that stand for themselves in a JSON string. */
static size_t plain_run(const char *bytes, size_t n) {
    size_t i = 0;

    while (i < n && (unsigned char)bytes[i] >= 0x20 && bytes[i] != '"' && bytes[i] != '\\')
        i++;
    return i;
}

/* Each invalid byte becomes U+FFFD. */
static void add_utf8(ts_buf *b, const char *bytes, size_t n) {
    while (n) {
        size_t valid = ts_utf8_valid(bytes, n);

        ts_buf_add(b, bytes, valid);
        if (valid < n) {
            ts_buf_text(b, "\xef\xbf\xbd");
            valid++;
        }
        bytes += valid;
        n -= valid;
    }
}

void ts_buf_json_string(ts_buf *b, const char *bytes, size_t n) {
    ts_buf_add(b, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        size_t run = plain_run(bytes + i, n - i);

        add_utf8(b, bytes + i, run);
        i += run;
        if (i < n)
            add_escape(b, (unsigned char)bytes[i]);
    }
    ts_buf_add(b, "\"", 1);
}

void ts_buf_free(ts_buf *b) {
    ts_free(b->data);
    *b = (ts_buf){0};
}

char *ts_buf_take(ts_buf *b) {
    char *data = NULL;

    ts_buf_add(b, NULL, 0); /* an empty buffer gives "" */
    if (!b->failed) {
        data = b->data;
        b->data = NULL;
    }
    ts_buf_free(b);
    return data;
}
