/* Owns reading a routing census' PATH.json, in any key order, in memory no larger than its result. Refuses another shape than
 * its own header says, and everything ts_router_check refuses. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "core/mem.h"
#include "core/plural.h"
#include "store/census_scan.h"
#include "store/fingerprint.h"
#include "store/router_internal.h"

/* The keys of the file, by number: single values, one value a layer, one row a layer. */
enum { N_LAYERS, N_EXPERTS, TOP_K, GENERATIONS, PROMPTS, TOKENS, VERSION, N_SINGLE };
enum { L_EXPERTS = N_SINGLE, L_TOP_K, L_ROWS, L_PREFILL, L_DECODE, L_NONFINITE, L_DUPLICATES, END_FIGURES };
enum { R_COUNTS = END_FIGURES, R_TRACE, R_PREFILL, R_DECODE, R_GENERATIONS, R_GATE, PLAN, N_KEYS };
#define N_FIGURES (END_FIGURES - N_SINGLE)
#define N_ROWS (PLAN - END_FIGURES)

static const char *const keys[N_KEYS] = {
    "num_layers",    "num_experts", "top_k", "generations",    "prompts_done",  "tokens_done",     "format_version", "layer_experts",
    "layer_top_k",   "rows",        "rows_prefill", "rows_decode", "gate_nonfinite", "duplicates", "counts",
    "trace",         "counts_prefill", "counts_decode", "generation_rows", "gate_mass", "plan"};

/* One layer as it comes; moved into the census when all is there. */
typedef struct raw_layer {
    uint64_t figure[N_FIGURES];
    void *row[N_ROWS];      /* uint64_t; of the trace uint32_t, of the gate double */
    uint64_t n[N_ROWS];
} raw_layer;

typedef struct reading {
    ts_scan *scan;
    ts_error *err;
    ts_router *r;
    raw_layer *layers;      /* [capacity] */
    uint32_t capacity, length[N_KEYS]; /* layers that a key gave */
    uint64_t single[N_SINGLE];
    unsigned seen;          /* bit: key number */
    int rc;                 /* TS_ERR_NOMEM, which the scan does not know of */
} reading;

static bool has(const reading *r, int key) {
    return r->seen >> key & 1u;
}

static bool reserve_layer(reading *r, uint32_t i) {
    if (i == TS_ROUTER_MAX_LAYERS)
        return ts_scan_fail(r->scan, "more than %d layers", TS_ROUTER_MAX_LAYERS);
    if (i < r->capacity)
        return true;
    uint32_t n = r->capacity ? r->capacity * 2 : 32;
    raw_layer *grown = ts_realloc(r->layers, n, sizeof *grown);
    if (grown == NULL) {
        r->rc = ts_fail_nomem(r->err, "a routing census", n * sizeof *grown);
        return false;
    }
    memset(grown + r->capacity, 0, (n - r->capacity) * sizeof *grown);
    r->layers = grown;
    r->capacity = n;
    return true;
}

static void read_figures(reading *r, int key) {
    uint32_t i = 0;
    if (!ts_scan_enter(r->scan, '['))
        return;
    for (; r->rc == TS_OK && ts_scan_more(r->scan); i++)
        if (reserve_layer(r, i))
            r->layers[i].figure[key - N_SINGLE] = ts_scan_count(r->scan, TS_SCAN_MAX_COUNT);
    r->length[key] = i;
}

static bool read_element(reading *r, int key, void *row, uint64_t at) {
    if (key == R_GATE)
        ((double *)row)[at] = ts_scan_amount(r->scan);
    else if (key == R_TRACE)
        ((uint32_t *)row)[at] = (uint32_t)ts_scan_count(r->scan, TS_ROUTER_MAX_EXPERTS - 1);
    else
        ((uint64_t *)row)[at] = ts_scan_count(r->scan, TS_SCAN_MAX_COUNT);
    return !ts_scan_failed(r->scan);
}

