/* Owns what must add up in a census, whoever made it. Refuses, by block, counts that do not fit
 * each other, and masses that the counted values cannot have. */
#include <inttypes.h>
#include <math.h>

#include "store/census.h"

/* A file's masses have six digits, and sums of sums lose a little more: what one neuron's and one
 * bucket's mass may differ by before somebody edited them. In memory they agree much better. */
#define SHORT_TOLERANCE 1e-4
#define EXACT_TOLERANCE 1e-6
#define DIGITS 1e-5

static bool near(double a, double b, double tolerance) {
    return fabs(a - b) <= tolerance * fmax(fabs(a), fabs(b));
}

/* Can `count` values of the bucket have this mass? The clamped buckets are open at their end. */
static bool mass_fits(uint32_t bucket, uint64_t count, double mass) {
    bool has_mass = bucket > 0 && bucket < TS_CENSUS_BUCKETS - 1;
    if (!isfinite(mass) || mass < 0.0)
        return false;
    if (count == 0 || !has_mass)
        return mass == 0.0;
    double low = bucket == 1 ? 0.0 : ldexp((double)count, (int)bucket - TS_CENSUS_BUCKET_OFFSET);
    int top = bucket == TS_CENSUS_BUCKETS - 2 ? 128 : (int)bucket - TS_CENSUS_BUCKET_OFFSET + 1;
    return mass >= low * (1.0 - DIGITS) && mass <= ldexp((double)count, top) * (1.0 + DIGITS);
}

static int check_counts(const ts_census_block *b, ts_error *err) {
    uint64_t sum = 0, expected;
    if (b->n_rows > (UINT64_C(1) << 60) / b->width)
        return ts_fail(err, TS_ERR_FORMAT,
                       "%" PRIu64 " rows of %" PRIu32 " values are too many to count", b->n_rows,
                       b->width);
    expected = b->n_rows * b->width;
    for (uint32_t i = 0; i < TS_CENSUS_BUCKETS; i++) {
        if (b->bucket_count[i] > expected - sum)
            return ts_fail(err, TS_ERR_FORMAT,
                           "hist_count adds up to more than %" PRIu64 " passes x %" PRIu32
                           " neurons = %" PRIu64,
                           b->n_rows, b->width, expected);
        sum += b->bucket_count[i];
    }
    if (sum != expected)
        return ts_fail(err, TS_ERR_FORMAT,
                       "hist_count adds up to %" PRIu64 ", expected %" PRIu64 " passes x %" PRIu32
                       " neurons = %" PRIu64,
                       sum, b->n_rows, b->width, expected);
    return TS_OK;
}

static int check_overlap(const ts_census_block *b, int n_sets, ts_error *err) {
    if (b->n_pairs > 0 && b->n_pairs >= b->n_rows)
        return ts_fail(err, TS_ERR_FORMAT, "%" PRIu64 " overlap pairs in %" PRIu64 " passes",
                       b->n_pairs, b->n_rows);
    for (int j = 0; j < n_sets; j++) {
        if (b->k[j] < 1 || b->k[j] > b->width)
            return ts_fail(err, TS_ERR_FORMAT, "a top set has %" PRIu32 " of %" PRIu32 " neurons",
                           b->k[j], b->width);
        if (b->hits[j] > b->n_pairs * b->k[j])
            return ts_fail(err, TS_ERR_FORMAT,
                           "overlap_hits is %" PRIu64 ", more than %" PRIu64 " pairs x %" PRIu32
                           " neurons",
                           b->hits[j], b->n_pairs, b->k[j]);
    }
    return TS_OK;
}

static int check_masses(const ts_census_block *b, double tolerance, ts_error *err) {
    double buckets = 0.0, neurons = 0.0;
    for (uint32_t i = 0; i < TS_CENSUS_BUCKETS; i++) {
        if (!mass_fits(i, b->bucket_count[i], b->bucket_mass[i]))
            return ts_fail(err, TS_ERR_FORMAT,
                           "hist_mass of bucket %" PRIu32 " is %.6g, which its %" PRIu64
                           " values cannot have",
                           i, b->bucket_mass[i], b->bucket_count[i]);
        buckets += b->bucket_mass[i];
    }
    for (uint32_t i = 0; i < b->width; i++) {
        if (!isfinite(b->mass[i]) || b->mass[i] < 0.0)
            return ts_fail(err, TS_ERR_FORMAT, "mass of neuron %" PRIu32 " is %g", i, b->mass[i]);
        neurons += b->mass[i];
    }
    if (!near(buckets, neurons, tolerance))
        return ts_fail(err, TS_ERR_FORMAT, "mass adds up to %.9g, hist_mass to %.9g", neurons,
                       buckets);
    return TS_OK;
}

/* The highest occupied bin must hold max_abs. */
static int check_max(const ts_census_block *b, uint32_t top, bool any, ts_error *err) {
    double low = any ? ts_census_fine_edge(top) : 0.0,
           high = any ? ts_census_fine_edge(top + 1) : 0.0;
    if (any ? b->max_abs >= low && b->max_abs < high : b->max_abs == 0.0)
        return TS_OK;
    return ts_fail(err, TS_ERR_FORMAT, "max_abs is %.9g, expected %.9g to %.9g", b->max_abs, low,
                   high);
}

