/* Owns the wording of a ts_error: one line of valid UTF-8 without control characters, the reason
 * kept when the text is too long. Refuses option structs this version does not know. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/locale_c.h"
#include "core/utf8.h"

enum { MESSAGE_SIZE = sizeof((ts_error *)NULL)->message };

/* Names and file contents come from strangers: nothing of them may break the line or steer a
 * terminal. */
static void make_one_line(char *text) {
    size_t n = strlen(text), bad;

    while ((bad = ts_utf8_valid(text, n)) < n)
        text[bad] = '?';
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = *c == '\n' || *c == '\r' || *c == '\t' ? ' ' : '?';
}

/* `text` filled all of `size` bytes: end it with dots, not inside a character. */
static void mark_cut(char *text, size_t size) {
    memcpy(text + ts_utf8_complete(text, size - 4), "...", 4);
}

static void fill(ts_error *err, int code, int64_t position, const char *reason, const char *fmt,
                 va_list args) TS_PRINTF(5, 0);

static void fill(ts_error *err, int code, int64_t position, const char *reason, const char *fmt,
                 va_list args) {
    char text[MESSAGE_SIZE]; /* apart from err->message, which may be among the arguments */
    size_t room = sizeof text;
    ts_locale_c l;
    int n;

    if (!err)
        return;
    if (reason)
        room -= strnlen(reason, MESSAGE_SIZE / 2) + 2;
    l = ts_locale_c_enter();
    n = vsnprintf(text, room, fmt, args);
    ts_locale_c_leave(l);
    if (n < 0)
        text[0] = '\0';
    else if ((size_t)n >= room)
        mark_cut(text, room);
    if (reason) {
        size_t used = strlen(text);

        snprintf(text + used, sizeof text - used, ": %s", reason);
    }
    make_one_line(text);
    memcpy(err->message, text, sizeof text);
    err->code = code;
    err->position = position;
}

int ts_fail(ts_error *err, int code, const char *fmt, ...) {
    va_list args;

    va_start(args, fmt);
    fill(err, code, -1, NULL, fmt, args);
    va_end(args);
    return code;
}

int ts_fail_at(ts_error *err, int code, int64_t position, const char *fmt, ...) {
    va_list args;

    va_start(args, fmt);
    fill(err, code, position, NULL, fmt, args);
    va_end(args);
    return code;
}

int ts_fail_errno(ts_error *err, int code, const char *fmt, ...) {
    const char *reason = strerror(errno);
    va_list args;

    va_start(args, fmt);
    fill(err, code, -1, reason, fmt, args);
    va_end(args);
    return code;
}

int ts_fail_nomem(ts_error *err, const char *what, size_t bytes) {
    return ts_fail(err, TS_ERR_NOMEM, "out of memory for %s (%zu bytes)", what, bytes);
}

void ts_error_prefix(ts_error *err, const char *fmt, ...) {
    char before[MESSAGE_SIZE], message[MESSAGE_SIZE];
    va_list args;

    if (!err)
        return;
    memcpy(message, err->message, sizeof message);
    va_start(args, fmt);
    fill(err, err->code, err->position, NULL, fmt, args);
    va_end(args);
    memcpy(before, err->message, sizeof before);
    ts_fail_at(err, err->code, err->position, "%s%s", before, message);
}

int ts_options_check(const void *opts, size_t known, const char *what, ts_error *err) {
    size_t size;
    const unsigned char *bytes = opts;

    if (!opts)
        return ts_fail(err, TS_ERR_ARG, "%s: expected options, got NULL", what);
    memcpy(&size, opts, sizeof size);
    if (size < known)
        return ts_fail(err, TS_ERR_ARG,
                       "%s: expected an option struct of at least %zu bytes, got size %zu", what,
                       known, size);
    for (size_t i = known; i < size; i++)
        if (bytes[i])
            return ts_fail(err, TS_ERR_ARG,
                           "%s: byte %zu of the option struct is set, this version knows %zu bytes",
                           what, i, known);
    return TS_OK;
}
