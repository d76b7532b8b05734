/* Two rows of logits compared, and many such comparisons summed up.
 *
 * Owns: softmax in f64, divergences, quantiles. Refuses: NaN and +infinity.
 *
 * With p, q the softmax of the two rows: KL(p|q) = sum p (log p - log q), entropy = -sum p log p,
 * both in nats; nll = -log p(token). A logit of -infinity says that a token cannot come; the
 * divergences are between p and q restricted to the tokens that both allow (and made to sum to 1
 * there), so they stay finite; the probability that a side gave to tokens the other rules out is
 * reported beside. A row against itself gives exactly 0.
 */
#ifndef TS_STATS_KL_H
#define TS_STATS_KL_H

#include "core/error.h"

typedef struct ts_kl_row {
    double kl_pq, kl_qp; /* never negative */
    double entropy_p, entropy_q;
    double nll_p, nll_q;         /* INFINITY where the token is ruled out; NAN without a token */
    double outside_p, outside_q; /* probability on tokens that the other row rules out */
    int32_t top_p, top_q;        /* most likely token, the lower id of equals */
} ts_kl_row;

/* p, q [n_vocab]; token 0..n_vocab-1, or -1 for none. TS_ERR_FORMAT: a NaN or +infinity, or nothing
 * but -infinity in a row (`position` the token). TS_ERR_ARG: n_vocab < 1, no such token. */
int ts_kl_compare(const float *p, const float *q, int32_t n_vocab, int32_t token, ts_kl_row *out,
                  ts_error *err);

/* The same figures of one row alone: entropy_p, nll_p, top_p of *out; the rest is NAN and -1. */
int ts_kl_single(const float *p, int32_t n_vocab, int32_t token, ts_kl_row *out, ts_error *err);

/* Keeps 16 bytes a row, so that quantiles are exact. */
typedef struct ts_kl_summary ts_kl_summary;

typedef struct ts_kl_stats {
    double mean, median, p99,
        max; /* p99, median: linear between the two nearest rows, as NumPy's default */
} ts_kl_stats;

typedef struct ts_kl_totals {
    int64_t n_rows;
    ts_kl_stats pq, qp;
    double agreement;                  /* share of rows with the same top token */
    int64_t first_apart;               /* first row whose top tokens differ, -1 = none */
    double entropy_p, entropy_q;       /* means */
    int64_t n_scored;                  /* rows that had a token */
    double perplexity_p, perplexity_q; /* exp of the mean nll; NAN without scored rows */
    int64_t n_outside;  /* rows where a side ruled out what the other gave probability to */
    double max_outside; /* largest outside_p or outside_q */
} ts_kl_totals;

int ts_kl_summary_create(ts_kl_summary **out, ts_error *err);
int ts_kl_summary_add(ts_kl_summary *s, const ts_kl_row *row, ts_error *err);
/* Rows may be added afterwards. TS_ERR_STATE without a row, TS_ERR_NOMEM. */
int ts_kl_summary_totals(const ts_kl_summary *s, ts_kl_totals *out, ts_error *err);
void ts_kl_summary_free(ts_kl_summary *s);

#endif
