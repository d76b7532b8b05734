/* Owns reading PATH.json in constant memory beside its result, in any key order. Refuses another
 * shape than its own header says, and everything ts_census_check refuses. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/buf.h"
#include "core/mem.h"
#include "core/plural.h"
#include "store/census_internal.h"
#include "store/census_scan.h"
#include "store/fingerprint.h"
#include "store/meta.h"

/* The row arrays of the file, by number. */
enum { HITS, COUNT, BUCKET_MASS, MASS, N_ROWS };

/* How many elements each array gave a block. */
typedef struct lengths {
    uint32_t n[N_ROWS];
} lengths;

typedef struct reading {
    ts_scan *scan;
    ts_error *err;
    ts_census *c;
    lengths *lengths; /* [capacity], beside c->dense */
    uint32_t capacity;
    uint32_t rows[N_ROWS];
    uint64_t n_layers, inter, offset, ks[TS_CENSUS_FIXED];
    unsigned seen; /* bit: key number */
    int rc;        /* TS_ERR_NOMEM, which the scan does not know of */
} reading;

static bool grow(reading *r) {
    uint32_t n = r->capacity ? r->capacity * 2 : 32;
    ts_census_block *blocks = ts_realloc(r->c->dense, n, sizeof *blocks);
    if (blocks != NULL)
        r->c->dense = blocks;
    lengths *l = ts_realloc(r->lengths, n, sizeof *l);
    if (l != NULL)
        r->lengths = l;
    if (blocks == NULL || l == NULL) {
        r->rc = ts_fail_nomem(r->err, "a census", n * sizeof *blocks);
        return false;
    }
    memset(blocks + r->capacity, 0, (n - r->capacity) * sizeof *blocks);
    memset(l + r->capacity, 0, (n - r->capacity) * sizeof *l);
    r->capacity = n;
    return true;
}

static uint32_t read_masses(reading *r, ts_census_block *b) {
    uint32_t n = 0, capacity = 0;
    while (ts_scan_more(r->scan)) {
        if (n == TS_CENSUS_MAX_WIDTH) {
            ts_scan_fail(r->scan, "a block of more than %u neurons", TS_CENSUS_MAX_WIDTH);
            return n;
        }
        if (n == capacity) {
            capacity = capacity ? capacity * 2 : 256;
            double *grown = ts_realloc(b->mass, capacity, sizeof *grown);
            if (grown == NULL) {
                r->rc = ts_fail_nomem(r->err, "masses", capacity * sizeof *grown);
                return n;
            }
            b->mass = grown;
        }
        b->mass[n++] = ts_scan_amount(r->scan);
    }
    return n;
}

static uint32_t read_elements(reading *r, int array, ts_census_block *b) {
    uint32_t n = 0, limit = array == HITS ? TS_CENSUS_FIXED : TS_CENSUS_BUCKETS;
    if (array == MASS)
        return read_masses(r, b);
    while (ts_scan_more(r->scan)) {
        if (n == limit) {
            ts_scan_fail(r->scan, "a row of more than %" PRIu32 " elements", limit);
            return n;
        }
        if (array == HITS)
            b->hits[n] = ts_scan_count(r->scan, TS_SCAN_MAX_COUNT);
        else if (array == COUNT)
            b->bucket_count[n] = ts_scan_count(r->scan, TS_SCAN_MAX_COUNT);
        else
            b->bucket_mass[n] = ts_scan_amount(r->scan);
        n++;
    }
    return n;
}

static void read_rows(reading *r, int array) {
    uint32_t i = 0;
    if (!ts_scan_enter(r->scan, '['))
        return;
    for (; r->rc == TS_OK && ts_scan_more(r->scan); i++) {
        if (i == TS_CENSUS_MAX_LAYERS) {
            ts_scan_fail(r->scan, "more than %d blocks", TS_CENSUS_MAX_LAYERS);
            return;
        }
        if (i == r->capacity && !grow(r))
            return;
        if (i >= r->c->n_layers)
            r->c->n_layers = i + 1; /* from here on its memory is freed with c */
        if (!ts_scan_enter(r->scan, '['))
            return;
        r->lengths[i].n[array] = read_elements(r, array, &r->c->dense[i]);
    }
    r->rows[array] = i;
}

static void read_ks(reading *r) {
    int n = 0;
    if (!ts_scan_enter(r->scan, '['))
        return;
    for (; ts_scan_more(r->scan); n++) {
        uint64_t k = ts_scan_count(r->scan, TS_CENSUS_MAX_WIDTH);
        if (n < TS_CENSUS_FIXED)
            r->ks[n] = k;
    }
    if (n != TS_CENSUS_FIXED)
        ts_scan_fail(r->scan, "overlap_ks: expected %d elements, got %d", TS_CENSUS_FIXED, n);
}

