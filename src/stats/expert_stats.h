/* Counting the neurons inside the chosen experts of one row. Owns nothing: plain arrays of the caller's. Refuses ids that a
 * layer does not have, with nothing counted. */
#ifndef TS_STATS_EXPERT_STATS_H
#define TS_STATS_EXPERT_STATS_H

#include <stdint.h>

#include "stats/hist.h"

typedef struct ts_expert_counts {
    uint32_t n_experts, top_k, width;
    uint64_t *rows;         /* [n_experts] */
    double *mass;           /* [n_experts][width] sum of |a|, finite values only */
    uint64_t *bucket_count; /* [TS_HIST_N_BUCKETS] */
} ts_expert_counts;

/* ids [top_k], values [top_k][width]. 0 or TS_ERR_ARG; an expert listed twice is counted twice. */
int ts_expert_count(const ts_expert_counts *c, const int32_t *ids, const float *values);

#endif
