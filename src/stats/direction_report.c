/* The figures of direction.h: of a direction on the rows it came from, and of directions from some
 * rows on others. */
#include "stats/direction_report.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>

#include "core/mem.h"

static double ratio(double a, double b) {
    return b > 0 ? a / b : a > 0 ? INFINITY : NAN;
}

typedef struct spread {
    double mean, squares; /* sum of squared deviations */
    double sum_abs;
} spread;

/* Of c = u.x over the kept rows of one set (two walks: no cancellation of large means). */
static spread project(const ts_block_rows *r, int set, const double *u, double *c) {
    spread s = {0};
    int64_t n = 0;

    for (int64_t i = 0; i < r->n[set]; i++) {
        if (!ts_row_in(r, set, i, TS_ALL_FOLDS))
            continue;
        c[n] = ts_row_dot(r->x[set] + (size_t)i * (size_t)r->width, u, r->width);
        s.mean += c[n];
        s.sum_abs += fabs(c[n++]);
    }
    s.mean /= (double)n;
    for (int64_t i = 0; i < n; i++)
        s.squares += (c[i] - s.mean) * (c[i] - s.mean);
    return s;
}

static void describe(const ts_block_rows *r, const double *u, double *c, ts_direction_block *b) {
    spread negative = project(r, TS_NEGATIVE, u, c), positive = project(r, TS_POSITIVE, u, c);
    double n = (double)(r->kept[0] + r->kept[1]);
    double deviation = sqrt((negative.squares + positive.squares) / (n - 2));

    b->mean_positive = positive.mean;
    b->mean_negative = negative.mean;
    b->separation = ratio(positive.mean - negative.mean, deviation);
    b->mean_row_norm = r->row_norm / n;
    b->share = ratio(b->norm, b->mean_row_norm);
    b->removed_share = ratio((negative.sum_abs + positive.sum_abs) / n, b->mean_row_norm);
}

typedef struct scored {
    double c;
    int set;
} scored;

static int ascending(const void *x, const void *y) {
    double a = ((const scored *)x)->c, b = ((const scored *)y)->c;

    return (a > b) - (a < b);
}

/* Pairs of a positive and a negative, and how many of them (ties half) are in order. */
static double count_ordered(scored *s, int64_t n) {
    double ordered = 0, below = 0;

    qsort(s, (size_t)n, sizeof *s, ascending);
    for (int64_t i = 0, end; i < n; i = end) {
        double same[2] = {0};

        for (end = i; end < n && s[end].c == s[i].c; end++)
            same[s[end].set]++;
        ordered += same[TS_POSITIVE] * (below + same[TS_NEGATIVE] / 2);
        below += same[TS_NEGATIVE];
    }
    return ordered;
}

/* Adds one fold's pairs. d and s are working memory. */
static int test_fold(const ts_fit *f, const ts_block_rows *r, int fold, double *d, scored *s,
                     double *ordered, double *pairs) {
    int64_t n = 0, held[2] = {r->count[fold][0], r->count[fold][1]};
    enum ts_fit_state state;
    double ignored;
    int rc;

    if (!held[0] || !held[1] || held[0] == r->kept[0] || held[1] == r->kept[1])
        return TS_OK;
    rc = ts_fit_block(f, r, fold, d, &ignored, &state);
    if (rc || state != TS_FIT_FOUND)
        return rc;
    for (int set = 0; set < 2; set++)
        for (int64_t i = 0; i < r->n[set]; i++)
            if (r->fold[set][i] == fold)
                s[n++] = (scored){ts_row_dot(r->x[set] + (size_t)i * (size_t)r->width, d, r->width),
                                  set};
    *ordered += count_ordered(s, n);
    *pairs += (double)held[0] * (double)held[1];
    return TS_OK;
}

int ts_report_block(const ts_fit *f, const ts_block_rows *r, const double *d,
                    ts_direction_block *b) {
    size_t width = (size_t)r->width, rows = (size_t)(r->kept[0] + r->kept[1]);
    double ordered = 0, pairs = 0;
    double *u = ts_malloc((width + rows) * sizeof *u);
    scored *s = ts_malloc(rows * sizeof *s);
    int rc = u && s ? TS_OK : TS_ERR_NOMEM;

    if (!rc) {
        b->n_positive = r->kept[TS_POSITIVE];
        b->n_negative = r->kept[TS_NEGATIVE];
        b->n_folds = r->n_folds;
        b->norm = cblas_dnrm2(r->width, d, 1);
        for (size_t j = 0; j < width; j++)
            u[j] = d[j] / b->norm;
        describe(r, u, u + width, b);
    }
    for (int fold = 0; !rc && fold < r->n_folds; fold++)
        rc = test_fold(f, r, fold, u, s, &ordered, &pairs);
    if (!rc)
        b->auc = pairs > 0 ? ordered / pairs : NAN;
    ts_free(u);
    ts_free(s);
    return rc;
}
