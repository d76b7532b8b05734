/* Owns the tables: every line under 80 columns but those that hold a path. Refuses to compute a figure. */
#include "instrument/analyze.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/plural.h"
#include "core/utf8.h"

enum { TEXT_WIDTH = 79, SOURCES_SHOWN = 8 };

enum cell_kind { CELL_COUNT, CELL_PLAIN, CELL_PERCENT, CELL_SHARE, CELL_RATIO, CELL_SMALL, CELL_KIB, CELL_MIB };

typedef struct cell {
    const char *head;
    enum cell_kind kind;
    int width, column;
} cell;

static void add_cell(ts_buf *b, enum cell_kind kind, int width, double x) {
    static const struct {
        const char *format;
        double factor;
    } kinds[] = {{"%*.0f", 1}, {"%*.1f", 1},  {"%*.1f", 100},         {"%*.3f", 1},
                 {"%*.3g", 1}, {"%*.2e", 1}, {"%*.0f", 1.0 / 1024}, {"%*.3f", 1.0 / (1 << 20)}};

    if (isnan(x)) {
        ts_buf_printf(b, "%*s", width, "-");
        return;
    }
    ts_buf_printf(b, kinds[kind].format, width, x * kinds[kind].factor);
}

static void add_row(ts_buf *b, const char *mean_name, const ts_analyze_row *row, const cell *cells, size_t n) {
    if (row->block < 0)
        ts_buf_printf(b, "%5s", mean_name);
    else
        ts_buf_printf(b, "%5d", row->block);
    for (size_t i = 0; i < n; i++)
        add_cell(b, cells[i].kind, cells[i].width, row->value[cells[i].column]);
    ts_buf_text(b, "\n");
}

static void add_table(ts_buf *b, const ts_analyze_section *s, const char *title, const char *mean_name,
                      const cell *cells, size_t n) {
    ts_buf_printf(b, "\n%s\n%5s", title, "BLOCK");
    for (size_t i = 0; i < n; i++)
        ts_buf_printf(b, "%*s", cells[i].width, cells[i].head);
    ts_buf_text(b, "\n");
    for (size_t i = 0; i < s->n; i++)
        add_row(b, mean_name, &s->rows[i], cells, n);
    add_row(b, mean_name, &s->mean, cells, n);
}

/* Bytes up to the next place to break: a space, but none before a percent sign. */
static size_t word_length(const char *text) {
    size_t n = strcspn(text, " ");

    while (text[n] == ' ' && text[n + 1] == '%')
        n += 1 + strcspn(text + n + 1, " ");
    return n;
}

/* Lines after the first are indented. */
static void add_wrapped(ts_buf *b, const char *first, const char *text) {
    size_t column = strlen(first);
    bool fresh = true;

    ts_buf_text(b, first);
    while (*text) {
        size_t n = word_length(text);

        if (!fresh && column + 1 + n > TEXT_WIDTH) {
            ts_buf_text(b, "\n  ");
            column = 2;
        } else if (!fresh) {
            ts_buf_text(b, " ");
            column++;
        }
        ts_buf_add(b, text, n);
        column += n;
        text += n + (text[n] == ' ');
        fresh = false;
    }
    ts_buf_text(b, "\n");
}

/* Names come out of files: what a terminal would act on is shown as '?'. */
static void add_plain(ts_buf *b, const char *text, size_t most) {
    size_t n = strlen(text);

    if (n > most)
        n = ts_utf8_complete(text, most);
    for (size_t i = 0; i < n; i++) {
        char c = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];

        ts_buf_add(b, &c, 1);
    }
}

static void add_sources(ts_buf *b, const ts_census *c) {
    for (size_t i = 0; i < c->n_sources && i < SOURCES_SHOWN; i++) {
        const ts_census_source *s = &c->sources[i];

        ts_buf_text(b, "  '");
        add_plain(b, s->path, SIZE_MAX);
        ts_buf_printf(b, "': %" PRIu64 " pass%s%s\n", s->decode_passes, s->decode_passes == 1 ? "" : "es", s->partial ? ", partial" : "");
    }
    if (c->n_sources > SOURCES_SHOWN)
        ts_buf_printf(b, "  and %zu more\n", c->n_sources - SOURCES_SHOWN);
}

