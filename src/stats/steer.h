/* Steering arithmetic on one row of the residual stream.
 *
 * Owns: the four edits. Refuses: to know where rows come from, and to touch a row that is not
 * finite.
 *
 * With d the stored direction, u = d/|d|, c = u.x, s the scale:
 *
 *   ablate  x - s c u                    at s = 1 nothing of x is left along u
 *   add     x + s d
 *   clamp   x + s (target - c) u         at s = 1 the new c is the target
 *   renorm  y |x|/|y|, y = x - s c u     ablate, then back to the length of before
 *
 * c, |x| and |y| are summed in f64 over the f32 values, in an order that does not depend on the
 * processor. A factor is rounded to f32 once and each value of the row twice (product, sum); renorm
 * rounds once more.
 */
#ifndef TS_STATS_STEER_H
#define TS_STATS_STEER_H

#include "core/error.h"

enum ts_steer_mode {
    TS_STEER_ABLATE = 0,
    TS_STEER_ADD,
    TS_STEER_CLAMP,
    TS_STEER_RENORM,
    TS_STEER_MODE_COUNT
};

const char *ts_steer_mode_name(enum ts_steer_mode mode); /* "ablate" */
bool ts_steer_mode_find(const char *name, enum ts_steer_mode *out);

/* One block's direction, ready for use. Shared by any number of threads. */
typedef struct ts_steer_axis {
    int32_t n;
    double norm; /* |d| */
    float *d;    /* [n] as stored */
    double *u;   /* [n] */
    float *u32;  /* [n] u rounded */
} ts_steer_axis;

/* Copies d. TS_ERR_ARG for n < 1, a value that is not finite and a direction that is zero;
 * TS_ERR_NOMEM. */
int ts_steer_axis_init(ts_steer_axis *axis, const float *d, int32_t n, ts_error *err);
void ts_steer_axis_free(ts_steer_axis *axis); /* also of a zeroed one */

typedef struct ts_steer_rule {
    enum ts_steer_mode mode;
    double scale;
    double target; /* clamp only */
    double gate;   /* edits only where |c| >= gate; 0 = everywhere */
} ts_steer_rule;

/* TS_ERR_ARG: an unknown mode, a number that is not finite, a negative gate, a target in another
 * mode than clamp. */
int ts_steer_rule_check(const ts_steer_rule *rule, ts_error *err);

enum ts_steer_outcome {
    TS_STEER_EDITED = 0,
    TS_STEER_OFF,       /* the scale is 0: x is left as it is, to the bit, in every mode */
    TS_STEER_GATED,     /* |c| is below the gate: likewise */
    TS_STEER_NONFINITE, /* x has a NaN or infinity (so has c), or the factor of u overflows f32:
                           likewise */
    TS_STEER_PARALLEL,  /* renorm where ablate leaves less than 1e-6 of |x|, only rounding: likewise
                         */
};

/* Edits x [axis->n] in place. *c is u.x before the edit, whatever the outcome. The rule was
 * checked. */
enum ts_steer_outcome ts_steer_row(const ts_steer_axis *axis, const ts_steer_rule *rule, float *x,
                                   double *c);

/* c alone. */
double ts_steer_coefficient(const ts_steer_axis *axis, const float *x);

#endif
