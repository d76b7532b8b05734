/* Rows of a block (direction_block.h). Rows stay f32 where they lie; each is widened when it is
 * used, so every sum and product is f64. */
#include "stats/direction_block.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

#include "core/mem.h"

/* Eight values a turn, a count the compiler knows: gcc's -O2 leaves other loops scalar. */
enum { LANES = 8 };

void ts_row_widen(const float *restrict x, const double *restrict centre, int32_t n,
                  double *restrict to) {
    static const double zero[LANES];
    const double *c = centre ? centre : zero;
    size_t step = centre ? LANES : 0, row = (size_t)n * sizeof *x;
    int32_t j = 0;

    for (; j + LANES <= n; j += LANES, c += step) {
        /* of the next row, if there is one: these walks wait for memory, not for sums */
        __builtin_prefetch((const void *)((uintptr_t)(x + j) + row));
        for (int k = 0; k < LANES; k++)
            to[j + k] = (double)x[j + k] - c[k];
    }
    for (int k = 0; j < n; j++, k++)
        to[j] = (double)x[j] - c[k];
}

/* to -= x */
static void row_subtract(const float *restrict x, int32_t n, double *restrict to) {
    int32_t j = 0;

    for (; j + LANES <= n; j += LANES)
        for (int k = 0; k < LANES; k++)
            to[j + k] -= (double)x[j + k];
    for (; j < n; j++)
        to[j] -= (double)x[j];
}

/* to += x */
static void row_add(const float *restrict x, int32_t n, double *restrict to) {
    int32_t j = 0;

    for (; j + LANES <= n; j += LANES)
        for (int k = 0; k < LANES; k++)
            to[j + k] += (double)x[j + k];
    for (; j < n; j++)
        to[j] += (double)x[j];
}

double ts_row_dot(const float *x, const double *v, int32_t n) {
    double lane[LANES] = {0};
    int32_t j = 0;

    for (; j + LANES <= n; j += LANES)
        for (int k = 0; k < LANES; k++)
            lane[k] += (double)x[j + k] * v[j + k];
    for (; j < n; j++)
        lane[0] += (double)x[j] * v[j];
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) +
           ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

/* Norms of all rows, in place of a test for each value: the f64 norm of a finite f32 row is finite.
 */
static void find_bad(ts_block_rows *r, double *norm) {
    for (int set = 0; set < 2; set++) {
        r->bad[set] = -1;
        for (int64_t i = 0; i < r->n[set]; i++) {
            const float *x = r->x[set] + (size_t)i * (size_t)r->width;
            double lane[LANES] = {0}, sum = 0;
            int32_t j = 0;

            for (; j + LANES <= r->width; j += LANES)
                for (int k = 0; k < LANES; k++)
                    lane[k] += (double)x[j + k] * (double)x[j + k];
            for (; j < r->width; j++)
                sum += (double)x[j] * (double)x[j];
            for (int k = 0; k < LANES; k++)
                sum += lane[k];
            *norm++ = sqrt(sum);
            r->fold[set][i] = isfinite(sum) ? 0 : TS_ROW_DROPPED;
            if (!isfinite(sum) && r->bad[set] < 0)
                r->bad[set] = i;
        }
    }
}

static void drop(ts_block_rows *r, bool paired) {
    for (int64_t i = 0; paired && i < r->n[0]; i++)
        if (r->fold[0][i] == TS_ROW_DROPPED || r->fold[1][i] == TS_ROW_DROPPED)
            r->fold[0][i] = r->fold[1][i] = TS_ROW_DROPPED;
    for (int set = 0; set < 2; set++)
        for (int64_t i = 0; i < r->n[set]; i++)
            r->kept[set] += r->fold[set][i] != TS_ROW_DROPPED;
}

