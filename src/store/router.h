/* The routing census as files: PATH.json and PATH.meta (provenance) beside it; and the plain "layer,expert" CSV. Plain arrays,
 * no knowledge of how they were counted.
 *
 * .json: one line, keys in this order: num_layers, num_experts, top_k (the largest of any layer), counts [layer][expert],
 * and, traced, trace [layer][row * top_k of the layer]: ids in pass order. Then ours: format_version (1), layer_experts,
 * layer_top_k, rows, rows_prefill, rows_decode [layer], counts_prefill, counts_decode [layer][expert], gate_mass [layer][expert]
 * (sum of the magnitudes of what is multiplied into the expert's outputs; empty where unknown), gate_nonfinite, duplicates
 * [layer] (slots that repeat an expert of their row), generations, and, traced, generation_rows [layer][2 * generations]
 * (prefill and decode rows of each, in the trace's order). A layer without experts is an empty row everywhere.
 * Invariants, checked by writer and readers: sum(counts of a layer) = its top_k x its rows; the trace reproduces the counts.
 * Files of others have the first five keys only: their rows follow from the counts, prefill and decode are not told apart.
 * .meta: the provenance of store/meta.h with kind "router", then partial, layers, rows, sites, data, sources.
 */
#ifndef TS_STORE_ROUTER_H
#define TS_STORE_ROUTER_H

#include "core/error.h"
#include "core/provenance.h"

#define TS_ROUTER_MAX_LAYERS 2048
#define TS_ROUTER_MAX_EXPERTS (1u << 20) /* of a layer, and in a CSV of all of them, against files that lie */

enum ts_router_phase { TS_ROUTER_PREFILL = 0, TS_ROUTER_DECODE, TS_ROUTER_PHASES };

/* Where experts were chosen. n_experts 0: the layer has none, and nothing else is set. */
typedef struct ts_router_layer {
    uint32_t n_experts, top_k;
    uint64_t rows[TS_ROUTER_PHASES];
    uint64_t *counts[TS_ROUTER_PHASES]; /* [n_experts] slots */
    double *gate_mass;                  /* [n_experts], NULL = unknown */
    uint64_t gate_nonfinite, duplicates;
    uint32_t *trace;                    /* [n_trace] ids, row after row */
    uint64_t n_trace, trace_capacity;
    uint64_t *generation_rows;          /* [2 * n_generations] */
    uint64_t generation_capacity;
} ts_router_layer;

/* One of the files that were added up. */
typedef struct ts_router_source {
    char *path;    /* as read; the base name where a .meta listed it */
    char xxh3[33]; /* of the .json, "" for a CSV */
    uint64_t rows; /* of the layer that ran most */
    bool partial;
} ts_router_source;

typedef struct ts_router {
    uint32_t n_layers;
    ts_router_layer *layers; /* [n_layers] */
    uint64_t n_generations;
    bool traced;
    bool split;    /* prefill and decode are told apart */
    bool bounded;  /* the trace knows where generations end */
    char of_plan[65]; /* what was counted, as a hash, for the meta data; "" of a sum */
    /* of an unfinished census only; plan "" = a whole one */
    char plan[65];
    uint64_t prompts_done, tokens_done;
    /* set by reading and adding only */
    bool partial;
    ts_provenance *provenance; /* NULL without .meta */
    char *sites_json;          /* nullable */
    ts_router_source *sources; /* [n_sources] */
    size_t n_sources;
} ts_router;

/* ---- in memory */

/* n_layers layers without experts, ours. TS_ERR_NOMEM; freed by ts_router_free also then. */
int ts_router_init(ts_router *r, uint32_t n_layers, bool traced, ts_error *err);
int ts_router_layer_init(ts_router_layer *l, uint32_t n_experts, uint32_t top_k, bool gated, ts_error *err);
void ts_router_free(ts_router *r);
void ts_router_forget_sources(ts_router *r); /* of one that was read to go on with, not to be added up */
uint32_t ts_router_experts(const ts_router *r); /* the largest of any layer; likewise */
uint32_t ts_router_top_k(const ts_router *r);
uint64_t ts_router_rows(const ts_router_layer *l);
uint64_t ts_router_most_rows(const ts_router *r); /* of any layer */

/* Counts one row: ids [top_k], weights [top_k] or NULL. Not its trace. TS_ERR_ENGINE for an id out of range. */
int ts_router_count(ts_router_layer *l, enum ts_router_phase phase, const int32_t *ids, const float *weights, ts_error *err);
/* Appends n ids, whole rows, to a layer's trace. */
int ts_router_trace(ts_router_layer *l, const uint32_t *ids, uint64_t n, ts_error *err);
/* Ends a generation of which every layer has these rows: [n_layers][TS_ROUTER_PHASES]. */
int ts_router_generation(ts_router *r, const uint64_t *rows, ts_error *err);

/* All that must add up. TS_ERR_FORMAT names the layer. */
int ts_router_check(const ts_router *r, ts_error *err);
/* Adds src to dst; dst stays traced, split and gated only when src is. TS_ERR_ARG naming the difference in model or
 * shape, TS_ERR_NOMEM; dst is then good for being freed. */
int ts_router_add(ts_router *dst, const ts_router *src, ts_error *err);
/* Two routers of one model (where both know it) and shape; TS_ERR_ARG naming the difference. */
int ts_router_same_shape(const ts_router *a, const ts_router *b, ts_error *err);

/* ---- files */

/* Before anything is computed: can the two files stand there. TS_ERR_ARG, TS_ERR_IO. */
int ts_router_check_target(const char *path, bool overwrite, ts_error *err);
/* .meta, then .json, each whole or not at all; equal input gives equal bytes. `prov` NULL: what `r` was read with; sites_json
 * likewise. */
int ts_router_write(const ts_router *r, const char *path, const ts_provenance *prov, const char *sites_json, bool partial,
                    bool overwrite, ts_error *err);
/* The state of an unfinished census (with plan and progress) in one file, replacing an earlier one. */
int ts_router_write_state(const ts_router *r, const char *path, ts_error *err);
/* Reads a .json, with its .meta where there is one, and checks all of it. On failure *r is empty. TS_ERR_FORMAT, TS_ERR_IO. */
int ts_router_read(const char *path, ts_router *r, ts_error *err);

/* ---- "layer,expert" CSV: an optional header, then one slot a line, in pass order: row by row of the run, within a row layer
 * by layer, within a layer the ids in the order the router gave them. */

/* Of a traced router. Pass order within each generation; prefill rows that a layer did not run are left out. */
int ts_router_write_csv(const ts_router *r, const char *path, bool overwrite, ts_error *err);
typedef struct ts_router_csv_options {
    uint32_t top_k;     /* 0 = the shortest run of lines of one layer */
    uint32_t n_experts; /* 0 = the largest id and one */
} ts_router_csv_options;
/* One generation, traced. TS_ERR_FORMAT with the line. */
int ts_router_read_csv(const char *path, const ts_router_csv_options *o, ts_router *r, ts_error *err);

#endif
