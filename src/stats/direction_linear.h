/* Leading eigenvectors and solutions of symmetric positive operators.
 * Owns: Lanczos, conjugate gradients, the dense way through LAPACK. Refuses to know where an
 * operator comes from. */
#ifndef TS_STATS_DIRECTION_LINEAR_H
#define TS_STATS_DIRECTION_LINEAR_H

#include <stdbool.h>
#include <stdint.h>

/* y = M x for a symmetric positive semi-definite M of n x n. */
typedef struct ts_operator {
    int32_t n;
    void (*apply)(const void *self, const double *x, double *y);
    const void *self;
} ts_operator;

/* Leading eigenvector v [n] at length 1 and the two largest eigenvalues of M, by Lanczos with full
 * reorthogonalisation from a fixed start. Ends when the angle's bound |residual| / (value[0] -
 * value[1]) is within `tolerance`, or after max_steps with *converged false and the best v so far.
 * 0, or TS_ERR_NOMEM. */
int ts_lanczos_top(const ts_operator *m, int max_steps, double tolerance, double *v,
                   double value[2], bool *converged);

/* The same of a dense matrix [n][n] (upper or lower half in row-major order: lower), which is
 * overwritten. */
int ts_dense_top(double *matrix, int32_t n, double *v, double value[2]);

/* Solves M x = b to |b - M x| <= tolerance |b| by conjugate gradients from x = 0. 0, or
 * TS_ERR_NOMEM. */
int ts_solve(const ts_operator *m, const double *b, double tolerance, int max_steps, double *x,
             bool *converged);

#endif
