/* Owns the tables and the JSON of a routing census' figures: lines under 80 columns but those that hold a path. Refuses to
 * compute a figure. */
#include "instrument/analyze_router.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/plural.h"
#include "core/utf8.h"
#include "store/meta.h"

static const char *const policies[TS_CACHE_POLICIES] = {"lru", "lfu", "belady"};

/* ---- text */

static void add_cell(ts_buf *b, double x, int width, int decimals) {
    if (isnan(x))
        ts_buf_printf(b, "%*s", width, "-");
    else
        ts_buf_printf(b, "%*.*f", width, decimals, x);
}

typedef struct pair {
    const char *head;
    int column, decimals;
} pair;

static void add_line(ts_buf *b, const ts_route_row *row, const pair *pairs, size_t n) {
    if (row->block < 0)
        ts_buf_printf(b, "%5s", "MEAN");
    else
        ts_buf_printf(b, "%5d", row->block);
    for (size_t i = 0; i < n; i++) {
        add_cell(b, row->value[pairs[i].column], 9, pairs[i].decimals);
        add_cell(b, row->uniform[pairs[i].column], 8, pairs[i].decimals < 1 ? 1 : pairs[i].decimals);
    }
    ts_buf_text(b, "\n");
}

static void add_table(ts_buf *b, const ts_route_analysis *a, const char *title, const pair *pairs, size_t n) {
    ts_buf_printf(b, "\n%s\n%5s", title, "BLOCK");
    for (size_t i = 0; i < n; i++)
        ts_buf_printf(b, "%9s%8s", pairs[i].head, "UNIFORM");
    ts_buf_text(b, "\n");
    for (size_t i = 0; i < a->n; i++)
        add_line(b, &a->rows[i], pairs, n);
    add_line(b, &a->mean, pairs, n);
}

/* Names come out of files: what a terminal would act on is shown as '?'. */
static void add_plain(ts_buf *b, const char *text) {
    size_t n = ts_utf8_complete(text, strlen(text));

    for (size_t i = 0; i < n; i++) {
        char c = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];

        ts_buf_add(b, &c, 1);
    }
}

static void add_sources(ts_buf *b, const ts_router *r) {
    for (size_t i = 0; i < r->n_sources && i < 8; i++) {
        ts_buf_text(b, "  '");
        add_plain(b, r->sources[i].path);
        ts_buf_printf(b, "': %" PRIu64 " row%s%s\n", r->sources[i].rows, ts_plural(r->sources[i].rows), r->sources[i].partial ? ", partial" : "");
    }
    if (r->n_sources > 8)
        ts_buf_printf(b, "  and %zu more\n", r->n_sources - 8);
}

static void add_notes(ts_buf *b, const ts_router *r) {
    uint64_t duplicates = 0, prefill = 0, decode = 0;

    for (uint32_t i = 0; i < r->n_layers; i++) {
        duplicates += r->layers[i].duplicates;
        prefill += r->layers[i].rows[0];
        decode += r->layers[i].rows[1];
    }
    if (r->split)
        ts_buf_printf(b, "%" PRIu64 " generation%s; rows of all blocks: %" PRIu64 " prefill, %" PRIu64 " decode\n", r->n_generations,
                      ts_plural(r->n_generations), prefill, decode);
    if (duplicates)
        ts_buf_printf(b, "%" PRIu64 " slot%s an expert of %s token\n", duplicates, duplicates == 1 ? " repeats" : "s repeat", duplicates == 1 ? "its" : "their");
    if (!r->traced)
        ts_buf_text(b, "no trace: nothing on halves, overlaps, windows and caches\n");
    else if (!r->bounded)
        ts_buf_text(b, "the trace does not say where generations end: tokens are paired across them\n");
}

static void add_head(ts_buf *b, const ts_route_analysis *a) {
    const ts_router *r = a->router;

    ts_buf_text(b, "routing census");
    if (r->provenance) {
        ts_buf_text(b, " of '");
        add_plain(b, r->provenance->name);
        ts_buf_text(b, "' (");
        add_plain(b, r->provenance->architecture);
        ts_buf_text(b, ")");
    }
    ts_buf_printf(b, ", %zu of %" PRIu32 " block%s with experts\n", a->n, r->n_layers, ts_plural(r->n_layers));
    if (!a->diffable)
        add_sources(b, r);
    add_notes(b, r);
}

