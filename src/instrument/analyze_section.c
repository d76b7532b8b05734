/* Owns the step from a census' blocks to figures, and their means. Refuses to print. */
#include "instrument/analyze.h"

#include <math.h>
#include <stdlib.h>

#include "core/mem.h"

static const double thresholds[3] = {1e-3, 1e-2, 1e-1};
static const unsigned covered[4] = {50, 90, 95, 99};
static const double over_median[5] = {0.25, 0.40, 0.65, 0.90, 0.95};

/* Working memory of a section: edges of the finer histogram, and a widest block's neurons. */
typedef struct workspace {
    double *edges;   /* [TS_CENSUS_FINE_BINS + 1] */
    uint32_t *order; /* [widest] */
    uint8_t *hot;    /* [widest] */
} workspace;

static int workspace_init(workspace *w, const ts_census *c, const ts_census_block *blocks, ts_error *err) {
    uint32_t widest = 0;

    for (uint32_t i = 0; i < c->n_layers; i++)
        widest = blocks[i].width > widest ? blocks[i].width : widest;
    w->edges = ts_calloc(TS_CENSUS_FINE_BINS + 1, sizeof *w->edges);
    w->order = ts_calloc(widest, sizeof *w->order);
    w->hot = ts_calloc(widest, sizeof *w->hot);
    if (!w->edges || !w->order || !w->hot)
        return ts_fail_nomem(err, "an analysis", widest * sizeof *w->order);
    for (uint32_t i = 0; i <= TS_CENSUS_FINE_BINS; i++)
        w->edges[i] = ts_census_fine_edge(i);
    return TS_OK;
}

static void workspace_free(workspace *w) {
    free(w->edges);
    free(w->order);
    free(w->hot);
}

static void fill_coverage(const ts_census_block *b, const workspace *w, double *value) {
    for (int i = 0; i < 4; i++) {
        uint32_t n = ts_coverage_count(b->mass, w->order, b->width, covered[i]);

        value[TS_COL_N50 + i] = n ? (double)n : NAN; /* without mass there is nothing to hold */
        value[TS_COL_N50_PERCENT + i] = n ? 100.0 * n / b->width : (double)NAN;
    }
}

static void fill_magnitudes(const ts_census_block *b, const workspace *w, double *value) {
    double log2_edges[TS_LOG2_BINS + 1], values = (double)b->n_rows * b->width;
    ts_magnitudes m = {.edges = w->edges, .count = b->fine_count, .mass = b->fine_mass,
                       .n = TS_CENSUS_FINE_BINS, .zeros = b->zeros, .middle = true};

    if (!b->fine_count)
        m = ts_magnitudes_log2(b->bucket_count, b->bucket_mass, log2_edges);
    value[TS_COL_ELEMENTS_ERROR] = value[TS_COL_MASS_ERROR] = 0;
    for (int i = 0; i < 3; i++) {
        ts_below below = ts_magnitudes_below(&m, thresholds[i]);

        value[TS_COL_ELEMENTS + i] = below.elements;
        value[TS_COL_MASS + i] = below.mass;
        value[TS_COL_ELEMENTS_ERROR] = fmax(value[TS_COL_ELEMENTS_ERROR], below.elements_error);
        value[TS_COL_MASS_ERROR] = fmax(value[TS_COL_MASS_ERROR], below.mass_error);
    }
    value[TS_COL_NONFINITE] = (double)b->bucket_count[TS_CENSUS_BUCKETS - 1];
    values -= value[TS_COL_NONFINITE];
    value[TS_COL_ZEROS] = values > 0 ? (double)b->bucket_count[0] / values : NAN;
    value[TS_COL_MAX] = b->fine_count ? b->max_abs : NAN;
    value[TS_COL_T50] = ts_magnitudes_quantile(&m, 0.5);
    for (int i = 0; i < 5; i++)
        value[TS_COL_RATIO + i] = value[TS_COL_T50] > 0
                                      ? ts_magnitudes_quantile(&m, over_median[i]) / value[TS_COL_T50]
                                      : NAN;
}

static void fill_sets(const ts_census_block *b, double *value) {
    double neurons = (double)b->n_rows * b->width;

    for (int j = 0; j < TS_CENSUS_SETS; j++) {
        double places = (double)b->n_pairs * b->k[j];

        value[TS_COL_OVERLAP + j] = places > 0 ? (double)b->hits[j] / places : NAN;
        value[TS_COL_CHANCE + j] = b->k[j] ? (double)b->k[j] / b->width : NAN;
    }
    for (int p = 0; p < TS_CENSUS_TOP_P; p++)
        value[TS_COL_TOP_P + p] = b->fine_count && neurons > 0 ? (double)b->top_p[p] / neurons : NAN;
}

