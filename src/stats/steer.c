/* The four edits (steer.h). Sums run in sixteen lanes that are joined in one fixed order, so that
 * compilers have vectors to work with and nothing to reorder. */
#include "stats/steer.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "stats/hist.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* gcc's -std=c11 has it so */
#endif

enum { LANES = 16 };

static const char *const names[TS_STEER_MODE_COUNT] = {"ablate", "add", "clamp", "renorm"};

const char *ts_steer_mode_name(enum ts_steer_mode mode) {
    return (unsigned)mode < TS_STEER_MODE_COUNT ? names[mode] : "unknown";
}

bool ts_steer_mode_find(const char *name, enum ts_steer_mode *out) {
    for (int i = 0; i < TS_STEER_MODE_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum ts_steer_mode)i;
            return true;
        }
    }
    return false;
}

/* Wider registers where the processor has them; the same bits come out. */
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_AVX2
#define TARGET_AVX2 __attribute__((target("avx2")))
#endif

#define INLINE static inline __attribute__((always_inline))

/* Four values; the compiler splits or joins them to what the processor has. Loaded through memcpy:
 * no alignment. */
typedef float f4 __attribute__((vector_size(16)));
typedef double d4 __attribute__((vector_size(32)));

enum { N_VECTORS = LANES / 4 };

INLINE double join(const d4 *lane) {
    d4 t = (lane[0] + lane[2]) + (lane[1] + lane[3]);

    return (t[0] + t[2]) + (t[1] + t[3]);
}

/* The last values, less than LANES, with zeros behind them; loops so have no tail of their own. */
INLINE void take_rest(const float *x, int32_t n, float rest[LANES]) {
    memset(rest, 0, LANES * sizeof *rest);
    memcpy(rest, x, (size_t)n * sizeof *rest);
}

INLINE void dot_turn(const float *x, const double *u, d4 *lane) {
    TS_UNROLL for (int k = 0; k < N_VECTORS; k++) {
        f4 a;
        d4 b;

        memcpy(&a, x + 4 * k, sizeof a);
        memcpy(&b, u + 4 * k, sizeof b);
        lane[k] += __builtin_convertvector(a, d4) * b;
    }
}

/* sum of x[i] u[i] */
INLINE double dot_body(const float *x, const double *u, int32_t n) {
    d4 lane[N_VECTORS] = {{0}};
    int32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        dot_turn(x + i, u + i, lane);
    if (i < n) {
        float rest[LANES];
        double last[LANES] = {0};

        take_rest(x + i, n - i, rest);
        memcpy(last, u + i, (size_t)(n - i) * sizeof *last);
        dot_turn(rest, last, lane);
    }
    return join(lane);
}

INLINE void squares_turn(const float *x, d4 *lane) {
    TS_UNROLL for (int k = 0; k < N_VECTORS; k++) {
        f4 a;
        d4 b;

        memcpy(&a, x + 4 * k, sizeof a);
        b = __builtin_convertvector(a, d4);
        lane[k] += b * b;
    }
}

INLINE double squares_body(const float *x, int32_t n) {
    d4 lane[N_VECTORS] = {{0}};
    int32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        squares_turn(x + i, lane);
    if (i < n) {
        float rest[LANES];

        take_rest(x + i, n - i, rest);
        squares_turn(rest, lane);
    }
    return join(lane);
}

/* x += f v */
INLINE void add_body(float *x, float f, const float *v, int32_t n) {
    int32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        TS_UNROLL for (int k = 0; k < LANES; k += 4) {
            f4 a, b;

            memcpy(&a, x + i + k, sizeof a);
            memcpy(&b, v + i + k, sizeof b);
            a += f * b;
            memcpy(x + i + k, &a, sizeof a);
        }
    }
    for (; i < n; i++)
        x[i] += f * v[i];
}

/* x *= f */
INLINE void scale_body(float *x, float f, int32_t n) {
    int32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        TS_UNROLL for (int k = 0; k < LANES; k += 4) {
            f4 a;

            memcpy(&a, x + i + k, sizeof a);
            a *= f;
            memcpy(x + i + k, &a, sizeof a);
        }
    }
    for (; i < n; i++)
        x[i] *= f;
}

static double dot_c(const float *x, const double *u, int32_t n) {
    return dot_body(x, u, n);
}
static void add_c(float *x, float f, const float *v, int32_t n) {
    add_body(x, f, v, n);
}
static void scale_c(float *x, float f, int32_t n) {
    scale_body(x, f, n);
}
static double squares_c(const float *x, int32_t n) {
    return squares_body(x, n);
}

