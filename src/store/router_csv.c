/* Owns reading a "layer,expert" CSV, as written here or by a spreadsheet (BOM, CR LF). Refuses lines that are not two whole numbers in
 * their limits, and runs of one layer that are no whole rows, naming the line. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/plural.h"
#include "store/meta_stream.h"
#include "store/router_internal.h"

/* Characters of a line: room for two numbers that are too large, to be told so. */
#define MOST 62
#define STRINGED(x) #x
#define TEXT(x) STRINGED(x)
enum { LINE = MOST + 2 }; /* a CR and the NUL */

typedef struct csv {
    const char *path;
    FILE *file;
    uint64_t line; /* 1-based */
    ts_error *err;
} csv;

static int wrong(const csv *c, const char *what) {
    return ts_fail_at(c->err, TS_ERR_FORMAT, (int64_t)c->line, "'%s': line %" PRIu64 ": %s", c->path, c->line, what);
}

/* One line without its end, which may be CR LF; *got false at the end of the file. Spreadsheets put a mark (BOM) before the first. */
static int read_line(csv *c, char text[LINE], bool *got) {
    size_t n = 0;
    int byte;
    c->line++;
    while ((byte = getc(c->file)) != EOF && byte != '\n') {
        if (byte == '\0')
            return wrong(c, "a NUL byte, expected text");
        if (n + 1 == LINE)
            return wrong(c, "a line of more than " TEXT(MOST) " characters, expected 'layer,expert'");
        text[n++] = (char)byte;
        if (c->line == 1 && n == 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
            n = 0;
    }
    if (n > 0 && text[n - 1] == '\r')
        n--;
    text[n] = '\0';
    *got = byte != EOF || n > 0;
    return ferror(c->file) ? ts_fail_errno(c->err, TS_ERR_IO, "cannot read '%s'", c->path) : TS_OK;
}

static int not_two(const csv *c, const char *text, const char *what) {
    return ts_fail_at(c->err, TS_ERR_FORMAT, (int64_t)c->line, "'%s': line %" PRIu64 ": expected 'layer,expert', %s, got '%s'", c->path,
                      c->line, what, text);
}

/* A whole number below `limit`; *at moves behind it. */
static int number(const csv *c, const char *text, const char **at, const char *what, uint32_t limit, uint32_t *out) {
    const char *from = *at;
    uint64_t v = 0;
    for (; **at >= '0' && **at <= '9'; ++*at)
        v = v < limit ? v * 10 + (uint64_t)(**at - '0') : v;
    if (*at == from)
        return not_two(c, text, "two whole numbers");
    *out = (uint32_t)v;
    if (v < limit)
        return TS_OK;
    return ts_fail_at(c->err, TS_ERR_FORMAT, (int64_t)c->line, "'%s': line %" PRIu64 ": %s %.*s, expected 0 to %" PRIu32, c->path, c->line,
                      what, (int)(*at - from), from, limit - 1);
}

static int two_numbers(const csv *c, const char *text, uint32_t *layer, uint32_t *expert) {
    const char *at = text;
    int rc = number(c, text, &at, "layer", TS_ROUTER_MAX_LAYERS, layer);
    if (rc == TS_OK && *at != ',')
        return not_two(c, text, "two whole numbers");
    at += rc == TS_OK;
    if (rc == TS_OK)
        rc = number(c, text, &at, "expert", TS_ROUTER_MAX_EXPERTS, expert);
    if (rc == TS_OK && *at != '\0')
        return not_two(c, text, *at == ',' ? "two columns" : "two whole numbers");
    return rc;
}

/* The next slot; *got false at the end. */
static int next(csv *c, uint32_t *layer, uint32_t *expert, bool *got) {
    char text[LINE];
    int rc;
    while ((rc = read_line(c, text, got)) == TS_OK && *got)
        if (*text && !(c->line == 1 && strcmp(text, "layer,expert") == 0))
            return two_numbers(c, text, layer, expert);
    return rc;
}

/* ---- the first reading: shape */

typedef struct shape {
    uint32_t n_layers, shortest;
    uint32_t most[TS_ROUTER_MAX_LAYERS]; /* largest id and one; 0 = the layer is not there */
} shape;

static int find_shape(csv *c, shape *s) {
    uint32_t layer, expert, before = UINT32_MAX;
    uint64_t run = 0;
    bool got = true;
    int rc;
    s->shortest = UINT32_MAX;
    while ((rc = next(c, &layer, &expert, &got)) == TS_OK && got) {
        if (layer != before && run > 0 && run < s->shortest)
            s->shortest = (uint32_t)run;
        run = layer == before ? run + 1 : 1;
        before = layer;
        s->n_layers = layer + 1 > s->n_layers ? layer + 1 : s->n_layers;
        s->most[layer] = expert + 1 > s->most[layer] ? expert + 1 : s->most[layer];
    }
    if (rc == TS_OK && run == 0)
        rc = ts_fail(c->err, TS_ERR_FORMAT, "'%s' has no line with a layer and an expert", c->path);
    if (run > 0 && run < s->shortest)
        s->shortest = (uint32_t)run;
    return rc;
}

static uint32_t count_layers(const shape *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_layers; i++)
        n += s->most[i] > 0;
    return n;
}