static void read_row(reading *r, int key, raw_layer *l) {
    int row = key - END_FIGURES;
    uint64_t n = 0, capacity = 0, limit = key == R_TRACE || key == R_GENERATIONS ? UINT64_MAX : TS_ROUTER_MAX_EXPERTS;
    size_t each = key == R_TRACE ? sizeof(uint32_t) : sizeof(uint64_t);
    while (ts_scan_more(r->scan)) {
        if (n == limit) {
            ts_scan_fail(r->scan, "a layer of more than %u experts", TS_ROUTER_MAX_EXPERTS);
            return;
        }
        if (n == capacity) {
            capacity = capacity ? capacity * 2 : 64;
            void *grown = ts_realloc(l->row[row], capacity, each);
            if (grown == NULL) {
                r->rc = ts_fail_nomem(r->err, keys[key], capacity * each);
                return;
            }
            l->row[row] = grown;
        }
        if (!read_element(r, key, l->row[row], n))
            return;
        l->n[row] = ++n;
    }
}

static void read_rows(reading *r, int key) {
    uint32_t i = 0;
    if (!ts_scan_enter(r->scan, '['))
        return;
    for (; r->rc == TS_OK && ts_scan_more(r->scan); i++) {
        if (!reserve_layer(r, i) || !ts_scan_enter(r->scan, '['))
            return;
        read_row(r, key, &r->layers[i]);
    }
    r->length[key] = i;
}

static void read_member(reading *r, int key) {
    if (key < N_SINGLE)
        r->single[key] = ts_scan_count(r->scan, TS_SCAN_MAX_COUNT);
    else if (key < END_FIGURES)
        read_figures(r, key);
    else if (key == PLAN)
        ts_scan_text(r->scan, r->r->plan, sizeof r->r->plan);
    else
        read_rows(r, key);
}

static void read_object(reading *r) {
    int key;
    if (!ts_scan_enter(r->scan, '{'))
        return;
    while (r->rc == TS_OK && (key = ts_scan_member(r->scan, keys, N_KEYS, &r->seen)) >= 0)
        read_member(r, key);
    if (r->rc == TS_OK)
        ts_scan_end(r->scan);
}

/* ---- what was read, against what the header says */

static int check_header(const reading *r, ts_error *err) {
    static const int always[] = {N_LAYERS, N_EXPERTS, TOP_K, R_COUNTS};
    static const int ours[] = {L_TOP_K, L_PREFILL, L_DECODE, R_PREFILL, R_DECODE, GENERATIONS};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!has(r, always[i]))
            return ts_fail(err, TS_ERR_FORMAT, "not a routing census: it has no '%s'", keys[always[i]]);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (has(r, R_PREFILL) && !has(r, ours[i]))
            return ts_fail(err, TS_ERR_FORMAT, "it has no '%s'", keys[ours[i]]);
    for (int key = N_SINGLE; key < PLAN; key++)
        if (has(r, key) && r->length[key] != r->single[N_LAYERS])
            return ts_fail(err, TS_ERR_FORMAT, "%s has %" PRIu32 " layer%s, expected num_layers, %" PRIu64, keys[key], r->length[key],
                           ts_plural(r->length[key]), r->single[N_LAYERS]);
    return r->single[TOP_K] <= r->single[N_EXPERTS] || r->single[N_EXPERTS] == 0
               ? TS_OK
               : ts_fail(err, TS_ERR_FORMAT, "top_k is %" PRIu64 ", expected at most num_experts, %" PRIu64, r->single[TOP_K],
                         r->single[N_EXPERTS]);
}

static uint64_t figure(const reading *r, uint32_t i, int key) {
    return r->layers[i].figure[key - N_SINGLE];
}

static void *take_row(reading *r, uint32_t i, int key) {
    void *row = r->layers[i].row[key - END_FIGURES];
    r->layers[i].row[key - END_FIGURES] = NULL;
    return row;
}

static uint64_t row_length(const reading *r, uint32_t i, int key) {
    return r->layers[i].n[key - END_FIGURES];
}

static int expect_length(const reading *r, uint32_t i, int key, uint64_t expected, ts_error *err) {
    uint64_t n = row_length(r, i, key);
    if (n == expected)
        return TS_OK;
    return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": %s has %" PRIu64 " element%s, expected %" PRIu64, i, keys[key], n, ts_plural(n), expected);
}

