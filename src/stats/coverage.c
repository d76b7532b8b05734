/* Owns the arithmetic from finished counts to shares, quantiles and hot sets. Refuses files and formatting. */
#include "stats/coverage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"

typedef struct ranked {
    double mass;
    uint32_t neuron;
} ranked;

static int by_mass(const void *a, const void *b) {
    const ranked *x = a, *y = b;

    if (x->mass != y->mass)
        return x->mass > y->mass ? -1 : 1;
    return x->neuron < y->neuron ? -1 : x->neuron > y->neuron;
}

int ts_rank_by_mass(const double *mass, uint32_t width, uint32_t *order) {
    ranked *r = ts_calloc(width, sizeof *r);

    if (!r)
        return TS_ERR_NOMEM;
    for (uint32_t i = 0; i < width; i++)
        r[i] = (ranked){mass[i], i};
    if (width)
        qsort(r, width, sizeof *r, by_mass);
    for (uint32_t i = 0; i < width; i++)
        order[i] = r[i].neuron;
    free(r);
    return TS_OK;
}

uint32_t ts_coverage_count(const double *mass, const uint32_t *order, uint32_t width, unsigned percent) {
    double total = 0, sum = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < width; i++)
        total += mass[order[i]];
    /* 100 sum >= percent total: with masses that are whole numbers nothing is rounded. */
    while (n < width && 100.0 * sum < percent * total)
        sum += mass[order[n++]];
    return n;
}

ts_magnitudes ts_magnitudes_log2(const uint64_t count[64], const double mass[64], double *edges) {
    for (int b = 1; b <= TS_LOG2_BINS + 1; b++)
        edges[b - 1] = b == 1 ? 0.0 : ldexp(1.0, b - 33);
    return (ts_magnitudes){
        .edges = edges, .count = count + 1, .mass = mass + 1, .n = TS_LOG2_BINS, .zeros = count[0]};
}

/* What of a bin lies under t, by count and by mass, when its values are spread evenly. */
static void split_bin(double low, double high, double t, double *count, double *mass) {
    *count = *mass = 0;
    if (t >= high) {
        *count = *mass = 1;
    } else if (t > low) {
        *count = (t - low) / (high - low);
        *mass = *count * ((t + low) / (high + low));
    }
}

ts_below ts_magnitudes_below(const ts_magnitudes *m, double threshold) {
    double elements = threshold > 0 ? (double)m->zeros : 0, mass = 0, total = (double)m->zeros, all = 0;
    ts_below out = {0};

    for (uint32_t i = 0; i < m->n; i++) {
        double by_count, by_mass_, n = (double)m->count[i];

        split_bin(m->edges[i], m->edges[i + 1], threshold, &by_count, &by_mass_);
        elements += by_count * n;
        mass += by_mass_ * m->mass[i];
        total += n;
        all += m->mass[i];
        if (by_count > 0 && by_count < 1) {
            out.elements_error = fmax(by_count, 1 - by_count) * n;
            out.mass_error = fmax(by_mass_, 1 - by_mass_) * m->mass[i];
        }
    }
    out.elements = total > 0 ? elements / total : NAN;
    out.elements_error = total > 0 ? out.elements_error / total : NAN;
    out.mass = all > 0 ? mass / all : NAN;
    out.mass_error = all > 0 ? out.mass_error / all : NAN;
    return out;
}

double ts_magnitudes_quantile(const ts_magnitudes *m, double q) {
    double total = (double)m->zeros, rank, seen = (double)m->zeros;

    for (uint32_t i = 0; i < m->n; i++)
        total += (double)m->count[i];
    if (!(total > 0))
        return NAN;
    rank = fmin(fmax(ceil(q * total), 1.0), total);
    if (rank <= seen)
        return 0.0;
    for (uint32_t i = 0; i < m->n; i++) {
        double n = (double)m->count[i], low = m->edges[i], high = m->edges[i + 1];

        if (n > 0 && rank <= seen + n)
            return m->middle ? 0.5 * (low + high) : low + (high - low) * ((rank - seen - 0.5) / n);
        seen += n;
    }
    return m->edges[m->n];
}

void ts_hot_set(const uint32_t *order, uint32_t width, uint32_t n, uint8_t *hot) {
    if (width)
        memset(hot, 0, width);
    for (uint32_t i = 0; i < n; i++)
        hot[order[i]] = 1;
}

uint32_t ts_hot_blocks(const uint8_t *hot, uint32_t width, uint32_t block) {
    uint32_t touched = 0;

    if (block == 0)
        return 0;
    for (uint32_t i = 0; i < width;) {
        uint32_t end = width - i > block ? i + block : width;

        while (i < end && !hot[i])
            i++;
        touched += i < end;
        i = end;
    }
    return touched;
}

ts_hot_pair ts_hot_compare(const uint8_t *a, const uint8_t *b, const double *b_mass, uint32_t width) {
    double n_a = 0, n_b = 0, both = 0, held = 0, total = 0, expected;

    for (uint32_t i = 0; i < width; i++) {
        n_a += a[i];
        n_b += b[i];
        both += a[i] && b[i];
        total += b_mass[i];
        if (a[i])
            held += b_mass[i];
    }
    expected = width ? n_a * n_b / width : 0;
    return (ts_hot_pair){.jaccard = n_a + n_b > 0 ? both / (n_a + n_b - both) : NAN,
                         .chance = n_a + n_b > 0 ? expected / (n_a + n_b - expected) : NAN,
                         .held = total > 0 ? held / total : NAN};
}

bool ts_overlap_is_high(double overlap, double chance) {
    return overlap >= TS_VERDICT_OVERLAP && overlap >= TS_VERDICT_CHANCE * chance;
}

enum ts_verdict ts_verdict_of(double n95_percent, double overlap, double chance) {
    if (n95_percent >= TS_VERDICT_N95_MANY)
        return TS_VERDICT_DEAD_END;
    return n95_percent <= TS_VERDICT_N95_FEW && ts_overlap_is_high(overlap, chance) ? TS_VERDICT_PLAUSIBLE
                                                                                    : TS_VERDICT_UNDECIDED;
}
