/* Owns the JSON face of an analysis: the same figures, unrounded, keys as the man page lists them. */
#include "instrument/analyze.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const column_keys[TS_N_COLUMNS] = {
    "width", "rows", "n50", "n90", "n95", "n99", "n50_percent", "n90_percent", "n95_percent", "n99_percent",
    "elements_below_1e-3", "elements_below_1e-2", "elements_below_1e-1", "mass_below_1e-3", "mass_below_1e-2",
    "mass_below_1e-1", "elements_below_error", "mass_below_error", "zeros", "nonfinite", "max_abs", "t50", "t25_t50",
    "t40_t50", "t65_t50", "t90_t50", "t95_t50", "top_p_90", "top_p_95", "top_p_99", "overlap_512", "overlap_1024",
    "overlap_2048", "overlap_4096", "overlap_1_percent", "overlap_2_percent", "overlap_5_percent",
    "overlap_10_percent", "overlap_20_percent", "chance_512", "chance_1024", "chance_2048", "chance_4096",
    "chance_1_percent", "chance_2_percent", "chance_5_percent", "chance_10_percent", "chance_20_percent",
    "hot_bytes", "hot_block_bytes", "ffn_bytes", "down_blocks", "hot_down_blocks"};

static const char *const set_keys[TS_CENSUS_SETS] = {"512",       "1024",      "2048",       "4096",      "1_percent",
                                                     "2_percent", "5_percent", "10_percent", "20_percent"};
static const char *const policy_keys[TS_CACHE_POLICIES] = {"lru", "lfu", "belady"};

static void add_number(ts_buf *b, double x) {
    if (isnan(x))
        ts_buf_text(b, "null");
    else if (x == floor(x) && fabs(x) < 9e15)
        ts_buf_printf(b, "%.0f", x);
    else
        ts_buf_printf(b, "%.9g", x);
}

static void add_member(ts_buf *b, const char *before, const char *key, double x) {
    ts_buf_printf(b, "%s\"%s\": ", before, key);
    add_number(b, x);
}

static void add_string(ts_buf *b, const char *before, const char *key, const char *text) {
    ts_buf_printf(b, "%s\"%s\": ", before, key);
    if (text)
        ts_buf_json_string(b, text, strlen(text));
    else
        ts_buf_text(b, "null");
}

static void add_row(ts_buf *b, const ts_analyze_row *row) {
    ts_buf_text(b, "{");
    if (row->block >= 0)
        add_member(b, "", "block", row->block);
    for (int i = 0; i < TS_N_COLUMNS; i++)
        add_member(b, i || row->block >= 0 ? ", " : "", column_keys[i], row->value[i]);
    ts_buf_text(b, "}");
}

static void add_verdict(ts_buf *b, const ts_analyze_section *s) {
    static const char *const names[] = {"undecided", "plausible", "dead end"};
    ts_analyze_verdict v;

    ts_analyze_judge(s, &v);
    add_string(b, ",\n\"verdict\": {", "verdict", names[v.verdict]);
    add_member(b, ", ", "n95_percent", v.n95_percent);
    add_member(b, ", ", "overlap", v.overlap);
    add_member(b, ", ", "chance", v.chance);
    add_string(b, ", ", "overlap_set", v.set < 0 ? NULL : set_keys[v.set]);
    add_member(b, ", ", "n95_few", TS_VERDICT_N95_FEW);
    add_member(b, ", ", "n95_many", TS_VERDICT_N95_MANY);
    add_member(b, ", ", "overlap_high", TS_VERDICT_OVERLAP);
    add_member(b, ", ", "chance_times", TS_VERDICT_CHANCE);
    ts_buf_text(b, ", \"reasons\": [");
    for (size_t i = 0; i < v.n_why; i++) {
        ts_buf_text(b, i ? ", " : "");
        ts_buf_json_string(b, v.why[i], strlen(v.why[i]));
    }
    ts_buf_text(b, "]}");
}

static void add_section(ts_buf *b, const ts_analyze_section *s) {
    ts_buf_printf(b, ",\n\"%s\": {\"histogram\": \"%s\", \"mean\":\n", s->name, s->fine ? "fine" : "log2");
    add_row(b, &s->mean);
    ts_buf_text(b, ",\n\"blocks\": [");
    for (size_t i = 0; i < s->n; i++) {
        ts_buf_text(b, i ? ",\n" : "\n");
        add_row(b, &s->rows[i]);
    }
    ts_buf_text(b, "\n]");
    add_verdict(b, s);
    ts_buf_text(b, "}");
}

static void add_sources(ts_buf *b, const ts_census *c) {
    ts_buf_text(b, "\"files\": [");
    for (size_t i = 0; i < c->n_sources; i++) {
        const ts_census_source *s = &c->sources[i];

        add_string(b, i ? ",\n{" : "\n{", "path", s->path);
        ts_buf_printf(b, ", \"xxh3_128\": \"%s\", \"decode_passes\": %" PRIu64 ", \"partial\": %s}", s->xxh3,
                      s->decode_passes, s->partial ? "true" : "false");
    }
    ts_buf_text(b, "\n]");
}

