/* Passes on their way to the accumulators: waiting ones, their counting, beside the computation of the next passes
 * where a core is free. Refuses a run in which a counted block has no row for a token. */
#include "instrument/ffn_batch.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

enum { BATCH_PASSES = 16 };
#define BATCH_BYTES ((size_t)32 << 20) /* of copied rows, unless one pass alone needs more */

/* One FFN that is counted. */
typedef struct lane {
    ts_ffn_stats *stats;
    enum ts_site_kind kind;
    int32_t block;
    uint32_t width;
    ts_rows rows;
    const float **pass; /* [room of the job] rows of passes that wait, in the copy or where the host keeps them */
} lane;

struct ts_ffn_job {
    ts_ffn_census *census;
    int32_t n, capacity; /* passes */
    int32_t *slots;      /* [capacity] */
    bool *begins;        /* [capacity] */
    uint64_t *dense_pass, *shared_pass; /* [capacity] their numbers */
    lane *lanes;         /* [n_lanes] */
    int32_t n_lanes;
    float *copy;         /* [lane][room][width], made when first needed */
    int32_t room;
    bool waiting;        /* the passes came one by one: see lane.pass */
};

int ts_ffn_failed(int rc, ts_error *err) {
    if (rc == TS_FFN_ERR_MEMORY) return ts_fail(err, TS_ERR_NOMEM, "no memory for the census");
    if (rc == TS_FFN_ERR_FULL) return ts_fail(err, TS_ERR_STATE, "the census is full: a block reached its largest count");
    return ts_fail(err, TS_ERR_STATE, "the census refused a row (%d)", rc);
}

/* ---- life */

static int reserve_passes(struct ts_ffn_job *job, int32_t n, ts_error *err) {
    if (n <= job->capacity) return TS_OK;
    int32_t *slots = ts_realloc(job->slots, (size_t)n, sizeof(*slots));
    if (slots) job->slots = slots;
    bool *begins = ts_realloc(job->begins, (size_t)n, sizeof(*begins));
    if (begins) job->begins = begins;
    uint64_t *dense = ts_realloc(job->dense_pass, (size_t)n, sizeof(*dense));
    if (dense) job->dense_pass = dense;
    uint64_t *shared = ts_realloc(job->shared_pass, (size_t)n, sizeof(*shared));
    if (shared) job->shared_pass = shared;
    if (!slots || !begins || !dense || !shared) return ts_fail_nomem(err, "census passes", (size_t)n * sizeof(*dense));
    job->capacity = n;
    return TS_OK;
}

static void add_lane(struct ts_ffn_job *job, ts_ffn_stats *stats, enum ts_site_kind kind, int32_t block, uint32_t width) {
    if (width) job->lanes[job->n_lanes++] = (lane){.stats = stats, .kind = kind, .block = block, .width = width};
}

static void free_job(struct ts_ffn_job *job) {
    if (!job) return;
    free(job->slots);
    free(job->begins);
    free(job->dense_pass);
    free(job->shared_pass);
    for (int32_t i = 0; i < job->n_lanes; i++) free(job->lanes[i].pass);
    free(job->lanes);
    free(job->copy);
    free(job);
}

static int make_job(ts_ffn_census *c, struct ts_ffn_job **out, ts_error *err) {
    struct ts_ffn_job *job = *out = ts_calloc(1, sizeof(*job));
    size_t most = (size_t)c->n_layer * 2, pass_bytes = 0;
    if (!job || !(job->lanes = ts_calloc(most, sizeof(*job->lanes)))) return ts_fail_nomem(err, "census passes", most * sizeof(lane));
    job->census = c;
    for (int32_t il = 0; il < c->n_layer; il++) {
        add_lane(job, c->dense, c->dense_kind[il], il, c->width[il]);
        add_lane(job, c->shared, TS_SITE_FFN_SHEXP, il, c->shared_width[il]);
        pass_bytes += ((size_t)c->width[il] + c->shared_width[il]) * sizeof(float);
    }
    size_t fit = BATCH_BYTES / (pass_bytes + 1);
    job->room = fit < 1 ? 1 : fit > BATCH_PASSES ? BATCH_PASSES : (int32_t)fit;
    for (int32_t i = 0; i < job->n_lanes; i++)
        if (!(job->lanes[i].pass = ts_calloc((size_t)job->room, sizeof(float *))))
            return ts_fail_nomem(err, "census passes", (size_t)job->room * sizeof(float *));
    return reserve_passes(job, job->room, err);
}

int ts_ffn_batches_open(ts_ffn_census *c, ts_error *err) {
    int rc = make_job(c, &c->filling, err);
    return rc == TS_OK ? make_job(c, &c->counting, err) : rc;
}

void ts_ffn_batches_close(ts_ffn_census *c) {
    free_job(c->filling);
    free_job(c->counting);
    c->filling = c->counting = NULL;
}

/* ---- counting */

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

static int count_lane(const struct ts_ffn_job *job, const lane *l, int32_t from, int32_t to, ts_error *err) {
    const uint64_t *pass = l->stats == job->census->dense ? job->dense_pass : job->shared_pass;
    for (int32_t t = from; t < to; t++) {
        const float *row = job->waiting ? l->pass[t] : row_of(&l->rows, t);
        if (!row) return ts_fail(err, TS_ERR_ENGINE, "block %d gave no FFN row for token %d of the run", l->block, t);
        int rc = ts_ffn_record_numbered(l->stats, 0, (uint32_t)job->slots[t], (uint32_t)l->block, pass[t], row);
        if (rc != 0) return ts_ffn_failed(rc, err);
    }
    return TS_OK;
}

