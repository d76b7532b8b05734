/* Walks the blocks of two sets, a group at a time, and hands each to the method. Owns reading,
 * threads, and what the errors say. Refuses sets that do not fit together. */
#include "stats/direction.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "core/mem.h"
#include "stats/direction_report.h"

enum { MAX_THREADS = 64 };

static const char *const names[TS_DIRECTION_METHOD_COUNT] = {"mean", "pca", "pca-repeng", "svd",
                                                             "lda"};

const char *ts_direction_method_name(enum ts_direction_method method) {
    return (unsigned)method < TS_DIRECTION_METHOD_COUNT ? names[method] : "unknown";
}

bool ts_direction_method_find(const char *name, enum ts_direction_method *out) {
    for (int i = 0; i < TS_DIRECTION_METHOD_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum ts_direction_method)i;
            return true;
        }
    }
    return false;
}

/* One group of blocks, and the threads that share it. */
typedef struct group {
    const ts_direction_set *set[2]; /* TS_NEGATIVE, TS_POSITIVE */
    const ts_direction_options *o;
    ts_fit fit; /* its control direction is set for each block */
    ts_direction *out;
    float *rows;     /* [layers of the group][n of both sets][hidden] */
    float *snapshot; /* [layers of the group][hidden] */
    int32_t first, n_layers, room;
    pthread_mutex_t lock;
    int32_t next;
    int32_t failed; /* lowest layer that did, n_layers of the result when none */
    int rc;
    ts_error err;
} group;

static int check_set(const ts_direction_set *s, ts_error *err) {
    if (s->n_layers < 1 || s->n_hidden < 1)
        return ts_fail(err, TS_ERR_ARG,
                       "'%s' has %" PRId32 " layers of %" PRId32 " values, expected at least one",
                       s->name, s->n_layers, s->n_hidden);
    if (s->n < 2)
        return ts_fail(err, TS_ERR_ARG, "'%s' has %" PRId64 " snapshot%s, expected at least 2",
                       s->name, s->n, s->n == 1 ? "" : "s");
    return TS_OK;
}

static int check(const ts_direction_set *a, const ts_direction_set *b,
                 const ts_direction_options *o, ts_error *err) {
    int rc;

    if ((unsigned)o->method >= TS_DIRECTION_METHOD_COUNT)
        return ts_fail(err, TS_ERR_ARG, "method: expected 0 to %d, got %d",
                       TS_DIRECTION_METHOD_COUNT - 1, (int)o->method);
    if (o->shrinkage != 0 && !(o->shrinkage >= 0.001 && o->shrinkage <= 1))
        return ts_fail(err, TS_ERR_ARG, "shrinkage: expected 0.001 to 1, got %g", o->shrinkage);
    if ((rc = check_set(a, err)) || (rc = check_set(b, err)))
        return rc;
    if (a->n_hidden != b->n_hidden)
        return ts_fail(err, TS_ERR_ARG,
                       "the sets differ in width: '%s' has %" PRId32 ", '%s' has %" PRId32, a->name,
                       a->n_hidden, b->name, b->n_hidden);
    if (a->n_layers != b->n_layers)
        return ts_fail(err, TS_ERR_ARG,
                       "the sets differ in layers: '%s' has %" PRId32 ", '%s' has %" PRId32,
                       a->name, a->n_layers, b->name, b->n_layers);
    if (ts_method_is_paired(o->method) && a->n != b->n)
        return ts_fail(err, TS_ERR_ARG,
                       "'%s' needs pairs: '%s' has %" PRId64 " snapshots, '%s' has %" PRId64,
                       names[o->method], a->name, a->n, b->name, b->n);
    return TS_OK;
}

static int32_t block_id(const ts_direction_options *o, int32_t layer) {
    return o->block_ids ? o->block_ids[layer] : layer;
}

static int64_t n_rows(const group *g) {
    return g->set[0]->n + g->set[1]->n;
}

static int read_set(group *g, int which, ts_error *err) {
    const ts_direction_set *s = g->set[which];
    size_t width = (size_t)s->n_hidden;

    for (int64_t i = 0; i < s->n; i++) {
        int rc = s->read(s->user, i, g->first, g->n_layers, g->snapshot, err);

        if (rc)
            return rc;
        for (int32_t l = 0; l < g->n_layers; l++) {
            size_t at = (size_t)(l * n_rows(g) + (which ? g->set[0]->n : 0) + i);

            memcpy(g->rows + at * width, g->snapshot + (size_t)l * width, width * sizeof *g->rows);
        }
    }
    return TS_OK;
}

