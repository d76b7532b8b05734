/* Owns the pull reader. Refuses what JSON refuses (also NaN, leading zeros, control characters),
 * numbers out of range and nesting deeper than a census has. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "store/census_scan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/locale_c.h"
#include "core/mem.h"
#include "store/meta_stream.h"

enum { CHUNK = 1 << 16, DEPTH = 16, NUMBER = 64, NONE = -1 };

struct ts_scan {
    FILE *file;
    const char *path;
    ts_error *err;
    int code;        /* of the first fault */
    uint64_t offset; /* of bytes[0] in the file */
    size_t at, n;
    int depth;
    bool begun[DEPTH]; /* the container at this depth has had an element */
    char close[DEPTH];
    ts_locale_c locale;
    unsigned char bytes[CHUNK];
};

int ts_scan_open(const char *path, ts_scan **out, ts_error *err) {
    ts_scan *s = ts_calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL)
        return ts_fail_nomem(err, path, sizeof *s);
    int rc = ts_stream_open(path, &s->file, NULL, err);
    if (rc < 0) {
        ts_free(s);
        return rc;
    }
    s->path = path;
    s->err = err;
    s->locale = ts_locale_c_enter();
    *out = s;
    return TS_OK;
}

int ts_scan_close(ts_scan *s) {
    if (s == NULL)
        return TS_OK;
    int code = s->code;
    ts_locale_c_leave(s->locale);
    fclose(s->file);
    ts_free(s);
    return code;
}

bool ts_scan_failed(const ts_scan *s) {
    return s->code != TS_OK;
}

bool ts_scan_fail(ts_scan *s, const char *fmt, ...) {
    char text[256];
    va_list args;
    if (s->code != TS_OK)
        return false;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    uint64_t byte = s->offset + s->at;
    s->code = ts_fail_at(s->err, TS_ERR_FORMAT, (int64_t)byte, "'%s': byte %" PRIu64 ": %s",
                         s->path, byte, text);
    return false;
}

/* The next byte without consuming it, or NONE at the end and after a fault. */
static int peek(ts_scan *s) {
    if (s->at < s->n)
        return s->code == TS_OK ? s->bytes[s->at] : NONE;
    if (s->code != TS_OK)
        return NONE;
    s->offset += s->n;
    s->at = 0;
    s->n = fread(s->bytes, 1, CHUNK, s->file);
    if (s->n == 0 && ferror(s->file))
        s->code = ts_fail_errno(s->err, TS_ERR_IO, "cannot read '%s'", s->path);
    return s->n > 0 ? s->bytes[0] : NONE;
}

static int peek_token(ts_scan *s) {
    int c = peek(s);
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        s->at++;
        c = peek(s);
    }
    return c;
}

/* Says what was expected and what stands there instead. */
static bool unexpected(ts_scan *s, const char *expected) {
    int c = peek(s);
    if (c == NONE)
        return ts_scan_fail(s, "the file ends too early: expected %s", expected);
    if (c < 0x20 || c >= 0x7f)
        return ts_scan_fail(s, "expected %s, got byte 0x%02x", expected, (unsigned)c);
    return ts_scan_fail(s, "expected %s, got '%c'", expected, c);
}

static bool take(ts_scan *s, char c) {
    char expected[] = {'\'', c, '\'', '\0'};
    if (peek_token(s) != c)
        return unexpected(s, expected);
    s->at++;
    return true;
}

bool ts_scan_enter(ts_scan *s, char open) {
    if (!take(s, open))
        return false;
    if (s->depth == DEPTH)
        return ts_scan_fail(s, "nested deeper than %d", DEPTH);
    s->begun[s->depth] = false;
    s->close[s->depth++] = open == '{' ? '}' : ']';
    return true;
}

bool ts_scan_more(ts_scan *s) {
    int c = peek_token(s), top = s->depth - 1;
    if (top < 0 || s->code != TS_OK)
        return false;
    if (c == s->close[top]) {
        s->at++;
        s->depth--;
        return false;
    }
    if (!s->begun[top])
        return s->begun[top] = true;
    if (c != ',')
        return unexpected(s, s->close[top] == '}' ? "',' or '}'" : "',' or ']'");
    s->at++;
    return true;
}

bool ts_scan_key(ts_scan *s, char *key, size_t size) {
    return ts_scan_more(s) && ts_scan_text(s, key, size) && take(s, ':');
}

int ts_scan_member(ts_scan *s, const char *const *names, int n, unsigned *seen) {
    char name[64];
    while (ts_scan_key(s, name, sizeof name)) {
        int key = 0;
        while (key < n && strcmp(name, names[key]) != 0)
            key++;
        if (key < n && *seen >> key & 1u) {
            ts_scan_fail(s, "'%s' is there twice", name);
            return -1;
        }
        if (key < n) {
            *seen |= 1u << key;
            return key;
        }
        ts_scan_skip(s);
    }
    return -1;
}

