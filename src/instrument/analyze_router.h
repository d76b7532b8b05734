/* What a routing census says, each figure beside that of uniform routing. Internal to analyze*.c. */
#ifndef TS_INSTRUMENT_ANALYZE_ROUTER_H
#define TS_INSTRUMENT_ANALYZE_ROUTER_H

#include "core/buf.h"
#include "stats/cache_replay.h"
#include "store/router.h"

enum ts_route_column {
    TS_ROUTE_N95 = 0, /* fewest experts that hold that share of the slots */
    TS_ROUTE_N99,
    TS_ROUTE_UNUSED,
    TS_ROUTE_GINI,
    TS_ROUTE_ENTROPY, /* over log of the experts */
    TS_ROUTE_SPLIT,   /* share of the first half's hot set that the second half's has too; from here on of traces */
    TS_ROUTE_LAG1,    /* share of a token's experts that the token before has, within a generation */
    TS_ROUTE_LAG8,
    TS_ROUTE_W2, /* different experts in windows of so many tokens, within a generation */
    TS_ROUTE_W4,
    TS_ROUTE_W8,
    TS_ROUTE_W16,
    TS_ROUTE_JACCARD, /* of the two groups' hot sets */
    TS_ROUTE_COLUMNS
};

enum { TS_ROUTE_CAPACITIES = 6 };
extern const unsigned ts_route_percent[TS_ROUTE_CAPACITIES]; /* of the layer's experts, in cache */
extern const char *const ts_route_names[TS_ROUTE_COLUMNS];   /* as the JSON calls them */

typedef struct ts_route_row {
    int32_t block; /* -1: the mean */
    uint32_t n_experts, top_k, hot_size;
    uint64_t rows, duplicates;
    double value[TS_ROUTE_COLUMNS], uniform[TS_ROUTE_COLUMNS]; /* NAN: not known */
    uint32_t slots[TS_ROUTE_CAPACITIES];
    double rate[TS_ROUTE_CAPACITIES][TS_CACHE_POLICIES], uniform_rate[TS_ROUTE_CAPACITIES][TS_CACHE_POLICIES];
} ts_route_row;

typedef struct ts_route_analysis {
    const ts_router *router, *against; /* against nullable */
    ts_route_row *rows;                /* [n] layers with experts */
    size_t n;
    ts_route_row mean;
    bool diffable;
} ts_route_analysis;

/* Both of one model and shape. TS_ERR_NOMEM; freed by ts_route_analysis_free also then. */
int ts_route_analyze(ts_route_analysis *a, const ts_router *router, const ts_router *against, ts_error *err);
void ts_route_analysis_free(ts_route_analysis *a);

void ts_route_text(ts_buf *b, const ts_route_analysis *a);
void ts_route_json(ts_buf *b, const ts_route_analysis *a);

/* True when the file is a routing census or its CSV. */
int ts_route_is(const char *path, bool *is, ts_error *err);
/* ts_analyze and ts_merge on routing censuses. */
int ts_route_analyze_files(const ts_analyze_options *o, char **text, ts_error *err);
int ts_route_merge(const char *const *paths, size_t n_paths, const char *output, bool overwrite, ts_error *err);

#endif