/* Prefill and decode as told, and their sum as it must be. */
static int settle_split(reading *r, uint32_t i, ts_router_layer *l, ts_error *err) {
    const uint64_t *sum = r->layers[i].row[R_COUNTS - END_FIGURES];
    int rc = expect_length(r, i, R_PREFILL, l->n_experts, err);
    if (rc == TS_OK)
        rc = expect_length(r, i, R_DECODE, l->n_experts, err);
    if (rc < 0)
        return rc;
    l->counts[0] = take_row(r, i, R_PREFILL);
    l->counts[1] = take_row(r, i, R_DECODE);
    l->rows[0] = figure(r, i, L_PREFILL);
    l->rows[1] = figure(r, i, L_DECODE);
    for (uint32_t e = 0; e < l->n_experts; e++)
        if (l->counts[0][e] + l->counts[1][e] != sum[e])
            return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": expert %" PRIu32 " has %" PRIu64 " slots, prefill and decode %" PRIu64,
                           i, e, sum[e], l->counts[0][e] + l->counts[1][e]);
    if (has(r, L_ROWS) && figure(r, i, L_ROWS) != l->rows[0] + l->rows[1])
        return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 " has %" PRIu64 " row%s, prefill and decode %" PRIu64, i,
                       figure(r, i, L_ROWS), ts_plural(figure(r, i, L_ROWS)), l->rows[0] + l->rows[1]);
    return TS_OK;
}

/* A file of another program: its rows follow from its counts. */
static int settle_plain(reading *r, uint32_t i, ts_router_layer *l, ts_error *err) {
    uint64_t sum = 0;
    l->counts[0] = ts_calloc(l->n_experts, sizeof **l->counts);
    l->counts[1] = take_row(r, i, R_COUNTS);
    if (l->counts[0] == NULL)
        return ts_fail_nomem(err, "counts", l->n_experts * sizeof **l->counts);
    for (uint32_t e = 0; e < l->n_experts; e++) {
        if (l->counts[1][e] > TS_SCAN_MAX_COUNT - sum)
            return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": its counts add up to more than %" PRIu64, i, TS_SCAN_MAX_COUNT);
        sum += l->counts[1][e];
    }
    if (l->top_k == 0 || sum % l->top_k != 0)
        return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": its counts add up to %" PRIu64 ", no multiple of top_k, %" PRIu32, i, sum,
                       l->top_k);
    l->rows[TS_ROUTER_DECODE] = sum / l->top_k;
    return TS_OK;
}

static int settle_trace(reading *r, uint32_t i, ts_router_layer *l, ts_error *err) {
    uint64_t expected = r->r->n_generations * TS_ROUTER_PHASES;
    l->n_trace = row_length(r, i, R_TRACE);
    l->trace_capacity = l->n_trace;
    l->trace = take_row(r, i, R_TRACE);
    if (!r->r->split) /* a plain file does not state them */
        l->duplicates = ts_router_trace_duplicates(l);
    if (r->r->bounded) {
        int rc = expect_length(r, i, R_GENERATIONS, expected, err);
        l->generation_capacity = r->r->n_generations;
        l->generation_rows = take_row(r, i, R_GENERATIONS);
        return rc;
    }
    l->generation_rows = ts_calloc(TS_ROUTER_PHASES, sizeof *l->generation_rows);
    if (l->generation_rows == NULL)
        return ts_fail_nomem(err, "generations", sizeof *l->generation_rows);
    l->generation_capacity = 1;
    memcpy(l->generation_rows, l->rows, sizeof l->rows);
    return TS_OK;
}