static const char *const keys[] = {"num_layers",     "inter",         "decode_passes",
                                   "prefill_passes", "overlap_pairs", "bucket_exp_offset",
                                   "overlap_ks",     "overlap_hits",  "hist_count",
                                   "hist_mass",      "mass"};
enum { N_SCALARS = 6, KS = 6, FIRST_ROWS = 7, N_KEYS = sizeof keys / sizeof *keys };

static void read_member(reading *r, int key) {
    uint64_t *const scalars[N_SCALARS] = {&r->n_layers,         &r->inter,
                                          &r->c->decode_passes, &r->c->prefill_passes,
                                          &r->c->overlap_pairs, &r->offset};
    if (key < N_SCALARS)
        *scalars[key] = ts_scan_count(r->scan, TS_SCAN_MAX_COUNT);
    else if (key == KS)
        read_ks(r);
    else
        read_rows(r, key - FIRST_ROWS);
}

static void read_object(reading *r) {
    int key;
    if (!ts_scan_enter(r->scan, '{'))
        return;
    while (r->rc == TS_OK && (key = ts_scan_member(r->scan, keys, N_KEYS, &r->seen)) >= 0)
        read_member(r, key);
    if (r->rc == TS_OK)
        ts_scan_end(r->scan);
}

/* ---- what was read, against what the header says */

static int check_header(const reading *r, ts_error *err) {
    for (int i = 0; i < N_KEYS; i++)
        if (!(r->seen & 1u << i))
            return ts_fail(err, TS_ERR_FORMAT, "not an FFN census: it has no '%s'", keys[i]);
    if (r->offset != TS_CENSUS_BUCKET_OFFSET)
        return ts_fail(err, TS_ERR_FORMAT, "bucket_exp_offset is %" PRIu64 ", expected %d",
                       r->offset, TS_CENSUS_BUCKET_OFFSET);
    for (int i = 0; i < N_ROWS; i++)
        if (r->rows[i] != r->n_layers)
            return ts_fail(err, TS_ERR_FORMAT,
                           "%s has %" PRIu32 " row%s, expected num_layers, %" PRIu64,
                           keys[FIRST_ROWS + i], r->rows[i], ts_plural(r->rows[i]), r->n_layers);
    for (int i = 0; i < TS_CENSUS_FIXED; i++) {
        uint64_t k = ts_census_fixed_k[i] < r->inter ? ts_census_fixed_k[i] : r->inter;
        if (r->ks[i] != k)
            return ts_fail(err, TS_ERR_FORMAT,
                           "overlap_ks element %d is %" PRIu64 ", expected %" PRIu64, i, r->ks[i],
                           k);
    }
    return TS_OK;
}

static bool all_zero(const ts_census_block *b) {
    for (int i = 0; i < TS_CENSUS_BUCKETS; i++)
        if (b->bucket_count[i] != 0 || b->bucket_mass[i] != 0.0)
            return false;
    for (int i = 0; i < TS_CENSUS_FIXED; i++)
        if (b->hits[i] != 0)
            return false;
    return true;
}

/* A block without neurons has empty rows, or rows of zeros. */
static int set_block(ts_census *c, uint32_t i, const uint32_t n[N_ROWS], ts_error *err) {
    static const uint32_t full[N_ROWS] = {TS_CENSUS_FIXED, TS_CENSUS_BUCKETS, TS_CENSUS_BUCKETS, 0};
    ts_census_block *b = &c->dense[i];
    bool none = n[MASS] == 0;
    for (int a = HITS; a < MASS; a++)
        if (n[a] != full[a] && !(none && n[a] == 0))
            return ts_fail(err, TS_ERR_FORMAT,
                           "block %" PRIu32 ": %s has %" PRIu32 " element%s, expected %" PRIu32, i,
                           keys[FIRST_ROWS + a], n[a], ts_plural(n[a]), full[a]);
    if (none)
        return all_zero(b)
                   ? TS_OK
                   : ts_fail(err, TS_ERR_FORMAT, "block %" PRIu32 " has counts but no neurons", i);
    b->width = n[MASS];
    b->n_rows = c->decode_passes;
    b->n_pairs = c->overlap_pairs;
    b->zeros = b->bucket_count[0];
    b->nonfinite = b->bucket_count[TS_CENSUS_BUCKETS - 1];
    for (int j = 0; j < TS_CENSUS_FIXED; j++)
        b->k[j] = ts_census_fixed_k[j] < b->width ? ts_census_fixed_k[j] : b->width;
    return TS_OK;
}

