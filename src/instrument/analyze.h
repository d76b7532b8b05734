/* Turning a census into an answer. Internal to analyze*.c.
 *
 * A section (all blocks' dense FFNs, or all their shared experts) becomes a table of numbers: one row a block, one
 * column a figure, and their means. What the census cannot say is NAN there, "-" in the text and null in JSON. */
#ifndef TS_INSTRUMENT_ANALYZE_H
#define TS_INSTRUMENT_ANALYZE_H

#include "core/buf.h"
#include "instrument/analyze_expert.h"
#include "stats/cache_replay.h"
#include "stats/coverage.h"
#include "store/census.h"

/* Which of the census' sets is 10 % of the width. */
enum { TS_SET_10_PERCENT = TS_CENSUS_FIXED + 3 };

enum ts_analyze_column {
    TS_COL_WIDTH = 0,
    TS_COL_ROWS,
    TS_COL_N50, /* fewest neurons that hold that share of the mass */
    TS_COL_N90,
    TS_COL_N95,
    TS_COL_N99,
    TS_COL_N50_PERCENT, /* of the width */
    TS_COL_N90_PERCENT,
    TS_COL_N95_PERCENT,
    TS_COL_N99_PERCENT,
    TS_COL_ELEMENTS, /* share under 1e-3, 1e-2, 1e-1 */
    TS_COL_MASS = TS_COL_ELEMENTS + 3,
    TS_COL_ELEMENTS_ERROR = TS_COL_MASS + 3, /* of the worst of the three */
    TS_COL_MASS_ERROR,
    TS_COL_ZEROS,     /* share of exact zeros */
    TS_COL_NONFINITE, /* count */
    TS_COL_MAX,
    TS_COL_T50,
    TS_COL_RATIO, /* t25, t40, t65, t90, t95 over t50 */
    TS_COL_TOP_P = TS_COL_RATIO + 5, /* share of the neurons that hold 90, 95, 99 % of a token's L1 */
    TS_COL_OVERLAP = TS_COL_TOP_P + TS_CENSUS_TOP_P,
    TS_COL_CHANCE = TS_COL_OVERLAP + TS_CENSUS_SETS,
    TS_COL_HOT_BYTES = TS_COL_CHANCE + TS_CENSUS_SETS, /* the n95 hot set's rows and columns */
    TS_COL_HOT_BLOCK_BYTES, /* with whole quantisation blocks of ffn_down */
    TS_COL_FFN_BYTES,       /* all of gate, up and down */
    TS_COL_DOWN_BLOCKS,     /* quantisation blocks along the width */
    TS_COL_HOT_DOWN_BLOCKS, /* of those, with a hot neuron */
    TS_N_COLUMNS
};

typedef struct ts_analyze_row {
    int32_t block; /* -1: the mean */
    double value[TS_N_COLUMNS];
} ts_analyze_row;

typedef struct ts_analyze_section {
    const char *name; /* "dense", "shared" */
    bool fine;        /* the finer histogram was there */
    ts_analyze_row *rows; /* [n] blocks with such an FFN */
    size_t n;
    ts_analyze_row mean; /* over blocks; of bytes and counts the sum, of maxima and errors the largest */
} ts_analyze_section;

/* `blocks` [c->n_layers] is c->dense or c->shared; weights belong to the dense FFNs. *out is empty (n 0) when no block
 * is wide. */
int ts_analyze_section_make(const ts_census *c, const ts_census_block *blocks, const char *name,
                            ts_analyze_section *out, ts_error *err);
void ts_analyze_section_free(ts_analyze_section *s);

/* The verdict on a section. `why` says what decided and what would change it, in whole sentences. */
typedef struct ts_analyze_verdict {
    enum ts_verdict verdict;
    double n95_percent, overlap, chance; /* means; overlap at `set` */
    int set;                             /* -1: no overlap was counted */
    char why[3][160];
    size_t n_why;
} ts_analyze_verdict;

