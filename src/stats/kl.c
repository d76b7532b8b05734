/* Divergence of two rows of logits (kl.h). One walk finds the largest logits, a second sums
 * everything: with a = p's logit less its largest, b likewise, Z the sums of exp,
 *
 *     KL(p|q) = sum e^a (a - b) / Zp - (log Zp - log Zq),  entropy = log Zp - sum e^a a / Zp. */
#include "stats/kl.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

/* Sums over the tokens that the row gives probability to, and (shared) those that both rows do. */
typedef struct sums {
    double max, z, za;
    double shared_z, shared_diff; /* sum e^a, sum e^a (a - b) */
    int32_t top;
} sums;

static int find_max(const float *x, int32_t n, sums *s, ts_error *err) {
    float max = -INFINITY;

    s->top = -1;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(x[i]) || x[i] == INFINITY)
            return ts_fail_at(err, TS_ERR_FORMAT, i, "logit of token %" PRId32 " is %g", i,
                              (double)x[i]);
        if (x[i] > max) {
            max = x[i];
            s->top = i;
        }
    }
    if (s->top < 0)
        return ts_fail_at(err, TS_ERR_FORMAT, 0, "every logit is -inf");
    s->max = (double)max;
    return TS_OK;
}

static int check(int32_t n, int32_t token, ts_error *err) {
    if (n < 1)
        return ts_fail(err, TS_ERR_ARG, "expected at least one logit, got %" PRId32, n);
    if (token < -1 || token >= n)
        return ts_fail(err, TS_ERR_ARG, "token %" PRId32 " is not one of %" PRId32, token, n);
    return TS_OK;
}

static double nll(const float *x, int32_t token, const sums *s) {
    return token < 0 ? NAN : log(s->z) - ((double)x[token] - s->max);
}

/* Of the two distributions on the tokens that both allow. Rounding can take it below 0 only in the
 * last digits. */
static double divergence(const sums *p, const sums *q) {
    double kl = 0;

    if (p->shared_z > 0 && q->shared_z > 0)
        kl = p->shared_diff / p->shared_z - (log(p->shared_z) - log(q->shared_z));
    return kl > 0 ? kl : 0;
}

static void add_up(const float *p, const float *q, int32_t n, sums *sp, sums *sq) {
    for (int32_t i = 0; i < n; i++) {
        double a = (double)p[i] - sp->max, b = (double)q[i] - sq->max;
        double ea = exp(a), eb = exp(b);
        bool in_p = p[i] != -INFINITY, in_q = q[i] != -INFINITY;

        if (in_p) {
            sp->z += ea;
            sp->za += ea * a;
        }
        if (in_q) {
            sq->z += eb;
            sq->za += eb * b;
        }
        if (in_p && in_q) {
            sp->shared_z += ea;
            sq->shared_z += eb;
            sp->shared_diff += ea * (a - b);
            sq->shared_diff += eb * (b - a);
        }
    }
}

int ts_kl_compare(const float *p, const float *q, int32_t n_vocab, int32_t token, ts_kl_row *out,
                  ts_error *err) {
    sums sp = {0}, sq = {0};
    int rc = check(n_vocab, token, err);

    if (!rc)
        rc = find_max(p, n_vocab, &sp, err);
    if (!rc)
        rc = find_max(q, n_vocab, &sq, err);
    if (rc)
        return rc;
    add_up(p, q, n_vocab, &sp, &sq);
    *out = (ts_kl_row){
        .kl_pq = divergence(&sp, &sq),
        .kl_qp = divergence(&sq, &sp),
        .entropy_p = log(sp.z) - sp.za / sp.z,
        .entropy_q = log(sq.z) - sq.za / sq.z,
        .nll_p = nll(p, token, &sp),
        .nll_q = nll(q, token, &sq),
        .outside_p = (sp.z - sp.shared_z) / sp.z,
        .outside_q = (sq.z - sq.shared_z) / sq.z,
        .top_p = sp.top,
        .top_q = sq.top,
    };
    return TS_OK;
}