static void add_shapes(ts_buf *b, const ts_route_analysis *a) {
    ts_buf_printf(b, "\nShape\n%5s%9s%8s%8s%12s%12s\n", "BLOCK", "EXPERTS", "TOP-K", "HOT", "ROWS", "DUPLICATES");
    for (size_t i = 0; i < a->n; i++) {
        const ts_route_row *row = &a->rows[i];

        ts_buf_printf(b, "%5d%9" PRIu32 "%8" PRIu32 "%8" PRIu32 "%12" PRIu64 "%12" PRIu64 "\n", row->block, row->n_experts,
                      row->top_k, row->hot_size, row->rows, row->duplicates);
    }
}

static void add_cache_line(ts_buf *b, const ts_route_row *row, int c) {
    if (row->block < 0)
        ts_buf_printf(b, "%5s%8u%%", "MEAN", ts_route_percent[c]);
    else
        ts_buf_printf(b, "%5d%9" PRIu32, row->block, row->slots[c]);
    for (int p = 0; p < TS_CACHE_POLICIES; p++) {
        add_cell(b, 100 * row->rate[c][p], 9, 1);
        add_cell(b, 100 * row->uniform_rate[c][p], 8, 1);
    }
    ts_buf_text(b, "\n");
}

static void add_caches(ts_buf *b, const ts_route_analysis *a) {
    ts_buf_printf(b, "\nHits of a cache of so many experts, %% of the uses that are no first use\n%5s%9s", "BLOCK", "SLOTS");
    ts_buf_printf(b, "%9s%8s%9s%8s%9s%8s\n", "LRU", "UNIFORM", "LFU", "UNIFORM", "BELADY", "UNIFORM");
    for (size_t i = 0; i < a->n; i++)
        for (int c = 0; c < TS_ROUTE_CAPACITIES; c++)
            add_cache_line(b, &a->rows[i], c);
    for (int c = 0; c < TS_ROUTE_CAPACITIES; c++)
        add_cache_line(b, &a->mean, c);
}

void ts_route_text(ts_buf *b, const ts_route_analysis *a) {
    static const pair cover[] = {{"N95", TS_ROUTE_N95, 0}, {"N99", TS_ROUTE_N99, 0}, {"UNUSED", TS_ROUTE_UNUSED, 0}};
    static const pair spread[] = {{"GINI", TS_ROUTE_GINI, 3}, {"ENTROPY", TS_ROUTE_ENTROPY, 3}, {"SPLIT", TS_ROUTE_SPLIT, 3}};
    static const pair overlap[] = {{"LAG 1", TS_ROUTE_LAG1, 3}, {"LAG 8", TS_ROUTE_LAG8, 3}};
    static const pair windows[] = {{"2", TS_ROUTE_W2, 2}, {"4", TS_ROUTE_W4, 2}, {"8", TS_ROUTE_W8, 2}, {"16", TS_ROUTE_W16, 2}};
    static const pair jaccard[] = {{"JACCARD", TS_ROUTE_JACCARD, 3}};

    add_head(b, a);
    add_shapes(b, a);
    add_table(b, a, "Experts that hold 95 % and 99 % of the slots, and those never used", cover, 3);
    add_table(b, a, "Spread; SPLIT: share of the first half's hot set that the second half has", spread, 3);
    if (a->router->traced) {
        add_table(b, a, "Share of a token's experts that the token so many before it has", overlap, 2);
        add_table(b, a, "Different experts in windows of so many tokens", windows, 4);
        add_caches(b, a);
    }
    if (a->against)
        add_table(b, a, "Hot sets of the two groups", jaccard, 1);
}

/* ---- JSON */

static void add_number(ts_buf *b, double x) {
    if (isnan(x))
        ts_buf_text(b, "null");
    else
        ts_buf_printf(b, "%.9g", x);
}