static void add_up(ts_block_rows *r, const double *norm) {
    for (int set = 0; set < 2; set++) {
        for (int64_t i = 0; i < r->n[set]; i++, norm++) {
            const float *x = r->x[set] + (size_t)i * (size_t)r->width;
            int fold = (int)(i % r->n_folds);
            double *sum = r->sum[fold][set];

            if (r->fold[set][i] == TS_ROW_DROPPED)
                continue;
            r->fold[set][i] = (uint8_t)fold;
            r->count[fold][set]++;
            r->row_norm += *norm;
            row_add(x, r->width, sum);
        }
    }
}

int ts_block_rows_init(ts_block_rows *r, const float *const x[2], const int64_t n[2], int32_t width,
                       bool drop_bad, bool paired) {
    size_t rows = (size_t)(n[0] + n[1]), sums = 2 * TS_DIRECTION_MAX_FOLDS * (size_t)width;
    double *at, *norm;

    *r = (ts_block_rows){.width = width, .n = {n[0], n[1]}, .x = {x[0], x[1]}};
    r->memory = at = ts_calloc(1, (rows + sums) * sizeof *at + rows);
    if (!at)
        return TS_ERR_NOMEM;
    norm = at;
    at += rows;
    for (int f = 0; f < TS_DIRECTION_MAX_FOLDS; f++)
        for (int set = 0; set < 2; set++, at += width)
            r->sum[f][set] = at;
    r->fold[0] = (uint8_t *)at;
    r->fold[1] = r->fold[0] + n[0];
    find_bad(r, norm);
    if (!drop_bad && (r->bad[0] >= 0 || r->bad[1] >= 0))
        return TS_ERR_FORMAT;
    drop(r, paired);
    r->n_folds = TS_DIRECTION_MAX_FOLDS;
    for (int set = 0; set < 2; set++)
        if (r->kept[set] < r->n_folds)
            r->n_folds = r->kept[set] > 0 ? (int)r->kept[set] : 1;
    add_up(r, norm);
    return TS_OK;
}

void ts_block_rows_free(ts_block_rows *r) {
    ts_free(r->memory);
    r->memory = NULL;
}

int64_t ts_block_count(const ts_block_rows *r, int set, int out) {
    int64_t n = 0;

    for (int f = 0; f < r->n_folds; f++)
        n += f == out ? 0 : r->count[f][set];
    return n;
}

void ts_block_mean(const ts_block_rows *r, int set, int out, double *mean) {
    memset(mean, 0, (size_t)r->width * sizeof *mean);
    for (int f = 0; f < r->n_folds; f++)
        if (f != out)
            cblas_daxpy(r->width, 1, r->sum[f][set], 1, mean, 1);
    cblas_dscal(r->width, 1 / (double)ts_block_count(r, set, out), mean, 1);
}

/* Is row i of a set one of M's, and if so, what is it? */
static bool scatter_row(const ts_scatter *s, int set, int64_t i, double *to) {
    const ts_block_rows *r = s->rows;
    size_t at = (size_t)i * (size_t)r->width;

    if (!ts_row_in(r, set, i, s->out))
        return false;
    ts_row_widen(r->x[set] + at, s->centre[set], r->width, to);
    if (s->paired)
        row_subtract(r->x[TS_NEGATIVE] + at, r->width, to);
    return true;
}

static int first_set(const ts_scatter *s) {
    return s->paired ? TS_POSITIVE : TS_NEGATIVE;
}

static void scatter_apply(const void *self, const double *v, double *y) {
    const ts_scatter *s = self;
    int32_t n = s->rows->width;

    for (int32_t j = 0; j < n; j++)
        y[j] = s->ridge * v[j];
    for (int set = first_set(s); set < 2; set++)
        for (int64_t i = 0; i < s->rows->n[set]; i++)
            if (scatter_row(s, set, i, s->row))
                cblas_daxpy(n, s->weight[set] * cblas_ddot(n, s->row, 1, v, 1), s->row, 1, y, 1);
}

