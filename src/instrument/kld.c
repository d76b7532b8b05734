/* Compares two dumps of logits row by row, and a third as the floor. Refuses dumps that are not of the same tokens.
 * Holds three rows and 16 bytes a row compared, whatever the dumps' size. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/file.h"
#include "core/mem.h"
#include "instrument/kld.h"
#include "stats/kl.h"
#include "store/logits_dump.h"

enum { A, B, FLOOR, N_DUMPS };

/* One dump against A. */
typedef struct against {
    ts_kl_summary *sums;
    ts_kld_pair *pair; /* in the result */
} against;

typedef struct kld {
    const ts_kld_options *o;
    ts_logits_dump *dumps[N_DUMPS]; /* FLOOR may be NULL */
    float *rows[N_DUMPS];           /* [n_vocab] */
    against with[N_DUMPS];          /* from B on */
    struct timespec begin;
} kld;

static const char *path_of(const kld *k, int i) { return i == A ? k->o->a : i == B ? k->o->b : k->o->floor; }

static int open_dumps(kld *k, ts_kld_result *out, ts_error *err) {
    int rc = TS_OK;
    for (int i = A; rc == TS_OK && i < N_DUMPS; i++) {
        if (!path_of(k, i)) continue;
        rc = ts_logits_open(path_of(k, i), true, &k->dumps[i], err);
        if (rc == TS_OK && i != A) rc = ts_logits_comparable(k->dumps[A], path_of(k, A), k->dumps[i], path_of(k, i), err);
        if (rc != TS_OK) return rc;
        k->rows[i] = ts_calloc((size_t)k->dumps[i]->vocab_size, sizeof(float));
        if (!k->rows[i]) return ts_fail_nomem(err, "a row of logits", (size_t)k->dumps[i]->vocab_size * sizeof(float));
        if (i != A) rc = ts_kl_summary_create(&k->with[i].sums, err);
        k->with[i].pair = i == B ? &out->pair : &out->floor;
        *k->with[i].pair = (ts_kld_pair){.identical = true, .parted_row = -1};
    }
    const ts_logits_dump *a = k->dumps[A];
    if (rc == TS_OK && a->first_scored_position >= a->rows)
        rc = ts_fail(err, TS_ERR_ARG, "'%s' has nothing to compare: %" PRId64 " rows, scored from %" PRId64, k->o->a, a->rows, a->first_scored_position);
    return rc;
}

static int compare(kld *k, int i, int64_t row, ts_error *err) {
    const ts_logits_dump *a = k->dumps[A];
    ts_kld_pair *pair = k->with[i].pair;
    int32_t token = a->token_ids[row + 1];
    ts_kl_row r;
    int rc = ts_kl_compare(k->rows[A], k->rows[i], a->vocab_size, token, &r, err);
    if (rc != TS_OK) {
        ts_error_prefix(err, "'%s' and '%s', row %" PRId64 ": ", k->o->a, path_of(k, i), row);
        return rc;
    }
    if (pair->parted_row < 0 && r.top_p != r.top_q) {
        pair->parted_row = row;
        pair->parted_top[0] = r.top_p;
        pair->parted_top[1] = r.top_q;
        pair->parted_token = token;
    }
    pair->identical = pair->identical && memcmp(k->rows[A], k->rows[i], (size_t)a->vocab_size * sizeof(float)) == 0;
    return ts_kl_summary_add(k->with[i].sums, &r, err);
}

static void report(const kld *k, int64_t done, int64_t total) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    ts_progress p = {.tokens_done = (uint64_t)done, .tokens_total = (uint64_t)total,
                     .seconds = (double)(t.tv_sec - k->begin.tv_sec) + 1e-9 * (double)(t.tv_nsec - k->begin.tv_nsec)};
    if (k->o->on_progress) k->o->on_progress(&p, k->o->user);
}

static int walk(kld *k, ts_error *err) {
    const ts_logits_dump *a = k->dumps[A];
    int rc = TS_OK;
    for (int64_t row = a->first_scored_position; rc == TS_OK && row < a->rows; row++) {
        if (k->o->stop && *k->o->stop) return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted: nothing was compared to the end");
        for (int i = A; rc == TS_OK && i < N_DUMPS; i++) {
            if (k->dumps[i]) rc = ts_logits_read(k->dumps[i], row, k->rows[i], err);
            if (rc == TS_OK && k->dumps[i] && i != A) rc = compare(k, i, row, err);
        }
        if (rc == TS_OK) report(k, row + 1 - a->first_scored_position, a->rows - a->first_scored_position);
    }
    return rc;
}

static ts_kld_stats stats(const ts_kl_stats *s) { return (ts_kld_stats){s->mean, s->median, s->p99, s->max}; }

static int sum_up(const against *with, ts_error *err) {
    ts_kl_totals t;
    ts_kld_pair *pair = with->pair;
    int rc = ts_kl_summary_totals(with->sums, &t, err);
    if (rc != TS_OK) return rc;
    pair->forward = stats(&t.pq);
    pair->backward = stats(&t.qp);
    pair->agreement = t.agreement;
    pair->perplexity[0] = t.perplexity_p;
    pair->perplexity[1] = t.perplexity_q;
    pair->entropy[0] = t.entropy_p;
    pair->entropy[1] = t.entropy_q;
    pair->n_outside = t.n_outside;
    pair->max_outside = t.max_outside;
    return TS_OK;
}

static int check(const ts_kld_options *o, ts_error *err) {
    int rc = ts_options_check(o, sizeof(*o), "ts_kld_options", err);
    if (rc == TS_OK && (!o->a || !o->b)) rc = ts_fail(err, TS_ERR_ARG, "ts_kld_options: a and b are needed");
    if (rc != TS_OK || !o->json_path) return rc;
    const char *const dumps[] = {o->a, o->b, o->floor};
    for (size_t i = 0; i < sizeof(dumps) / sizeof(dumps[0]); i++)
        if (dumps[i] && (ts_logits_dump_holds(dumps[i], o->json_path, NULL) || ts_file_same(dumps[i], o->json_path)))
            return ts_fail(err, TS_ERR_ARG, "output '%s' is the dump to compare", o->json_path);
    return ts_output_check(o->json_path, err);
}

int ts_kld_run(const ts_kld_options *opts, ts_kld_result *out, ts_error *err) {
    kld k = {.o = opts};
    clock_gettime(CLOCK_MONOTONIC, &k.begin);
    memset(out, 0, sizeof(*out));
    int rc = check(opts, err);
    if (rc == TS_OK) rc = open_dumps(&k, out, err);
    if (rc == TS_OK) rc = walk(&k, err);
    for (int i = B; rc == TS_OK && i < N_DUMPS; i++)
        if (k.dumps[i]) rc = sum_up(&k.with[i], err);
    if (rc == TS_OK) {
        out->n_rows = k.dumps[A]->rows;
        out->first_scored_position = k.dumps[A]->first_scored_position;
        out->n_vocab = k.dumps[A]->vocab_size;
        out->has_floor = k.dumps[FLOOR] != NULL;
        if (opts->json_path) rc = ts_kld_write_json(opts->json_path, opts, out, err);
    }
    for (int i = A; i < N_DUMPS; i++) {
        ts_logits_close(k.dumps[i]);
        ts_kl_summary_free(k.with[i].sums);
        free(k.rows[i]);
    }
    if (rc != TS_OK) memset(out, 0, sizeof(*out));
    return rc;
}
