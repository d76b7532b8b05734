/* The directions of a sweep: the file's, and random ones beside them as control arms. Owns the random numbers, the same
 * on every machine. */
#include <math.h>
#include <stdlib.h>

#include "core/mem.h"
#include "instrument/sweep.h"

/* splitmix64: every seed gives a full period. */
static uint64_t next_u64(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* In (0, 1). */
static double next_open(uint64_t *state) { return ((double)(next_u64(state) >> 12) + 0.5) / 4503599627370496.0; }

/* Normal, by Box and Muller: the direction of a vector of such is uniform on the sphere. */
static double next_normal(uint64_t *state) {
    double radius = sqrt(-2.0 * log(next_open(state))), angle = 6.283185307179586 * next_open(state);
    return radius * cos(angle);
}

static int random_axis(const ts_steer_axis *like, uint64_t *state, ts_steer_axis *out, ts_error *err) {
    double *draw = ts_malloc((size_t)like->n * sizeof(*draw)), sum = 0.0;
    float *d = ts_malloc((size_t)like->n * sizeof(*d));
    int rc = draw && d ? TS_OK : ts_fail_nomem(err, "random directions", (size_t)like->n * sizeof(*draw));
    for (int32_t i = 0; rc == TS_OK && i < like->n; i++) {
        draw[i] = next_normal(state);
        sum += draw[i] * draw[i];
    }
    for (int32_t i = 0; rc == TS_OK && i < like->n; i++) d[i] = (float)(draw[i] * like->norm / sqrt(sum));
    if (rc == TS_OK) rc = ts_steer_axis_init(out, d, like->n, err);
    free(draw);
    free(d);
    return rc;
}

int ts_sweep_arms(ts_sweep *w, int32_t n, uint32_t seed, ts_error *err) {
    size_t n_layer = (size_t)w->n_layer;
    uint64_t state = seed;
    int rc = TS_OK;
    w->n_arms = (size_t)n + 1;
    w->arms = ts_calloc(w->n_arms, sizeof(*w->arms));
    if (!w->arms) return ts_fail_nomem(err, "directions", w->n_arms * sizeof(*w->arms));
    w->arms[0] = w->file.axes;
    for (size_t a = 1; rc == TS_OK && a < w->n_arms; a++) {
        w->arms[a] = ts_calloc(n_layer, sizeof(**w->arms));
        if (!w->arms[a]) return ts_fail_nomem(err, "directions", n_layer * sizeof(**w->arms));
        for (size_t il = 0; rc == TS_OK && il < n_layer; il++)
            if (w->file.axes[il].n > 0) rc = random_axis(&w->file.axes[il], &state, &w->arms[a][il], err);
    }
    return rc;
}

void ts_sweep_arms_free(ts_sweep *w) {
    for (size_t a = 1; w->arms && a < w->n_arms; a++) {
        for (int32_t il = 0; w->arms[a] && il < w->n_layer; il++) ts_steer_axis_free(&w->arms[a][il]);
        free(w->arms[a]);
    }
    free(w->arms);
}
