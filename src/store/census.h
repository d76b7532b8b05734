/* The FFN census as files: PATH.json in the byte format of the runtime this replaces (design
 * section 5), PATH.detail (exact masses, finer histogram, zeros, overlap at shares of the width,
 * shared experts, sizes of the weights) and PATH.meta (provenance) beside it. Plain arrays, no
 * knowledge of how they were counted.
 *
 * .detail: one JSON document, a block a line. Keys: format_version (1), kind ("ffn-detail"), of
 * {file, bytes, xxh3_128} (the PATH.json it belongs to), num_layers, inter, decode_passes,
 * prefill_passes, overlap_pairs, fixed_k, share_percent, top_p, fine_steps_per_octave, fine_bins,
 * site_note, weights {gate_bytes, up_bytes, down_bytes, down_block}, dense [layers], shared
 * [layers] or null. A block is null or {width, n_rows, n_pairs, k, hits (fixed sets, then shares),
 * top_p, zeros, nonfinite, max_abs, quantiles {t25 .. t99, max} (of |a|, derived), bucket_count,
 * bucket_mass, fine [[bin, count, mass], ..], mass}.
 * .meta: the provenance of store/meta.h with kind "ffn", then plan (null of a sum), partial, layers, inter, widths,
 * decode_passes, prefill_passes, overlap_pairs, sites, max_abs, nonfinite, data (PATH.json),
 * detail, sources (of a merged census).
 */
#ifndef TS_STORE_CENSUS_H
#define TS_STORE_CENSUS_H

#include "core/error.h"
#include "core/provenance.h"

#define TS_CENSUS_BUCKETS 64
#define TS_CENSUS_BUCKET_OFFSET                                                                    \
    33                     /* bucket b of 1..62 is [2^(b-33), 2^(b-32)); 0 is zero, 63 not finite */
#define TS_CENSUS_FIXED 4  /* sets of 512, 1024, 2048, 4096, clamped to the width */
#define TS_CENSUS_SHARES 5 /* sets of 1, 2, 5, 10, 20 % of the width */
#define TS_CENSUS_SETS (TS_CENSUS_FIXED + TS_CENSUS_SHARES)
#define TS_CENSUS_TOP_P 3 /* neurons holding 90, 95, 99 % of a row's L1 */
/* The finer histogram: bin = magnitude bits of the float32 >> 18, so 32 equal steps per octave;
 * zero is in none. */
#define TS_CENSUS_FINE_STEPS 32
#define TS_CENSUS_FINE_BINS (255 * TS_CENSUS_FINE_STEPS)
#define TS_CENSUS_MAX_LAYERS 2048
#define TS_CENSUS_MAX_WIDTH (1u << 20)

extern const uint32_t ts_census_fixed_k[TS_CENSUS_FIXED];
extern const uint32_t ts_census_share_percent[TS_CENSUS_SHARES];
extern const double ts_census_top_p[TS_CENSUS_TOP_P];

/* One block's dense FFN, or its shared expert. Width 0: none, and nothing else is set. */
typedef struct ts_census_block {
    uint32_t width;
    uint64_t n_rows, n_pairs;
    uint64_t hits[TS_CENSUS_SETS];
    uint32_t k[TS_CENSUS_SETS];
    uint64_t top_p[TS_CENSUS_TOP_P]; /* neurons, summed over rows */
    uint64_t bucket_count[TS_CENSUS_BUCKETS];
    double bucket_mass[TS_CENSUS_BUCKETS];
    double *mass;              /* [width] */
    uint64_t zeros, nonfinite; /* bucket 0, bucket 63 */
    double max_abs;            /* over finite values */
    uint64_t *fine_count;      /* [TS_CENSUS_FINE_BINS], NULL where not detailed */
    double *fine_mass;         /* [TS_CENSUS_FINE_BINS], likewise */
} ts_census_block;