int ts_kl_single(const float *p, int32_t n_vocab, int32_t token, ts_kl_row *out, ts_error *err) {
    sums s = {0};
    int rc = check(n_vocab, token, err);

    if (!rc)
        rc = find_max(p, n_vocab, &s, err);
    if (rc)
        return rc;
    for (int32_t i = 0; i < n_vocab; i++) {
        double a = (double)p[i] - s.max, ea = exp(a);

        s.z += ea;
        s.za += p[i] != -INFINITY ? ea * a : 0;
    }
    *out = (ts_kl_row){NAN,   NAN, log(s.z) - s.za / s.z, NAN, nll(p, token, &s), NAN, NAN, NAN,
                       s.top, -1};
    return TS_OK;
}

struct ts_kl_summary {
    double *kl[2]; /* [capacity] */
    size_t n, capacity;
    double sum[2], entropy[2], nll[2];
    int64_t n_agree, first_apart, n_scored, n_outside;
    double max_outside;
};

int ts_kl_summary_create(ts_kl_summary **out, ts_error *err) {
    *out = ts_calloc(1, sizeof **out);
    if (!*out)
        return ts_fail_nomem(err, "a summary", sizeof **out);
    (*out)->first_apart = -1;
    return TS_OK;
}

static int grow(ts_kl_summary *s, ts_error *err) {
    size_t capacity = s->capacity ? s->capacity * 2 : 1024;

    for (int i = 0; i < 2; i++) {
        double *grown = ts_realloc(s->kl[i], capacity, sizeof *grown);

        if (!grown)
            return ts_fail_nomem(err, "a summary", capacity * sizeof *grown);
        s->kl[i] = grown;
    }
    s->capacity = capacity;
    return TS_OK;
}

int ts_kl_summary_add(ts_kl_summary *s, const ts_kl_row *row, ts_error *err) {
    double outside = fmax(row->outside_p, row->outside_q);

    if (s->n == s->capacity) {
        int rc = grow(s, err);

        if (rc)
            return rc;
    }
    s->kl[0][s->n] = row->kl_pq;
    s->kl[1][s->n] = row->kl_qp;
    s->sum[0] += row->kl_pq;
    s->sum[1] += row->kl_qp;
    s->entropy[0] += row->entropy_p;
    s->entropy[1] += row->entropy_q;
    s->n_agree += row->top_p == row->top_q;
    if (row->top_p != row->top_q && s->first_apart < 0)
        s->first_apart = (int64_t)s->n;
    if (!isnan(row->nll_p)) {
        s->nll[0] += row->nll_p;
        s->nll[1] += row->nll_q;
        s->n_scored++;
    }
    s->n_outside += outside > 0;
    s->max_outside = fmax(s->max_outside, outside);
    s->n++;
    return TS_OK;
}

static int ascending(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

static double quantile(const double *sorted, size_t n, double share) {
    double at = share * (double)(n - 1);
    size_t i = (size_t)at;

    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

int ts_kl_summary_totals(const ts_kl_summary *s, ts_kl_totals *out, ts_error *err) {
    double *sorted, n = (double)s->n;

    if (s->n == 0)
        return ts_fail(err, TS_ERR_STATE, "no row was compared");
    sorted = ts_malloc(s->n * sizeof *sorted);
    if (!sorted)
        return ts_fail_nomem(err, "a summary", s->n * sizeof *sorted);
    *out = (ts_kl_totals){
        .n_rows = (int64_t)s->n,
        .agreement = (double)s->n_agree / n,
        .first_apart = s->first_apart,
        .entropy_p = s->entropy[0] / n,
        .entropy_q = s->entropy[1] / n,
        .n_scored = s->n_scored,
        .perplexity_p = s->n_scored ? exp(s->nll[0] / (double)s->n_scored) : NAN,
        .perplexity_q = s->n_scored ? exp(s->nll[1] / (double)s->n_scored) : NAN,
        .n_outside = s->n_outside,
        .max_outside = s->max_outside,
    };
    for (int i = 0; i < 2; i++) {
        memcpy(sorted, s->kl[i], s->n * sizeof *sorted);
        qsort(sorted, s->n, sizeof *sorted, ascending);
        *(i ? &out->qp : &out->pq) = (ts_kl_stats){s->sum[i] / n, quantile(sorted, s->n, 0.5),
                                                   quantile(sorted, s->n, 0.99), sorted[s->n - 1]};
    }
    ts_free(sorted);
    return TS_OK;
}

void ts_kl_summary_free(ts_kl_summary *s) {
    if (!s)
        return;
    ts_free(s->kl[0]);
    ts_free(s->kl[1]);
    ts_free(s);
}
