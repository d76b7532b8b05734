/* Owns the text of a routing census' PATH.json and the order in which its files take their places. Refuses a census that does
 * not add up, before anything is written. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/target.h"
#include "store/census_sink.h"
#include "store/router_internal.h"

/* ---- where to */

static int meta_path(const char *path, char **meta, ts_error *err) {
    *meta = ts_path_with_extension(path, "meta");
    if (*meta == NULL)
        return ts_fail_nomem(err, "a path", strlen(path));
    if (strcmp(path, *meta) == 0 || ts_file_same(path, *meta))
        return ts_fail(err, TS_ERR_ARG, "'%s' would be both routing census and meta data; name the census .json", path);
    return TS_OK;
}

static int check_place(const char *path, bool overwrite, ts_error *err) {
    int rc = ts_file_check_target(path, err);
    return rc == TS_OK && !overwrite ? ts_file_vacant(path, err) : rc;
}

int ts_router_check_target(const char *path, bool overwrite, ts_error *err) {
    char *meta = NULL;
    int rc = *path ? meta_path(path, &meta, err) : TS_OK; /* an empty path has a message of its own */
    if (rc == TS_OK)
        rc = check_place(path, overwrite, err);
    if (rc == TS_OK)
        rc = check_place(meta, overwrite, err);
    ts_free(meta);
    return rc;
}

/* ---- PATH.json */

typedef void (*put_row)(ts_sink *s, const ts_router *r, const ts_router_layer *l);

static void put_count(ts_sink *s, bool first, uint64_t n) {
    ts_sink_bytes(s, ",", !first);
    ts_sink_count(s, n);
}

static void put_counts(ts_sink *s, const ts_router *r, const ts_router_layer *l) {
    (void)r;
    for (uint32_t e = 0; e < l->n_experts; e++)
        put_count(s, e == 0, l->counts[0][e] + l->counts[1][e]);
}

static void put_prefill(ts_sink *s, const ts_router *r, const ts_router_layer *l) {
    (void)r;
    for (uint32_t e = 0; e < l->n_experts; e++)
        put_count(s, e == 0, l->counts[TS_ROUTER_PREFILL][e]);
}

static void put_decode(ts_sink *s, const ts_router *r, const ts_router_layer *l) {
    (void)r;
    for (uint32_t e = 0; e < l->n_experts; e++)
        put_count(s, e == 0, l->counts[TS_ROUTER_DECODE][e]);
}

static void put_trace(ts_sink *s, const ts_router *r, const ts_router_layer *l) {
    (void)r;
    for (uint64_t i = 0; i < l->n_trace; i++)
        put_count(s, i == 0, l->trace[i]);
}

static void put_gate(ts_sink *s, const ts_router *r, const ts_router_layer *l) {
    (void)r;
    for (uint32_t e = 0; l->gate_mass && e < l->n_experts; e++) {
        ts_sink_bytes(s, ",", e > 0);
        ts_sink_exact(s, l->gate_mass[e]);
    }
}

static void put_generations(ts_sink *s, const ts_router *r, const ts_router_layer *l) {
    for (uint64_t g = 0; g < r->n_generations * TS_ROUTER_PHASES; g++)
        put_count(s, g == 0, l->generation_rows[g]);
}

/* "key":[[..],[..]]; a layer without experts is an empty row. */
static void put_rows(ts_sink *s, const char *key, const ts_router *r, put_row put) {
    ts_sink_printf(s, ",\"%s\":[", key);
    for (uint32_t i = 0; i < r->n_layers; i++) {
        ts_sink_text(s, i ? ",[" : "[");
        if (r->layers[i].n_experts > 0)
            put(s, r, &r->layers[i]);
        ts_sink_text(s, "]");
    }
    ts_sink_text(s, "]");
}

enum { EXPERTS, TOP_K, ROWS, ROWS_PREFILL, ROWS_DECODE, NONFINITE, DUPLICATES };

static uint64_t figure(const ts_router_layer *l, int which) {
    const uint64_t figures[] = {l->n_experts, l->top_k, ts_router_rows(l), l->rows[0], l->rows[1], l->gate_nonfinite, l->duplicates};
    return figures[which];
}

static void put_figures(ts_sink *s, const char *key, const ts_router *r, int which) {
    ts_sink_printf(s, ",\"%s\":[", key);
    for (uint32_t i = 0; i < r->n_layers; i++)
        put_count(s, i == 0, figure(&r->layers[i], which));
    ts_sink_text(s, "]");
}

/* What only our files say. A sum with a file that does not tell prefill from decode says no more than that one. */
static void put_ours(ts_sink *s, const ts_router *r) {
    ts_sink_text(s, ",\"format_version\":1");
    put_figures(s, "layer_experts", r, EXPERTS);
    put_figures(s, "layer_top_k", r, TOP_K);
    put_figures(s, "rows", r, ROWS);
    put_figures(s, "rows_prefill", r, ROWS_PREFILL);
    put_figures(s, "rows_decode", r, ROWS_DECODE);
    put_rows(s, "counts_prefill", r, put_prefill);
    put_rows(s, "counts_decode", r, put_decode);
    put_rows(s, "gate_mass", r, put_gate);
    put_figures(s, "gate_nonfinite", r, NONFINITE);
    put_figures(s, "duplicates", r, DUPLICATES);
    ts_sink_printf(s, ",\"generations\":%" PRIu64, r->n_generations);
    if (r->traced && r->bounded)
        put_rows(s, "generation_rows", r, put_generations);
}

