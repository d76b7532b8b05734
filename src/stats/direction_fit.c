/* The methods of direction.h on one block. A fit has an axis first (each method's own), then a
 * length and a sign (one rule for all but pca-repeng). */
#include "stats/direction_fit.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

#include "core/mem.h"

/* Where small and large part: below, LAPACK takes the Gram matrix apart in well under a second and
 * to the last digit; above, Lanczos reads the rows a few dozen times. */
enum { DENSE_MAX = 1024, LANCZOS_STEPS = 500, FOLD_STEPS = 40, SOLVE_STEPS = 3000 };
static const double axis_tolerance = 1e-7, fold_tolerance = 1e-3, solve_tolerance = 1e-8;

/* A difference of means this small against the rows is what adding up the same rows in another
 * order leaves. */
static const double zero_share = 1e-11;

typedef struct fitting {
    const ts_fit *f;
    const ts_block_rows *rows;
    int out;
    double *mean[2], *delta; /* [width] */
    double *row;
    double *memory;
} fitting;

static int fitting_start(fitting *g, const ts_fit *f, const ts_block_rows *r, int out) {
    size_t n = (size_t)r->width;

    *g = (fitting){.f = f, .rows = r, .out = out};
    g->memory = ts_malloc(4 * n * sizeof *g->memory);
    if (!g->memory)
        return TS_ERR_NOMEM;
    g->mean[0] = g->memory;
    g->mean[1] = g->memory + n;
    g->delta = g->memory + 2 * n;
    g->row = g->memory + 3 * n;
    for (int set = 0; set < 2; set++)
        ts_block_mean(r, set, out, g->mean[set]);
    memcpy(g->delta, g->mean[TS_POSITIVE], n * sizeof *g->delta);
    cblas_daxpy(r->width, -1, g->mean[TS_NEGATIVE], 1, g->delta, 1);
    return TS_OK;
}

static double count(const fitting *g, int set) {
    return (double)ts_block_count(g->rows, set, g->out);
}

/* What pca, pca-repeng and svd take the leading eigenvector of. */
static ts_scatter scatter_of(const fitting *g) {
    ts_scatter s = {.rows = g->rows, .out = g->out, .weight = {1, 1}, .row = g->row};

    switch (g->f->method) {
    case TS_DIRECTION_PCA:
        s.paired = true;
        break;
    case TS_DIRECTION_PCA_REPENG:
        s.paired = true;
        s.centre[TS_POSITIVE] =
            g->delta; /* the mean of the differences is the difference of the means */
        break;
    default:
        for (int set = 0; set < 2; set++) {
            s.centre[set] = g->mean[set];
            s.weight[set] = g->f->method == TS_DIRECTION_SVD ? count(g, 1 - set) : 1;
        }
    }
    return s;
}

static int eigen_axis(const fitting *g, double *axis, double *gap, bool *zero) {
    ts_scatter s = scatter_of(g);
    ts_operator m = ts_scatter_operator(&s);
    int64_t rank = ts_scatter_rank(&s);
    bool fold = g->out != TS_ALL_FOLDS, converged = false;
    double value[2];
    int rc = TS_OK;

    if (rank > DENSE_MAX && m.n > DENSE_MAX)
        rc = ts_lanczos_top(&m, fold ? FOLD_STEPS : LANCZOS_STEPS,
                            fold ? fold_tolerance : axis_tolerance, axis, value, &converged);
    if (!rc && !converged && !(fold && rank > DENSE_MAX && m.n > DENSE_MAX))
        rc = ts_scatter_top_dense(&s, axis, value);
    if (rc)
        return rc;
    *zero = !(value[0] > 0);
    if (!fold && !*zero)
        *gap = (value[0] - value[1]) / value[0];
    return TS_OK;
}

