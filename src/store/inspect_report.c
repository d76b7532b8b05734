/* Owns the form of reports. Refuses to let bytes of a file reach the terminal as control
 * characters. */
#include "store/inspect_report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"

enum { COLUMNS = 79, LABEL = 14 };

static bool is_control(const unsigned char *c) {
    return c[0] < 0x20 || c[0] == 0x7f || (c[0] == 0xc2 && c[1] < 0xa0);
}

/* `text` on what is left of a line that already has `column` columns; a character counts as one. */
static void add_clean(ts_buf *b, const char *text, size_t column) {
    size_t n = strlen(text), i = 0;
    while (i < n && column < COLUMNS) {
        size_t width = 1;
        while (width < 4 && i + width < n && ((unsigned char)text[i + width] & 0xc0) == 0x80)
            width++;
        bool good =
            ts_utf8_valid(text + i, width) == width && !is_control((const unsigned char *)text + i);
        ts_buf_add(b, good ? text + i : "?", good ? width : 1);
        i += good || is_control((const unsigned char *)text + i) ? width : 1;
        column++;
    }
    ts_buf_text(b, "\n");
}

static void add_key(ts_report *r, const char *key) {
    ts_buf_text(&r->b, r->begun ? ", " : "");
    ts_buf_json_string(&r->b, key, strlen(key));
    ts_buf_text(&r->b, ": ");
    r->begun = true;
}

/* Underscores become spaces; keys with a dot are a file's own and stay. */
static void add_label(ts_report *r, const char *key) {
    char label[64];
    snprintf(label, sizeof label, "%s", key);
    if (strchr(key, '.') == NULL)
        for (char *c = label; *c; c++)
            if (*c == '_')
                *c = ' ';
    ts_buf_printf(&r->b, "  %-*s ", LABEL, label);
}

void ts_report_begin(ts_report *r, const char *kind, const char *title, const char *path) {
    if (r->json) {
        ts_buf_text(&r->b, "{");
        ts_report_text(r, "kind", "%s", kind);
        ts_report_text(r, "path", "%s", path);
        return;
    }
    char line[512];
    snprintf(line, sizeof line, "%s '%s'", title, path);
    add_clean(&r->b, line, 0);
}

void ts_report_text(ts_report *r, const char *key, const char *fmt, ...) {
    char value[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(value, sizeof value, fmt, args);
    va_end(args);
    if (r->json) {
        add_key(r, key);
        ts_buf_json_string(&r->b, value, strlen(value));
        return;
    }
    add_label(r, key);
    size_t label = strlen(key) > LABEL ? strlen(key) : LABEL;
    add_clean(&r->b, value, 3 + label);
}

void ts_report_int(ts_report *r, const char *key, int64_t value) {
    if (r->json) {
        add_key(r, key);
        ts_buf_printf(&r->b, "%" PRId64, value);
        return;
    }
    ts_report_text(r, key, "%" PRId64, value);
}

void ts_report_value(ts_report *r, const char *key, const json_t *value) {
    if (!r->json)
        return;
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    add_key(r, key);
    if (text == NULL)
        r->b.failed = true;
    else
        ts_buf_text(&r->b, text);
    free(text); /* jansson's */
}

void ts_report_line(ts_report *r, const char *fmt, ...) {
    char line[512];
    va_list args;
    if (r->json)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    add_clean(&r->b, line, 0);
}

void ts_report_table(ts_report *r, const char *key, const char *heading) {
    if (!r->json) {
        ts_buf_printf(&r->b, "\n%s\n", heading);
        return;
    }
    add_key(r, key);
    ts_buf_text(&r->b, "[");
}

void ts_report_row(ts_report *r, bool first) {
    if (r->json && !first)
        ts_buf_text(&r->b, ", ");
}

void ts_report_table_end(ts_report *r) {
    ts_buf_text(&r->b, r->json ? "]" : "");
}

void ts_report_end(ts_report *r) {
    ts_buf_text(&r->b, r->json ? "}\n" : "");
}
