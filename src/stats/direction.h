/* From two sets of residual snapshots to one direction per block.
 *
 * Owns: the methods, what is measured on their result, the walk over blocks. Refuses: files,
 * formats, and sets that do not fit together.
 *
 * Notation, for one block: a_i the n rows of the positive set, b_j the m rows of the negative one,
 * A and B their means, D = A - B, every sum in f64. A method finds an axis; where a control
 * direction v is given, the axis is made orthogonal to it; u is the axis at length 1. Then
 *
 *     d = (u.D) u        the part of the difference of means that lies on the axis,
 *
 * which points from negative to positive whatever sign the axis came with, and which at scale 1
 * moves the negative set's mean onto the positive one's along u. Only pca-repeng differs. d is not
 * normalised.
 *
 *   mean        axis = D, so d = D. [Marks and Tegmark, arXiv:2310.06824; Rimsky et al.,
 * arXiv:2312.06681] pca         leading eigenvector of sum_i (a_i - b_i)(a_i - b_i)^T: pairs, not
 * centred, n = m. [Zou et al., arXiv:2310.01405, with the differences' own origin kept] pca-repeng
 * leading eigenvector of sum_i (a_i - b_i - D)(a_i - b_i - D)^T, n = m; d = u, |d| = 1 (with a
 * control direction too); its sign makes a_i.u > b_i.u for most pairs, at a tie u.D > 0. [repeng,
 * pca_diff] svd         leading right-singular vector of the n*m rows (a_i - b_j), centred. Since
 * the centred row is (a_i - A) - (b_j - B) and both parts sum to zero, that matrix's Gram is m
 * sum_i (a_i - A)(a_i - A)^T + n sum_j (b_j - B)(b_j - B)^T, and only this is used. lda         w =
 * M^-1 D, M = (1 - g) S + g (tr S / hidden) I, where S is the within-class covariance (sum_i (a_i -
 * A)(a_i - A)^T + sum_j (b_j - B)(b_j - B)^T) / (n + m) and g a fixed shrinkage. [Fisher 1936;
 * Friedman, Regularized Discriminant Analysis, 1989]
 *
 * Which rows are held: a group of blocks at a time, as many as `max_bytes` has room for, at least
 * one. Each set's snapshots are read once per group in order, only the group's layers of each. So a
 * source that can read a range of layers is read once in all; one that cannot is read ceil(layers /
 * group) times.
 */
#ifndef TS_STATS_DIRECTION_H
#define TS_STATS_DIRECTION_H

#include "core/error.h"

enum ts_direction_method {
    TS_DIRECTION_MEAN = 0,
    TS_DIRECTION_PCA,
    TS_DIRECTION_PCA_REPENG,
    TS_DIRECTION_SVD,
    TS_DIRECTION_LDA,
    TS_DIRECTION_METHOD_COUNT
};

#define TS_DIRECTION_SHRINKAGE 0.1
#define TS_DIRECTION_MAX_BYTES ((size_t)256 << 20)
enum { TS_DIRECTION_MAX_FOLDS = 5 };

const char *ts_direction_method_name(enum ts_direction_method method); /* "pca-repeng" */
/* The method of that name. False when there is none. */
bool ts_direction_method_find(const char *name, enum ts_direction_method *out);

/* Where the rows of one set come from. */
typedef struct ts_direction_set {
    const char *name; /* for messages: the file */
    int64_t n;        /* snapshots, at least 2 */
    int32_t n_layers, n_hidden;
    /* Writes layers [layer, layer + n_layers) of a snapshot, [n_layers][n_hidden], 0 <= snapshot <
     * n. Called from the thread of ts_direction_extract. Its error ends the extraction. */
    int (*read)(void *user, int64_t snapshot, int32_t layer, int32_t n_layers, float *rows,
                ts_error *err);
    void *user;
} ts_direction_set;

typedef struct ts_direction_options {
    enum ts_direction_method method;
    double shrinkage;    /* lda's g, 0.001 to 1; 0 = TS_DIRECTION_SHRINKAGE */
    bool drop_nonfinite; /* leave out rows with NaN or infinity, of pairs both; else they are an
                            error */
    int n_threads;       /* blocks side by side; 0 = 1. Results do not depend on it */
    size_t max_bytes;    /* of rows held at once; 0 = TS_DIRECTION_MAX_BYTES */
    const int32_t *block_ids; /* [n_layers] block of each layer, for messages; NULL = 0, 1, .. */
    const float *const *orthogonal; /* [n_layers] control direction of each layer, [n_hidden]; NULL
                                       (also one) = none */
} ts_direction_options;

/* Measured on one block, over the n_positive + n_negative rows x used, with c = u.x. NAN where a
 * figure does not apply, INFINITY where its divisor is zero. */
typedef struct ts_direction_block {
    int64_t n_positive, n_negative;      /* rows used */
    double norm;                         /* |d| */
    double mean_positive, mean_negative; /* means of c: what a clamp would aim at */
    double separation;    /* (mean_positive - mean_negative) / pooled standard deviation of c within
                             the sets */
    double mean_row_norm; /* mean |x| */
    double share;         /* |d| / mean |x| */
    double removed_share; /* mean |c| / mean |x|: what ablate at scale 1 takes away */
    double auc;           /* see below */
    double cos_previous;  /* cosine with the direction of the layer before; NAN for the first */
    double eigen_gap;     /* (l1 - l2) / l1 of the pca and svd methods' two largest eigenvalues */
    int n_folds;          /* folds that auc comes from */
} ts_direction_block;
/* auc: k-fold cross-validation, k = min(5, n, m). Row i of either set is in fold i mod k, so that
 * pairs stay together. Each fold's direction is extracted from the other folds' rows (control
 * direction included) and the fold's rows are projected on it: auc = P(c of a positive > c of a
 * negative), ties counted half, over all pairs of rows within a fold. Folds whose other rows give
 * no direction are left out. Of wide data (more than 1,024 rows and dimensions) the folds'
 * directions are solved for to 1e-3. */

typedef struct ts_direction {
    int32_t n_layers, n_hidden;
    float *d;                   /* [n_layers][n_hidden] */
    ts_direction_block *blocks; /* [n_layers] */
    int64_t
        n_dropped; /* rows left out for not being finite, over all blocks; of pairs both count */
} ts_direction;

/* Extracts. Errors: TS_ERR_ARG sets of unlike width, layers or (paired methods) size, fewer than
 * two snapshots, an option out of range, a block whose direction is zero (the sets have the same
 * mean, or the control direction takes all); TS_ERR_FORMAT a non-finite row, named by set, snapshot
 * and block, `position` the snapshot; TS_ERR_NOMEM; what a read returned. With several the one of
 * the lowest block of the first group. *out is freed by ts_direction_free. */
int ts_direction_extract(const ts_direction_set *positive, const ts_direction_set *negative,
                         const ts_direction_options *options, ts_direction **out, ts_error *err);
void ts_direction_free(ts_direction *d);

#endif