/* (ridge I + (1 - g) S) w = D. */
static int lda_axis(const fitting *g, double *axis, bool *converged) {
    ts_scatter s = scatter_of(g);
    ts_operator m = ts_scatter_operator(&s);
    double n = count(g, 0) + count(g, 1), shrinkage = g->f->shrinkage;

    s.ridge = shrinkage * ts_scatter_trace(&s) / (n * s.rows->width);
    s.weight[0] = s.weight[1] = (1 - shrinkage) / n;
    if (!(s.ridge > 0)) { /* the rows of each set are all the same: no spread to allow for */
        memcpy(axis, g->delta, (size_t)m.n * sizeof *axis);
        *converged = true;
        return TS_OK;
    }
    return ts_solve(&m, g->delta, g->out == TS_ALL_FOLDS ? solve_tolerance : fold_tolerance,
                    SOLVE_STEPS, axis, converged);
}

/* axis -= its part along the control direction; then to length 1. False when nothing is left. */
static bool unit_without(double *axis, const float *control, int32_t n) {
    double vv = 0, av = 0, before = cblas_dnrm2(n, axis, 1), after;

    for (int32_t j = 0; control && j < n; j++) {
        vv += (double)control[j] * (double)control[j];
        av += (double)control[j] * axis[j];
    }
    for (int32_t j = 0; vv > 0 && j < n; j++)
        axis[j] -= av / vv * (double)control[j];
    after = cblas_dnrm2(n, axis, 1);
    if (!(after > 1e-6 * before))
        return false;
    cblas_dscal(n, 1 / after, axis, 1);
    return true;
}

/* repeng's rule: the sign by which most positives lie above their partners; -1, 0 (a tie) or 1. */
static int majority(const fitting *g, const double *u) {
    const ts_block_rows *r = g->rows;
    int64_t above = 0;

    for (int64_t i = 0; i < r->n[TS_POSITIVE]; i++) {
        size_t at = (size_t)i * (size_t)r->width;
        double a, b;

        if (!ts_row_in(r, TS_POSITIVE, i, g->out))
            continue;
        a = ts_row_dot(r->x[TS_POSITIVE] + at, u, r->width);
        b = ts_row_dot(r->x[TS_NEGATIVE] + at, u, r->width);
        above += (a > b) - (a < b);
    }
    return (above > 0) - (above < 0);
}

/* Length and sign of u; zero when there is no telling. */
static double length_of(const fitting *g, const double *u) {
    const ts_block_rows *r = g->rows;
    double gap = cblas_ddot(r->width, u, 1, g->delta, 1);
    double row_norm = r->row_norm / (double)(r->kept[0] + r->kept[1]);
    int sign;

    if (g->f->method == TS_DIRECTION_PCA_REPENG) {
        sign = majority(g, u);
        return sign ? sign : (gap > 0) - (gap < 0);
    }
    return fabs(gap) > zero_share * row_norm ? gap : 0;
}

int ts_fit_block(const ts_fit *f, const ts_block_rows *r, int out, double *d, double *eigen_gap,
                 enum ts_fit_state *state) {
    bool zero = false, converged = true;
    fitting g;
    double length;
    int rc = fitting_start(&g, f, r, out);

    *eigen_gap = NAN;
    *state = TS_FIT_ZERO;
    if (rc)
        goto cleanup;
    if (f->method == TS_DIRECTION_MEAN)
        memcpy(d, g.delta, (size_t)r->width * sizeof *d);
    else if (f->method == TS_DIRECTION_LDA)
        rc = lda_axis(&g, d, &converged);
    else
        rc = eigen_axis(&g, d, eigen_gap, &zero);
    if (rc || zero || !(cblas_dnrm2(r->width, d, 1) > 0))
        goto cleanup;
    if (!converged) {
        *state = TS_FIT_UNCONVERGED;
        goto cleanup;
    }
    if (!unit_without(d, f->orthogonal, r->width)) {
        *state = TS_FIT_TAKEN;
        goto cleanup;
    }
    length = length_of(&g, d);
    cblas_dscal(r->width, length, d, 1);
    if (length != 0)
        *state = TS_FIT_FOUND;
cleanup:
    ts_free(g.memory);
    return rc;
}