static int settle_layer(reading *r, uint32_t i, ts_error *err) {
    ts_router_layer *l = &r->r->layers[i];
    uint64_t n = row_length(r, i, R_COUNTS), top_k = has(r, L_TOP_K) ? figure(r, i, L_TOP_K) : r->single[TOP_K];
    if (has(r, L_EXPERTS) && figure(r, i, L_EXPERTS) != n)
        return expect_length(r, i, R_COUNTS, figure(r, i, L_EXPERTS), err);
    for (int key = R_TRACE; n == 0 && key < PLAN; key++)
        if (row_length(r, i, key) > 0)
            return expect_length(r, i, key, 0, err);
    if (n == 0)
        return TS_OK;
    if (top_k > r->single[TOP_K])
        return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 " has a top_k of %" PRIu64 ", the file's is %" PRIu64, i, top_k, r->single[TOP_K]);
    if (top_k > n)
        return ts_fail(err, TS_ERR_FORMAT, "layer %" PRIu32 ": its top_k is %" PRIu64 ", expected at most its %" PRIu64 " expert%s", i, top_k, n,
                       ts_plural(n));
    l->n_experts = (uint32_t)n;
    l->top_k = (uint32_t)top_k;
    l->gate_nonfinite = figure(r, i, L_NONFINITE);
    l->duplicates = figure(r, i, L_DUPLICATES);
    int rc = r->r->split ? settle_split(r, i, l, err) : settle_plain(r, i, l, err);
    if (rc == TS_OK && row_length(r, i, R_GATE) > 0) {
        rc = expect_length(r, i, R_GATE, n, err);
        l->gate_mass = take_row(r, i, R_GATE);
    }
    return rc == TS_OK && r->r->traced ? settle_trace(r, i, l, err) : rc;
}

static int settle(reading *r, ts_error *err) {
    ts_router *out = r->r;
    int rc = check_header(r, err);
    if (rc < 0)
        return rc;
    if (has(r, VERSION) && r->single[VERSION] != 1)
        return ts_fail(err, TS_ERR_FORMAT, "format_version is %" PRIu64 ", expected 1", r->single[VERSION]);
    out->layers = ts_calloc((size_t)r->single[N_LAYERS] + 1, sizeof *out->layers);
    if (out->layers == NULL)
        return ts_fail_nomem(err, "a routing census", r->single[N_LAYERS] * sizeof *out->layers);
    out->n_layers = (uint32_t)r->single[N_LAYERS];
    out->traced = has(r, R_TRACE);
    out->split = has(r, R_PREFILL);
    out->bounded = out->traced ? has(r, R_GENERATIONS) : out->split;
    out->n_generations = out->bounded ? r->single[GENERATIONS] : 1;
    out->prompts_done = r->single[PROMPTS];
    out->tokens_done = r->single[TOKENS];
    if (out->n_generations > TS_SCAN_MAX_COUNT / 4)
        return ts_fail(err, TS_ERR_FORMAT, "%" PRIu64 " generations are too many", out->n_generations);
    for (uint32_t i = 0; rc == TS_OK && i < out->n_layers; i++)
        rc = settle_layer(r, i, err);
    if (rc == TS_OK && ts_router_experts(out) != r->single[N_EXPERTS])
        rc = ts_fail(err, TS_ERR_FORMAT, "num_experts is %" PRIu64 ", its counts have %" PRIu32, r->single[N_EXPERTS],
                     ts_router_experts(out));
    return rc == TS_OK ? ts_router_check(out, err) : rc;
}

static int read_json(const char *path, ts_router *out, ts_error *err) {
    reading r = {.r = out, .err = err};
    int rc = ts_scan_open(path, &r.scan, err);
    if (rc < 0)
        return rc;
    read_object(&r);
    rc = ts_scan_close(r.scan);
    if (r.rc < 0)
        rc = r.rc;
    if (rc == TS_OK && (rc = settle(&r, err)) < 0)
        ts_error_prefix(err, "'%s': ", path);
    for (uint32_t i = 0; i < r.capacity; i++)
        for (int k = 0; k < N_ROWS; k++)
            ts_free(r.layers[i].row[k]);
    ts_free(r.layers);
    return rc;
}

static bool there(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 || errno != ENOENT;
}

int ts_router_read(const char *path, ts_router *r, ts_error *err) {
    ts_router_mark json = {.file = ts_path_base(path)};
    char *meta = ts_path_with_extension(path, "meta");
    *r = (ts_router){0};
    int rc = meta ? read_json(path, r, err) : ts_fail_nomem(err, "a path", strlen(path));
    if (rc == TS_OK)
        rc = ts_fingerprint_file(path, json.xxh3, &json.bytes, err);
    if (rc == TS_OK && strcmp(meta, path) != 0 && there(meta))
        rc = ts_router_get_meta(meta, path, &json, r, err);
    if (rc == TS_OK)
        rc = ts_router_name_source(path, json.xxh3, r, err);
    ts_free(meta);
    if (rc < 0)
        ts_router_free(r);
    return rc;
}
