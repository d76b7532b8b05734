/* What is measured on a block's direction. */
#ifndef TS_STATS_DIRECTION_REPORT_H
#define TS_STATS_DIRECTION_REPORT_H

#include "stats/direction_fit.h"

/* Fills everything of `b` but eigen_gap and cos_previous, from the direction d [width]. 0 or
 * TS_ERR_NOMEM. */
int ts_report_block(const ts_fit *f, const ts_block_rows *r, const double *d,
                    ts_direction_block *b);

#endif