static void put_json(ts_sink *s, const ts_router *r) {
    ts_sink_printf(s, "{\"num_layers\":%" PRIu32 ",\"num_experts\":%" PRIu32 ",\"top_k\":%" PRIu32, r->n_layers,
                   ts_router_experts(r), ts_router_top_k(r));
    put_rows(s, "counts", r, put_counts);
    if (r->traced)
        put_rows(s, "trace", r, put_trace);
    if (r->split)
        put_ours(s, r);
    if (r->plan[0])
        ts_sink_printf(s, ",\"plan\":\"%.64s\",\"prompts_done\":%" PRIu64 ",\"tokens_done\":%" PRIu64, r->plan, r->prompts_done,
                       r->tokens_done);
    ts_sink_text(s, "}");
}

int ts_router_write_state(const ts_router *r, const char *path, ts_error *err) {
    ts_sink *s = NULL;
    int rc = ts_sink_open(path, &s, err);
    if (rc < 0)
        return rc;
    put_json(s, r);
    return ts_sink_close(s);
}

/* ---- both files */

static int remove_old(const char *path, ts_error *err) {
    char *target = NULL;
    struct stat st;
    if (stat(path, &st) != 0 && errno == ENOENT)
        return TS_OK;
    int rc = ts_target_resolve(path, &target, err); /* a link stays, the file behind it goes */
    if (rc == TS_OK && unlink(target) != 0 && errno != ENOENT)
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot replace '%s'", path);
    ts_free(target);
    return rc;
}

/* The old census goes first, so that at no time one stands beside the meta data of another. */
static int put_in_place(const char *path, ts_sink **json, ts_file **meta, ts_error *err) {
    int rc = remove_old(path, err);
    if (rc == TS_OK) {
        ts_file *f = *meta;
        *meta = NULL;
        rc = ts_file_commit(f, err);
    }
    if (rc == TS_OK) {
        ts_sink *s = *json;
        *json = NULL;
        rc = ts_sink_commit(s);
    }
    return rc;
}

int ts_router_write(const ts_router *r, const char *path, const ts_provenance *prov, const char *sites_json, bool partial,
                    bool overwrite, ts_error *err) {
    ts_router_mark mark = {.file = ts_path_base(path)};
    ts_sink *json = NULL;
    ts_file *meta = NULL;
    char *beside = NULL;
    int rc = ts_router_check(r, err);
    if (rc < 0) {
        ts_error_prefix(err, "the routing census for '%s' does not add up: ", path);
        return rc;
    }
    rc = ts_router_check_target(path, overwrite, err);
    if (rc == TS_OK)
        rc = meta_path(path, &beside, err);
    if (rc == TS_OK)
        rc = ts_sink_open(path, &json, err);
    if (rc == TS_OK) {
        put_json(json, r);
        rc = ts_sink_finish(json, mark.xxh3, &mark.bytes);
    }
    if (rc == TS_OK)
        rc = ts_router_put_meta(beside, r, prov ? prov : r->provenance, sites_json ? sites_json : r->sites_json, partial, &mark,
                                &meta, err);
    if (rc == TS_OK)
        rc = put_in_place(path, &json, &meta, err);
    ts_sink_discard(json);
    ts_file_discard(meta);
    ts_free(beside);
    return rc;
}

/* ---- CSV */

/* One generation, token by token. A layer that ran fewer rows ran the last ones. */
static void put_csv_generation(ts_sink *s, const ts_router *r, uint64_t g, uint64_t *at) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < r->n_layers; i++) {
        const uint64_t *rows = r->layers[i].n_experts ? r->layers[i].generation_rows + g * TS_ROUTER_PHASES : NULL;
        if (rows && rows[0] + rows[1] > most)
            most = rows[0] + rows[1];
    }
    for (uint64_t t = 0; t < most; t++)
        for (uint32_t i = 0; i < r->n_layers; i++) {
            const ts_router_layer *l = &r->layers[i];
            const uint64_t *rows = l->n_experts ? l->generation_rows + g * TS_ROUTER_PHASES : NULL;
            if (rows == NULL || t < most - (rows[0] + rows[1]))
                continue;
            for (uint32_t k = 0; k < l->top_k; k++)
                ts_sink_printf(s, "%" PRIu32 ",%" PRIu32 "\n", i, l->trace[at[i]++]);
        }
}

int ts_router_write_csv(const ts_router *r, const char *path, bool overwrite, ts_error *err) {
    ts_sink *s = NULL;
    if (!r->traced || !r->bounded)
        return ts_fail(err, TS_ERR_ARG, "'%s': a CSV needs a trace with its generations", path);
    uint64_t *at = ts_calloc(r->n_layers, sizeof *at);
    int rc = at ? check_place(path, overwrite, err) : ts_fail_nomem(err, "a CSV", r->n_layers * sizeof *at);
    if (rc == TS_OK)
        rc = ts_sink_open(path, &s, err);
    if (rc == TS_OK) {
        ts_sink_text(s, "layer,expert\n");
        for (uint64_t g = 0; g < r->n_generations; g++)
            put_csv_generation(s, r, g, at);
        rc = ts_sink_close(s);
    }
    ts_free(at);
    return rc;
}