static void add_both(ts_buf *b, const char *name, double value, double uniform_value) {
    ts_buf_printf(b, "\"%s\": {\"value\": ", name);
    add_number(b, value);
    ts_buf_text(b, ", \"uniform\": ");
    add_number(b, uniform_value);
    ts_buf_text(b, "}");
}

static void add_json_caches(ts_buf *b, const ts_route_row *row) {
    ts_buf_text(b, ", \"cache\": [");
    for (int c = 0; c < TS_ROUTE_CAPACITIES; c++) {
        ts_buf_printf(b, "%s{\"percent\": %u", c ? ", " : "", ts_route_percent[c]);
        if (row->block >= 0)
            ts_buf_printf(b, ", \"slots\": %" PRIu32, row->slots[c]);
        for (int p = 0; p < TS_CACHE_POLICIES; p++) {
            ts_buf_text(b, ", ");
            add_both(b, policies[p], row->rate[c][p], row->uniform_rate[c][p]);
        }
        ts_buf_text(b, "}");
    }
    ts_buf_text(b, "]");
}

static void add_json_row(ts_buf *b, const ts_route_row *row, bool traced, bool against) {
    ts_buf_text(b, "{");
    if (row->block >= 0)
        ts_buf_printf(b,
                      "\"block\": %d, \"experts\": %" PRIu32 ", \"top_k\": %" PRIu32 ", \"hot\": %" PRIu32 ", \"rows\": %" PRIu64
                      ", \"duplicates\": %" PRIu64 ", ",
                      row->block, row->n_experts, row->top_k, row->hot_size, row->rows, row->duplicates);
    for (int i = 0; i < TS_ROUTE_COLUMNS; i++) {
        if ((i >= TS_ROUTE_SPLIT && i < TS_ROUTE_JACCARD && !traced) || (i == TS_ROUTE_JACCARD && !against))
            continue;
        ts_buf_text(b, i ? ", " : "");
        add_both(b, ts_route_names[i], row->value[i], row->uniform[i]);
    }
    if (traced)
        add_json_caches(b, row);
    ts_buf_text(b, "}");
}

static void add_json_model(ts_buf *b, const ts_provenance *p) {
    char hash[33];

    if (!p) {
        ts_buf_text(b, "null");
        return;
    }
    ts_meta_model_hash(p, hash);
    ts_buf_text(b, "{\"architecture\": ");
    ts_buf_json_string(b, p->architecture, strlen(p->architecture));
    ts_buf_text(b, ", \"name\": ");
    ts_buf_json_string(b, p->name, strlen(p->name));
    ts_buf_printf(b, ", \"xxh3_128\": \"%s\"}", hash);
}

static void add_json_head(ts_buf *b, const ts_route_analysis *a) {
    const ts_router *r = a->router;

    ts_buf_text(b, "{\"kind\": \"router-analysis\", \"format_version\": 1, \"model\": ");
    add_json_model(b, r->provenance);
    ts_buf_text(b, ", ");
    if (!a->diffable) {
        ts_buf_text(b, "\"files\": [");
        for (size_t i = 0; i < r->n_sources; i++) {
            ts_buf_text(b, i ? ", " : "");
            ts_buf_json_string(b, r->sources[i].path, strlen(r->sources[i].path));
        }
        ts_buf_text(b, "], ");
    }
    ts_buf_printf(b, "\"layers\": %" PRIu32 ", \"generations\": %" PRIu64 ", \"traced\": %s, \"bounded\": %s, \"partial\": %s", r->n_layers,
                  r->n_generations, r->traced ? "true" : "false", r->bounded ? "true" : "false", r->partial ? "true" : "false");
}

void ts_route_json(ts_buf *b, const ts_route_analysis *a) {
    add_json_head(b, a);
    ts_buf_text(b, ", \"blocks\": [");
    for (size_t i = 0; i < a->n; i++) {
        ts_buf_text(b, i ? ",\n  " : "\n  ");
        add_json_row(b, &a->rows[i], a->router->traced, a->against != NULL);
    }
    ts_buf_text(b, "\n], \"mean\": ");
    add_json_row(b, &a->mean, a->router->traced, a->against != NULL);
    ts_buf_text(b, "}\n");
}
