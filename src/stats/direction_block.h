/* The rows of both sets in one block, which of them count, and their sums.
 * Owns: dropping, folds, means, the sum of outer products that every method but `mean` needs.
 * Refuses to know the methods. */
#ifndef TS_STATS_DIRECTION_BLOCK_H
#define TS_STATS_DIRECTION_BLOCK_H

#include "stats/direction.h"
#include "stats/direction_linear.h"

enum { TS_NEGATIVE = 0, TS_POSITIVE = 1, TS_ALL_FOLDS = -1, TS_ROW_DROPPED = 255 };

typedef struct ts_block_rows {
    int32_t width;
    int64_t n[2];
    const float *x[2]; /* [n][width] */
    uint8_t *fold[2];  /* [n] fold of each row, or TS_ROW_DROPPED */
    int64_t kept[2];
    int n_folds;
    double *sum[TS_DIRECTION_MAX_FOLDS][2]; /* [width] of each fold and set */
    int64_t count[TS_DIRECTION_MAX_FOLDS][2];
    double row_norm; /* sum of |x| over all kept rows */
    int64_t bad[2];  /* first row that is not finite, -1 */
    void *memory;
} ts_block_rows;

/* Looks at every row. Without `drop` a bad row leaves the sums unmade and TS_ERR_FORMAT, with
 * r->bad telling which. `paired` drops both rows of a pair. TS_ERR_NOMEM. Freed by
 * ts_block_rows_free, also after a failure. */
int ts_block_rows_init(ts_block_rows *r, const float *const x[2], const int64_t n[2], int32_t width,
                       bool drop, bool paired);
void ts_block_rows_free(ts_block_rows *r);

/* Does row i of `set` count when fold `out` is held out? */
static inline bool ts_row_in(const ts_block_rows *r, int set, int64_t i, int out) {
    return r->fold[set][i] != out && r->fold[set][i] != TS_ROW_DROPPED;
}

/* Rows, and their mean, of a set without fold `out`. */
int64_t ts_block_count(const ts_block_rows *r, int set, int out);
void ts_block_mean(const ts_block_rows *r, int set, int out, double *mean);
/* to[j] = x[j] - centre[j]; centre may be NULL. */
void ts_row_widen(const float *x, const double *centre, int32_t n, double *to);
double ts_row_dot(const float *x, const double *v, int32_t n);

/* M = ridge I + sum over rows of weight[set] r r^T with r = x - centre[set], or, paired, r = a_i -
 * b_i - centre. */
typedef struct ts_scatter {
    const ts_block_rows *rows;
    int out;
    bool paired;             /* weight[TS_POSITIVE], centre[TS_POSITIVE] */
    const double *centre[2]; /* NULL = none */
    double weight[2];
    double ridge;
    double *row; /* [width] working memory */
} ts_scatter;

ts_operator ts_scatter_operator(const ts_scatter *s);
double ts_scatter_trace(const ts_scatter *s); /* without the ridge */
int64_t ts_scatter_rank(const ts_scatter *s); /* rows */
/* Leading eigenvector by the smaller of the two dense Gram matrices (of rows, or of dimensions). No
 * ridge. */
int ts_scatter_top_dense(const ts_scatter *s, double *v, double value[2]);

#endif