static int count_passes(struct ts_ffn_job *job, int32_t from, int32_t to, ts_error *err) {
    ts_ffn_census *c = job->census;
    for (int32_t t = from; t < to; t++) {
        int rc = ts_ffn_number_pass(c->dense, (uint32_t)job->slots[t], job->begins[t], &job->dense_pass[t]);
        if (rc == 0 && c->shared) rc = ts_ffn_number_pass(c->shared, (uint32_t)job->slots[t], job->begins[t], &job->shared_pass[t]);
        if (rc != 0) return ts_ffn_failed(rc, err);
    }
    int rc = TS_OK;
    for (int32_t i = 0; rc == TS_OK && i < job->n_lanes; i++) rc = count_lane(job, &job->lanes[i], from, to, err);
    return rc;
}

/* The ids of the pass just recorded, before the slot's next one is. */
static int trace_pass(ts_ffn_census *c, uint32_t slot, bool first, ts_error *err) {
    int rc = ts_trace_begin(c->trace, slot, first, err);
    for (uint32_t il = 0; rc == TS_OK && il < (uint32_t)c->n_layer; il++) {
        const uint8_t *levels = c->width[il] ? ts_ffn_levels(c->dense, slot, il) : NULL;
        if (levels) rc = ts_trace_block(c->trace, il, levels, c->dense->blocks[il].rank[TS_FFN_N_FIXED + c->trace_share], err);
    }
    return rc == TS_OK ? ts_trace_end(c->trace, err) : rc;
}

static int count_job(void *user, ts_error *err) {
    struct ts_ffn_job *job = user;
    ts_trace_writer *trace = job->census->trace;
    int32_t n = job->n, step = trace ? 1 : n;
    int rc = TS_OK;
    for (int32_t t = 0; rc == TS_OK && t < n; t += step) {
        rc = count_passes(job, t, t + step, err);
        if (rc == TS_OK && trace) rc = trace_pass(job->census, (uint32_t)job->slots[t], job->begins[t], err);
    }
    job->n = 0;
    return rc;
}

/* Hands on what waits; the other job is free afterwards and is filled next. Without a free core the memory just read
 * is filled again. */
static int flush(ts_ffn_census *c, ts_error *err) {
    if (c->filling->n == 0) return TS_OK;
    if (!ts_worker_threaded(c->worker)) return count_job(c->filling, err);
    int rc = ts_worker_submit(c->worker, count_job, c->filling, err); /* waits for the one before */
    struct ts_ffn_job *next = c->counting;
    c->counting = c->filling;
    c->filling = next;
    return rc;
}

/* ---- runs */

static int find_rows(struct ts_ffn_job *job, const ts_run *run, ts_error *err) {
    int rc = TS_OK;
    for (int32_t i = 0; rc == TS_OK && i < job->n_lanes; i++)
        rc = ts_run_rows(run, job->lanes[i].kind, job->lanes[i].block, &job->lanes[i].rows, err);
    return rc;
}

static void note(struct ts_ffn_job *job, int32_t at, int32_t n, const int32_t *slots, const bool *begins) {
    memcpy(job->slots + at, slots, (size_t)n * sizeof(*slots));
    for (int32_t t = 0; t < n; t++) job->begins[at + t] = begins && begins[t];
    job->n = at + n;
}

/* Where the next run overwrites the rows of this one they are copied, else they wait where they are. */
static int keep_rows(struct ts_ffn_job *job, const ts_run *run, ts_error *err) {
    size_t floats = 0;
    int rc = find_rows(job, run, err);
    for (int32_t i = 0; rc == TS_OK && i < job->n_lanes; i++) {
        lane *l = &job->lanes[i];
        if (l->rows.n_rows != 1) return ts_fail(err, TS_ERR_ENGINE, "block %d gave no FFN row for token 0 of the run", l->block);
        l->pass[job->n] = l->rows.data;
        floats += (size_t)job->room * l->width;
    }
    if (rc != TS_OK || ts_run_rows_stay(run) >= 2 * job->room) return rc; /* one job fills while the other is counted */
    if (!job->copy && !(job->copy = ts_malloc(floats * sizeof(float)))) return ts_fail_nomem(err, "census rows", floats * sizeof(float));
    float *at = job->copy;
    for (int32_t i = 0; i < job->n_lanes; i++) {
        lane *l = &job->lanes[i];
        l->pass[job->n] = memcpy(at + (size_t)job->n * l->width, l->rows.data, l->width * sizeof(float));
        at += (size_t)job->room * l->width;
    }
    return TS_OK;
}

int ts_ffn_census_run(ts_ffn_census *c, const ts_run *run, const int32_t *slots, const bool *begins, ts_error *err) {
    int32_t n = ts_run_n_tokens(run);
    int rc;
    if (n == 1) {
        rc = keep_rows(c->filling, run, err);
        if (rc != TS_OK) return rc;
        c->filling->waiting = true;
        note(c->filling, c->filling->n, 1, slots, begins);
        return c->filling->n == c->filling->room ? flush(c, err) : TS_OK;
    }
    if ((rc = ts_ffn_census_wait(c, err)) != TS_OK) return rc; /* in order, and the job's memory is ours */
    c->counting->waiting = false;
    rc = reserve_passes(c->counting, n, err);
    if (rc == TS_OK) rc = find_rows(c->counting, run, err);
    if (rc != TS_OK) return rc;
    note(c->counting, 0, n, slots, begins);
    return count_job(c->counting, err);
}

int ts_ffn_census_wait(ts_ffn_census *c, ts_error *err) {
    int rc = c->filling ? flush(c, err) : TS_OK;
    return rc == TS_OK ? ts_worker_wait(c->worker, err) : rc;
}