/* Collects the characters a number may have; what follows is the next token's matter. */
static size_t collect(ts_scan *s, char text[NUMBER]) {
    size_t n = 0;
    for (int c = peek_token(s);
         (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
         c = peek(s)) {
        if (n + 1 == NUMBER) {
            ts_scan_fail(s, "a number longer than %d characters", NUMBER - 1);
            return 0;
        }
        text[n++] = (char)c;
        s->at++;
    }
    text[n] = '\0';
    if (n == 0)
        unexpected(s, "a number");
    return n;
}

static size_t digits(const char *text) {
    return strspn(text, "0123456789");
}

/* JSON's grammar, which is narrower than strtod's. */
static bool is_number(const char *text) {
    text += *text == '-';
    size_t n = digits(text);
    if (n == 0 || (n > 1 && *text == '0'))
        return false;
    text += n;
    if (*text == '.') {
        n = digits(++text);
        text += n;
        if (n == 0)
            return false;
    }
    if (*text == 'e' || *text == 'E') {
        text++;
        text += *text == '+' || *text == '-';
        n = digits(text);
        text += n;
        if (n == 0)
            return false;
    }
    return *text == '\0';
}

uint64_t ts_scan_count(ts_scan *s, uint64_t max) {
    char text[NUMBER];
    if (collect(s, text) == 0)
        return 0;
    uint64_t value = strtoull(text, NULL, 10); /* saturates */
    if (!is_number(text) || text[digits(text)] != '\0' || value > max) {
        ts_scan_fail(s, "expected a whole number from 0 to %" PRIu64 ", got '%s'", max, text);
        return 0;
    }
    return value;
}

double ts_scan_amount(ts_scan *s) {
    char text[NUMBER];
    if (collect(s, text) == 0)
        return 0.0;
    double value = strtod(text, NULL);
    if (!is_number(text) || !(value >= 0.0 && value <= TS_SCAN_MAX_AMOUNT)) {
        ts_scan_fail(s, "expected a number from 0 to %g, got '%s'", TS_SCAN_MAX_AMOUNT, text);
        return 0.0;
    }
    return value;
}

static int hex_digit(int c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : NONE;
}

/* Four hex digits as UTF-8; half a surrogate pair, which our writer never makes, becomes U+FFFD. */
static size_t unicode(ts_scan *s, char out[4]) {
    unsigned u = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        int digit = hex_digit(peek(s));
        if (digit < 0)
            return unexpected(s, "a hex digit");
        u = u << 4 | (unsigned)digit;
    }
    if (u >= 0xd800 && u < 0xe000)
        u = 0xfffd;
    if (u < 0x80) {
        out[0] = (char)u;
        return 1;
    }
    if (u < 0x800) {
        out[0] = (char)(0xc0 | u >> 6);
        out[1] = (char)(0x80 | (u & 0x3f));
        return 2;
    }
    out[0] = (char)(0xe0 | u >> 12);
    out[1] = (char)(0x80 | (u >> 6 & 0x3f));
    out[2] = (char)(0x80 | (u & 0x3f));
    return 3;
}

/* One character of a string, escapes resolved; 0 bytes after a fault. */
static size_t character(ts_scan *s, char out[4]) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = peek(s);
    if (c < 0x20)
        return unexpected(s, "the rest of a string");
    s->at++;
    out[0] = (char)c;
    if (c != '\\')
        return 1;
    c = peek(s);
    if (c == 'u') {
        s->at++;
        return unicode(s, out);
    }
    const char *found = c > 0 ? strchr(from, c) : NULL;
    if (found == NULL)
        return unexpected(s, "an escape");
    s->at++;
    out[0] = to[found - from];
    return 1;
}

bool ts_scan_text(ts_scan *s, char *text, size_t size) {
    size_t n = 0;
    text[0] = '\0';
    if (peek_token(s) != '"')
        return unexpected(s, "a string");
    s->at++;
    while (peek(s) != '"') {
        char c[4];
        size_t got = character(s, c);
        if (got == 0)
            return false;
        if (n + got >= size)
            return ts_scan_fail(s, "a string longer than %zu bytes", size - 1);
        memcpy(text + n, c, got);
        n += got;
        text[n] = '\0';
    }
    s->at++;
    return true;
}

static bool word(ts_scan *s, const char *text) {
    for (; *text; text++, s->at++)
        if (peek(s) != *text)
            return unexpected(s, "true, false or null");
    return true;
}

bool ts_scan_null(ts_scan *s) {
    return peek_token(s) == 'n' && word(s, "null");
}

static void skip_string(ts_scan *s) {
    char c[4];
    s->at++;
    while (peek(s) != '"')
        if (character(s, c) == 0)
            return;
    s->at++;
}

static void skip_scalar(ts_scan *s) {
    char text[NUMBER];
    switch (peek_token(s)) {
    case '"':
        skip_string(s);
        break;
    case 't':
        word(s, "true");
        break;
    case 'f':
        word(s, "false");
        break;
    case 'n':
        word(s, "null");
        break;
    default:
        if (collect(s, text) > 0 && !is_number(text))
            ts_scan_fail(s, "'%s' is not a number", text);
    }
}

void ts_scan_skip(ts_scan *s) {
    int base = s->depth;
    do {
        int c = peek_token(s);
        if (c == '{' || c == '[')
            ts_scan_enter(s, (char)c);
        else
            skip_scalar(s);
        while (s->code == TS_OK && s->depth > base) {
            bool object = s->close[s->depth - 1] == '}';
            if (!ts_scan_more(s))
                continue; /* one container less */
            if (object && peek_token(s) == '"') {
                skip_string(s);
                take(s, ':');
            } else if (object) {
                unexpected(s, "a key");
            }
            break;
        }
    } while (s->code == TS_OK && s->depth > base);
}

void ts_scan_end(ts_scan *s) {
    if (peek_token(s) != NONE)
        unexpected(s, "the end of the file");
}
