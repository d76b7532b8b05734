/* Parts of the routing census' reader and writer. Only router_*.c include this. */
#ifndef TS_STORE_ROUTER_INTERNAL_H
#define TS_STORE_ROUTER_INTERNAL_H

#include "core/file.h"
#include "store/router.h"

/* Size and hash of the .json, as .meta lists it. */
typedef struct ts_router_mark {
    const char *file; /* base name */
    uint64_t bytes;
    char xxh3[33];
} ts_router_mark;

/* The whole .meta, written but not in its place yet. */
int ts_router_put_meta(const char *path, const ts_router *r, const ts_provenance *prov, const char *sites_json, bool partial,
                       const ts_router_mark *json, ts_file **out, ts_error *err);
/* Fills provenance, sites, sources, partial; compares size and hash with what stands at json_path. */
int ts_router_get_meta(const char *path, const char *json_path, const ts_router_mark *json, ts_router *r, ts_error *err);
/* Slots of the trace that repeat an expert of their token. */
uint64_t ts_router_trace_duplicates(const ts_router_layer *l);
/* A file that lists no sources is its own. */
int ts_router_name_source(const char *path, const char *xxh3, ts_router *r, ts_error *err);

#endif
