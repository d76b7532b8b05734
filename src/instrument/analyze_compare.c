/* Owns the comparison of two censuses, block by block: hot sets and overlap. */
#include "instrument/analyze.h"

#include <math.h>
#include <stdlib.h>

#include "core/mem.h"

/* The n95 hot set of a block; its size. 0 or TS_ERR_NOMEM. */
static int find_hot(const ts_census_block *b, uint32_t *order, uint8_t *hot, double *percent) {
    uint32_t n;

    if (ts_rank_by_mass(b->mass, b->width, order) != TS_OK)
        return TS_ERR_NOMEM;
    n = ts_coverage_count(b->mass, order, b->width, 95);
    ts_hot_set(order, b->width, n, hot);
    *percent = n ? 100.0 * n / b->width : NAN;
    return TS_OK;
}

static int compare_block(const ts_census_block *a, const ts_census_block *b, ts_analyze_pair *out) {
    const ts_census_block *both[2] = {a, b};
    uint32_t *order = ts_calloc(a->width, sizeof *order);
    uint8_t *hot[2] = {ts_calloc(a->width, 1), ts_calloc(a->width, 1)};
    int rc = order && hot[0] && hot[1] ? TS_OK : TS_ERR_NOMEM;

    for (int i = 0; i < 2 && rc == TS_OK; i++) {
        double places = (double)both[i]->n_pairs * both[i]->k[TS_SET_10_PERCENT];

        rc = find_hot(both[i], order, hot[i], &out->n95_percent[i]);
        out->overlap[i] = places > 0 ? (double)both[i]->hits[TS_SET_10_PERCENT] / places : NAN;
    }
    if (rc == TS_OK) {
        ts_hot_pair p = ts_hot_compare(hot[0], hot[1], b->mass, a->width);

        out->jaccard = p.jaccard;
        out->chance = p.chance;
        out->held = p.held;
    }
    free(order);
    free(hot[0]);
    free(hot[1]);
    return rc;
}

static void add_figure(double *sum, int *n, double x) {
    if (!isnan(x)) {
        *sum += x;
        ++*n;
    }
}

static void fill_mean(ts_analyze_pairs *p) {
    enum { FIGURES = 7 };
    double sum[FIGURES] = {0};
    int n[FIGURES] = {0};

    for (size_t i = 0; i < p->n; i++) {
        const ts_analyze_pair *r = &p->rows[i];
        const double figures[FIGURES] = {r->n95_percent[0], r->n95_percent[1], r->overlap[0], r->overlap[1],
                                         r->jaccard,        r->chance,         r->held};

        for (int f = 0; f < FIGURES; f++)
            add_figure(&sum[f], &n[f], figures[f]);
    }
    for (int f = 0; f < FIGURES; f++)
        sum[f] = n[f] ? sum[f] / n[f] : NAN;
    p->mean = (ts_analyze_pair){.block = -1, .n95_percent = {sum[0], sum[1]}, .overlap = {sum[2], sum[3]},
                                .jaccard = sum[4], .chance = sum[5], .held = sum[6]};
}

int ts_analyze_compare(const ts_census *a, const ts_census *b, ts_analyze_pairs *out, ts_error *err) {
    int rc = TS_OK;

    *out = (ts_analyze_pairs){.rows = ts_calloc(a->n_layers, sizeof *out->rows)};
    if (!out->rows)
        return ts_fail_nomem(err, "a comparison", a->n_layers * sizeof *out->rows);
    for (uint32_t il = 0; il < a->n_layers && rc == TS_OK; il++) {
        if (a->dense[il].width == 0)
            continue;
        out->rows[out->n].block = (int32_t)il;
        rc = compare_block(&a->dense[il], &b->dense[il], &out->rows[out->n++]);
    }
    if (rc != TS_OK) {
        ts_analyze_pairs_free(out);
        return ts_fail_nomem(err, "a comparison", a->inter * sizeof(double));
    }
    fill_mean(out);
    return TS_OK;
}

void ts_analyze_pairs_free(ts_analyze_pairs *p) {
    free(p->rows);
    *p = (ts_analyze_pairs){0};
}
