/* What the sums of a census say: how few neurons hold the mass, what lies under a threshold, quantiles, hot sets
 * and what they weigh. Pure arithmetic on finished counts. Refuses: counting, files, and a verdict without numbers.
 *
 * A value that the counts cannot give (no mass, no values, a median of zero) is NAN, never 0. */
#ifndef TS_STATS_COVERAGE_H
#define TS_STATS_COVERAGE_H

#include <stdbool.h>
#include <stdint.h>

/* Writes order[width]: neurons from the largest mass down, ties by index. 0 or TS_ERR_NOMEM. */
int ts_rank_by_mass(const double *mass, uint32_t width, uint32_t *order);

/* Fewest neurons, taken in that order, whose mass is at least percent % of all mass; 0 without mass. The sums
 * are plain f64 in that order. */
uint32_t ts_coverage_count(const double *mass, const uint32_t *order, uint32_t width, unsigned percent);

/* Magnitudes as bins. Counts are of finite values; exact zeros are in no bin. */
typedef struct ts_magnitudes {
    const double *edges;   /* [n + 1] ascending; bin i is [edges[i], edges[i + 1]) */
    const uint64_t *count; /* [n] */
    const double *mass;    /* [n] sum of |a| */
    uint32_t n;
    uint64_t zeros;
    bool middle; /* bins so narrow that a quantile is the middle of its bin; else placed by its rank inside it */
} ts_magnitudes;

enum { TS_LOG2_BINS = 62 };

/* The 64 log2 buckets of a census as magnitudes: bucket b is [2^(b-33), 2^(b-32)), the first from 0. Points into
 * the arguments; edges[TS_LOG2_BINS + 1] is filled. */
ts_magnitudes ts_magnitudes_log2(const uint64_t count[64], const double mass[64], double *edges);

/* Shares, 0..1, and how far each can be from the truth: a threshold that falls inside a bin is interpolated there
 * (values spread evenly over the bin), and at worst all of the bin lies on one side. */
typedef struct ts_below {
    double elements, elements_error; /* of finite values, zeros included */
    double mass, mass_error;
} ts_below;

ts_below ts_magnitudes_below(const ts_magnitudes *m, double threshold);

/* The ceil(q n)-th smallest finite magnitude (the smallest for q = 0), exactly 0 where that is a zero. */
double ts_magnitudes_quantile(const ts_magnitudes *m, double q);

/* Marks the first n of `order` in hot[width] (0 or 1 each). */
void ts_hot_set(const uint32_t *order, uint32_t width, uint32_t n, uint8_t *hot);

/* Runs of `block` neighbouring neurons that hold a hot one: ffn_down's quantisation blocks to be read. */
uint32_t ts_hot_blocks(const uint8_t *hot, uint32_t width, uint32_t block);

typedef struct ts_hot_pair {
    double jaccard; /* |A and B| / |A or B| */
    double chance;  /* the same for two sets of these sizes drawn at random: from the mean intersection */
    double held;    /* share of b_mass that set A holds */
} ts_hot_pair;

ts_hot_pair ts_hot_compare(const uint8_t *a, const uint8_t *b, const double *b_mass, uint32_t width);

enum ts_verdict { TS_VERDICT_UNDECIDED = 0, TS_VERDICT_PLAUSIBLE, TS_VERDICT_DEAD_END };

/* The thresholds of the verdict; what is printed and what decides is the same number. */
#define TS_VERDICT_N95_FEW 15.0   /* % of the width: up to here a cache is plausible, with high overlap */
#define TS_VERDICT_N95_MANY 50.0  /* % of the width: from here a dead end */
#define TS_VERDICT_OVERLAP 0.5    /* high overlap: at least this share of the set recurs in the next pass ... */
#define TS_VERDICT_CHANCE 3.0     /* ... and at least this many times the chance level */

bool ts_overlap_is_high(double overlap, double chance); /* false for NAN */
enum ts_verdict ts_verdict_of(double n95_percent, double overlap, double chance);

#endif
