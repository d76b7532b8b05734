/* Reports on FFN censuses, their traces and logits dumps. Refuses what their own readers refuse. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "store/census.h"
#include "store/expert.h"
#include "store/inspect_internal.h"
#include "store/logits_dump.h"
#include "store/trace.h"

static uint64_t sum_counts(const ts_census *c) {
    uint64_t n = 0;
    for (uint32_t il = 0; il < c->n_layers; il++)
        for (int b = 0; b < TS_CENSUS_BUCKETS; b++) n += c->dense[il].bucket_count[b];
    return n;
}

/* Slots counted in the .experts beside it. *there false without one. */
static int read_experts(const char *path, bool *there, uint64_t *rows, ts_error *err) {
    ts_experts x = {0};
    char *beside = ts_path_with_extension(path, "experts");
    struct stat st;
    int rc = beside ? TS_OK : ts_fail_nomem(err, "a path", strlen(path));
    *rows = 0;
    *there = beside && strcmp(beside, path) != 0 && stat(beside, &st) == 0;
    if (*there) rc = ts_experts_read(beside, &x, err);
    for (uint32_t i = 0; i < x.n_layers; i++) *rows += x.layers[i].top_k * x.decode_passes;
    ts_experts_free(&x);
    free(beside);
    return rc;
}

int ts_inspect_census(const char *path, ts_report *r, ts_error *err) {
    ts_census c;
    uint64_t zeros = 0, nonfinite = 0, expert_rows = 0;
    bool experts = false;
    int rc = ts_census_read(path, &c, NULL, err);
    if (rc != TS_OK) return rc;
    rc = read_experts(path, &experts, &expert_rows, err);
    if (rc != TS_OK) {
        ts_census_free(&c);
        return rc;
    }
    for (uint32_t il = 0; il < c.n_layers; il++) {
        zeros += c.dense[il].bucket_count[0];
        nonfinite += c.dense[il].bucket_count[TS_CENSUS_BUCKETS - 1];
    }
    ts_report_begin(r, "ffn", "FFN census", path);
    ts_report_int(r, "layers", c.n_layers);
    ts_report_int(r, "width", c.inter);
    ts_report_int(r, "decode_passes", (int64_t)c.decode_passes);
    ts_report_int(r, "prefill_passes", (int64_t)c.prefill_passes);
    ts_report_int(r, "overlap_pairs", (int64_t)c.overlap_pairs);
    ts_report_int(r, "activations", (int64_t)sum_counts(&c));
    ts_report_int(r, "zeros", (int64_t)zeros);
    ts_report_int(r, "nonfinite", (int64_t)nonfinite);
    ts_report_text(r, "detail", "%s", c.detailed ? "yes" : "no: made by another program, or .detail is missing");
    if (experts) ts_report_int(r, "expert_rows", (int64_t)expert_rows);
    ts_report_text(r, "partial", "%s", c.partial ? "yes" : "no");
    if (c.provenance) ts_report_text(r, "model", "%s '%s'", c.provenance->architecture, c.provenance->name);
    ts_report_line(r, "  'turbospark analyze' gives its tables and verdict");
    ts_report_end(r);
    ts_census_free(&c);
    return TS_OK;
}

int ts_inspect_trace(const char *path, ts_report *r, ts_error *err) {
    ts_trace_reader *reader = NULL;
    int rc = ts_trace_read(path, &reader, err);
    if (rc != TS_OK) return rc;
    const ts_trace_info *info = ts_trace_read_info(reader);
    ts_report_begin(r, "trace", "trace of an FFN census", path);
    ts_report_int(r, "layers", info->n_layers);
    ts_report_int(r, "passes", (int64_t)info->passes);
    ts_report_int(r, "generations", (int64_t)info->generations);
    ts_report_int(r, "bytes", (int64_t)info->bytes);
    ts_report_text(r, "model_hash", "%s", info->model);
    ts_report_line(r, "  'turbospark analyze --cache' replays it");
    ts_report_end(r);
    ts_trace_read_close(reader);
    return TS_OK;
}

int ts_inspect_logits(const char *path, ts_report *r, ts_error *err) {
    ts_logits_dump *d = NULL;
    char meta[4096];
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    int n = snprintf(meta, sizeof(meta), "%s/meta.json", path);
    if (folder && (n < 0 || (size_t)n >= sizeof(meta) || stat(meta, &st) != 0))
        return ts_fail(err, TS_ERR_IO, "'%s' is a folder without meta.json: expected a file, or the folder of a logits dump", path);
    int rc = ts_logits_open(path, true, &d, err);
    if (rc != TS_OK) return rc;
    ts_report_begin(r, "logits", "logits dump", path);
    ts_report_int(r, "rows", d->rows);
    ts_report_int(r, "vocab_size", d->vocab_size);
    ts_report_text(r, "dtype", "%s", d->dtype == TS_LOGITS_F16 ? "f16" : "f32");
    ts_report_int(r, "first_scored_position", d->first_scored_position);
    ts_report_int(r, "prompt_len", d->prompt_len);
    if (d->partial) ts_report_text(r, "partial", "yes: it was interrupted");
    if (d->model) ts_report_text(r, "model", "%s", d->model);
    ts_report_text(r, "checked", "%s", d->hash[0] ? "size and hash" : "size");
    ts_report_line(r, "  'turbospark kld' compares two of them");
    ts_report_end(r);
    ts_logits_close(d);
    return TS_OK;
}