static int settle(reading *r, ts_error *err) {
    int rc = check_header(r, err);
    if (rc == TS_OK && r->inter > TS_CENSUS_MAX_WIDTH)
        rc = ts_fail(err, TS_ERR_FORMAT, "inter is %" PRIu64 ", expected at most %u", r->inter,
                     TS_CENSUS_MAX_WIDTH);
    r->c->inter = rc == TS_OK ? (uint32_t)r->inter : 0;
    for (uint32_t i = 0; rc == TS_OK && i < r->c->n_layers; i++)
        rc = set_block(r->c, i, r->lengths[i].n, err);
    return rc == TS_OK ? ts_census_check(r->c, err) : rc;
}

static int read_json(const char *path, ts_census *c, ts_error *err) {
    reading r = {.c = c, .err = err};
    int rc = ts_scan_open(path, &r.scan, err);
    if (rc < 0)
        return rc;
    read_object(&r);
    rc = ts_scan_close(r.scan);
    if (r.rc < 0)
        rc = r.rc;
    if (rc == TS_OK && (rc = settle(&r, err)) < 0)
        ts_error_prefix(err, "'%s': ", path);
    ts_free(r.lengths);
    return rc;
}

/* ---- the three files */

static int mark_file(const char *path, ts_census_mark *m, ts_error *err) {
    m->file = ts_path_base(path);
    return ts_fingerprint_file(path, m->xxh3, &m->bytes, err);
}

static bool there(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 || errno != ENOENT;
}

/* Without detail and meta it is another program's file: analysed with what it has. */
static int read_beside(const char *path, ts_census *c, ts_census_mark *json, ts_error *err) {
    char *detail = ts_path_with_extension(path, "detail"),
         *meta = ts_path_with_extension(path, "meta");
    ts_census_mark mark;
    int rc =
        detail && meta ? mark_file(path, json, err) : ts_fail_nomem(err, "a path", strlen(path));
    bool has_detail = rc == TS_OK && strcmp(detail, path) != 0 && there(detail);
    if (has_detail)
        rc = mark_file(detail, &mark, err);
    if (rc == TS_OK && strcmp(meta, path) != 0 && there(meta))
        rc = ts_census_get_meta(meta, json, has_detail ? &mark : NULL, c, err);
    if (rc == TS_OK && has_detail)
        rc = ts_census_get_detail(detail, json, c, err);
    ts_free(detail);
    ts_free(meta);
    return rc;
}

/* A file that lists no sources is its own. */
static int name_source(const char *path, const ts_census_mark *json, ts_census *c, ts_error *err) {
    if (c->n_sources > 0)
        return TS_OK;
    c->sources = ts_calloc(1, sizeof *c->sources);
    char *copy = ts_strdup(path);
    if (c->sources == NULL || copy == NULL) {
        ts_free(copy);
        return ts_fail_nomem(err, "a source", strlen(path));
    }
    ts_census_source *s = c->sources;
    c->n_sources = 1;
    *s = (ts_census_source){.path = copy,
                            .decode_passes = c->decode_passes,
                            .prefill_passes = c->prefill_passes,
                            .overlap_pairs = c->overlap_pairs,
                            .partial = c->partial};
    memcpy(s->xxh3, json->xxh3, sizeof s->xxh3);
    if (c->provenance != NULL) {
        memcpy(s->engine, c->provenance->engine, sizeof s->engine);
        memcpy(s->devices, c->provenance->devices, sizeof s->devices);
    }
    return TS_OK;
}

static int make_key(const ts_census *c, char **out, ts_error *err) {
    char hash[33];
    ts_buf b = {0};
    if (c->provenance == NULL)
        return TS_OK;
    ts_meta_model_hash(c->provenance, hash);
    ts_buf_printf(&b, "%s/%s/%s", c->provenance->architecture, c->provenance->name, hash);
    *out = ts_buf_take(&b);
    return *out ? TS_OK : ts_fail_nomem(err, "a model's name", 0);
}

int ts_census_read(const char *path, ts_census *c, char **model_key, ts_error *err) {
    ts_census_mark json;
    *c = (ts_census){0};
    if (model_key != NULL)
        *model_key = NULL;
    int rc = read_json(path, c, err);
    if (rc == TS_OK)
        rc = read_beside(path, c, &json, err);
    if (rc == TS_OK)
        rc = name_source(path, &json, c, err);
    if (rc == TS_OK && model_key != NULL)
        rc = make_key(c, model_key, err);
    if (rc < 0)
        ts_census_free(c);
    return rc;
}
