/* Counting what ffn_down reads: from graph runs to accumulators. The analysis of one run goes on beside the
 * computation of the next where a core is free, on a copy of its rows. Refuses a model without a dense or shared
 * FFN. */
#include "instrument/ffn.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"

/* The rows of one run, ready to be counted. */
struct ts_ffn_job {
    ts_ffn_census *census;
    int32_t n_tokens, capacity;
    int32_t *slots; /* [capacity] */
    bool *begins;   /* [capacity] */
    ts_rows *dense, *shared; /* [n_layer] */
};

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
        return ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s' has no dense FFN, it has experts in %d blocks: see 'turbospark router'",
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

static int stats_failed(int rc, ts_error *err) {
    if (rc == TS_FFN_ERR_MEMORY) return ts_fail(err, TS_ERR_NOMEM, "no memory for the census");
    if (rc == TS_FFN_ERR_FULL) return ts_fail(err, TS_ERR_STATE, "the census is full: a block reached its largest count");
    return ts_fail(err, TS_ERR_STATE, "the census refused a row (%d)", rc);
}

static int make_job(ts_ffn_census *c, ts_error *err) {
    c->job = ts_calloc(1, sizeof(*c->job));
    if (!c->job) return ts_fail_nomem(err, "census job", sizeof(*c->job));
    c->job->census = c;
    c->job->dense = ts_calloc((size_t)c->n_layer, sizeof(ts_rows));
    c->job->shared = ts_calloc((size_t)c->n_layer, sizeof(ts_rows));
    return c->job->dense && c->job->shared ? TS_OK : ts_fail_nomem(err, "census job", 0);
}

int ts_ffn_census_open(ts_ffn_census *c, ts_session *s, uint32_t n_slots, ts_error *err) {
    memset(c, 0, sizeof(*c));
    c->session = s;
    c->n_layer = llama_model_n_layer(s->model->llama);
    size_t n = (size_t)c->n_layer;
    c->width = ts_calloc(n, sizeof(*c->width));
    c->shared_width = ts_calloc(n, sizeof(*c->shared_width));
    c->dense_kind = ts_calloc(n, sizeof(*c->dense_kind));
    if (!c->width || !c->shared_width || !c->dense_kind) return ts_fail_nomem(err, "census", n * sizeof(*c->width));
    bool both = false;
    if (!find_widths(c, &both) || any_refused(s)) return refuse(s, err);
    ts_ffn_options o = {.n_slots = n_slots, .n_workers = 1};
    int rc = ts_ffn_stats_create(&c->dense, c->width, (uint32_t)c->n_layer, &o);
    if (rc == 0 && both) rc = ts_ffn_stats_create(&c->shared, c->shared_width, (uint32_t)c->n_layer, &o);
    if (rc != 0) return stats_failed(rc, err);
    rc = make_job(c, err);
    return rc == TS_OK ? ts_worker_create(ts_engine_cores() > s->opts.n_threads, &c->worker, err) : rc;
}

void ts_ffn_census_close(ts_ffn_census *c) {
    ts_worker_free(c->worker);
    if (c->job) {
        free(c->job->slots);
        free(c->job->begins);
        free(c->job->dense);
        free(c->job->shared);
    }
    free(c->job);
    ts_ffn_stats_free(c->dense);
    ts_ffn_stats_free(c->shared);
    free(c->width);
    free(c->shared_width);
    free(c->dense_kind);
    free(c->copy);
    memset(c, 0, sizeof(*c));
}

/* ---- one run */

/* Row of token t in `rows`: each block ran all tokens, or just the outputs, in ascending order. */
static const float *row_of(const ts_rows *rows, int32_t t) {
    int64_t low = 0, high = rows->n_rows - 1;
    while (low <= high) {
        int64_t mid = (low + high) / 2;
        if (rows->token_index[mid] == t) return rows->data + mid * rows->width;
        if (rows->token_index[mid] < t) low = mid + 1;
        else high = mid - 1;
    }
    return NULL;
}

static int count_block(ts_ffn_stats *stats, const ts_rows *rows, int32_t block, int32_t t, int32_t slot, ts_error *err) {
    const float *row = row_of(rows, t);
    if (!row) return ts_fail(err, TS_ERR_ENGINE, "block %d gave no FFN row for token %d of the run", block, t);
    int rc = ts_ffn_record_block(stats, 0, (uint32_t)slot, (uint32_t)block, row);
    return rc == 0 ? TS_OK : stats_failed(rc, err);
}

/* The ids of the pass just recorded, before it ends. */
static int trace_token(ts_ffn_census *c, uint32_t slot, bool first, ts_error *err) {
    int rc = ts_trace_begin(c->trace, slot, first, err);
    for (uint32_t il = 0; rc == TS_OK && il < (uint32_t)c->n_layer; il++) {
        const uint8_t *levels = c->width[il] ? ts_ffn_levels(c->dense, slot, il) : NULL;
        if (levels) rc = ts_trace_block(c->trace, il, levels, c->dense->blocks[il].rank[TS_FFN_N_FIXED + c->trace_share], err);
    }
    return rc == TS_OK ? ts_trace_end(c->trace, err) : rc;
}