ts_operator ts_scatter_operator(const ts_scatter *s) {
    return (ts_operator){.n = s->rows->width, .apply = scatter_apply, .self = s};
}

double ts_scatter_trace(const ts_scatter *s) {
    double sum = 0;

    for (int set = first_set(s); set < 2; set++)
        for (int64_t i = 0; i < s->rows->n[set]; i++)
            if (scatter_row(s, set, i, s->row))
                sum += s->weight[set] * cblas_ddot(s->rows->width, s->row, 1, s->row, 1);
    return sum;
}

int64_t ts_scatter_rank(const ts_scatter *s) {
    int64_t n = 0;

    for (int set = first_set(s); set < 2; set++)
        n += ts_block_count(s->rows, set, s->out);
    return n;
}

/* gram += chunk^T chunk, the lower half: chunk [rows][width]. */
static void add_gram(double *gram, const double *chunk, int rows, int32_t width) {
    cblas_dsyrk(CblasRowMajor, CblasLower, CblasTrans, width, rows, 1, chunk, width, 1, gram,
                width);
}

/* Rows, each scaled by the root of its weight, go to `to` one after another; when `gram` is given
 * they are added to it every CHUNK rows and `to` has room for no more. */
enum { CHUNK = 256 };

static void weighted_rows(const ts_scatter *s, double *to, double *gram) {
    int32_t width = s->rows->width;
    size_t n = 0;

    for (int set = first_set(s); set < 2; set++) {
        for (int64_t i = 0; i < s->rows->n[set]; i++) {
            double *row = to + n * (size_t)width;

            if (!scatter_row(s, set, i, row))
                continue;
            cblas_dscal(width, sqrt(s->weight[set]), row, 1);
            if (++n == CHUNK && gram) {
                add_gram(gram, to, CHUNK, width);
                n = 0;
            }
        }
    }
    if (gram && n > 0)
        add_gram(gram, to, (int)n, width);
}

/* By rows: if W W^T z = l z then W^T z is the eigenvector. */
static int top_of_rows(const ts_scatter *s, int32_t n, double *v, double value[2]) {
    int32_t width = s->rows->width;
    double *w = ts_malloc((size_t)n * (size_t)width * sizeof *w);
    double *gram = ts_calloc((size_t)n * (size_t)n, sizeof *gram),
           *z = ts_malloc((size_t)n * sizeof *z);
    int rc = w && gram && z ? TS_OK : TS_ERR_NOMEM;

    if (!rc) {
        weighted_rows(s, w, NULL);
        cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, n, width, 1, w, width, 0, gram, n);
        rc = ts_dense_top(gram, n, z, value);
    }
    if (!rc) {
        double size;

        cblas_dgemv(CblasRowMajor, CblasTrans, n, width, 1, w, width, z, 1, 0, v, 1);
        size = cblas_dnrm2(width, v, 1);
        cblas_dscal(width, size > 0 ? 1 / size : 0, v, 1);
    }
    ts_free(w);
    ts_free(gram);
    ts_free(z);
    return rc;
}

static int top_of_dimensions(const ts_scatter *s, double *v, double value[2]) {
    size_t width = (size_t)s->rows->width;
    double *chunk = ts_malloc(CHUNK * width * sizeof *chunk);
    double *gram = ts_calloc(width * width, sizeof *gram);
    int rc = chunk && gram ? TS_OK : TS_ERR_NOMEM;

    if (!rc) {
        weighted_rows(s, chunk, gram);
        rc = ts_dense_top(gram, s->rows->width, v, value);
    }
    ts_free(chunk);
    ts_free(gram);
    return rc;
}

int ts_scatter_top_dense(const ts_scatter *s, double *v, double value[2]) {
    int64_t n = ts_scatter_rank(s);

    return n <= s->rows->width ? top_of_rows(s, (int32_t)n, v, value)
                               : top_of_dimensions(s, v, value);
}