/* One of the files that were added up. */
typedef struct ts_census_source {
    char *path;    /* as read; the base name where a .meta listed it */
    char xxh3[33]; /* of the .json */
    uint64_t decode_passes, prefill_passes, overlap_pairs;
    bool partial;
    char engine[64], devices[256]; /* "" without .meta */
} ts_census_source;

typedef struct ts_census {
    uint32_t n_layers, inter; /* inter: the widest dense block */
    uint64_t decode_passes, prefill_passes, overlap_pairs;
    ts_census_block *dense;  /* [n_layers] */
    ts_census_block *shared; /* [n_layers] or NULL */
    /* false: only what .json holds. Masses have six digits; the shares' sets, top_p, max_abs, fine
     * histogram, shared and weights are absent (0 and NULL) */
    bool detailed;
    /* the FFN's weights, for the working set: bytes of gate, up and down per block; 0 when absent
     */
    uint64_t *gate_bytes, *up_bytes, *down_bytes; /* [n_layers] */
    uint32_t *down_block; /* [n_layers] elements of ffn_down's quantisation block along the width
                             (1, 32, 256) */
    char *site_note;      /* nullable: where the value is not act(gate) * up alone */
    char plan[33];        /* what was counted, as a hash; "" of a sum */
    /* set by reading and adding only */
    bool partial;
    ts_provenance *provenance; /* NULL without .meta */
    char *sites_json;          /* nullable */
    ts_census_source *sources; /* [n_sources] */
    size_t n_sources;
} ts_census;

/* Zeroed arrays for n_layers blocks of width 0, detailed. TS_ERR_NOMEM. Freed by ts_census_free
 * also then. */
int ts_census_init(ts_census *c, uint32_t n_layers, bool shared, ts_error *err);
/* Gives an empty block its width and arrays; the fine histogram only when `fine`. TS_ERR_NOMEM. */
int ts_census_block_init(ts_census_block *b, uint32_t width, bool fine, ts_error *err);
void ts_census_free(ts_census *c);

/* Lower edge of a bin of the finer histogram, 0 <= bin <= TS_CENSUS_FINE_BINS; the last is 2^128.
 */
double ts_census_fine_edge(uint32_t bin);
/* The bucket that holds a bin of the finer histogram. */
uint32_t ts_census_fine_bucket(uint32_t bin);
/* Smallest magnitude that at least the share q (0..1) of the finite values does not exceed, to 1.6
 * %: the middle of its bin, 0 for zeros. Of a detailed block. */
double ts_census_quantile(const ts_census_block *b, double q);

/* All that must add up: values of each dense block = decode_passes x width, hits, masses, the two
 * histograms. Both the writer and the reader call it. TS_ERR_FORMAT names the block. */
int ts_census_check(const ts_census *c, ts_error *err);

/* Before anything is computed: can the three files stand at and beside `path`. TS_ERR_ARG when
 * names coincide, or one exists and may not be replaced; TS_ERR_IO. */
int ts_census_check_target(const char *path, bool overwrite, ts_error *err);
/* Writes .detail (when detailed), .meta, .json, in this order, each whole or not at all; equal
 * input gives equal bytes. `prov` NULL: what `c` was read with; sites_json likewise. */
int ts_census_write(const ts_census *c, const char *path, const ts_provenance *prov,
                    const char *sites_json, bool partial, bool overwrite, ts_error *err);

/* Reads `path` and what is beside it, and checks all of it. *model_key (nullable):
 * "architecture/name/hash" for comparing, NULL when there is no .meta; the caller frees. On failure
 * *c is empty. TS_ERR_FORMAT, TS_ERR_IO. */
int ts_census_read(const char *path, ts_census *c, char **model_key, ts_error *err);

/* Adds src to dst: counts exactly, masses as plain sums; dst stays detailed only when src is.
 * TS_ERR_ARG naming the difference in model or shape, dst unchanged. After TS_ERR_NOMEM dst is
 * unchanged too. */
int ts_census_add(ts_census *dst, const ts_census *src, ts_error *err);

#endif