static int count_token(ts_ffn_census *c, const struct ts_ffn_job *job, int32_t t, ts_error *err) {
    uint32_t slot = (uint32_t)job->slots[t];
    int rc = TS_OK;
    if (job->begins[t]) {
        ts_ffn_begin_generation(c->dense, slot);
        if (c->shared) ts_ffn_begin_generation(c->shared, slot);
    }
    for (int32_t il = 0; rc == TS_OK && il < c->n_layer; il++) {
        if (c->width[il]) rc = count_block(c->dense, &job->dense[il], il, t, (int32_t)slot, err);
        if (rc == TS_OK && c->shared_width[il]) rc = count_block(c->shared, &job->shared[il], il, t, (int32_t)slot, err);
    }
    if (rc == TS_OK && c->trace) rc = trace_token(c, slot, job->begins[t], err);
    if (rc != TS_OK) return rc;
    ts_ffn_end_pass(c->dense, slot);
    if (c->shared) ts_ffn_end_pass(c->shared, slot);
    return TS_OK;
}

static int count_run(void *user, ts_error *err) {
    struct ts_ffn_job *job = user;
    int rc = TS_OK;
    for (int32_t t = 0; rc == TS_OK && t < job->n_tokens; t++) rc = count_token(job->census, job, t, err);
    return rc;
}

static int reserve_tokens(struct ts_ffn_job *job, int32_t n, ts_error *err) {
    if (n <= job->capacity) return TS_OK;
    int32_t *slots = ts_realloc(job->slots, (size_t)n, sizeof(*slots));
    if (slots) job->slots = slots;
    bool *begins = ts_realloc(job->begins, (size_t)n, sizeof(*begins));
    if (begins) job->begins = begins;
    if (!slots || !begins) return ts_fail_nomem(err, "census job", (size_t)n * sizeof(*slots));
    job->capacity = n;
    return TS_OK;
}

static int find_rows(ts_ffn_census *c, const ts_run *run, size_t *floats, ts_error *err) {
    struct ts_ffn_job *job = c->job;
    int rc = TS_OK;
    *floats = 0;
    for (int32_t il = 0; rc == TS_OK && il < c->n_layer; il++) {
        if (c->width[il]) rc = ts_run_rows(run, c->dense_kind[il], il, &job->dense[il], err);
        if (rc == TS_OK && c->shared_width[il]) rc = ts_run_rows(run, TS_SITE_FFN_SHEXP, il, &job->shared[il], err);
        *floats += (size_t)(job->dense[il].n_rows * job->dense[il].width + job->shared[il].n_rows * job->shared[il].width);
    }
    return rc;
}

/* Of a run of one token, whose index in every block is 0. */
static float *copy_rows(ts_rows *rows, float *at) {
    static const int32_t only_token = 0;
    size_t n = (size_t)(rows->n_rows * rows->width);
    if (n) memcpy(at, rows->data, n * sizeof(float));
    rows->data = at;
    rows->token_index = &only_token;
    return at + n;
}

/* The next run overwrites the arena and the run's own arrays: what is counted beside it is counted from a copy. */
static int detach_rows(ts_ffn_census *c, size_t floats, ts_error *err) {
    if (floats > c->copy_floats) {
        float *grown = ts_realloc(c->copy, floats, sizeof(float));
        if (!grown) return ts_fail_nomem(err, "census rows", floats * sizeof(float));
        c->copy = grown;
        c->copy_floats = floats;
    }
    float *at = c->copy;
    for (int32_t il = 0; il < c->n_layer; il++) {
        at = copy_rows(&c->job->dense[il], at);
        at = copy_rows(&c->job->shared[il], at);
    }
    return TS_OK;
}

int ts_ffn_census_run(ts_ffn_census *c, const ts_run *run, const int32_t *slots, const bool *begins, ts_error *err) {
    struct ts_ffn_job *job = c->job;
    int32_t n = ts_run_n_tokens(run);
    size_t floats = 0;
    int rc = ts_worker_wait(c->worker, err); /* the job's memory is ours again */
    if (rc == TS_OK) rc = reserve_tokens(job, n, err);
    if (rc == TS_OK) rc = find_rows(c, run, &floats, err);
    if (rc != TS_OK) return rc;
    job->n_tokens = n;
    memcpy(job->slots, slots, (size_t)n * sizeof(*slots));
    for (int32_t t = 0; t < n; t++) job->begins[t] = begins && begins[t];
    if (!ts_worker_threaded(c->worker) || n > 1) return count_run(job, err);
    rc = detach_rows(c, floats, err);
    return rc == TS_OK ? ts_worker_submit(c->worker, count_run, job, err) : rc;
}

void ts_ffn_census_prefill(ts_ffn_census *c, uint64_t n) {
    ts_ffn_note_prefill(c->dense, n);
    if (c->shared) ts_ffn_note_prefill(c->shared, n);
}

int ts_ffn_census_wait(ts_ffn_census *c, ts_error *err) { return ts_worker_wait(c->worker, err); }

void ts_ffn_census_warn(const ts_ffn_census *c) {
    ts_ffn_place place;
    int64_t block = ts_ffn_first_nonfinite(c->dense, &place);
    if (block >= 0)
        ts_log(TS_LOG_WARN, "ffn-hist: values are not finite, first in block %lld, neuron %u: counted in bucket 63, in no mass",
               (long long)block, place.neuron);
}
