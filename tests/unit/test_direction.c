/* Extraction: signs, lengths, refusals, rows left out, and that neither groups nor threads change a
 * bit. The methods' values are checked against NumPy in tests/oracle/test_direction.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stats/direction.h"
#include "stats/direction_linear.h"

enum { LAYERS = 3, HIDDEN = 37, ROWS = 24, SNAPSHOT = LAYERS * HIDDEN };

static uint64_t seed = 0x9e3779b97f4a7c15;

static double draw(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (double)(int64_t)seed * 0x1p-63;
}

/* Rows in memory as a set. */
typedef struct memory {
    float x[ROWS][LAYERS][HIDDEN];
    int fail_at; /* the read that fails, 0 = none */
    int n_reads;
} memory;

static int read_memory(void *user, int64_t snapshot, int32_t layer, int32_t n_layers, float *rows,
                       ts_error *err) {
    memory *m = user;
    if (++m->n_reads == m->fail_at) {
        if (err)
            strcpy(err->message, "gone");
        return TS_ERR_IO;
    }
    memcpy(rows, m->x[snapshot][layer], (size_t)n_layers * HIDDEN * sizeof *rows);
    return TS_OK;
}

static ts_direction_set set_of(const char *name, memory *m, int64_t n) {
    return (ts_direction_set){name, n, LAYERS, HIDDEN, read_memory, m};
}

/* Two sets around one offset, `apart` from each other along a different dimension in each layer. */
static void fill(memory *a, memory *b, double apart) {
    for (int i = 0; i < ROWS; i++) {
        for (int l = 0; l < LAYERS; l++) {
            for (int j = 0; j < HIDDEN; j++) {
                double base = 3 * sin(j + l);
                a->x[i][l][j] = (float)(base + draw() + (j == 5 + l ? apart : 0));
                b->x[i][l][j] = (float)(base + draw());
            }
        }
    }
    a->n_reads = b->n_reads = a->fail_at = b->fail_at = 0;
}

static memory pos, neg;

static ts_direction *extract(ts_direction_options o) {
    ts_direction_set a = set_of("pos", &pos, ROWS), b = set_of("neg", &neg, ROWS);
    ts_direction *d;
    ts_error err = {0};
    if (ts_direction_extract(&a, &b, &o, &d, &err))
        fail_msg("%s", err.message);
    return d;
}

static double dot(const float *x, const float *y) {
    double sum = 0;
    for (int j = 0; j < HIDDEN; j++)
        sum += (double)x[j] * (double)y[j];
    return sum;
}

static void mean_of_differences(void **state) {
    (void)state;
    fill(&pos, &neg, 2);
    ts_direction *d = extract((ts_direction_options){0});
    assert_int_equal(d->n_layers, LAYERS);
    assert_int_equal(d->n_hidden, HIDDEN);
    for (int l = 0; l < LAYERS; l++) {
        double norm = 0;
        for (int j = 0; j < HIDDEN; j++) {
            double want = 0;
            for (int i = 0; i < ROWS; i++)
                want += ((double)pos.x[i][l][j] - (double)neg.x[i][l][j]) / ROWS;
            assert_true(fabs((double)d->d[l * HIDDEN + j] - want) < 1e-6);
            norm += want * want;
        }
        assert_true(fabs(d->blocks[l].norm - sqrt(norm)) < 1e-9);
        assert_true(fabs(d->blocks[l].mean_positive - d->blocks[l].mean_negative -
                         d->blocks[l].norm) < 1e-9);
        assert_int_equal(d->blocks[l].n_positive, ROWS);
        assert_int_equal(d->blocks[l].n_folds, 5);
        assert_true(isnan(d->blocks[l].eigen_gap));
    }
    ts_direction_free(d);
    ts_direction_free(NULL);
}

/* Every method points from negative to positive, and the other way round when the sets are swapped.
 */