static void add_head(ts_buf *b, const ts_analysis *a) {
    const ts_census *c = a->census;
    const ts_provenance *p = c->provenance;

    add_string(b, "{", "kind", "ffn-analysis");
    ts_buf_text(b, ", \"format_version\": 1,\n\"model\": ");
    if (p) {
        add_string(b, "{", "architecture", p->architecture);
        add_string(b, ", ", "name", p->name);
        add_string(b, ", ", "xxh3_128", p->n_shards && p->shards[0].xxh3[0] ? p->shards[0].xxh3 : NULL);
        ts_buf_text(b, "}");
    } else {
        ts_buf_text(b, "null");
    }
    ts_buf_printf(b,
                  ",\n\"layers\": %u, \"inter\": %u, \"decode_passes\": %" PRIu64 ", \"prefill_passes\": %" PRIu64
                  ", \"overlap_pairs\": %" PRIu64 ", \"detailed\": %s, \"partial\": %s",
                  c->n_layers, c->inter, c->decode_passes, c->prefill_passes, c->overlap_pairs,
                  c->detailed ? "true" : "false", c->partial ? "true" : "false");
    add_string(b, ",\n", "site_note", c->site_note);
    if (!a->diffable) {
        ts_buf_text(b, ",\n");
        add_sources(b, c);
    }
}

static void add_pair(ts_buf *b, const ts_analyze_pair *p) {
    ts_buf_text(b, "{");
    if (p->block >= 0)
        add_member(b, "", "block", p->block);
    add_member(b, p->block >= 0 ? ", " : "", "n95_percent_first", p->n95_percent[0]);
    add_member(b, ", ", "n95_percent_second", p->n95_percent[1]);
    add_member(b, ", ", "overlap_10_percent_first", p->overlap[0]);
    add_member(b, ", ", "overlap_10_percent_second", p->overlap[1]);
    add_member(b, ", ", "jaccard", p->jaccard);
    add_member(b, ", ", "jaccard_chance", p->chance);
    add_member(b, ", ", "mass_held", p->held);
    ts_buf_text(b, "}");
}

static void add_against(ts_buf *b, const ts_analysis *a) {
    ts_buf_printf(b, ",\n\"against\": {\"decode_passes\": %" PRIu64 ", ", a->against->decode_passes);
    if (!a->diffable) {
        add_sources(b, a->against);
        ts_buf_text(b, ", ");
    }
    ts_buf_text(b, "\"mean\":\n");
    add_pair(b, &a->pairs->mean);
    ts_buf_text(b, ",\n\"blocks\": [");
    for (size_t i = 0; i < a->pairs->n; i++) {
        ts_buf_text(b, i ? ",\n" : "\n");
        add_pair(b, &a->pairs->rows[i]);
    }
    ts_buf_text(b, "\n]}");
}

static void add_capacities(ts_buf *b, const ts_analyze_cache *c, int32_t block) {
    ts_buf_text(b, "\"capacities\": [");
    for (int i = 0; i < TS_N_CAPACITIES; i++) {
        ts_cache_line line = ts_analyze_cache_line(c, block, i);

        add_member(b, i ? ", {" : "{", "percent", ts_cache_percent[i]);
        add_member(b, ", ", "chance", line.chance);
        for (int p = 0; p < TS_CACHE_POLICIES; p++) {
            ts_buf_printf(b, ", \"%s\": {", policy_keys[p]);
            add_member(b, "", "hit_rate", line.rate[p]);
            add_member(b, ", ", "bytes_per_token", line.bytes[p]);
            ts_buf_text(b, "}");
        }
        ts_buf_text(b, "}");
    }
    ts_buf_text(b, "]");
}

static void add_cache(ts_buf *b, const ts_analyze_cache *c) {
    ts_cache_counts sum = ts_analyze_cache_sums(c);
    bool first = true;

    ts_buf_printf(b, ",\n\"cache\": {\"passes\": %" PRIu64 ", \"uses\": %" PRIu64 ", \"first_uses\": %" PRIu64, sum.passes,
                  sum.references, sum.compulsory);
    add_member(b, ", ", "bytes_per_token_uncached", ts_analyze_cache_bytes(c));
    ts_buf_text(b, ",\n");
    add_capacities(b, c, -1);
    ts_buf_text(b, ",\n\"blocks\": [");
    for (uint32_t il = 0; il < c->n_layers; il++) {
        const ts_cache_counts *one = c->replays[il] ? ts_cache_replay_counts(c->replays[il]) : NULL;

        if (!one)
            continue;
        ts_buf_printf(b, "%s{\"block\": %u, \"uses\": %" PRIu64 ", \"first_uses\": %" PRIu64, first ? "\n" : ",\n", il,
                      one->references, one->compulsory);
        add_member(b, ", ", "bytes_per_neuron", c->bytes_per_neuron[il]);
        ts_buf_text(b, ", ");
        add_capacities(b, c, (int32_t)il);
        ts_buf_text(b, "}");
        first = false;
    }
    ts_buf_text(b, "\n]}");
}

void ts_analysis_json(ts_buf *b, const ts_analysis *a) {
    add_head(b, a);
    for (size_t i = 0; i < a->n_sections; i++)
        add_section(b, &a->sections[i]);
    if (a->experts)
        ts_expert_json(b, a->experts);
    if (a->pairs)
        add_against(b, a);
    if (a->cache)
        add_cache(b, a->cache);
    ts_buf_text(b, "}\n");
}