void ts_analyze_judge(const ts_analyze_section *s, ts_analyze_verdict *out);
const char *ts_verdict_name(enum ts_verdict verdict); /* "a dead end" */
const char *ts_set_name(int set);                     /* "512", "10 %" */

/* Two groups, block by block. */
typedef struct ts_analyze_pair {
    int32_t block; /* -1: the mean */
    double n95_percent[2], overlap[2]; /* overlap at 10 % of the width */
    double jaccard, chance, held;      /* of the n95 hot sets; held: share of the second's mass in the first's set */
} ts_analyze_pair;

typedef struct ts_analyze_pairs {
    ts_analyze_pair *rows; /* [n] */
    size_t n;
    ts_analyze_pair mean;
} ts_analyze_pairs;

/* Censuses of one shape. */
int ts_analyze_compare(const ts_census *a, const ts_census *b, ts_analyze_pairs *out, ts_error *err);
void ts_analyze_pairs_free(ts_analyze_pairs *p);

/* Cache replay: every block's caches at these shares of its width. */
enum { TS_N_CAPACITIES = 7 };
extern const unsigned ts_cache_percent[TS_N_CAPACITIES];

typedef struct ts_analyze_cache {
    uint32_t n_layers;
    ts_cache_replay **replays;   /* [n_layers], NULL: no dense FFN */
    double *bytes_per_neuron;    /* [n_layers], NAN when unknown */
    uint32_t *width, (*capacity)[TS_N_CAPACITIES]; /* [n_layers] */
    uint32_t most_ids, fewest_ids; /* neurons the trace names per pass and block */
} ts_analyze_cache;

/* One capacity: of one block, or over all blocks. */
typedef struct ts_cache_line {
    double chance;
    double rate[TS_CACHE_POLICIES];  /* hits over uses that are no first use; NAN without any */
    double bytes[TS_CACHE_POLICIES]; /* read per token */
} ts_cache_line;

int ts_analyze_cache_init(ts_analyze_cache *c, const ts_census *census, ts_error *err);
int ts_analyze_cache_pass(ts_analyze_cache *c, uint32_t block, const uint32_t *ids, uint32_t n, ts_error *err);
/* Replays the .trace beside a census file of the sum `census`; caches keep what earlier traces left in them. Adds its
 * passes to *n_passes. TS_ERR_IO, TS_ERR_FORMAT, TS_ERR_ARG for another model or shape. */
int ts_analyze_cache_trace(ts_analyze_cache *c, const ts_census *census, const char *census_path, uint64_t *n_passes,
                           ts_error *err);
/* block -1: all. */
ts_cache_line ts_analyze_cache_line(const ts_analyze_cache *c, int32_t block, int capacity);
/* Sums over all blocks (passes: of the block with most). */
ts_cache_counts ts_analyze_cache_sums(const ts_analyze_cache *c);
double ts_analyze_cache_bytes(const ts_analyze_cache *c); /* read per token with no cache at all */
/* Everything fits in the last capacity: whatever is not a first use must hit. TS_ERR_STATE when one did not. */
int ts_analyze_cache_control(const ts_analyze_cache *c, ts_error *err);
void ts_analyze_cache_free(ts_analyze_cache *c);

/* All that is known, for the two ways to print it. */
typedef struct ts_analysis {
    const ts_census *census;
    const ts_census *against;      /* nullable, with pairs */
    ts_analyze_section sections[2];
    size_t n_sections;
    const ts_analyze_pairs *pairs; /* nullable */
    const ts_analyze_cache *cache; /* nullable */
    const ts_expert_analysis *experts; /* nullable */
    bool diffable;
} ts_analysis;

/* A warning for each file that is given twice. */
void ts_analyze_repeats(const char *const *paths, size_t n);

void ts_analysis_text(ts_buf *b, const ts_analysis *a);
void ts_analysis_json(ts_buf *b, const ts_analysis *a);

#endif