static void signs(void **state) {
    (void)state;
    for (int m = 0; m < TS_DIRECTION_METHOD_COUNT; m++) {
        ts_direction_options o = {.method = (enum ts_direction_method)m};
        fill(&pos, &neg, 4);
        ts_direction *d = extract(o);
        for (int l = 0; l < LAYERS; l++) {
            const ts_direction_block *b = &d->blocks[l];
            assert_true(b->mean_positive > b->mean_negative && b->separation > 0);
            assert_true(b->share > 0 && b->removed_share > 0 && b->removed_share <= 1);
            if (m == TS_DIRECTION_PCA_REPENG)
                assert_true(fabs(b->norm - 1) < 1e-12);
            else
                assert_true(fabs(b->mean_positive - b->mean_negative - b->norm) < 1e-6);
            if (m == TS_DIRECTION_MEAN || m == TS_DIRECTION_LDA)
                assert_true(b->auc > 0.95);
            else if (m != TS_DIRECTION_SVD && m != TS_DIRECTION_PCA_REPENG)
                assert_true(b->auc > 0.9);
            if (m >= TS_DIRECTION_PCA && m <= TS_DIRECTION_SVD)
                assert_true(b->eigen_gap > 0 && b->eigen_gap < 1);
        }
        memory swap = pos;
        pos = neg;
        neg = swap;
        ts_direction *e = extract(o);
        for (int j = 0; j < SNAPSHOT; j++)
            assert_true(fabsf(d->d[j] + e->d[j]) <= 1e-5f * (float)d->blocks[j / HIDDEN].norm);
        ts_direction_free(d);
        ts_direction_free(e);
    }
}

/* Two sets from one distribution: no method finds what is not there. */
static void control_arm(void **state) {
    (void)state;
    for (int m = 0; m < TS_DIRECTION_METHOD_COUNT; m++) {
        double sum = 0;
        enum { TIMES = 20 };
        for (int k = 0; k < TIMES; k++) {
            fill(&pos, &neg, 0);
            ts_direction *d =
                extract((ts_direction_options){.method = (enum ts_direction_method)m});
            for (int l = 0; l < LAYERS; l++)
                sum += d->blocks[l].auc / (TIMES * LAYERS);
            ts_direction_free(d);
        }
        if (fabs(sum - 0.5) > 0.06)
            fail_msg("%s: auc %g over sets that do not differ",
                     ts_direction_method_name((enum ts_direction_method)m), sum);
    }
}

static void groups_and_threads(void **state) {
    (void)state;
    for (int m = 0; m < TS_DIRECTION_METHOD_COUNT; m++) {
        fill(&pos, &neg, 1);
        ts_direction *d = extract((ts_direction_options){.method = (enum ts_direction_method)m});
        assert_int_equal(pos.n_reads, ROWS);
        pos.n_reads = 0;
        ts_direction *e = extract((ts_direction_options){
            .method = (enum ts_direction_method)m, .max_bytes = 1, .n_threads = 3});
        assert_int_equal(pos.n_reads, ROWS * LAYERS);
        ts_direction *f = extract(
            (ts_direction_options){.method = (enum ts_direction_method)m, .n_threads = 999});
        assert_memory_equal(d->d, e->d, SNAPSHOT * sizeof *d->d);
        assert_memory_equal(d->d, f->d, SNAPSHOT * sizeof *d->d);
        assert_memory_equal(d->blocks, e->blocks, LAYERS * sizeof *d->blocks);
        assert_memory_equal(d->blocks, f->blocks, LAYERS * sizeof *d->blocks);
        ts_direction_free(d);
        ts_direction_free(e);
        ts_direction_free(f);
    }
}

static void neighbours(void **state) {
    (void)state;
    fill(&pos, &neg, 1);
    ts_direction *d = extract((ts_direction_options){0});
    assert_true(isnan(d->blocks[0].cos_previous));
    for (int l = 1; l < LAYERS; l++) {
        const float *x = d->d + l * HIDDEN, *y = x - HIDDEN;
        assert_true(fabs(d->blocks[l].cos_previous - dot(x, y) / sqrt(dot(x, x) * dot(y, y))) <
                    1e-12);
    }
    ts_direction_free(d);
}

static void orthogonal(void **state) {
    (void)state;
    float v[HIDDEN];
    const float *control[LAYERS] = {NULL, v, NULL};
    for (int m = 0; m < TS_DIRECTION_METHOD_COUNT; m++) {
        ts_direction_options o = {.method = (enum ts_direction_method)m};
        fill(&pos, &neg, 2);
        for (int j = 0; j < HIDDEN; j++)
            v[j] = (float)(draw() + (j == 6));
        ts_direction *plain = extract(o);
        o.orthogonal = control;
        ts_direction *d = extract(o);
        const float *x = d->d + HIDDEN, *y = plain->d + HIDDEN;
        assert_true(fabs(dot(x, v)) < 1e-6 * sqrt(dot(x, x) * dot(v, v)));
        assert_true(fabs(dot(y, v)) > 1e-3 * sqrt(dot(y, y) * dot(v, v)));
        assert_memory_equal(d->d, plain->d, HIDDEN * sizeof *x);
        if (m == TS_DIRECTION_MEAN) /* d - (d.v) v / v.v */
            for (int j = 0; j < HIDDEN; j++)
                assert_true(fabs((double)x[j] -
                                 ((double)y[j] - dot(y, v) / dot(v, v) * (double)v[j])) < 1e-6);
        ts_direction_free(d);
        ts_direction_free(plain);
    }
}