static int fail_bad_row(const group *g, const ts_block_rows *r, int32_t layer, ts_error *err) {
    int which = r->bad[TS_POSITIVE] >= 0 ? TS_POSITIVE : TS_NEGATIVE;
    const float *x = r->x[which] + (size_t)r->bad[which] * (size_t)r->width;
    int32_t j = 0;

    while (j < r->width - 1 && isfinite(x[j]))
        j++;
    return ts_fail_at(err, TS_ERR_FORMAT, r->bad[which],
                      "'%s': snapshot %" PRId64 ", block %" PRId32 " is not finite: value %" PRId32
                      " is %g",
                      g->set[which]->name, r->bad[which], block_id(g->o, layer), j, (double)x[j]);
}

static int fail_state(const group *g, int32_t layer, enum ts_fit_state state, ts_error *err) {
    int32_t id = block_id(g->o, layer);

    if (state == TS_FIT_TAKEN)
        return ts_fail(
            err, TS_ERR_ARG,
            "block %" PRId32 ": the direction is zero: the control direction takes all of it", id);
    if (state == TS_FIT_UNCONVERGED)
        return ts_fail(err, TS_ERR_ARG,
                       "block %" PRId32 ": 'lda' does not converge, a larger shrinkage may help",
                       id);
    return ts_fail(err, TS_ERR_ARG,
                   "block %" PRId32
                   ": the direction is zero: '%s' and '%s' do not differ along its axis",
                   id, g->set[TS_POSITIVE]->name, g->set[TS_NEGATIVE]->name);
}

/* Direction and figures of one block; d is working memory, [width]. */
static int extract_block(group *g, int32_t layer, ts_block_rows *r, double *d, ts_error *err) {
    ts_direction_block *b = &g->out->blocks[layer];
    float *to = g->out->d + (size_t)layer * (size_t)r->width;
    enum ts_fit_state state;
    ts_fit fit = g->fit;
    int rc;

    for (int set = 0; set < 2; set++)
        if (r->kept[set] < 2)
            return ts_fail(err, TS_ERR_FORMAT,
                           "'%s': block %" PRId32 " has %" PRId64 " finite rows of %" PRId64
                           ", expected at least 2",
                           g->set[set]->name, block_id(g->o, layer), r->kept[set], r->n[set]);
    fit.orthogonal = g->o->orthogonal ? g->o->orthogonal[layer] : NULL;
    rc = ts_fit_block(&fit, r, TS_ALL_FOLDS, d, &b->eigen_gap, &state);
    if (!rc && state != TS_FIT_FOUND)
        return fail_state(g, layer, state, err);
    if (!rc)
        rc = ts_report_block(&fit, r, d, b);
    if (rc)
        return ts_fail_nomem(err, "a direction", (size_t)r->width * sizeof *d);
    for (int32_t j = 0; j < r->width; j++)
        to[j] = (float)d[j];
    return TS_OK;
}

static int run_block(group *g, int32_t layer, ts_error *err) {
    int64_t n[2] = {g->set[0]->n, g->set[1]->n}, dropped;
    size_t width = (size_t)g->out->n_hidden;
    const float *x[2];
    ts_block_rows r;
    double *d = ts_malloc(width * sizeof *d);
    int rc;

    if (!d)
        return ts_fail_nomem(err, "a direction", width * sizeof *d);
    x[0] = g->rows + (size_t)((layer - g->first) * n_rows(g)) * width;
    x[1] = x[0] + (size_t)n[0] * width;
    rc = ts_block_rows_init(&r, x, n, g->out->n_hidden, g->o->drop_nonfinite,
                            ts_method_is_paired(g->o->method));
    if (rc == TS_ERR_FORMAT)
        rc = fail_bad_row(g, &r, layer, err);
    else if (rc)
        rc = ts_fail_nomem(err, "rows", (size_t)n_rows(g));
    else
        rc = extract_block(g, layer, &r, d, err);
    dropped = n[0] + n[1] - r.kept[0] - r.kept[1];
    ts_block_rows_free(&r);
    ts_free(d);
    if (!rc) {
        pthread_mutex_lock(&g->lock);
        g->out->n_dropped += dropped;
        pthread_mutex_unlock(&g->lock);
    }
    return rc;
}

/* Takes blocks of the group until none is left or one has failed. */
static void *work(void *user) {
    group *g = user;

    for (;;) {
        ts_error err = {0};
        int32_t layer;
        int rc;

        pthread_mutex_lock(&g->lock);
        layer = g->failed < g->out->n_layers ? g->first + g->n_layers : g->next++;
        pthread_mutex_unlock(&g->lock);
        if (layer >= g->first + g->n_layers)
            return NULL;
        rc = run_block(g, layer, &err);
        if (!rc)
            continue;
        pthread_mutex_lock(&g->lock);
        if (layer < g->failed) {
            g->failed = layer;
            g->rc = rc;
            g->err = err;
        }
        pthread_mutex_unlock(&g->lock);
    }
}

