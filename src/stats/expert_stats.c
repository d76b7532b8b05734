/* Sums are plain f64 in the order of the rows, counts exact. */
#include "stats/expert_stats.h"

#include <math.h>
#include <stddef.h>

#include "core/error.h"

int ts_expert_count(const ts_expert_counts *c, const int32_t *ids, const float *values) {
    for (uint32_t k = 0; k < c->top_k; k++)
        if (ids[k] < 0 || (uint32_t)ids[k] >= c->n_experts)
            return TS_ERR_ARG;
    for (uint32_t k = 0; k < c->top_k; k++) {
        const float *a = values + (size_t)k * c->width;
        double *mass = c->mass + (size_t)ids[k] * c->width;
        for (uint32_t i = 0; i < c->width; i++) {
            c->bucket_count[ts_hist_bucket(a[i])]++;
            mass[i] += isfinite(a[i]) ? fabs((double)a[i]) : 0.0;
        }
        c->rows[ids[k]]++;
    }
    return TS_OK;
}
