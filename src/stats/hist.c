/*
 * Log-spaced histogram: bins, buckets, quantiles, and the row histogram.
 * Owns the integer arithmetic behind every count and mass; refuses floating-point sums over values.
 */
#include "stats/hist.h"

#include <math.h>

#define NONFINITE_BITS UINT32_C(0x7f800000)
#define MANTISSA_MASK UINT32_C(0x7fffff)
#define IMPLICIT_ONE (UINT64_C(1) << 23)
#define ONE (UINT64_C(1) << TS_HIST_CELL_SHIFT)
#define SUM_MASK (ONE - 1)

static int bucket_of_octave(int octave) {
    int b = octave - 127 + TS_HIST_BUCKET_OFFSET;

    return b < 1 ? 1 : b > TS_HIST_N_BUCKETS - 2 ? TS_HIST_N_BUCKETS - 2 : b;
}

/*
 * Sum of the magnitudes of n values of one octave, from the sum of their 23-bit mantissas: an exact
 * integer, rounded once. Octave 0 holds the denormals, which have no implicit one and the unit of
 * octave 1.
 */
static double octave_mass(int octave, uint64_t n, uint64_t mantissa) {
    uint64_t unit_bits = (uint64_t)((octave == 0 ? 1 : octave) - 150 + 1023) << 52;
    double unit;

    memcpy(&unit, &unit_bits, sizeof unit); /* 2^(octave - 150) */
    return (double)(mantissa + (octave == 0 ? 0 : n * IMPLICIT_ONE)) * unit;
}

int ts_hist_bucket(float x) {
    uint32_t bits = ts_abs_bits(&x);

    if (bits == 0)
        return 0;
    return bits >= NONFINITE_BITS ? TS_HIST_N_BUCKETS - 1 : bucket_of_octave((int)(bits >> 23));
}

double ts_hist_edge(int bin) {
    return octave_mass(bin / TS_HIST_STEPS, 1, (uint64_t)(bin % TS_HIST_STEPS) << TS_HIST_SHIFT);
}

double ts_hist_bin_mass(const ts_hist *h, int bin) {
    return octave_mass(bin / TS_HIST_STEPS, h->count[bin], h->mantissa[bin]);
}

uint64_t ts_hist_n_finite(const ts_hist *h) {
    uint64_t n = h->n_zero;

    for (int b = 0; b < TS_HIST_N_BINS; b++)
        n += h->count[b];
    return n;
}

void ts_hist_buckets(const ts_hist *h, uint64_t count[TS_HIST_N_BUCKETS],
                     double mass[TS_HIST_N_BUCKETS]) {
    for (int b = 0; b < TS_HIST_N_BUCKETS; b++) {
        count[b] = 0;
        mass[b] = 0.0;
    }
    count[0] = h->n_zero;
    count[TS_HIST_N_BUCKETS - 1] = h->n_nonfinite;
    for (int octave = 0; octave < TS_HIST_N_OCTAVES; octave++) {
        int bucket = bucket_of_octave(octave);
        uint64_t n = 0, mantissa = 0;

        for (int b = octave * TS_HIST_STEPS; b < (octave + 1) * TS_HIST_STEPS; b++) {
            n += h->count[b];
            mantissa += h->mantissa[b];
        }
        count[bucket] += n;
        mass[bucket] += octave_mass(octave, n, mantissa);
    }
}

double ts_hist_quantile(const ts_hist *h, double q) {
    double rank = ceil(q * (double)ts_hist_n_finite(h));
    uint64_t seen = h->n_zero;
    int last = -1;

    if (rank < 1.0)
        rank = 1.0;
    for (int b = 0; b < TS_HIST_N_BINS && (double)seen < rank; b++) {
        seen += h->count[b];
        if (h->count[b] > 0)
            last = b;
    }
    return last < 0 ? 0.0 : 0.5 * (ts_hist_edge(last) + ts_hist_edge(last + 1));
}

void ts_hist_merge(ts_hist *dst, const ts_hist *src) {
    dst->n_zero += src->n_zero;
    dst->n_nonfinite += src->n_nonfinite;
    for (int b = 0; b < TS_HIST_N_BINS; b++) {
        dst->count[b] += src->count[b];
        dst->mantissa[b] += src->mantissa[b];
    }
}

static inline void file_value(uint64_t *cell, const ts_row *row, size_t i) {
    cell[row->bin[i]] += ONE + (ts_abs_bits(row->value + i) & MANTISSA_MASK);
}

