/*
 * Nested top-K sets of one row, by magnitude, without sorting it.
 *
 * Owns: the selection and its working memory. Refuses: to know what the sets are for.
 *
 * The row histogram says in which bin the K-th largest value lies. Values in higher bins are in the
 * set, values in lower bins are not, and only the few in that bin are compared exactly. All sets of
 * a row are written as one byte per value, its *level*: the number of sets it is not in. Since the
 * sets are nested, set j holds exactly the values with level <= j.
 */
#ifndef TS_STATS_TOPK_H
#define TS_STATS_TOPK_H

#include <stdint.h>

#include "stats/ffn_kernel.h"
#include "stats/hist.h"

typedef struct ts_topk {
    uint64_t
        *undecided;    /* [max_width / 64 + 1] bit i: value i lies in a bin that some set ends in */
    uint32_t *listed;  /* [max_width + 4] indices of those values, ascending */
    uint32_t *grouped; /* [max_width + 4] the same, by bin */
    uint32_t *key;     /* [max_width + 4] magnitude bits of grouped */
} ts_topk;

/* Allocates for rows of up to max_width values. 0, or -1 without memory. Free with ts_topk_free,
 * also then. */
int ts_topk_init(ts_topk *t, uint32_t max_width);
void ts_topk_free(ts_topk *t);
/*
 * Writes level[row->n] for the sets of the size[] largest magnitudes, sizes ascending, 1..n each.
 * Ties go to the lower index; non-finite values are in no set, so a set larger than the number of
 * finite values holds just those. rh must describe this row. Not for two threads on one t.
 */
void ts_topk_levels(ts_topk *t, const ts_ffn_kernel *kernel, const ts_row_hist *rh,
                    const ts_row *row, const uint32_t size[TS_FFN_N_SETS], uint8_t *level);

#endif
