/*
 * Log-spaced histogram of magnitudes, exact in integers.
 *
 * Owns: the mapping from a float to a bin and to a log2 bucket, the mergeable histogram of a block,
 * and the histogram of one row that the top-K selection and the top-p shares are read from.
 * Refuses: to know what a row means, files, and any rounding that depends on the order of
 * additions.
 *
 * A bin is the 8 exponent bits and the upper 5 mantissa bits of |x|: 32 equal steps per octave, so
 * the middle of a bin is within 1/64 (1.6 %) of every value in it (denormals: within 2^-132
 * absolutely). The 23 mantissa bits of a bin's values are summed as an integer: count and sum give
 * the mass of a bin exactly, whatever the order, thread or vector width, and two histograms add
 * without any loss.
 */
#ifndef TS_STATS_HIST_H
#define TS_STATS_HIST_H

#include <stdint.h>
#include <string.h>

enum {
    TS_HIST_STEPS = 32,      /* bins per octave */
    TS_HIST_SHIFT = 18,      /* magnitude bits below the bin number */
    TS_HIST_N_OCTAVES = 255, /* biased exponents 0 to 254 */
    TS_HIST_N_BINS =
        TS_HIST_N_OCTAVES * TS_HIST_STEPS, /* finite values; the bins above are infinity and NaN */
    TS_HIST_N_CELLS = TS_HIST_N_BINS + TS_HIST_STEPS,
    TS_HIST_N_BUCKETS =
        64, /* 0: exact zero, 63: non-finite, b: [2^(b-33), 2^(b-32)), clamped to 1..62 */
    TS_HIST_BUCKET_OFFSET = 33,
    TS_HIST_MAX_ROW = 1 << 20, /* widest row: its sums of mantissa bits stay under 2^43 */
    TS_HIST_CELL_SHIFT = 43,   /* where a row histogram's cell keeps its count */
};

/* For loops of a small constant length in hot code, which gcc leaves rolled below -O3. */
#if defined(__GNUC__) && !defined(__clang__)
#define TS_UNROLL _Pragma("GCC unroll 16")
#else
#define TS_UNROLL
#endif

/* Most finite values a histogram may hold: an octave's sum of 24-bit mantissas stays under 2^64. */
#define TS_HIST_MAX_COUNT (UINT64_C(1) << 40)

typedef struct ts_hist {
    uint64_t n_zero;                /* exact zeros of either sign; in no bin */
    uint64_t n_nonfinite;           /* infinities and NaNs; in no bin, in no mass */
    uint64_t count[TS_HIST_N_BINS]; /* finite non-zero values */
    uint64_t
        mantissa[TS_HIST_N_BINS]; /* sum of their 23 mantissa bits, the implicit one left out */
} ts_hist;

/* The bits of |x|: as integers they order as the magnitudes do; from 0x7f800000 on they are not
 * finite. */
static inline uint32_t ts_abs_bits(const float *x) {
    uint32_t bits;

    memcpy(&bits, x, sizeof bits);
    return bits & UINT32_C(0x7fffffff);
}

/* Log2 bucket (0..63) of a value, from its exponent bits. */
int ts_hist_bucket(float x);
/* Lower edge of a bin, 0 <= bin <= TS_HIST_N_BINS; the last is 2^128. */
double ts_hist_edge(int bin);
/* Mass (sum of |x|) of one bin, rounded once from the exact integer. */
double ts_hist_bin_mass(const ts_hist *h, int bin);
/* Finite values counted, zeros included. */
uint64_t ts_hist_n_finite(const ts_hist *h);
/*
 * Counts and masses of the 64 log2 buckets, n_zero and n_nonfinite included. The counts add up to
 * every value ever counted. Needs at most TS_HIST_MAX_COUNT finite values.
 */
void ts_hist_buckets(const ts_hist *h, uint64_t count[TS_HIST_N_BUCKETS],
                     double mass[TS_HIST_N_BUCKETS]);
/*
 * The q-quantile (0..1) of the finite magnitudes: the middle of the bin that holds the ceil(q n)-th
 * smallest (the smallest for q = 0), exactly 0 where that is a zero, and 0 for an empty histogram.
 */
double ts_hist_quantile(const ts_hist *h, double q);
/* Adds src to dst, exactly. */
void ts_hist_merge(ts_hist *dst, const ts_hist *src);

/*
 * Histogram of one row. A cell packs a bin's count (above TS_HIST_CELL_SHIFT) and its sum of
 * mantissa bits, so that one addition files a value; two copies take turns, since equal neighbours
 * would wait on each other's store.
 */
typedef struct ts_row_hist {
    uint64_t cell[2][TS_HIST_N_CELLS];       /* all zero between rows */
    uint64_t octave_cell[TS_HIST_N_OCTAVES]; /* sums of the octaves listed below; the row's zeros
                                                are in octave 0 */
    int octave[TS_HIST_N_OCTAVES]; /* the octaves that hold values, from the largest down */
    int n_octaves;
    int lowest, highest; /* octaves of the smallest and largest non-zero value */
    uint64_t n_zero;
    uint64_t n_nonfinite;
} ts_row_hist;

/* A row as the histogram and the selection read it. */
typedef struct ts_row {
    const float *value;  /* [n] */
    const uint16_t *bin; /* [n] ts_abs_bits >> TS_HIST_SHIFT of each value */
    uint32_t n;          /* at most TS_HIST_MAX_ROW */
    uint32_t min_bits;   /* smallest ts_abs_bits but zero; UINT32_MAX if there is none */
    uint32_t max_bits;   /* largest */
} ts_row;

static inline uint32_t ts_cell_count(uint64_t cell) {
    return (uint32_t)(cell >> TS_HIST_CELL_SHIFT);
}

/*
 * Counts a row into an empty rh, and adds it to total. Afterwards cell[0], the octaves and the two
 * counts describe the row until ts_row_hist_clear, which empties rh.
 */
void ts_row_hist_fill(ts_row_hist *rh, ts_hist *total, const ts_row *row);
void ts_row_hist_clear(ts_row_hist *rh);
/*
 * How many of the row's largest magnitudes it takes to reach each share (ascending, 0..1) of the
 * sum of all of them. Exact down to the bin in which the share is reached; inside it every value
 * stands for the bin's mean, which leaves an error of at most 1/32 of that one bin's count, plus
 * one. A row without mass needs 0.
 */
void ts_row_hist_top_p(const ts_row_hist *rh, const double *share, int n_shares, uint64_t *needed);

#endif
