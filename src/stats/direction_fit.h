/* One direction from the rows of one block, or of its folds but one. Owns the five methods. */
#ifndef TS_STATS_DIRECTION_FIT_H
#define TS_STATS_DIRECTION_FIT_H

#include "stats/direction_block.h"

enum ts_fit_state {
    TS_FIT_FOUND = 0,
    TS_FIT_ZERO,        /* no axis, or the sets have the same mean along it */
    TS_FIT_TAKEN,       /* the control direction takes all of the axis */
    TS_FIT_UNCONVERGED, /* lda's solver gave up */
};

typedef struct ts_fit {
    enum ts_direction_method method;
    double shrinkage;
    const float *orthogonal; /* [width] or NULL */
} ts_fit;

static inline bool ts_method_is_paired(enum ts_direction_method m) {
    return m == TS_DIRECTION_PCA || m == TS_DIRECTION_PCA_REPENG;
}

/* Writes d [width] and, of eigenvector methods with `out` TS_ALL_FOLDS, the eigen-gap (else NAN). 0
 * or TS_ERR_NOMEM; *state says whether there is a direction. */
int ts_fit_block(const ts_fit *f, const ts_block_rows *r, int out, double *d, double *eigen_gap,
                 enum ts_fit_state *state);

#endif
