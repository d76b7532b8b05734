/* What of a model's FFNs is counted, and where. Refuses a model without a dense or shared FFN. */
#include "instrument/ffn.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "instrument/ffn_batch.h"

/* ---- what the model has */

static void count_kinds(const ts_site_table *table, int32_t counts[TS_SITE_KIND_COUNT], const ts_site **refused) {
    for (size_t i = 0; i < table->n; i++) {
        const ts_site *site = &table->entries[i].pub;
        if (site->how != TS_HOW_REFUSED) counts[site->kind]++;
        else if (site->kind == TS_SITE_FFN && !*refused) *refused = site;
    }
}

static int refuse(const ts_session *s, ts_error *err) {
    int32_t counts[TS_SITE_KIND_COUNT] = {0};
    const ts_site *refused = NULL;
    const char *arch = s->model->architecture;
    count_kinds(&s->tap->table, counts, &refused);
    if (refused)
        return ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s' cannot be counted in block %d: %s", arch, refused->block, refused->why);
    if (counts[TS_SITE_EXPERTS])
        return ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s' has no dense FFN, it has experts in %d blocks: 'turbospark census' and 'turbospark router' count them",
                       arch, counts[TS_SITE_EXPERTS]);
    return ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s' has no dense FFN (no ffn_down in its graph)", arch);
}

static uint32_t usable_width(const ts_session *s, enum ts_site_kind kind, int32_t block) {
    const ts_site_entry *e = ts_sites_find(&s->tap->table, kind, block);
    return e && e->pub.how != TS_HOW_REFUSED && e->pub.width > 0 && e->pub.width <= TS_FFN_MAX_WIDTH ? (uint32_t)e->pub.width : 0;
}

/* Fills widths; returns whether anything is counted, and in *both whether some block has both FFNs. */
static bool find_widths(ts_ffn_census *c, bool *both) {
    bool any = false;
    *both = false;
    for (int32_t il = 0; il < c->n_layer; il++) {
        uint32_t dense = usable_width(c->session, TS_SITE_FFN, il), shared = usable_width(c->session, TS_SITE_FFN_SHEXP, il);
        c->dense_kind[il] = dense ? TS_SITE_FFN : TS_SITE_FFN_SHEXP;
        c->width[il] = dense ? dense : shared;
        c->shared_width[il] = dense ? shared : 0;
        any = any || c->width[il];
        *both = *both || c->shared_width[il];
    }
    return any;
}

/* A block whose ffn_down is there but cannot be tapped would silently be missing. */
static bool any_refused(const ts_session *s) {
    int32_t counts[TS_SITE_KIND_COUNT] = {0};
    const ts_site *refused = NULL;
    count_kinds(&s->tap->table, counts, &refused);
    return refused != NULL;
}

static bool has_experts(const ts_session *s) {
    int32_t counts[TS_SITE_KIND_COUNT] = {0};
    const ts_site *refused = NULL;
    count_kinds(&s->tap->table, counts, &refused);
    return counts[TS_SITE_EXPERTS] > 0;
}

static int open_census(ts_ffn_census *c, ts_session *s, uint32_t n_slots, bool beside, ts_error *err) {
    memset(c, 0, sizeof(*c));
    c->session = s;
    c->n_layer = llama_model_n_layer(s->model->llama);
    size_t n = (size_t)c->n_layer;
    c->width = ts_calloc(n, sizeof(*c->width));
    c->shared_width = ts_calloc(n, sizeof(*c->shared_width));
    c->dense_kind = ts_calloc(n, sizeof(*c->dense_kind));
    if (!c->width || !c->shared_width || !c->dense_kind) return ts_fail_nomem(err, "census", n * sizeof(*c->width));
    bool both = false;
    bool any = find_widths(c, &both) || (beside && has_experts(s));
    if (!any || any_refused(s)) return refuse(s, err);
    ts_ffn_options o = {.n_slots = n_slots, .n_workers = 1};
    int rc = ts_ffn_stats_create(&c->dense, c->width, (uint32_t)c->n_layer, &o);
    if (rc == 0 && both) rc = ts_ffn_stats_create(&c->shared, c->shared_width, (uint32_t)c->n_layer, &o);
    if (rc != 0) return ts_ffn_failed(rc, err);
    rc = ts_worker_create(ts_engine_cores() > s->opts.n_threads, &c->worker, err);
    return rc == TS_OK ? ts_ffn_batches_open(c, err) : rc;
}

int ts_ffn_census_open(ts_ffn_census *c, ts_session *s, uint32_t n_slots, ts_error *err) {
    return open_census(c, s, n_slots, false, err);
}

int ts_ffn_census_open_beside(ts_ffn_census *c, ts_session *s, uint32_t n_slots, ts_error *err) {
    return open_census(c, s, n_slots, true, err);
}

void ts_ffn_census_close(ts_ffn_census *c) {
    ts_worker_free(c->worker);
    ts_ffn_batches_close(c);
    ts_ffn_stats_free(c->dense);
    ts_ffn_stats_free(c->shared);
    free(c->width);
    free(c->shared_width);
    free(c->dense_kind);
    memset(c, 0, sizeof(*c));
}

void ts_ffn_census_prefill(ts_ffn_census *c, uint64_t n) {
    ts_ffn_note_prefill(c->dense, n);
    if (c->shared) ts_ffn_note_prefill(c->shared, n);
}

void ts_ffn_census_warn(const ts_ffn_census *c) {
    ts_ffn_place place;
    int64_t block = ts_ffn_first_nonfinite(c->dense, &place);
    if (block >= 0)
        ts_log(TS_LOG_WARN, "ffn-hist: values are not finite, first in block %lld, neuron %u: counted in bucket 63, in no mass",
               (long long)block, place.neuron);
}
