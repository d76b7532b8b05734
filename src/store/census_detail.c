/* Owns the text of a .detail. Refuses nothing: the writer checked the census. */
#include "store/census_internal.h"

static void counts(ts_sink *s, const char *key, const uint64_t *values, size_t n) {
    ts_sink_printf(s, "\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        ts_sink_bytes(s, ",", i > 0);
        ts_sink_count(s, values[i]);
    }
    ts_sink_text(s, "],");
}

static void numbers(ts_sink *s, const char *key, const uint32_t *values, size_t n) {
    ts_sink_printf(s, "\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        ts_sink_bytes(s, ",", i > 0);
        ts_sink_count(s, values[i]);
    }
    ts_sink_text(s, "],");
}

static void amounts(ts_sink *s, const char *key, const double *values, size_t n) {
    ts_sink_printf(s, "\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        ts_sink_bytes(s, ",", i > 0);
        ts_sink_exact(s, values[i]);
    }
    ts_sink_text(s, "]");
}

static void count(ts_sink *s, const char *key, uint64_t value) {
    ts_sink_printf(s, "\"%s\":", key);
    ts_sink_count(s, value);
    ts_sink_text(s, ",");
}

static void quantiles(ts_sink *s, const ts_census_block *b) {
    static const int percents[] = {25, 40, 50, 65, 90, 95, 99};
    ts_sink_text(s, "\"quantiles\":{");
    for (size_t i = 0; i < sizeof percents / sizeof *percents; i++)
        ts_sink_printf(s, "\"t%d\":%.9g,", percents[i], ts_census_quantile(b, percents[i] / 100.0));
    ts_sink_printf(s, "\"max\":%.9g},", b->max_abs);
}

static void fine(ts_sink *s, const ts_census_block *b) {
    bool first = true;
    ts_sink_text(s, "\"fine\":[");
    for (uint32_t i = 0; i < TS_CENSUS_FINE_BINS; i++) {
        if (b->fine_count[i] == 0)
            continue;
        ts_sink_printf(s, "%s[%u,%llu,%.17g]", first ? "" : ",", (unsigned)i,
                       (unsigned long long)b->fine_count[i], b->fine_mass[i]);
        first = false;
    }
    ts_sink_text(s, "],");
}

static void block(ts_sink *s, const ts_census_block *b) {
    if (b->width == 0) {
        ts_sink_text(s, "null");
        return;
    }
    ts_sink_text(s, "{");
    count(s, "width", b->width);
    count(s, "n_rows", b->n_rows);
    count(s, "n_pairs", b->n_pairs);
    numbers(s, "k", b->k, TS_CENSUS_SETS);
    counts(s, "hits", b->hits, TS_CENSUS_SETS);
    counts(s, "top_p", b->top_p, TS_CENSUS_TOP_P);
    count(s, "zeros", b->zeros);
    count(s, "nonfinite", b->nonfinite);
    ts_sink_printf(s, "\"max_abs\":%.17g,", b->max_abs);
    quantiles(s, b);
    counts(s, "bucket_count", b->bucket_count, TS_CENSUS_BUCKETS);
    amounts(s, "bucket_mass", b->bucket_mass, TS_CENSUS_BUCKETS);
    ts_sink_text(s, ",");
    fine(s, b);
    amounts(s, "mass", b->mass, b->width);
    ts_sink_text(s, "}");
}

static void blocks(ts_sink *s, const char *key, const ts_census_block *b, uint32_t n) {
    ts_sink_printf(s, "\"%s\":", key);
    if (b == NULL) {
        ts_sink_text(s, "null");
        return;
    }
    ts_sink_text(s, "[\n");
    for (uint32_t i = 0; i < n; i++) {
        ts_sink_text(s, i ? ",\n" : "");
        block(s, &b[i]);
    }
    ts_sink_text(s, "\n]");
}

static void weights(ts_sink *s, const ts_census *c) {
    ts_sink_text(s, "\n\"weights\":{");
    counts(s, "gate_bytes", c->gate_bytes, c->n_layers);
    counts(s, "up_bytes", c->up_bytes, c->n_layers);
    counts(s, "down_bytes", c->down_bytes, c->n_layers);
    ts_sink_text(s, "\"down_block\":[");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        ts_sink_bytes(s, ",", i > 0);
        ts_sink_count(s, c->down_block[i]);
    }
    ts_sink_text(s, "]},\n");
}

void ts_census_put_detail(ts_sink *s, const ts_census *c, const ts_census_mark *json) {
    ts_sink_text(s, "{\"format_version\":1,\"kind\":\"ffn-detail\",\"of\":{\"file\":");
    ts_sink_string(s, json->file);
    ts_sink_printf(s, ",\"bytes\":%llu,\"xxh3_128\":\"%s\"},\n", (unsigned long long)json->bytes,
                   json->xxh3);
    count(s, "num_layers", c->n_layers);
    count(s, "inter", c->inter);
    count(s, "decode_passes", c->decode_passes);
    count(s, "prefill_passes", c->prefill_passes);
    count(s, "overlap_pairs", c->overlap_pairs);
    numbers(s, "fixed_k", ts_census_fixed_k, TS_CENSUS_FIXED);
    numbers(s, "share_percent", ts_census_share_percent, TS_CENSUS_SHARES);
    ts_sink_text(s, "\"top_p\":[0.9,0.95,0.99],");
    count(s, "fine_steps_per_octave", TS_CENSUS_FINE_STEPS);
    count(s, "fine_bins", TS_CENSUS_FINE_BINS);
    ts_sink_text(s, "\"site_note\":");
    ts_sink_string(s, c->site_note);
    ts_sink_text(s, ",");
    weights(s, c);
    blocks(s, "dense", c->dense, c->n_layers);
    ts_sink_text(s, ",\n");
    blocks(s, "shared", c->shared, c->n_layers);
    ts_sink_text(s, "}\n");
}