/* Joins the two copies of an octave, adds it to the total, and lists it if it holds anything. */
static void close_octave(ts_row_hist *rh, ts_hist *total, int octave) {
    int first = octave * TS_HIST_STEPS;
    uint64_t *restrict cell = rh->cell[0] + first, *restrict other = rh->cell[1] + first;
    uint64_t *restrict count = total->count + first, *restrict mantissa = total->mantissa + first;
    uint64_t all = 0;

    for (int s = 0; s < TS_HIST_STEPS; s++) {
        uint64_t sum = cell[s] + other[s];

        cell[s] = sum;
        other[s] = 0;
        count[s] += sum >> TS_HIST_CELL_SHIFT;
        mantissa[s] += sum & SUM_MASK;
        all += sum;
    }
    if (all == 0)
        return;
    rh->octave_cell[octave] = all;
    rh->octave[rh->n_octaves++] = octave;
}

static uint64_t count_zeros(const ts_row *row) {
    uint64_t zeros = 0;

    for (uint32_t i = 0; i < row->n; i++)
        zeros += ts_abs_bits(row->value + i) == 0;
    return zeros;
}

static uint64_t take_nonfinite(ts_row_hist *rh) {
    uint64_t n = 0;

    for (int b = TS_HIST_N_BINS; b < TS_HIST_N_CELLS; b++) {
        n += ts_cell_count(rh->cell[0][b]) + ts_cell_count(rh->cell[1][b]);
        rh->cell[0][b] = rh->cell[1][b] = 0;
    }
    return n;
}

void ts_row_hist_fill(ts_row_hist *rh, ts_hist *total, const ts_row *row) {
    int nonfinite = row->max_bits >= NONFINITE_BITS;
    uint64_t in_bin_0;
    size_t i = 0;

    for (; i + 2 <= row->n; i += 2) {
        file_value(rh->cell[0], row, i);
        file_value(rh->cell[1], row, i + 1);
    }
    if (i < row->n)
        file_value(rh->cell[0], row, i);
    /* Bin 0 holds the zeros and the smallest denormals; without mantissa bits there were only
     * zeros. */
    in_bin_0 = rh->cell[0][0] + rh->cell[1][0];
    rh->n_zero = (in_bin_0 & SUM_MASK) == 0 ? ts_cell_count(in_bin_0) : count_zeros(row);
    rh->n_nonfinite = nonfinite ? take_nonfinite(rh) : 0;
    rh->n_octaves = 0;
    rh->highest = nonfinite ? TS_HIST_N_OCTAVES - 1 : (int)(row->max_bits >> 23);
    rh->lowest = row->min_bits >= NONFINITE_BITS ? rh->highest + 1 : (int)(row->min_bits >> 23);
    for (int octave = rh->highest; octave >= rh->lowest; octave--)
        close_octave(rh, total, octave);
    if (rh->lowest > 0 && rh->n_zero > 0)
        close_octave(rh, total, 0);
    total->count[0] -= rh->n_zero;
    total->n_zero += rh->n_zero;
    total->n_nonfinite += rh->n_nonfinite;
}

void ts_row_hist_clear(ts_row_hist *rh) {
    size_t n = (size_t)(rh->highest - rh->lowest + 1) * TS_HIST_STEPS;

    memset(rh->cell[0] + rh->lowest * TS_HIST_STEPS, 0, n * sizeof(uint64_t));
    rh->cell[0][0] = 0;
    rh->n_octaves = 0;
}

static double cell_mass(int octave, uint64_t cell) {
    return octave_mass(octave, ts_cell_count(cell), cell & SUM_MASK);
}

/* Finds, in the octave that reaches the target, how many of its largest values that takes. */
static uint64_t needed_in_octave(const ts_row_hist *rh, int octave, double target) {
    double sum = 0.0;
    uint64_t above = 0;

    for (int b = (octave + 1) * TS_HIST_STEPS - 1; b >= octave * TS_HIST_STEPS; b--) {
        uint32_t n = ts_cell_count(rh->cell[0][b]);
        double mass = cell_mass(octave, rh->cell[0][b]);

        if (mass > 0.0 && sum + mass >= target) {
            double within = ceil((target - sum) / (mass / n));

            return above + (within < 1.0 ? 1 : within > n ? n : (uint64_t)within);
        }
        above += n;
        sum += mass;
    }
    return above;
}

void ts_row_hist_top_p(const ts_row_hist *rh, const double *share, int n_shares, uint64_t *needed) {
    double total = 0.0, sum = 0.0;
    uint64_t above = 0;
    int p = 0;

    for (int i = 0; i < rh->n_octaves; i++)
        total += cell_mass(rh->octave[i], rh->octave_cell[rh->octave[i]]);
    for (int i = 0; i < rh->n_octaves && total > 0.0; i++) {
        int octave = rh->octave[i];
        double mass = cell_mass(octave, rh->octave_cell[octave]);

        for (; p < n_shares && sum + mass >= share[p] * total; p++)
            needed[p] = above + needed_in_octave(rh, octave, share[p] * total - sum);
        above += ts_cell_count(rh->octave_cell[octave]);
        sum += mass;
    }
    for (; p < n_shares; p++)
        needed[p] = total > 0.0 ? above : 0;
}
