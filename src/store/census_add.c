/* Owns adding up censuses. Refuses other models and other shapes, naming the difference. */
#include <inttypes.h>
#include <string.h>

#include "core/mem.h"
#include "core/plural.h"
#include "store/census.h"
#include "store/meta.h"

static const char *name_of(const ts_census *c) {
    return c->n_sources > 0 && c->sources[0].path ? c->sources[0].path : "a census";
}

static int check_widths(const ts_census_block *a, const ts_census_block *b, uint32_t n,
                        const char *what, ts_error *err) {
    for (uint32_t i = 0; i < n; i++)
        if (a[i].width != b[i].width)
            return ts_fail(err, TS_ERR_ARG,
                           "block %" PRIu32 "%s has %" PRIu32 " neurons, expected %" PRIu32, i,
                           what, b[i].width, a[i].width);
    return TS_OK;
}

static int check_shape(const ts_census *a, const ts_census *b, ts_error *err) {
    if (a->n_layers != b->n_layers)
        return ts_fail(err, TS_ERR_ARG, "it has %" PRIu32 " block%s, expected %" PRIu32, b->n_layers, ts_plural(b->n_layers),
                       a->n_layers);
    int rc = check_widths(a->dense, b->dense, a->n_layers, "", err);
    if (rc < 0 || !a->detailed || !b->detailed)
        return rc;
    if ((a->shared == NULL) != (b->shared == NULL))
        return ts_fail(err, TS_ERR_ARG, "it has %s shared experts, expected %s",
                       b->shared ? "counted" : "no", a->shared ? "some" : "none");
    return a->shared ? check_widths(a->shared, b->shared, a->n_layers, " (shared expert)", err)
                     : TS_OK;
}

/* Another quantisation of the same model gives other sizes. */
static int check_weights(const ts_census *a, const ts_census *b, ts_error *err) {
    for (uint32_t i = 0; a->detailed && b->detailed && i < a->n_layers; i++) {
        uint64_t x = a->gate_bytes[i] + a->up_bytes[i] + a->down_bytes[i];
        uint64_t y = b->gate_bytes[i] + b->up_bytes[i] + b->down_bytes[i];
        if (x != y || a->down_block[i] != b->down_block[i])
            return ts_fail(err, TS_ERR_ARG,
                           "block %" PRIu32 " has %" PRIu64
                           " bytes of FFN weights in blocks of %" PRIu32 ", expected %" PRIu64
                           " in blocks of %" PRIu32,
                           i, y, b->down_block[i], x, a->down_block[i]);
    }
    return TS_OK;
}

/* The same limit as ts_census_check has: no count can overflow afterwards. */
static int check_room(const ts_census *a, const ts_census *b, ts_error *err) {
    uint64_t limit = (UINT64_C(1) << 60) / (a->inter ? a->inter : 1);
    if (a->decode_passes > limit || b->decode_passes > limit - a->decode_passes ||
        a->prefill_passes > UINT64_MAX - b->prefill_passes)
        return ts_fail(err, TS_ERR_ARG, "%" PRIu64 " and %" PRIu64 " passes are too many to count",
                       a->decode_passes, b->decode_passes);
    return TS_OK;
}

/* All the memory adding takes, so that nothing fails half way. */
static int append_sources(ts_census *dst, const ts_census *src, ts_error *err) {
    size_t n = dst->n_sources + src->n_sources, i;
    ts_census_source *grown = ts_realloc(dst->sources, n, sizeof *grown);
    if (grown == NULL)
        return ts_fail_nomem(err, "sources", n * sizeof *grown);
    dst->sources = grown;
    for (i = dst->n_sources; i < n; i++) {
        const ts_census_source *from = &src->sources[i - dst->n_sources];
        grown[i] = *from;
        grown[i].path = ts_strdup(from->path ? from->path : "");
        if (grown[i].path == NULL)
            break;
    }
    if (i == n) {
        dst->n_sources = n;
        return TS_OK;
    }
    while (i-- > dst->n_sources)
        ts_free(grown[i].path);
    return ts_fail_nomem(err, "sources", n * sizeof *grown);
}

static void add_counts(uint64_t *dst, const uint64_t *src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] += src[i];
}

static void add_amounts(double *dst, const double *src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] += src[i];
}

static void add_block(ts_census_block *dst, const ts_census_block *src, bool detailed) {
    if (dst->width == 0)
        return;
    dst->n_rows += src->n_rows;
    dst->n_pairs += src->n_pairs;
    dst->zeros += src->zeros;
    dst->nonfinite += src->nonfinite;
    add_counts(dst->hits, src->hits, detailed ? TS_CENSUS_SETS : TS_CENSUS_FIXED);
    add_counts(dst->bucket_count, src->bucket_count, TS_CENSUS_BUCKETS);
    add_amounts(dst->bucket_mass, src->bucket_mass, TS_CENSUS_BUCKETS);
    add_amounts(dst->mass, src->mass, dst->width);
    if (!detailed)
        return;
    add_counts(dst->top_p, src->top_p, TS_CENSUS_TOP_P);
    add_counts(dst->fine_count, src->fine_count, TS_CENSUS_FINE_BINS);
    add_amounts(dst->fine_mass, src->fine_mass, TS_CENSUS_FINE_BINS);
    dst->max_abs = src->max_abs > dst->max_abs ? src->max_abs : dst->max_abs;
}

/* What a sum with a file without detail no longer knows. */
static void forget_detail(ts_census *c) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
        ts_census_block *b = &c->dense[i];
        ts_free(b->fine_count);
        ts_free(b->fine_mass);
        b->fine_count = NULL;
        b->fine_mass = NULL;
        b->max_abs = 0.0;
        memset(b->top_p, 0, sizeof b->top_p);
        memset(b->hits + TS_CENSUS_FIXED, 0, TS_CENSUS_SHARES * sizeof *b->hits);
        memset(b->k + TS_CENSUS_FIXED, 0, TS_CENSUS_SHARES * sizeof *b->k);
        if (c->shared != NULL) {
            ts_free(c->shared[i].mass);
            ts_free(c->shared[i].fine_count);
            ts_free(c->shared[i].fine_mass);
        }
    }
    ts_free(c->shared);
    c->shared = NULL;
    c->detailed = false;
}

static int check_same(const ts_census *dst, const ts_census *src, ts_error *err) {
    int rc = dst->provenance && src->provenance ? ts_meta_same_model(dst->provenance, src->provenance, err)
                                                : TS_OK;
    if (rc == TS_OK)
        rc = check_shape(dst, src, err);
    if (rc == TS_OK)
        rc = check_weights(dst, src, err);
    if (rc == TS_OK)
        rc = check_room(dst, src, err);
    if (rc < 0)
        ts_error_prefix(err, "'%s' cannot be added to '%s': ", name_of(src), name_of(dst));
    return rc;
}

int ts_census_add(ts_census *dst, const ts_census *src, ts_error *err) {
    int rc = check_same(dst, src, err);
    if (rc == TS_OK)
        rc = append_sources(dst, src, err);
    if (rc < 0)
        return rc;
    if (dst->detailed && !src->detailed)
        forget_detail(dst);
    for (uint32_t i = 0; i < dst->n_layers; i++) {
        add_block(&dst->dense[i], &src->dense[i], dst->detailed);
        if (dst->shared != NULL)
            add_block(&dst->shared[i], &src->shared[i], dst->detailed);
    }
    dst->decode_passes += src->decode_passes;
    dst->prefill_passes += src->prefill_passes;
    dst->overlap_pairs += src->overlap_pairs;
    dst->partial = dst->partial || src->partial;
    return TS_OK;
}