static void add_head(ts_buf *b, const ts_analysis *a) {
    const ts_census *c = a->census;

    if (c->provenance) {
        ts_buf_text(b, "FFN census of '");
        add_plain(b, c->provenance->name, 30);
        ts_buf_text(b, "' (");
        add_plain(b, c->provenance->architecture, 12);
        ts_buf_printf(b, "), %u block%s, %u wide\n", c->n_layers, ts_plural(c->n_layers), c->inter);
    } else {
        ts_buf_printf(b, "FFN census (no .meta: model unknown), %u block%s, %u wide\n", c->n_layers, ts_plural(c->n_layers), c->inter);
    }
    ts_buf_printf(b, "passes %" PRIu64 ", pairs of consecutive passes %" PRIu64 ", prompt tokens left out %" PRIu64 "\n",
                  c->decode_passes, c->overlap_pairs, c->prefill_passes);
    if (!a->diffable)
        add_sources(b, c);
    if (c->site_note)
        add_wrapped(b, "note: ", c->site_note);
    if (c->partial)
        ts_buf_text(b, "partial: a run that made it was interrupted\n");
    if (!c->detailed)
        add_wrapped(b, "", "no .detail: masses have six digits; overlap at shares of the width, per-token shares and "
                           "the working set are not known");
}

static void add_coverage(ts_buf *b, const ts_analyze_section *s) {
    static const cell cells[] = {
        {"WIDTH", CELL_COUNT, 8, TS_COL_WIDTH}, {"N50", CELL_COUNT, 9, TS_COL_N50},
        {"%", CELL_PLAIN, 6, TS_COL_N50_PERCENT}, {"N90", CELL_COUNT, 9, TS_COL_N90},
        {"%", CELL_PLAIN, 6, TS_COL_N90_PERCENT}, {"N95", CELL_COUNT, 9, TS_COL_N95},
        {"%", CELL_PLAIN, 6, TS_COL_N95_PERCENT}, {"N99", CELL_COUNT, 9, TS_COL_N99},
        {"%", CELL_PLAIN, 6, TS_COL_N99_PERCENT},
    };

    add_table(b, s, "fewest neurons that hold 50, 90, 95, 99 % of the mass, and in % of the width", "mean", cells,
              sizeof cells / sizeof cells[0]);
}

static void add_thresholds(ts_buf *b, const ts_analyze_section *s) {
    static const cell cells[] = {
        {"E<1e-3", CELL_PERCENT, 8, TS_COL_ELEMENTS}, {"E<1e-2", CELL_PERCENT, 8, TS_COL_ELEMENTS + 1},
        {"E<1e-1", CELL_PERCENT, 8, TS_COL_ELEMENTS + 2}, {"M<1e-3", CELL_PERCENT, 8, TS_COL_MASS},
        {"M<1e-2", CELL_PERCENT, 8, TS_COL_MASS + 1}, {"M<1e-1", CELL_PERCENT, 8, TS_COL_MASS + 2},
        {"ZERO", CELL_PERCENT, 8, TS_COL_ZEROS}, {"P90", CELL_PERCENT, 6, TS_COL_TOP_P},
        {"P95", CELL_PERCENT, 6, TS_COL_TOP_P + 1}, {"P99", CELL_PERCENT, 6, TS_COL_TOP_P + 2},
    };

    add_table(b, s,
              "in %: elements and mass under a magnitude, exact zeros; neurons that hold 90,\n"
              "95, 99 % of a token's L1",
              "mean", cells, sizeof cells / sizeof cells[0]);
    if (!isnan(s->mean.value[TS_COL_ELEMENTS_ERROR]) && !isnan(s->mean.value[TS_COL_MASS_ERROR]))
        ts_buf_printf(b, "%s; off by at most %.2g points (elements), %.2g (mass)\n",
                      s->fine ? "thresholds fall inside bins" : "interpolated in log2 buckets",
                      100 * s->mean.value[TS_COL_ELEMENTS_ERROR], 100 * s->mean.value[TS_COL_MASS_ERROR]);
}

