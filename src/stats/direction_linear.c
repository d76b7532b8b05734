/* Eigenvectors and solutions (direction_linear.h). Every sum is f64. Refuses matrices that are not
 * symmetric only by contract: nothing here looks. */
#include "stats/direction_linear.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <string.h>
#include <turbospark/turbospark.h>

#include "core/mem.h"

/* The tridiagonal matrix of the steps so far, and what LAPACK needs to take it apart. */
typedef struct lanczos {
    int32_t n;
    int k, max;
    double *basis;        /* [max + 1][n] orthonormal */
    double *alpha, *beta; /* [max] */
    double *d, *e;        /* [max] copies, overwritten by LAPACK */
    double *z;            /* [2][max] eigenvectors, ascending value */
    double theta[2];      /* largest, second */
    double residual[2];
} lanczos;

static int lanczos_start(lanczos *l, int32_t n, int max) {
    size_t k = (size_t)max;
    uint64_t seed = UINT64_C(0x9e3779b97f4a7c15);

    *l = (lanczos){.n = n, .max = max};
    l->basis = ts_calloc((k + 1) * (size_t)n + 6 * k, sizeof *l->basis);
    if (!l->basis)
        return TS_ERR_NOMEM;
    l->alpha = l->basis + (k + 1) * (size_t)n;
    l->beta = l->alpha + k;
    l->d = l->beta + k;
    l->e = l->d + k;
    l->z = l->e + k;
    for (int32_t i = 0; i < n; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        l->basis[i] = (double)(int64_t)seed;
    }
    cblas_dscal(n, 1 / cblas_dnrm2(n, l->basis, 1), l->basis, 1);
    return TS_OK;
}

/* One step: w = M q_k, made orthogonal to all of the basis (twice: once is not enough), becomes
 * q_{k+1}. Returns false when nothing of it is left: the basis spans an invariant space. */
static bool lanczos_step(lanczos *l, const ts_operator *m) {
    size_t n = (size_t)l->n;
    double *q = l->basis + (size_t)l->k * n, *w = q + n;
    double size;

    m->apply(m->self, q, w);
    size = cblas_dnrm2(l->n, w, 1);
    l->alpha[l->k] = cblas_ddot(l->n, q, 1, w, 1);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i <= l->k; i++) {
            const double *b = l->basis + (size_t)i * n;

            cblas_daxpy(l->n, -cblas_ddot(l->n, b, 1, w, 1), b, 1, w, 1);
        }
    }
    l->beta[l->k] = cblas_dnrm2(l->n, w, 1);
    if (!(l->beta[l->k] > 1e-13 * size)) {
        l->beta[l->k++] = 0;
        return false;
    }
    cblas_dscal(l->n, 1 / l->beta[l->k++], w, 1);
    return true;
}

static int lanczos_ritz(lanczos *l) {
    int k = l->k, found = 0, want = k > 1 ? 2 : 1;
    lapack_int support[4];
    double values[2] = {0}; /* LAPACK may use more of it only where k is more */
    double *w = k > 2 ? ts_malloc((size_t)k * sizeof *w) : values;
    lapack_int info;

    if (!w)
        return TS_ERR_NOMEM;
    memcpy(l->d, l->alpha, (size_t)k * sizeof *l->d);
    memcpy(l->e, l->beta, (size_t)k * sizeof *l->e);
    info = LAPACKE_dstevr(LAPACK_COL_MAJOR, 'V', 'I', k, l->d, l->e, 0, 0, k - want + 1, k, 0,
                          &found, w, l->z, k, support);
    l->theta[0] = w[want - 1];
    l->theta[1] = want > 1 ? w[0] : 0;
    for (int i = 0; i < want; i++)
        l->residual[i] = fabs(l->beta[k - 1] * l->z[(size_t)(want - i) * (size_t)k - 1]);
    if (k > 2)
        ts_free(w);
    return info == 0 && found == want ? TS_OK : TS_ERR_NOMEM;
}

/* The second value has to be about right too: it is in the bound, and reported. */
static bool lanczos_done(const lanczos *l, double tolerance) {
    double gap = l->theta[0] - l->theta[1];

    return l->k > 1 && l->residual[0] <= tolerance * gap && l->residual[1] <= 0.02 * gap;
}

int ts_lanczos_top(const ts_operator *m, int max_steps, double tolerance, double *v,
                   double value[2], bool *converged) {
    enum { CHECK_EVERY = 4 };
    int max = max_steps < m->n ? max_steps : m->n;
    lanczos l;
    int rc = lanczos_start(&l, m->n, max);
    bool more = true;

    *converged = false;
    while (!rc && more && !*converged && l.k < max) {
        more = lanczos_step(&l, m);
        if (!more || l.k == max || l.k % CHECK_EVERY == 0) {
            rc = lanczos_ritz(&l);
            *converged = !more || l.k == m->n || lanczos_done(&l, tolerance);
        }
    }
    if (!rc) {
        const double *top = l.z + (l.k > 1 ? l.k : 0);

        memset(v, 0, (size_t)m->n * sizeof *v);
        for (int i = 0; i < l.k; i++)
            cblas_daxpy(m->n, top[i], l.basis + (size_t)i * (size_t)m->n, 1, v, 1);
        memcpy(value, l.theta, sizeof l.theta);
    }
    ts_free(l.basis);
    return rc;
}

int ts_dense_top(double *matrix, int32_t n, double *v, double value[2]) {
    int found = 0, want = n > 1 ? 2 : 1;
    size_t size = (size_t)n;
    lapack_int support[4], info = -1;
    double *w = ts_calloc(3 * size, sizeof *w), *z; /* [n], [2][n] */

    if (!w)
        return TS_ERR_NOMEM;
    z = w + size;
    /* the lower half by rows is the upper half by columns */
    info = LAPACKE_dsyevr(LAPACK_COL_MAJOR, 'V', 'I', 'U', n, matrix, n, 0, 0, n - want + 1, n, 0,
                          &found, w, z, n, support);
    value[0] = w[want - 1];
    value[1] = want > 1 ? w[0] : 0;
    memcpy(v, z + (size_t)(want - 1) * size, size * sizeof *v);
    ts_free(w);
    return info == 0 && found == want ? TS_OK : TS_ERR_NOMEM;
}

int ts_solve(const ts_operator *m, const double *b, double tolerance, int max_steps, double *x,
             bool *converged) {
    int32_t n = m->n;
    size_t size = (size_t)n;
    double *r = ts_malloc(3 * size * sizeof *r), *p = r ? r + size : NULL, *q = r ? p + size : NULL;
    double limit = tolerance * cblas_dnrm2(n, b, 1), rr;

    if (!r)
        return TS_ERR_NOMEM;
    memset(x, 0, size * sizeof *x);
    memcpy(r, b, size * sizeof *r);
    memcpy(p, b, size * sizeof *p);
    rr = cblas_ddot(n, r, 1, r, 1);
    for (int step = 0; step < max_steps && sqrt(rr) > limit; step++) {
        double before = rr, pq, a;

        m->apply(m->self, p, q);
        pq = cblas_ddot(n, p, 1, q, 1);
        if (!(pq > 0))
            break;
        a = rr / pq;
        cblas_daxpy(n, a, p, 1, x, 1);
        cblas_daxpy(n, -a, q, 1, r, 1);
        rr = cblas_ddot(n, r, 1, r, 1);
        cblas_dscal(n, rr / before, p, 1);
        cblas_daxpy(n, 1, r, 1, p, 1);
    }
    *converged = sqrt(rr) <= limit;
    ts_free(r);
    return TS_OK;
}