static int make_layers(const csv *c, const shape *s, const ts_router_csv_options *o, ts_router *r) {
    uint32_t top_k = o->top_k ? o->top_k : s->shortest, widest = 0;
    for (uint32_t i = 0; i < s->n_layers; i++)
        widest = s->most[i] > widest ? s->most[i] : widest;
    if (o->n_experts && widest > o->n_experts)
        return ts_fail(c->err, TS_ERR_FORMAT, "'%s' has expert %" PRIu32 ", expected ids below %" PRIu32, c->path, widest - 1, o->n_experts);
    uint32_t experts = o->n_experts ? o->n_experts : widest;
    if (top_k > experts && o->top_k)
        return ts_fail(c->err, TS_ERR_FORMAT, "'%s' has %" PRIu32 " expert%s, expected at least the %" PRIu32 " a token gets (--csv-top-k)%s", c->path,
                       experts, ts_plural(experts), top_k, o->n_experts ? "" : "; say how many there are (--csv-experts)");
    if (top_k > experts)
        return ts_fail(c->err, TS_ERR_FORMAT, "'%s': at least %" PRIu32 " lines of one layer stand together, more than its %" PRIu32
                       " expert%s: say how many a token gets (--csv-top-k)", c->path, top_k, experts, ts_plural(experts));
    if ((uint64_t)experts * count_layers(s) > TS_ROUTER_MAX_EXPERTS)
        return ts_fail(c->err, TS_ERR_FORMAT, "'%s': %" PRIu32 " layers of %" PRIu32 " experts are %" PRIu64 " counts, expected at most %u", c->path,
                       count_layers(s), experts, (uint64_t)experts * count_layers(s), TS_ROUTER_MAX_EXPERTS);
    int rc = ts_router_init(r, s->n_layers, true, c->err);
    r->split = r->bounded = false;
    for (uint32_t i = 0; rc == TS_OK && i < s->n_layers; i++)
        if (s->most[i] > 0)
            rc = ts_router_layer_init(&r->layers[i], experts, top_k, false, c->err);
    return rc;
}

/* ---- the second: slots */

/* A run of one layer has ended. */
static int end_run(const csv *c, const ts_router_layer *l, uint64_t run) {
    char text[160];
    if (run % l->top_k == 0)
        return TS_OK;
    snprintf(text, sizeof text, "before it stand%s %" PRIu64 " line%s of one layer, no multiple of %" PRIu32 " expert%s a token (--csv-top-k)",
             run == 1 ? "s" : "", run, ts_plural(run), l->top_k, ts_plural(l->top_k));
    return wrong(c, text);
}

static int read_slots(csv *c, ts_router *r) {
    uint32_t layer, expert, before = UINT32_MAX;
    uint64_t run = 0;
    bool got = true;
    int rc;
    while ((rc = next(c, &layer, &expert, &got)) == TS_OK && got) {
        if (layer >= r->n_layers || expert >= r->layers[layer].n_experts)
            return wrong(c, "the file changed while it was read");
        if (layer != before && run > 0)
            rc = end_run(c, &r->layers[before], run);
        if (rc == TS_OK)
            rc = ts_router_trace(&r->layers[layer], &expert, 1, c->err);
        if (rc < 0)
            return rc;
        run = layer == before ? run + 1 : 1;
        before = layer;
        r->layers[layer].counts[TS_ROUTER_DECODE][expert]++;
    }
    c->line++;
    return rc == TS_OK && run > 0 ? end_run(c, &r->layers[before], run) : rc;
}

static int settle(ts_router *r, ts_error *err) {
    uint64_t *rows = ts_calloc((size_t)r->n_layers * TS_ROUTER_PHASES, sizeof *rows);
    if (rows == NULL)
        return ts_fail_nomem(err, "generations", r->n_layers * sizeof *rows);
    for (uint32_t i = 0; i < r->n_layers; i++) {
        ts_router_layer *l = &r->layers[i];
        l->rows[TS_ROUTER_DECODE] = l->n_experts ? l->n_trace / l->top_k : 0;
        l->duplicates = ts_router_trace_duplicates(l);
        memcpy(rows + i * TS_ROUTER_PHASES, l->rows, sizeof l->rows);
    }
    int rc = ts_router_generation(r, rows, err);
    ts_free(rows);
    return rc == TS_OK ? ts_router_check(r, err) : rc;
}

int ts_router_read_csv(const char *path, const ts_router_csv_options *o, ts_router *r, ts_error *err) {
    csv c = {.path = path, .err = err};
    shape *s = ts_calloc(1, sizeof *s);
    *r = (ts_router){0};
    if (s == NULL)
        return ts_fail_nomem(err, path, sizeof *s);
    int rc = ts_stream_open(path, &c.file, NULL, err);
    if (rc == TS_OK)
        rc = find_shape(&c, s);
    if (rc == TS_OK)
        rc = make_layers(&c, s, o, r);
    if (rc == TS_OK) {
        rewind(c.file);
        c.line = 0;
        rc = read_slots(&c, r);
    }
    if (rc == TS_OK && (rc = settle(r, err)) < 0)
        ts_error_prefix(err, "'%s': ", path);
    if (rc == TS_OK)
        rc = ts_router_name_source(path, "", r, err);
    if (c.file != NULL)
        fclose(c.file);
    ts_free(s);
    if (rc < 0)
        ts_router_free(r);
    return rc;
}