/* ---------------------------------------------------------------- refusals */

static void refuse(ts_direction_set a, ts_direction_set b, ts_direction_options o, int code,
                   const char *what) {
    ts_direction *d;
    ts_error err = {.position = -1};
    assert_int_equal(ts_direction_extract(&a, &b, &o, &d, &err), code);
    assert_null(d);
    if (!strstr(err.message, what))
        fail_msg("'%s' does not say '%s'", err.message, what);
}

static void unlike_sets(void **state) {
    (void)state;
    ts_direction_options o = {0};
    fill(&pos, &neg, 1);
    ts_direction_set a = set_of("pos", &pos, ROWS), b = set_of("neg", &neg, ROWS);
    b.n_hidden--;
    refuse(a, b, o, TS_ERR_ARG, "differ in width: 'pos' has 37, 'neg' has 36");
    b = set_of("neg", &neg, ROWS);
    b.n_layers--;
    refuse(a, b, o, TS_ERR_ARG, "differ in layers: 'pos' has 3, 'neg' has 2");
    b = set_of("neg", &neg, 1);
    refuse(a, b, o, TS_ERR_ARG, "'neg' has 1 snapshot, expected at least 2");
    b = set_of("neg", &neg, 0);
    refuse(a, b, o, TS_ERR_ARG, "'neg' has 0 snapshots");
    b = set_of("neg", &neg, ROWS - 1);
    o.method = TS_DIRECTION_PCA;
    refuse(a, b, o, TS_ERR_ARG, "'pca' needs pairs: 'pos' has 24 snapshots, 'neg' has 23");
    o.method = TS_DIRECTION_PCA_REPENG;
    refuse(a, b, o, TS_ERR_ARG, "needs pairs");
    o.method = (enum ts_direction_method)77;
    refuse(a, b, o, TS_ERR_ARG, "method");
    o = (ts_direction_options){.method = TS_DIRECTION_LDA, .shrinkage = 1.5};
    refuse(a, b, o, TS_ERR_ARG, "shrinkage");
    o.shrinkage = NAN;
    refuse(a, b, o, TS_ERR_ARG, "shrinkage");
    pos.fail_at = 7;
    refuse(a, set_of("neg", &neg, ROWS), (ts_direction_options){0}, TS_ERR_IO, "gone");
}

static void same_sets(void **state) {
    (void)state;
    static const int32_t ids[LAYERS] = {10, 11, 12};
    for (int m = 0; m < TS_DIRECTION_METHOD_COUNT; m++) {
        ts_direction_options o = {.method = (enum ts_direction_method)m, .block_ids = ids};
        ts_direction_set a = set_of("pos", &pos, ROWS), b = set_of("neg", &neg, ROWS);
        fill(&pos, &neg, 1);
        neg = pos;
        refuse(a, b, o, TS_ERR_ARG, "block 10: the direction is zero");
        /* the same rows in another order: the sums differ in their last digits */
        for (int i = 0; i < ROWS; i++)
            memcpy(neg.x[i], pos.x[(i * 7 + 3) % ROWS], sizeof neg.x[i]);
        if (m != TS_DIRECTION_PCA_REPENG) /* which goes by pairs: those do differ */
            refuse(a, b, o, TS_ERR_ARG,
                   "block 10: the direction is zero: 'pos' and 'neg' do not differ");
        /* one block only */
        fill(&pos, &neg, 1);
        for (int i = 0; i < ROWS; i++)
            memcpy(neg.x[i][1], pos.x[i][1], sizeof neg.x[i][1]);
        refuse(a, b, o, TS_ERR_ARG, "block 11: the direction is zero");
    }
}

static void control_takes_all(void **state) {
    (void)state;
    fill(&pos, &neg, 1);
    ts_direction *d = extract((ts_direction_options){0});
    const float *control[LAYERS] = {NULL, NULL, d->d + 2 * HIDDEN};
    refuse(set_of("pos", &pos, ROWS), set_of("neg", &neg, ROWS),
           (ts_direction_options){.orthogonal = control}, TS_ERR_ARG,
           "block 2: the direction is zero: the control direction takes all");
    ts_direction_free(d);
}

/* ---------------------------------------------------------------- rows that are not finite */

