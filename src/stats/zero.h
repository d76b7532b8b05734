/* Zeroing the smallest magnitudes of a row: training-free activation sparsity as CATS (arXiv 2404.08763) and TEAL
 * (arXiv 2408.14690) study it. Pure arithmetic on one row. */
#ifndef TS_STATS_ZERO_H
#define TS_STATS_ZERO_H

#include <stddef.h>
#include <stdint.h>

/* Sets the floor(share * n) smallest |row[i]| to zero, share in 0..1; of equal magnitudes the higher indices go
 * first, so that what stays is the top set in which ties go to the lower index. Values that are not finite rank as
 * the largest. `scratch` is [n]. Returns how many values changed. */
size_t ts_zero_smallest(float *row, size_t n, double share, uint32_t *scratch);
/* Sets every |row[i]| < threshold to zero. Returns how many values changed. */
size_t ts_zero_below(float *row, size_t n, double threshold);

#endif