#ifdef HAVE_AVX2
TARGET_AVX2 static double dot_avx2(const float *x, const double *u, int32_t n) {
    return dot_body(x, u, n);
}
TARGET_AVX2 static void add_avx2(float *x, float f, const float *v, int32_t n) {
    add_body(x, f, v, n);
}
TARGET_AVX2 static void scale_avx2(float *x, float f, int32_t n) {
    scale_body(x, f, n);
}
TARGET_AVX2 static double squares_avx2(const float *x, int32_t n) {
    return squares_body(x, n);
}
#define CALL(name, ...)                                                                            \
    (__builtin_cpu_supports("avx2") ? name##_avx2(__VA_ARGS__) : name##_c(__VA_ARGS__))
#else
#define CALL(name, ...) name##_c(__VA_ARGS__)
#endif

int ts_steer_axis_init(ts_steer_axis *axis, const float *d, int32_t n, ts_error *err) {
    size_t size = n > 0 ? (size_t)n : 0;
    double sum;

    *axis = (ts_steer_axis){0};
    if (n < 1)
        return ts_fail(err, TS_ERR_ARG, "a direction needs at least one value, got %d", (int)n);
    sum = CALL(squares, d, n);
    if (!isfinite(sum))
        return ts_fail(err, TS_ERR_ARG, "the direction has a value that is not finite");
    if (!(sum > 0))
        return ts_fail(err, TS_ERR_ARG, "the direction is zero");
    *axis = (ts_steer_axis){.n = n, .norm = sqrt(sum)};
    axis->u = ts_malloc(size * (sizeof *axis->u + 2 * sizeof(float)));
    if (!axis->u)
        return ts_fail_nomem(err, "a direction", size * sizeof *axis->u);
    axis->d = (void *)(axis->u + size);
    axis->u32 = axis->d + size;
    memcpy(axis->d, d, size * sizeof *d);
    for (size_t i = 0; i < size; i++) {
        axis->u[i] = (double)d[i] / axis->norm;
        axis->u32[i] = (float)axis->u[i];
    }
    return TS_OK;
}

void ts_steer_axis_free(ts_steer_axis *axis) {
    ts_free(axis->u);
    *axis = (ts_steer_axis){0};
}

int ts_steer_rule_check(const ts_steer_rule *rule, ts_error *err) {
    if ((unsigned)rule->mode >= TS_STEER_MODE_COUNT)
        return ts_fail(err, TS_ERR_ARG, "unknown steering mode %d", (int)rule->mode);
    if (!(fabs(rule->scale) <= (double)FLT_MAX))
        return ts_fail(err, TS_ERR_ARG, "steering scale: expected a finite number, got %g",
                       rule->scale);
    if (!(fabs(rule->target) <= (double)FLT_MAX))
        return ts_fail(err, TS_ERR_ARG, "steering target: expected a finite number, got %g",
                       rule->target);
    if (!(rule->gate >= 0 && rule->gate <= (double)FLT_MAX))
        return ts_fail(err, TS_ERR_ARG,
                       "steering gate: expected a finite number of at least 0, got %g", rule->gate);
    if (rule->target != 0 && rule->mode != TS_STEER_CLAMP)
        return ts_fail(err, TS_ERR_ARG, "a steering target needs the mode 'clamp', got '%s'",
                       names[rule->mode]);
    return TS_OK;
}

double ts_steer_coefficient(const ts_steer_axis *axis, const float *x) {
    return CALL(dot, x, axis->u, axis->n);
}

/* What u (or, for add, d) is multiplied with before it is added to x. */
static double factor(const ts_steer_rule *rule, double c) {
    switch (rule->mode) {
    case TS_STEER_ADD:
        return rule->scale;
    case TS_STEER_CLAMP:
        return rule->scale * (rule->target - c);
    default:
        return -rule->scale * c;
    }
}

static enum ts_steer_outcome renorm(const ts_steer_axis *axis, double c, float f, float *x) {
    double before = CALL(squares, x, axis->n);
    float back;

    /* |x + f u|^2, good enough to tell a row from rounding before x is touched */
    if (!(before + (double)f * (2 * c + (double)f) > 1e-12 * before))
        return TS_STEER_PARALLEL;
    CALL(add, x, f, axis->u32, axis->n);
    back = (float)sqrt(before / CALL(squares, x, axis->n));
    CALL(scale, x, back, axis->n);
    return TS_STEER_EDITED;
}

enum ts_steer_outcome ts_steer_row(const ts_steer_axis *axis, const ts_steer_rule *rule, float *x,
                                   double *c) {
    double f;

    /* a value of x that is not finite makes c so too, also where u is zero; finite ones cannot */
    *c = ts_steer_coefficient(axis, x);
    if (!isfinite(*c))
        return TS_STEER_NONFINITE;
    if (rule->scale == 0)
        return TS_STEER_OFF;
    if (fabs(*c) < rule->gate)
        return TS_STEER_GATED;
    f = factor(rule, *c);
    if (!(fabs(f) <= (double)FLT_MAX))
        return TS_STEER_NONFINITE;
    if (rule->mode == TS_STEER_RENORM)
        return renorm(axis, *c, (float)f, x);
    CALL(add, x, (float)f, rule->mode == TS_STEER_ADD ? axis->d : axis->u32, axis->n);
    return TS_STEER_EDITED;
}
