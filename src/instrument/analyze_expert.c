/* Owns the figures of an expert-activation census and their printing. Refuses an .experts file that is of another census than
 * the one it stands beside. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "instrument/analyze_expert.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/mem.h"
#include "stats/coverage.h"

static const unsigned shares[TS_EXPERT_SHARES] = {50, 90, 95};

/* ---- files */

static int add_one(const char *path, ts_experts *sum, size_t i, ts_error *err) {
    ts_experts one = {0};
    char *beside = ts_path_with_extension(path, "experts");
    bool has = beside && strcmp(beside, path) != 0 && ts_file_exists(beside);
    int rc = beside ? TS_OK : ts_fail_nomem(err, "a path", strlen(path));

    if (rc == TS_OK && i > 0 && has != (sum->n_layers > 0))
        rc = ts_fail(err, TS_ERR_ARG, "'%s' has %s expert census beside it, the files before have %s", path, has ? "an" : "no",
                     has ? "none" : "one");
    if (rc == TS_OK && has)
        rc = ts_experts_read(beside, &one, err);
    if (rc == TS_OK && has && i == 0) {
        *sum = one;
        one = (ts_experts){0};
    } else if (rc == TS_OK && has && (rc = ts_experts_add(sum, &one, err)) != TS_OK) {
        ts_error_prefix(err, "'%s' cannot be added: ", beside);
    }
    ts_experts_free(&one);
    ts_free(beside);
    return rc;
}

int ts_expert_read_group(const char *const *paths, size_t n, uint64_t decode_passes, ts_experts *sum, ts_error *err) {
    int rc = TS_OK;

    *sum = (ts_experts){0};
    for (size_t i = 0; i < n && rc == TS_OK; i++)
        rc = add_one(paths[i], sum, i, err);
    if (rc == TS_OK && sum->n_layers && sum->decode_passes != decode_passes)
        rc = ts_fail(err, TS_ERR_FORMAT, "the expert census beside '%s'%s holds %" PRIu64 " passes, the census %" PRIu64, paths[0],
                     n > 1 ? " and others" : "", sum->decode_passes, decode_passes);
    if (rc != TS_OK)
        ts_experts_free(sum);
    return rc;
}

/* ---- figures */

static int add_expert(ts_expert_row *row, const ts_expert_layer *l, uint32_t e, uint32_t *order, uint32_t *with_mass) {
    const double *mass = l->mass + (size_t)e * l->width;

    if (l->rows[e] == 0)
        return TS_OK;
    row->fewest = row->seen == 0 || l->rows[e] < row->fewest ? l->rows[e] : row->fewest;
    row->most = l->rows[e] > row->most ? l->rows[e] : row->most;
    row->rows += (double)l->rows[e];
    row->seen++;
    if (ts_rank_by_mass(mass, l->width, order) != TS_OK)
        return TS_ERR_NOMEM;
    if (ts_coverage_count(mass, order, l->width, 50) == 0)
        return TS_OK;
    ++*with_mass;
    for (int i = 0; i < TS_EXPERT_SHARES; i++)
        row->n[i] += ts_coverage_count(mass, order, l->width, shares[i]);
    return TS_OK;
}

static int fill_row(ts_expert_row *row, const ts_expert_layer *l, int32_t block, ts_error *err) {
    uint32_t with_mass = 0, *order = ts_calloc(l->width, sizeof *order);
    int rc = order ? TS_OK : TS_ERR_NOMEM;

    *row = (ts_expert_row){.block = block, .n_experts = l->n_experts, .width = l->width};
    for (uint32_t e = 0; e < l->n_experts && rc == TS_OK; e++)
        rc = add_expert(row, l, e, order, &with_mass);
    free(order);
    if (rc != TS_OK)
        return ts_fail_nomem(err, "an analysis", l->width * sizeof *order);
    row->rows = row->seen ? row->rows / row->seen : NAN;
    for (int i = 0; i < TS_EXPERT_SHARES; i++) {
        row->n[i] = with_mass ? row->n[i] / with_mass : NAN;
        row->percent[i] = 100.0 * row->n[i] / l->width;
    }
    return TS_OK;
}

static void fill_mean(ts_expert_analysis *a) {
    size_t n = 0;

    a->mean = (ts_expert_row){.block = -1};
    for (size_t i = 0; i < a->n; i++) {
        if (isnan(a->rows[i].n[0]))
            continue;
        n++;
        for (int k = 0; k < TS_EXPERT_SHARES; k++) {
            a->mean.n[k] += a->rows[i].n[k];
            a->mean.percent[k] += a->rows[i].percent[k];
        }
        a->mean.rows += a->rows[i].rows;
    }
    for (int k = 0; k < TS_EXPERT_SHARES; k++) {
        a->mean.n[k] = n ? a->mean.n[k] / (double)n : NAN;
        a->mean.percent[k] = n ? a->mean.percent[k] / (double)n : NAN;
    }
    a->mean.rows = n ? a->mean.rows / (double)n : NAN;
}