static int check_fine(const ts_census_block *b, ts_error *err) {
    uint64_t count[TS_CENSUS_BUCKETS] = {0};
    double mass[TS_CENSUS_BUCKETS] = {0};
    uint32_t top = 0;
    bool any = false;
    for (uint32_t i = 0; i < TS_CENSUS_FINE_BINS; i++) {
        uint64_t n = b->fine_count[i];
        double m = b->fine_mass[i], slack = 1e-9 * m;
        if (!(m >= (double)n * ts_census_fine_edge(i) - slack &&
              m <= (double)n * ts_census_fine_edge(i + 1) + slack))
            return ts_fail(
                err, TS_ERR_FORMAT,
                "bin %" PRIu32 " has mass %.9g, which its %" PRIu64 " values cannot have", i, m, n);
        if (n > b->n_rows * b->width)
            return ts_fail(err, TS_ERR_FORMAT,
                           "bin %" PRIu32 " has %" PRIu64 " values, more than were counted", i, n);
        if (n > 0) {
            top = i;
            any = true;
        }
        count[ts_census_fine_bucket(i)] += n;
        mass[ts_census_fine_bucket(i)] += m;
    }
    for (uint32_t i = 1; i < TS_CENSUS_BUCKETS - 1; i++)
        if (count[i] != b->bucket_count[i] || !near(mass[i], b->bucket_mass[i], EXACT_TOLERANCE))
            return ts_fail(err, TS_ERR_FORMAT,
                           "the finer histogram has %" PRIu64 " values in bucket %" PRIu32
                           ", expected %" PRIu64,
                           count[i], i, b->bucket_count[i]);
    return check_max(b, top, any, err);
}

static int check_block(const ts_census_block *b, bool detailed, ts_error *err) {
    int rc = check_counts(b, err);
    if (rc == TS_OK)
        rc = check_overlap(b, detailed ? TS_CENSUS_SETS : TS_CENSUS_FIXED, err);
    if (rc == TS_OK)
        rc = check_masses(b, detailed ? EXACT_TOLERANCE : SHORT_TOLERANCE, err);
    if (rc == TS_OK &&
        (b->zeros != b->bucket_count[0] || b->nonfinite != b->bucket_count[TS_CENSUS_BUCKETS - 1]))
        rc = ts_fail(err, TS_ERR_FORMAT, "zeros or nonfinite are not those of hist_count");
    for (int p = 0; rc == TS_OK && p < TS_CENSUS_TOP_P; p++)
        if (b->top_p[p] > b->n_rows * b->width || (p > 0 && b->top_p[p] < b->top_p[p - 1]))
            rc = ts_fail(err, TS_ERR_FORMAT, "top_p does not ascend within %" PRIu64 " values",
                         b->n_rows * b->width);
    return rc == TS_OK && detailed ? check_fine(b, err) : rc;
}

/* A dense block takes part in every pass; a shared expert may be missing from some. */
static int check_passes(const ts_census *c, const ts_census_block *b, bool dense, ts_error *err) {
    if (dense ? b->n_rows != c->decode_passes : b->n_rows > c->decode_passes)
        return ts_fail(err, TS_ERR_FORMAT, "%" PRIu64 " rows were counted in %" PRIu64 " passes",
                       b->n_rows, c->decode_passes);
    if (dense ? b->n_pairs != c->overlap_pairs : b->n_pairs > c->overlap_pairs)
        return ts_fail(err, TS_ERR_FORMAT, "%" PRIu64 " pairs were compared, expected %" PRIu64,
                       b->n_pairs, c->overlap_pairs);
    return TS_OK;
}

static int check_all(const ts_census *c, const ts_census_block *blocks, bool dense, ts_error *err) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const ts_census_block *b = &blocks[i];
        if (b->width == 0)
            continue;
        int rc = b->width > TS_CENSUS_MAX_WIDTH
                     ? ts_fail(err, TS_ERR_FORMAT, "width %" PRIu32 " is too large", b->width)
                     : check_passes(c, b, dense, err);
        if (rc == TS_OK)
            rc = check_block(b, c->detailed, err);
        if (rc < 0) {
            ts_error_prefix(err, "block %" PRIu32 "%s: ", i, dense ? "" : " (shared expert)");
            return rc;
        }
    }
    return TS_OK;
}

int ts_census_check(const ts_census *c, ts_error *err) {
    uint32_t widest = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        widest = c->dense[i].width > widest ? c->dense[i].width : widest;
    if (c->n_layers == 0 || c->n_layers > TS_CENSUS_MAX_LAYERS)
        return ts_fail(err, TS_ERR_FORMAT, "expected 1 to %d blocks, got %" PRIu32,
                       TS_CENSUS_MAX_LAYERS, c->n_layers);
    if (widest != c->inter)
        return ts_fail(err, TS_ERR_FORMAT, "inter is %" PRIu32 ", the widest block has %" PRIu32,
                       c->inter, widest);
    int rc = check_all(c, c->dense, true, err);
    return rc == TS_OK && c->shared != NULL ? check_all(c, c->shared, false, err) : rc;
}
