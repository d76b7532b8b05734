/* Parts of the census' reader and writer. Only census_*.c include this. */
#ifndef TS_STORE_CENSUS_INTERNAL_H
#define TS_STORE_CENSUS_INTERNAL_H

#include "core/file.h"
#include "store/census.h"
#include "store/census_sink.h"

/* Size and hash of a finished file, as .detail and .meta list it. */
typedef struct ts_census_mark {
    const char *file; /* base name */
    uint64_t bytes;
    char xxh3[33];
} ts_census_mark;

/* census_detail.c */
void ts_census_put_detail(ts_sink *s, const ts_census *c, const ts_census_mark *json);

/* census_detail_read.c: moves what `path` holds into c, which was read from the .json with this
 * mark. */
int ts_census_get_detail(const char *path, const ts_census_mark *json, ts_census *c, ts_error *err);

/* census_meta.c */
typedef struct ts_census_meta {
    const ts_provenance *provenance; /* nullable */
    const char *sites_json;          /* NULL = [] */
    bool partial;
    const ts_census_mark *json, *detail; /* detail NULL when there is none */
} ts_census_meta;

int ts_census_put_meta(const char *path, const ts_census *c, const ts_census_meta *m, ts_file **out,
                       ts_error *err);
/* Fills provenance, sites, sources, partial; compares sizes and hashes with what stands there. */
int ts_census_get_meta(const char *path, const ts_census_mark *json, const ts_census_mark *detail,
                       ts_census *c, ts_error *err);

#endif