static void not_finite(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        fill(&pos, &neg, 1);
        neg.x[13][2][36] = bad[k];
        refuse(set_of("pos", &pos, ROWS), set_of("neg", &neg, ROWS), (ts_direction_options){0},
               TS_ERR_FORMAT, "'neg': snapshot 13, block 2 is not finite: value 36 is ");
        pos.x[4][1][0] = bad[k];
        refuse(set_of("pos", &pos, ROWS), set_of("neg", &neg, ROWS),
               (ts_direction_options){.n_threads = 3, .max_bytes = 1}, TS_ERR_FORMAT,
               "'pos': snapshot 4, block 1 is not finite: value 0");
    }
    /* the largest finite values are not */
    fill(&pos, &neg, 1);
    for (int j = 0; j < HIDDEN; j++)
        pos.x[1][0][j] = j % 2 ? 3e38f : -3e38f;
    ts_direction_free(extract((ts_direction_options){0}));
}

/* Rows left out: of unpaired methods the one row of the one block, of paired ones the pair. The
 * direction is that of sets that never had them. */
static void dropped(void **state) {
    (void)state;
    for (int m = 0; m < TS_DIRECTION_METHOD_COUNT; m++) {
        ts_direction_options o = {.method = (enum ts_direction_method)m, .drop_nonfinite = true};
        bool paired = m == TS_DIRECTION_PCA || m == TS_DIRECTION_PCA_REPENG;
        fill(&pos, &neg, 2);
        ts_direction *whole = extract(o);
        /* the last row, so that the shorter sets below have the same folds */
        neg.x[ROWS - 1][1][8] = NAN;
        ts_direction *d = extract(o);
        assert_int_equal(d->n_dropped, paired ? 2 : 1);
        assert_int_equal(d->blocks[1].n_negative, ROWS - 1);
        assert_int_equal(d->blocks[1].n_positive, paired ? ROWS - 1 : ROWS);
        assert_memory_equal(d->d, whole->d, HIDDEN * sizeof *d->d);
        ts_direction_set a = set_of("pos", &pos, paired ? ROWS - 1 : ROWS),
                         b = set_of("neg", &neg, ROWS - 1);
        ts_direction *shorter;
        assert_int_equal(ts_direction_extract(&a, &b, &o, &shorter, NULL), TS_OK);
        assert_int_equal(shorter->n_dropped, 0);
        assert_memory_equal(d->d + HIDDEN, shorter->d + HIDDEN, HIDDEN * sizeof *d->d);
        assert_true(d->blocks[1].auc == shorter->blocks[1].auc);
        ts_direction_free(whole);
        ts_direction_free(d);
        ts_direction_free(shorter);
    }
    for (int i = 1; i < ROWS; i++)
        neg.x[i][1][8] = NAN;
    refuse(set_of("pos", &pos, ROWS), set_of("neg", &neg, ROWS),
           (ts_direction_options){.drop_nonfinite = true}, TS_ERR_FORMAT,
           "'neg': block 1 has 1 finite rows of 24");
}

/* ---------------------------------------------------------------- small and odd shapes */

static void two_of_each(void **state) {
    (void)state;
    for (int m = 0; m < TS_DIRECTION_METHOD_COUNT; m++) {
        ts_direction_options o = {.method = (enum ts_direction_method)m};
        ts_direction_set a = set_of("pos", &pos, 2), b = set_of("neg", &neg, 2);
        ts_direction *d;
        ts_error err = {0};
        fill(&pos, &neg, 3);
        if (ts_direction_extract(&a, &b, &o, &d, &err))
            fail_msg("%s", err.message);
        for (int l = 0; l < LAYERS; l++) {
            assert_int_equal(d->blocks[l].n_folds, 2);
            assert_true(isnan(d->blocks[l].auc) ||
                        (d->blocks[l].auc >= 0 && d->blocks[l].auc <= 1));
        }
        ts_direction_free(d);
    }
}

/* Sets without any spread: lda falls back to the mean, the separation has no divisor. */
static void no_spread(void **state) {
    (void)state;
    fill(&pos, &neg, 1);
    for (int i = 1; i < ROWS; i++) {
        memcpy(pos.x[i], pos.x[0], sizeof pos.x[0]);
        memcpy(neg.x[i], neg.x[0], sizeof neg.x[0]);
    }
    ts_direction *mean = extract((ts_direction_options){0});
    ts_direction *lda = extract((ts_direction_options){.method = TS_DIRECTION_LDA});
    for (int j = 0; j < SNAPSHOT; j++)
        assert_true(fabsf(mean->d[j] - lda->d[j]) < 1e-5f);
    assert_true(mean->blocks[0].auc == 1);
    assert_true(mean->blocks[0].separation > 1e6);
    ts_direction_free(mean);
    ts_direction_free(lda);
    refuse(set_of("pos", &pos, ROWS), set_of("neg", &neg, ROWS),
           (ts_direction_options){.method = TS_DIRECTION_PCA_REPENG}, TS_ERR_ARG, "zero");
}

