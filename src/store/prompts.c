/* Owns walking a prompt list line by line in constant memory (one line of it). Refuses NUL, invalid
 * UTF-8, lines over LINE_MAX_BYTES and what is not a regular file, which could not be walked twice.
 */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "store/prompts.h"

#include <string.h>
#include <unistd.h>

#include "core/fault.h"
#include "core/file.h"
#include "core/mem.h"
#include "store/prompts_json.h"

enum { BLOCK_SIZE = 1 << 16, LINE_MAX_BYTES = 256 << 20 };

struct ts_prompts {
    int fd;
    bool json;
    char *path, *column;
    char *block; /* [BLOCK_SIZE], read from position to filled */
    size_t position, filled;
    char *line; /* without its end; room for a NUL behind it */
    size_t length, capacity;
    int64_t number, skipped;
    ts_json_prompt current;
};

static int refuse_column(const char *path, const char *column, bool json, ts_error *err) {
    if (!*column || ts_json_prompt_reserved(column))
        return ts_fail(err, TS_ERR_ARG, "expected the name of a text column, got '%s'", column);
    if (!json && strcmp(column, "prompt") != 0)
        return ts_fail(err, TS_ERR_ARG, "column '%s' needs a JSON Lines list (.jsonl), got '%s'",
                       column, path);
    return TS_OK;
}

int ts_prompts_open(const char *path, const char *column, ts_prompts **out, ts_error *err) {
    bool json = ts_path_has_extension(path, "jsonl") || ts_path_has_extension(path, "json-lines");
    ts_prompts *p;
    uint64_t size;
    int fd, rc;

    *out = NULL;
    if (strcmp(path, "-") == 0)
        return ts_fail(err, TS_ERR_IO,
                       "cannot read '-': expected the name of a prompt list, got standard input");
    column = column ? column : "prompt";
    rc = refuse_column(path, column, json, err);
    if (!rc)
        rc = ts_file_open_read(path, &fd, &size, err);
    if (rc)
        return rc;
    p = ts_calloc(1, sizeof *p);
    if (!p) {
        close(fd);
        return ts_fail_nomem(err, "a prompt list", sizeof *p);
    }
    p->fd = fd;
    p->json = json;
    p->path = ts_strdup(path);
    p->column = ts_strdup(column);
    p->block = ts_malloc(BLOCK_SIZE);
    if (!p->path || !p->column || !p->block) {
        ts_prompts_close(p);
        return ts_fail_nomem(err, "a prompt list", BLOCK_SIZE);
    }
    *out = p;
    return TS_OK;
}

static int fill_block(ts_prompts *p, ts_error *err) {
    ssize_t got = ts_sys_read(p->fd, p->block, BLOCK_SIZE);

    if (got < 0)
        return ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", p->path);
    p->position = 0;
    p->filled = (size_t)got;
    return TS_OK;
}

static int add_to_line(ts_prompts *p, const char *bytes, size_t n, ts_error *err) {
    size_t need = p->length + n + 1;

    if (need > LINE_MAX_BYTES)
        return ts_fail_at(err, TS_ERR_FORMAT, p->number, "%s:%lld: expected a line under %d bytes",
                          p->path, (long long)p->number, LINE_MAX_BYTES);
    if (need > p->capacity) {
        size_t capacity = need > 2 * p->capacity ? need : 2 * p->capacity;
        char *line = ts_realloc(p->line, capacity, 1);

        if (!line)
            return ts_fail_nomem(err, "a line of the prompt list", capacity);
        p->line = line;
        p->capacity = capacity;
    }
    memcpy(p->line + p->length, bytes, n);
    p->length += n;
    return TS_OK;
}

/* A line's end, and on the first line the byte order mark, are not part of it. */
static void trim(ts_prompts *p, bool ended) {
    if (ended && p->length && p->line[p->length - 1] == '\r')
        p->length--;
    if (p->number == 1 && p->length >= 3 && memcmp(p->line, "\xef\xbb\xbf", 3) == 0) {
        p->length -= 3;
        memmove(p->line, p->line + 3, p->length);
    }
    p->line[p->length] = '\0';
}

/* Next line into p->line; *got false at the end of the file. */
static int read_line(ts_prompts *p, bool *got, ts_error *err) {
    bool ended = false;
    int rc = TS_OK;

    *got = false;
    p->length = 0;
    p->number++;
    while (!ended) {
        const char *start, *nl;
        size_t n;

        if (p->position == p->filled) {
            rc = fill_block(p, err);
            if (rc)
                return rc;
            if (p->filled == 0)
                break;
        }
        start = p->block + p->position;
        n = p->filled - p->position;
        nl = memchr(start, '\n', n);
        if (nl)
            n = (size_t)(nl - start);
        rc = add_to_line(p, start, n, err);
        if (rc)
            return rc;
        ended = nl != NULL;
        p->position += n + ended;
        *got = true;
    }
    if (*got)
        trim(p, ended);
    return TS_OK;
}

/* \n, \t and \\ in place; any other backslash stays. */
static void unescape(char *text, size_t *length) {
    size_t out = 0;

    for (size_t i = 0; i < *length; i++) {
        char c = text[i], next = i + 1 < *length ? text[i + 1] : '\0';

        if (c == '\\' && (next == 'n' || next == 't' || next == '\\')) {
            c = next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
            i++;
        }
        text[out++] = c;
    }
    text[out] = '\0';
    *length = out;
}

static void read_text_line(ts_prompts *p) {
    ts_prompt *prompt = &p->current.prompt;

    *prompt = (ts_prompt){.line = p->number};
    if (p->length == 0)
        return;
    unescape(p->line, &p->length);
    prompt->text = p->line;
    prompt->text_length = p->length;
}

static bool is_blank(const ts_prompts *p) {
    return strspn(p->line, " \t\r") == p->length;
}

static int read_prompt(ts_prompts *p, ts_error *err) {
    int rc = ts_prompt_check_text(p->path, p->number, p->line, p->length, err);

    if (rc)
        return rc;
    if (!p->json)
        read_text_line(p);
    else if (!is_blank(p))
        rc = ts_json_prompt_read(p->path, p->number, p->line, p->length, p->column, &p->current,
                                 err);
    return rc;
}

int ts_prompts_next(ts_prompts *p, const ts_prompt **out, bool *got, ts_error *err) {
    const ts_prompt *prompt = &p->current.prompt;
    int rc;

    *out = NULL;
    *got = false;
    for (;;) {
        bool line;

        ts_json_prompt_clear(&p->current);
        rc = read_line(p, &line, err);
        if (rc || !line)
            return rc;
        rc = read_prompt(p, err);
        if (rc)
            return rc;
        if (prompt->text || prompt->messages || prompt->token_ids)
            break;
        p->skipped++;
    }
    *out = prompt;
    *got = true;
    return TS_OK;
}

int64_t ts_prompts_skipped(const ts_prompts *p) {
    return p->skipped;
}

int ts_prompts_rewind(ts_prompts *p, ts_error *err) {
    if (lseek(p->fd, 0, SEEK_SET) < 0)
        return ts_fail_errno(err, TS_ERR_IO, "cannot rewind '%s'", p->path);
    ts_json_prompt_clear(&p->current);
    p->position = p->filled = 0;
    p->number = p->skipped = 0;
    return TS_OK;
}

void ts_prompts_close(ts_prompts *p) {
    if (!p)
        return;
    close(p->fd);
    ts_json_prompt_clear(&p->current);
    ts_free(p->path);
    ts_free(p->column);
    ts_free(p->block);
    ts_free(p->line);
    ts_free(p);
}