static void add_quantiles(ts_buf *b, const ts_analyze_section *s) {
    static const cell cells[] = {
        {"T50", CELL_SMALL, 10, TS_COL_T50}, {"T25/T50", CELL_RATIO, 9, TS_COL_RATIO},
        {"T40/T50", CELL_RATIO, 9, TS_COL_RATIO + 1}, {"T65/T50", CELL_RATIO, 9, TS_COL_RATIO + 2},
        {"T90/T50", CELL_RATIO, 9, TS_COL_RATIO + 3}, {"T95/T50", CELL_RATIO, 9, TS_COL_RATIO + 4},
        {"MAX", CELL_SMALL, 10, TS_COL_MAX}, {"NAN,INF", CELL_COUNT, 9, TS_COL_NONFINITE},
    };

    add_table(b, s, s->fine ? "quantiles of |a|, to 1.6 %" : "quantiles of |a|, from log2 buckets: to a factor of 2",
              "mean", cells, sizeof cells / sizeof cells[0]);
}

static void add_overlap(ts_buf *b, const ts_analyze_section *s) {
    static const cell shares[] = {
        {"1 %", CELL_SHARE, 8, TS_COL_OVERLAP + 4}, {"chance", CELL_SHARE, 7, TS_COL_CHANCE + 4},
        {"2 %", CELL_SHARE, 8, TS_COL_OVERLAP + 5}, {"chance", CELL_SHARE, 7, TS_COL_CHANCE + 5},
        {"5 %", CELL_SHARE, 7, TS_COL_OVERLAP + 6}, {"chance", CELL_SHARE, 7, TS_COL_CHANCE + 6},
        {"10 %", CELL_SHARE, 7, TS_COL_OVERLAP + 7}, {"chance", CELL_SHARE, 7, TS_COL_CHANCE + 7},
        {"20 %", CELL_SHARE, 7, TS_COL_OVERLAP + 8}, {"chance", CELL_SHARE, 7, TS_COL_CHANCE + 8},
    };
    static const cell fixed[] = {
        {"K=512", CELL_SHARE, 9, TS_COL_OVERLAP},  {"chance", CELL_SHARE, 7, TS_COL_CHANCE},
        {"1024", CELL_SHARE, 9, TS_COL_OVERLAP + 1}, {"chance", CELL_SHARE, 7, TS_COL_CHANCE + 1},
        {"2048", CELL_SHARE, 9, TS_COL_OVERLAP + 2}, {"chance", CELL_SHARE, 7, TS_COL_CHANCE + 2},
        {"4096", CELL_SHARE, 9, TS_COL_OVERLAP + 3}, {"chance", CELL_SHARE, 7, TS_COL_CHANCE + 3},
    };

    if (s->fine)
        add_table(b, s, "share of a pass's top K that is in the next pass's, K in % of the width", "mean", shares,
                  sizeof shares / sizeof shares[0]);
    add_table(b, s, "share of a pass's top K that is in the next pass's (a K over the width: all)", "mean", fixed,
              sizeof fixed / sizeof fixed[0]);
}

static void add_working_set(ts_buf *b, const ts_analyze_section *s) {
    static const cell cells[] = {
        {"KIB", CELL_KIB, 11, TS_COL_HOT_BYTES},
        {"BLOCKS", CELL_COUNT, 9, TS_COL_HOT_DOWN_BLOCKS},
        {"OF", CELL_COUNT, 8, TS_COL_DOWN_BLOCKS},
        {"KIB", CELL_KIB, 11, TS_COL_HOT_BLOCK_BYTES},
        {"FFN KIB", CELL_KIB, 11, TS_COL_FFN_BYTES},
    };
    const double *sum = s->mean.value;

    if (isnan(sum[TS_COL_FFN_BYTES]))
        return;
    add_table(b, s,
              "weights of the n95 hot set: by neuron (rows of gate and up, columns of down);\n"
              "with the whole quantisation blocks of down that its columns lie in",
              "sum", cells, sizeof cells / sizeof cells[0]);
    ts_buf_printf(b, "%.1f %% of the FFN's bytes by neuron, %.1f %% with whole blocks\n",
                  100 * sum[TS_COL_HOT_BYTES] / sum[TS_COL_FFN_BYTES],
                  100 * sum[TS_COL_HOT_BLOCK_BYTES] / sum[TS_COL_FFN_BYTES]);
}

static void add_verdict(ts_buf *b, const ts_analyze_section *s) {
    ts_analyze_verdict v;

    ts_analyze_judge(s, &v);
    ts_buf_printf(b, "\nverdict: %s\n", ts_verdict_name(v.verdict));
    for (size_t i = 0; i < v.n_why; i++)
        add_wrapped(b, "- ", v.why[i]);
}