static void names(void **state) {
    (void)state;
    enum ts_direction_method m;
    for (int i = 0; i < TS_DIRECTION_METHOD_COUNT; i++) {
        assert_true(
            ts_direction_method_find(ts_direction_method_name((enum ts_direction_method)i), &m));
        assert_int_equal(m, i);
    }
    assert_false(ts_direction_method_find("pca ", &m));
    assert_string_equal(ts_direction_method_name((enum ts_direction_method)9), "unknown");
}

/* ---------------------------------------------------------------- linear algebra */

enum { N = 200 };

static double matrix[N][N];

static void apply(const void *self, const double *x, double *y) {
    (void)self;
    for (int i = 0; i < N; i++) {
        y[i] = 0;
        for (int j = 0; j < N; j++)
            y[i] += matrix[i][j] * x[j];
    }
}

static void make_matrix(int rank) {
    static double w[N][N];
    for (int i = 0; i < rank; i++)
        for (int j = 0; j < N; j++)
            w[i][j] = draw() * pow(0.9, i);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) {
            matrix[i][j] = 0;
            for (int k = 0; k < rank; k++)
                matrix[i][j] += w[k][i] * w[k][j];
        }
    }
}

static void lanczos_and_dense(void **state) {
    (void)state;
    static const int ranks[] = {0, 1, 2, 5, 150, N};
    static double copy[N][N];
    ts_operator m = {N, apply, NULL};
    for (int k = 0; k < 6; k++) {
        double v[N], u[N], lanczos[2], dense[2], cos = 0;
        bool converged;
        make_matrix(ranks[k]);
        memcpy(copy, matrix, sizeof copy);
        assert_int_equal(ts_lanczos_top(&m, N, 1e-9, v, lanczos, &converged), TS_OK);
        assert_true(converged);
        assert_int_equal(ts_dense_top(&copy[0][0], N, u, dense), TS_OK);
        assert_true(fabs(lanczos[0] - dense[0]) <= 1e-10 * (dense[0] + 1e-3));
        if (ranks[k] > 0)
            assert_true(fabs(lanczos[1] - dense[1]) <= 0.03 * dense[0]);
        for (int i = 0; i < N; i++)
            cos += u[i] * v[i];
        assert_true(ranks[k] == 0 || fabs(cos) > 1 - 1e-10);
    }
    bool converged;
    double v[N], value[2], size = 0;
    make_matrix(N);
    assert_int_equal(ts_lanczos_top(&m, 3, 1e-9, v, value, &converged), TS_OK);
    assert_false(converged);
    for (int i = 0; i < N; i++)
        size += v[i] * v[i];
    assert_true(fabs(size - 1) < 1e-12);
}

static void solver(void **state) {
    (void)state;
    ts_operator m = {N, apply, NULL};
    double b[N], x[N], y[N], error = 0, size = 0;
    bool converged;
    make_matrix(20);
    for (int i = 0; i < N; i++) {
        matrix[i][i] += 0.01;
        b[i] = draw();
    }
    assert_int_equal(ts_solve(&m, b, 1e-12, 1000, x, &converged), TS_OK);
    assert_true(converged);
    apply(NULL, x, y);
    for (int i = 0; i < N; i++) {
        error += (y[i] - b[i]) * (y[i] - b[i]);
        size += b[i] * b[i];
    }
    assert_true(sqrt(error) < 1e-10 * sqrt(size));
    assert_int_equal(ts_solve(&m, b, 1e-12, 2, x, &converged), TS_OK);
    assert_false(converged);
    memset(b, 0, sizeof b);
    assert_int_equal(ts_solve(&m, b, 1e-12, 1000, x, &converged), TS_OK);
    assert_true(converged && x[0] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_of_differences),
        cmocka_unit_test(signs),
        cmocka_unit_test(control_arm),
        cmocka_unit_test(groups_and_threads),
        cmocka_unit_test(neighbours),
        cmocka_unit_test(orthogonal),
        cmocka_unit_test(unlike_sets),
        cmocka_unit_test(same_sets),
        cmocka_unit_test(control_takes_all),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(dropped),
        cmocka_unit_test(two_of_each),
        cmocka_unit_test(no_spread),
        cmocka_unit_test(names),
        cmocka_unit_test(lanczos_and_dense),
        cmocka_unit_test(solver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