int ts_expert_analyze(ts_expert_analysis *a, const ts_experts *x, ts_error *err) {
    int rc = TS_OK;

    *a = (ts_expert_analysis){.rows = ts_calloc((size_t)x->n_layers + 1, sizeof *a->rows), .decode_passes = x->decode_passes};
    if (!a->rows)
        return ts_fail_nomem(err, "an analysis", x->n_layers * sizeof *a->rows);
    for (uint32_t i = 0; i < x->n_layers && rc == TS_OK; i++)
        if (x->layers[i].n_experts)
            rc = fill_row(&a->rows[a->n++], &x->layers[i], (int32_t)i, err);
    fill_mean(a);
    return rc;
}

void ts_expert_analysis_free(ts_expert_analysis *a) {
    free(a->rows);
    *a = (ts_expert_analysis){0};
}

/* ---- print */

static void add_cell(ts_buf *b, int width, double x) {
    if (isnan(x))
        ts_buf_printf(b, "%*s", width, "-");
    else
        ts_buf_printf(b, "%*.1f", width, x);
}

static void add_line(ts_buf *b, const ts_expert_row *r) {
    if (r->block < 0)
        ts_buf_printf(b, "%5s%8s%7s%7s%8s", "mean", "", "", "", "");
    else
        ts_buf_printf(b, "%5d%8" PRIu32 "%7" PRIu32 "%7" PRIu32 "%8" PRIu64, r->block, r->n_experts, r->width, r->seen, r->fewest);
    add_cell(b, 9, r->rows);
    if (r->block < 0)
        ts_buf_printf(b, "%8s", "");
    else
        ts_buf_printf(b, "%8" PRIu64, r->most);
    for (int i = 0; i < TS_EXPERT_SHARES; i++)
        add_cell(b, 9, r->percent[i]);
    ts_buf_text(b, "\n");
}

void ts_expert_text(ts_buf *b, const ts_expert_analysis *a) {
    ts_buf_printf(b,
                  "\ninside the experts, %" PRIu64 " pass%s: neurons that hold a share of an expert's mass, in %%\n"
                  "of its width, mean over the experts seen; rows that chose such an expert\n",
                  a->decode_passes, a->decode_passes == 1 ? "" : "es");
    ts_buf_printf(b, "%5s%8s%7s%7s%8s%9s%8s%9s%9s%9s\n", "BLOCK", "EXPERTS", "WIDTH", "SEEN", "FEWEST", "ROWS", "MOST", "N50", "N90",
                  "N95");
    for (size_t i = 0; i < a->n; i++)
        add_line(b, &a->rows[i]);
    add_line(b, &a->mean);
}

static void add_number(ts_buf *b, const char *key, double x) {
    if (isnan(x))
        ts_buf_printf(b, "\"%s\": null", key);
    else
        ts_buf_printf(b, "\"%s\": %.9g", key, x);
}

static void add_object(ts_buf *b, const ts_expert_row *r) {
    char key[32];

    ts_buf_text(b, "{");
    if (r->block >= 0)
        ts_buf_printf(b,
                      "\"block\": %d, \"experts\": %" PRIu32 ", \"width\": %" PRIu32 ", \"seen\": %" PRIu32 ", \"rows_fewest\": %" PRIu64
                      ", \"rows_most\": %" PRIu64 ", ",
                      r->block, r->n_experts, r->width, r->seen, r->fewest, r->most);
    add_number(b, "rows_mean", r->rows);
    for (int i = 0; i < TS_EXPERT_SHARES; i++) {
        ts_buf_text(b, ", ");
        snprintf(key, sizeof key, "n%u", shares[i]);
        add_number(b, key, r->n[i]);
        ts_buf_text(b, ", ");
        snprintf(key, sizeof key, "n%u_percent", shares[i]);
        add_number(b, key, r->percent[i]);
    }
    ts_buf_text(b, "}");
}

void ts_expert_json(ts_buf *b, const ts_expert_analysis *a) {
    ts_buf_printf(b, ",\n\"experts\": {\"decode_passes\": %" PRIu64 ", \"mean\":\n", a->decode_passes);
    add_object(b, &a->mean);
    ts_buf_text(b, ",\n\"blocks\": [");
    for (size_t i = 0; i < a->n; i++) {
        ts_buf_text(b, i ? ",\n" : "\n");
        add_object(b, &a->rows[i]);
    }
    ts_buf_text(b, "\n]}");
}