static void add_pair(ts_buf *b, const ts_analyze_pair *p) {
    const double shares[] = {p->overlap[0], p->overlap[1], p->jaccard, p->chance, p->held};

    if (p->block < 0)
        ts_buf_printf(b, "%5s", "mean");
    else
        ts_buf_printf(b, "%5d", p->block);
    add_cell(b, CELL_PLAIN, 9, p->n95_percent[0]);
    add_cell(b, CELL_PLAIN, 9, p->n95_percent[1]);
    for (int i = 0; i < 5; i++)
        add_cell(b, CELL_SHARE, 9, shares[i]);
    ts_buf_text(b, "\n");
}

static void add_pairs(ts_buf *b, const ts_analysis *a) {
    ts_buf_printf(b, "\ncompared with %" PRIu64 " pass%s%s\n", a->against->decode_passes, a->against->decode_passes == 1 ? "" : "es", a->diffable ? "" : " of");
    if (!a->diffable)
        add_sources(b, a->against);
    ts_buf_printf(b,
                  "n95 in %% of the width and overlap at 10 %%, first and second; the n95 hot sets'\n"
                  "Jaccard index, its chance level, and the second's mass in the first's hot set\n"
                  "%5s%9s%9s%9s%9s%9s%9s%9s\n",
                  "BLOCK", "N95 1st", "2nd", "OVLP 1st", "2nd", "JACCARD", "chance", "HELD");
    for (size_t i = 0; i < a->pairs->n; i++)
        add_pair(b, &a->pairs->rows[i]);
    add_pair(b, &a->pairs->mean);
}

static void add_cache(ts_buf *b, const ts_analyze_cache *c) {
    ts_cache_counts sum = ts_analyze_cache_sums(c);

    ts_buf_printf(b, "\nneuron cache: %" PRIu64 " pass%s replayed, %u", sum.passes, sum.passes == 1 ? "" : "es", c->fewest_ids);
    if (c->most_ids > c->fewest_ids)
        ts_buf_printf(b, " to %u", c->most_ids);
    ts_buf_printf(b, " neuron%s a pass and block\n", ts_plural(c->most_ids));
    ts_buf_printf(b, "first uses (compulsory misses, left out below): %" PRIu64 " of %" PRIu64 " uses, %.1f %%\n",
                  sum.compulsory, sum.references,
                  sum.references ? 100 * (double)sum.compulsory / (double)sum.references : 0.0);
    ts_buf_text(b, "without a cache: ");
    add_cell(b, CELL_MIB, 0, ts_analyze_cache_bytes(c));
    ts_buf_printf(b, " MiB a token\n%8s%9s%9s%9s%9s%11s%10s%10s\n%8s%9s%27s%31s\n", "CAPACITY", "CHANCE", "LRU", "LFU",
                  "BELADY", "LRU", "LFU", "BELADY", "% width", "", "hit rate", "MiB a token");
    for (int i = 0; i < TS_N_CAPACITIES; i++) {
        ts_cache_line line = ts_analyze_cache_line(c, -1, i);

        ts_buf_printf(b, "%8u", ts_cache_percent[i]);
        add_cell(b, CELL_SHARE, 9, line.chance);
        for (int p = 0; p < TS_CACHE_POLICIES; p++)
            add_cell(b, CELL_SHARE, 9, line.rate[p]);
        for (int p = 0; p < TS_CACHE_POLICIES; p++)
            add_cell(b, CELL_MIB, p ? 10 : 11, line.bytes[p]);
        ts_buf_text(b, "\n");
    }
    ts_buf_text(b, "control: with room for every neuron, all but first uses hit\n");
}

void ts_analysis_text(ts_buf *b, const ts_analysis *a) {
    add_head(b, a);
    for (size_t i = 0; i < a->n_sections; i++) {
        const ts_analyze_section *s = &a->sections[i];

        if (strcmp(s->name, "shared") == 0)
            ts_buf_text(b, "\nshared experts, in blocks that have a dense FFN too\n");
        add_coverage(b, s);
        add_thresholds(b, s);
        add_quantiles(b, s);
        add_overlap(b, s);
        add_working_set(b, s);
        add_verdict(b, s);
    }
    if (a->experts)
        ts_expert_text(b, a->experts);
    if (a->pairs)
        add_pairs(b, a);
    if (a->cache)
        add_cache(b, a->cache);
}
