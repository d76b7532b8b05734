/* The FFN census as a file: PATH.json in the byte format of the runtime this replaces (seeds, design section 5),
 * PATH.meta (provenance) and PATH.detail (finer histogram, quantiles, zeros, shared experts) beside it. Plain
 * arrays, no knowledge of how they were counted. */
#ifndef TS_STORE_CENSUS_H
#define TS_STORE_CENSUS_H

#include "core/error.h"
#include "core/provenance.h"

#define TS_CENSUS_BUCKETS 64
#define TS_CENSUS_FIXED 4  /* sets of 512, 1024, 2048, 4096, clamped to the width */
#define TS_CENSUS_SHARES 5 /* sets of 1, 2, 5, 10, 20 % of the width */
#define TS_CENSUS_TOP_P 3  /* neurons holding 90, 95, 99 % of a row's L1 */

/* One block's dense FFN, or its shared expert. Width 0: none. */
typedef struct ts_census_block {
    uint32_t width;
    uint64_t n_rows, n_pairs;
    uint64_t hits[TS_CENSUS_FIXED + TS_CENSUS_SHARES];
    uint32_t k[TS_CENSUS_FIXED + TS_CENSUS_SHARES];
    uint64_t top_p[TS_CENSUS_TOP_P];
    uint64_t bucket_count[TS_CENSUS_BUCKETS];
    double bucket_mass[TS_CENSUS_BUCKETS];
    double *mass;              /* [width] */
    uint64_t zeros, nonfinite;
    double max_abs;
    uint64_t *fine_count;      /* [n_fine] finer histogram; bins as in `fine_edges` of the record */
    double *fine_mass;         /* [n_fine] */
} ts_census_block;

typedef struct ts_census {
    uint32_t n_layers, inter;  /* inter: the widest dense block */
    uint64_t decode_passes, prefill_passes, overlap_pairs;
    uint32_t n_fine;
    double *fine_edges;        /* [n_fine + 1] lower edges, ascending; the last is the upper end */
    ts_census_block *dense;    /* [n_layers] */
    ts_census_block *shared;   /* [n_layers] or NULL */
    /* the FFN's weights, for the working set: bytes of gate, up and down per block; 0 when absent */
    uint64_t *gate_bytes, *up_bytes, *down_bytes; /* [n_layers] */
    uint32_t *down_block;      /* [n_layers] elements of ffn_down's quantisation block along the FFN width (1, 32, 256) */
    char *site_note;           /* nullable: where the value is not act(gate) * up alone */
} ts_census;

void ts_census_free(ts_census *c);

#endif
