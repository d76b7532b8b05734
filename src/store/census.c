/* Owns a census in memory: its arrays, the finer histogram's edges and quantiles. Refuses to know
 * files. */
#include "store/census.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "store/meta.h"

const uint32_t ts_census_fixed_k[TS_CENSUS_FIXED] = {512, 1024, 2048, 4096};
const uint32_t ts_census_share_percent[TS_CENSUS_SHARES] = {1, 2, 5, 10, 20};
const double ts_census_top_p[TS_CENSUS_TOP_P] = {0.90, 0.95, 0.99};

int ts_census_init(ts_census *c, uint32_t n_layers, bool shared, ts_error *err) {
    size_t n = n_layers;
    *c = (ts_census){.n_layers = n_layers, .detailed = true};
    c->dense = ts_calloc(n, sizeof *c->dense);
    c->shared = shared ? ts_calloc(n, sizeof *c->shared) : NULL;
    c->gate_bytes = ts_calloc(n, sizeof *c->gate_bytes);
    c->up_bytes = ts_calloc(n, sizeof *c->up_bytes);
    c->down_bytes = ts_calloc(n, sizeof *c->down_bytes);
    c->down_block = ts_calloc(n, sizeof *c->down_block);
    if (!c->dense || (shared && !c->shared) || !c->gate_bytes || !c->up_bytes || !c->down_bytes ||
        !c->down_block)
        return ts_fail_nomem(err, "a census", n * sizeof *c->dense);
    return TS_OK;
}

int ts_census_block_init(ts_census_block *b, uint32_t width, bool fine, ts_error *err) {
    b->width = width;
    if (width == 0)
        return TS_OK;
    b->mass = ts_calloc(width, sizeof *b->mass);
    if (fine) {
        b->fine_count = ts_calloc(TS_CENSUS_FINE_BINS, sizeof *b->fine_count);
        b->fine_mass = ts_calloc(TS_CENSUS_FINE_BINS, sizeof *b->fine_mass);
    }
    if (!b->mass || (fine && (!b->fine_count || !b->fine_mass)))
        return ts_fail_nomem(err, "a census block", width * sizeof *b->mass);
    return TS_OK;
}

static void free_blocks(ts_census_block *blocks, uint32_t n) {
    for (uint32_t i = 0; blocks != NULL && i < n; i++) {
        ts_free(blocks[i].mass);
        ts_free(blocks[i].fine_count);
        ts_free(blocks[i].fine_mass);
    }
    ts_free(blocks);
}

void ts_census_free(ts_census *c) {
    free_blocks(c->dense, c->n_layers);
    free_blocks(c->shared, c->n_layers);
    ts_free(c->gate_bytes);
    ts_free(c->up_bytes);
    ts_free(c->down_bytes);
    ts_free(c->down_block);
    ts_free(c->site_note);
    ts_free(c->sites_json);
    if (c->provenance != NULL)
        ts_meta_provenance_free(c->provenance);
    ts_free(c->provenance);
    for (size_t i = 0; i < c->n_sources; i++)
        ts_free(c->sources[i].path);
    ts_free(c->sources);
    *c = (ts_census){0};
}

double ts_census_fine_edge(uint32_t bin) {
    if (bin >= TS_CENSUS_FINE_BINS)
        return ldexp(1.0, 128);
    uint32_t bits = bin << 18;
    float edge;
    memcpy(&edge, &bits, sizeof edge);
    return (double)edge;
}

uint32_t ts_census_fine_bucket(uint32_t bin) {
    int bucket = (int)(bin / TS_CENSUS_FINE_STEPS) - 127 + TS_CENSUS_BUCKET_OFFSET;
    return bucket < 1                       ? 1
           : bucket > TS_CENSUS_BUCKETS - 2 ? TS_CENSUS_BUCKETS - 2
                                            : (uint32_t)bucket;
}

double ts_census_quantile(const ts_census_block *b, double q) {
    uint64_t finite = b->zeros, seen;
    for (uint32_t i = 0; i < TS_CENSUS_FINE_BINS; i++)
        finite += b->fine_count[i];
    double rank = ceil(q * (double)finite);
    seen = b->zeros;
    rank = rank < 1.0 ? 1.0 : rank;
    if ((double)seen >= rank)
        return 0.0;
    for (uint32_t i = 0; i < TS_CENSUS_FINE_BINS; i++) {
        seen += b->fine_count[i];
        if (b->fine_count[i] > 0 && (double)seen >= rank)
            return 0.5 * (ts_census_fine_edge(i) + ts_census_fine_edge(i + 1));
    }
    return 0.0;
}