/* gate and up hold a neuron as a row, down as a column: one element of a quantisation block in each of its rows. */
static void fill_working_set(const ts_census *c, uint32_t il, const ts_census_block *b, workspace *w, double *value) {
    double rows = (double)(c->gate_bytes[il] + c->up_bytes[il]), down = (double)c->down_bytes[il];
    double n = value[TS_COL_N95], blocks;
    uint32_t block = c->down_block[il];

    if (down == 0 || block == 0 || isnan(n))
        return;
    blocks = (b->width + block - 1) / block;
    ts_hot_set(w->order, b->width, (uint32_t)n, w->hot);
    value[TS_COL_DOWN_BLOCKS] = blocks;
    value[TS_COL_HOT_DOWN_BLOCKS] = ts_hot_blocks(w->hot, b->width, block);
    value[TS_COL_FFN_BYTES] = rows + down;
    value[TS_COL_HOT_BYTES] = (rows + down) * n / b->width;
    value[TS_COL_HOT_BLOCK_BYTES] = rows * n / b->width + down * value[TS_COL_HOT_DOWN_BLOCKS] / blocks;
}

static int fill_row(const ts_census *c, uint32_t il, const ts_census_block *b, bool weights, workspace *w,
                    ts_analyze_row *row) {
    row->block = (int32_t)il;
    for (int i = 0; i < TS_N_COLUMNS; i++)
        row->value[i] = NAN;
    row->value[TS_COL_WIDTH] = b->width;
    row->value[TS_COL_ROWS] = (double)b->n_rows;
    if (ts_rank_by_mass(b->mass, b->width, w->order) != TS_OK)
        return TS_ERR_NOMEM;
    fill_coverage(b, w, row->value);
    fill_magnitudes(b, w, row->value);
    fill_sets(b, row->value);
    if (weights)
        fill_working_set(c, il, b, w, row->value);
    return TS_OK;
}

static bool is_sum(int column) {
    return column >= TS_COL_HOT_BYTES || column == TS_COL_NONFINITE;
}

static bool is_largest(int column) {
    return column == TS_COL_MAX || column == TS_COL_ELEMENTS_ERROR || column == TS_COL_MASS_ERROR;
}

/* Over the blocks that have the figure. */
static double mean_of(const ts_analyze_section *s, int column) {
    double sum = 0, largest = 0;
    size_t n = 0;

    for (size_t j = 0; j < s->n; j++) {
        double x = s->rows[j].value[column];

        if (isnan(x))
            continue;
        sum += x;
        largest = fmax(largest, x);
        n++;
    }
    if (n == 0)
        return NAN;
    return is_largest(column) ? largest : is_sum(column) ? sum : sum / (double)n;
}

static void fill_mean(ts_analyze_section *s) {
    s->mean.block = -1;
    for (int i = 0; i < TS_N_COLUMNS; i++)
        s->mean.value[i] = mean_of(s, i);
}

int ts_analyze_section_make(const ts_census *c, const ts_census_block *blocks, const char *name,
                            ts_analyze_section *out, ts_error *err) {
    workspace w = {0};
    int rc = workspace_init(&w, c, blocks, err);

    *out = (ts_analyze_section){.name = name, .rows = ts_calloc(c->n_layers, sizeof *out->rows)};
    if (rc == TS_OK && !out->rows)
        rc = ts_fail_nomem(err, "an analysis", c->n_layers * sizeof *out->rows);
    for (uint32_t il = 0; rc == TS_OK && il < c->n_layers; il++) {
        if (blocks[il].width == 0)
            continue;
        rc = fill_row(c, il, &blocks[il], c->detailed && blocks == c->dense, &w, &out->rows[out->n]);
        if (rc != TS_OK)
            rc = ts_fail_nomem(err, "an analysis", blocks[il].width * sizeof(double));
        out->fine = blocks[il].fine_count != NULL;
        out->n++;
    }
    if (rc == TS_OK)
        fill_mean(out);
    else
        ts_analyze_section_free(out);
    workspace_free(&w);
    return rc;
}

void ts_analyze_section_free(ts_analyze_section *s) {
    free(s->rows);
    *s = (ts_analyze_section){0};
}