/* A thread that cannot be started leaves its blocks to the others; this one always works. */
static int run_group(group *g, ts_error *err) {
    int n = g->o->n_threads > MAX_THREADS ? MAX_THREADS : g->o->n_threads, started = 0;
    pthread_t threads[MAX_THREADS];

    g->next = g->first;
    while (started < n - 1 && started < g->n_layers - 1 &&
           !pthread_create(&threads[started], NULL, work, g))
        started++;
    work(g);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (g->failed == g->out->n_layers)
        return TS_OK;
    if (err)
        *err = g->err;
    return g->rc;
}

static void compare_neighbours(ts_direction *d) {
    size_t width = (size_t)d->n_hidden;

    for (int32_t l = 0; l < d->n_layers; l++) {
        const float *x = d->d + (size_t)l * width, *y = x - width;
        double xy = 0, xx = 0, yy = 0;

        for (size_t j = 0; l > 0 && j < width; j++) {
            xy += (double)x[j] * (double)y[j];
            xx += (double)x[j] * (double)x[j];
            yy += (double)y[j] * (double)y[j];
        }
        d->blocks[l].cos_previous = l > 0 ? xy / sqrt(xx * yy) : NAN;
    }
}

static int make_result(const ts_direction_set *s, ts_direction **out, ts_error *err) {
    ts_direction *d = ts_calloc(1, sizeof *d);
    size_t layers = (size_t)s->n_layers, width = (size_t)s->n_hidden;

    *out = d;
    if (!d)
        return ts_fail_nomem(err, "a direction", sizeof *d);
    d->n_layers = s->n_layers;
    d->n_hidden = s->n_hidden;
    d->d = ts_calloc(layers * width, sizeof *d->d);
    d->blocks = ts_calloc(layers, sizeof *d->blocks);
    return d->d && d->blocks ? TS_OK
                             : ts_fail_nomem(err, "directions", layers * width * sizeof *d->d);
}

/* Room for as many layers as the budget has, at least one and at most all. */
static int make_room(group *g, ts_error *err) {
    size_t budget = g->o->max_bytes ? g->o->max_bytes : TS_DIRECTION_MAX_BYTES;
    size_t width = (size_t)g->out->n_hidden, rows = (size_t)n_rows(g), layer;

    if (g->set[0]->n > INT64_MAX - g->set[1]->n ||
        __builtin_mul_overflow(rows, width * sizeof(float), &layer))
        return ts_fail_nomem(err, "the rows of a block", SIZE_MAX);
    g->room =
        budget / layer < (size_t)g->out->n_layers ? (int32_t)(budget / layer) : g->out->n_layers;
    g->room = g->room > 0 ? g->room : 1;
    g->rows = ts_malloc((size_t)g->room * layer);
    g->snapshot = ts_malloc((size_t)g->room * width * sizeof *g->snapshot);
    return g->rows && g->snapshot
               ? TS_OK
               : ts_fail_nomem(err, "the rows of a block", (size_t)g->room * layer);
}

int ts_direction_extract(const ts_direction_set *positive, const ts_direction_set *negative,
                         const ts_direction_options *options, ts_direction **out, ts_error *err) {
    group g = {.set = {negative, positive}, .o = options};
    int rc = check(positive, negative, options, err);

    *out = NULL;
    if (rc)
        return rc;
    g.fit =
        (ts_fit){.method = options->method,
                 .shrinkage = options->shrinkage > 0 ? options->shrinkage : TS_DIRECTION_SHRINKAGE};
    g.failed = positive->n_layers;
    pthread_mutex_init(&g.lock, NULL);
    rc = make_result(positive, &g.out, err);
    if (!rc)
        rc = make_room(&g, err);
    for (; !rc && g.first < positive->n_layers; g.first += g.n_layers) {
        int32_t left = positive->n_layers - g.first;

        g.n_layers = left < g.room ? left : g.room;
        rc = read_set(&g, TS_POSITIVE, err);
        if (!rc)
            rc = read_set(&g, TS_NEGATIVE, err);
        if (!rc)
            rc = run_group(&g, err);
    }
    if (rc) {
        ts_direction_free(g.out);
    } else {
        compare_neighbours(g.out);
        *out = g.out;
    }
    pthread_mutex_destroy(&g.lock);
    ts_free(g.rows);
    ts_free(g.snapshot);
    return rc;
}

void ts_direction_free(ts_direction *d) {
    if (!d)
        return;
    ts_free(d->d);
    ts_free(d->blocks);
    ts_free(d);
}
