/* Owns the lines of OUT.part.gen: one JSON object a snapshot, its numbers first and prompt_tokens
 * last, so that they are read back without a JSON parser. Refuses lines that were not written so.
 */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "store/resid_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/utf8.h"
#include "store/meta_stream.h"

#define TOKENS_KEY ", \"prompt_tokens\": ["

/* ts_buf_printf minds the locale, which is too slow for each token of a corpus. */
void ts_resid_add_int(ts_buf *b, int64_t value) {
    char digits[24];
    size_t i = sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        digits[--i] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (value < 0)
        digits[--i] = '-';
    ts_buf_add(b, digits + i, sizeof digits - i);
}

static void add_hex(ts_buf *b, const char *bytes, size_t n) {
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        char pair[2] = {hex[(unsigned char)bytes[i] >> 4], hex[(unsigned char)bytes[i] & 15]};
        ts_buf_add(b, pair, 2);
    }
}

void ts_resid_gen_render(ts_buf *b, const ts_resid_row *row) {
    const char *piece = row->piece ? row->piece : "";
    size_t n = row->piece ? row->piece_length : 0;
    ts_buf_text(b, "{\"prompt_index\": ");
    ts_resid_add_int(b, row->prompt_index);
    ts_buf_text(b, ", \"position\": ");
    ts_resid_add_int(b, row->position);
    ts_buf_text(b, ", \"token\": ");
    ts_resid_add_int(b, row->token);
    ts_buf_text(b, ", \"piece\": ");
    ts_buf_json_string(b, piece, n);
    if (ts_utf8_valid(piece, n) < n) {
        ts_buf_text(b, ", \"piece_hex\": \"");
        add_hex(b, piece, n);
        ts_buf_text(b, "\"");
    }
    if (row->label != NULL) {
        ts_buf_text(b, ", \"label\": ");
        ts_buf_json_string(b, row->label, strlen(row->label));
    }
    if (row->prompt_tokens != NULL) {
        ts_buf_text(b, TOKENS_KEY);
        for (size_t i = 0; i < row->n_prompt_tokens; i++) {
            ts_buf_add(b, ", ", i ? 2 : 0);
            ts_resid_add_int(b, row->prompt_tokens[i]);
        }
        ts_buf_text(b, "]");
    }
    ts_buf_text(b, "}");
}

int ts_resid_gen_open(const char *path, ts_resid_gen *g, ts_error *err) {
    *g = (ts_resid_gen){0};
    return ts_stream_open(path, &g->file, NULL, err);
}

void ts_resid_gen_close(ts_resid_gen *g) {
    if (g->file != NULL)
        fclose(g->file);
    ts_free(g->line);
    *g = (ts_resid_gen){0};
}

/* A whole line into g->line; a last line without its end was cut short. */
static int read_line(ts_resid_gen *g, bool *got, ts_error *err) {
    for (g->length = 0;;) {
        if (g->capacity - g->length < 2) {
            size_t capacity = g->capacity ? g->capacity * 2 : 4096;
            char *line = ts_realloc(g->line, capacity, 1);
            if (line == NULL)
                return ts_fail_nomem(err, "a generation", capacity);
            g->line = line;
            g->capacity = capacity;
        }
        size_t room = g->capacity - g->length;
        char *at = g->line + g->length;
        if (fgets(at, room > INT32_MAX ? INT32_MAX : (int)room, g->file) == NULL)
            break;
        g->length += strlen(at);
        if (g->length > 0 && g->line[g->length - 1] == '\n') {
            g->line[--g->length] = '\0';
            *got = true;
            return TS_OK;
        }
    }
    *got = false;
    if (ferror(g->file))
        return ts_fail_errno(err, TS_ERR_IO, "cannot read generations");
    return g->length ? ts_fail(err, TS_ERR_FORMAT, "generations end inside a line") : TS_OK;
}

/* `key` and a number at *at, which moves on. */
static bool take_number(const char **at, const char *key, int64_t min, int64_t max, int64_t *out) {
    size_t n = strlen(key);
    char *end;
    if (strncmp(*at, key, n) != 0)
        return false;
    long long value = strtoll(*at + n, &end, 10);
    if (end == *at + n || value < min || value > max)
        return false;
    *at = end;
    *out = value;
    return true;
}

static const char *find_tokens(const ts_resid_gen *g) {
    if (g->length < 2 || g->line[g->length - 2] != ']')
        return NULL;
    const char *open = strrchr(g->line, '['); /* the list is last and flat: no later bracket */
    return open ? open + 1 : NULL;
}

int ts_resid_gen_next(ts_resid_gen *g, bool *got, ts_error *err) {
    int64_t position, token;
    int rc = read_line(g, got, err);
    if (rc < 0 || !*got)
        return rc;
    const char *at = g->line;
    if (!take_number(&at, "{\"prompt_index\": ", 0, INT64_MAX, &g->prompt_index) ||
        !take_number(&at, ", \"position\": ", -1, INT32_MAX, &position) ||
        !take_number(&at, ", \"token\": ", -1, INT32_MAX, &token))
        return ts_fail(err, TS_ERR_FORMAT, "damaged generation '%.60s'", g->line);
    g->position = (int32_t)position;
    g->token = (int32_t)token;
    g->tokens = find_tokens(g);
    return TS_OK;
}

bool ts_resid_gen_token(const char **at, int32_t *token) {
    char *end;
    long long value = strtoll(*at, &end, 10);
    if (end == *at)
        return false;
    *token = (int32_t)value;
    *at = *end == ',' ? end + 1 : end;
    return true;
}
