/* Owns reading a .detail. Refuses one of another PATH.json, and numbers that are not what that
 * file's digits are of. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "store/census_internal.h"
#include "store/census_scan.h"

/* Half a unit of the last of six digits, and a little. */
#define DIGITS 5.1e-6

typedef struct reading {
    ts_scan *s;
    ts_error *err;
    ts_census *c; /* being filled, n_layers blocks */
    uint64_t bytes;
    char xxh3[33], kind[32];
    uint64_t version, n_layers, steps, bins, ks[TS_CENSUS_FIXED], shares[TS_CENSUS_SHARES];
    double top_p[TS_CENSUS_TOP_P];
    unsigned seen;
    int rc;
} reading;

static bool expect_end(ts_scan *s) {
    return ts_scan_more(s) ? ts_scan_fail(s, "an array is longer than expected")
                           : !ts_scan_failed(s);
}

static bool next(ts_scan *s) {
    return ts_scan_more(s) ||
           (!ts_scan_failed(s) && ts_scan_fail(s, "an array is shorter than expected"));
}

static void get_counts(ts_scan *s, uint64_t *out, size_t n) {
    if (!ts_scan_enter(s, '['))
        return;
    for (size_t i = 0; i < n && next(s); i++)
        out[i] = ts_scan_count(s, TS_SCAN_MAX_COUNT);
    expect_end(s);
}

static void get_numbers(ts_scan *s, uint32_t *out, size_t n) {
    if (!ts_scan_enter(s, '['))
        return;
    for (size_t i = 0; i < n && next(s); i++)
        out[i] = (uint32_t)ts_scan_count(s, UINT32_MAX);
    expect_end(s);
}

static void get_amounts(ts_scan *s, double *out, size_t n) {
    if (!ts_scan_enter(s, '['))
        return;
    for (size_t i = 0; i < n && next(s); i++)
        out[i] = ts_scan_amount(s);
    expect_end(s);
}

static void get_fine(ts_scan *s, ts_census_block *b) {
    uint64_t least = 0;
    if (!ts_scan_enter(s, '['))
        return;
    while (ts_scan_more(s)) {
        if (!ts_scan_enter(s, '[') || !next(s))
            return;
        uint64_t bin = ts_scan_count(s, TS_CENSUS_FINE_BINS - 1);
        if (bin < least)
            ts_scan_fail(s, "bins of the finer histogram do not ascend");
        if (!next(s))
            return;
        b->fine_count[bin] = ts_scan_count(s, TS_SCAN_MAX_COUNT);
        if (!next(s))
            return;
        b->fine_mass[bin] = ts_scan_amount(s);
        if (!expect_end(s))
            return;
        least = bin + 1;
    }
}

/* ---- a block */

static const char *const block_keys[] = {
    "width",     "n_rows",  "n_pairs",      "k",           "hits", "top_p", "zeros",
    "nonfinite", "max_abs", "bucket_count", "bucket_mass", "fine", "mass"};
enum {
    WIDTH,
    ROWS,
    PAIRS,
    K,
    HITS,
    TOP_P,
    ZEROS,
    NONFINITE,
    MAX_ABS,
    COUNT,
    MASS_OF_BUCKET,
    FINE,
    MASS,
    N_BLOCK_KEYS
};

/* The width sizes what follows, and a hostile one is bounded by the .json's block it must equal. */
static void get_width(reading *r, ts_census_block *b, uint32_t expected) {
    uint64_t width = ts_scan_count(r->s, TS_CENSUS_MAX_WIDTH);
    if (ts_scan_failed(r->s))
        return;
    if (expected > 0 && width != expected)
        ts_scan_fail(r->s, "width is %" PRIu64 ", the census has %" PRIu32, width, expected);
    else if (width == 0)
        ts_scan_fail(r->s, "a block of width 0");
    else
        r->rc = ts_census_block_init(b, (uint32_t)width, true, r->err);
}

static void get_member(reading *r, ts_census_block *b, int key, uint32_t expected) {
    ts_scan *s = r->s;
    if (key == WIDTH)
        get_width(r, b, expected);
    else if (b->width == 0)
        ts_scan_fail(s, "expected the width first");
    else if (key == ROWS)
        b->n_rows = ts_scan_count(s, TS_SCAN_MAX_COUNT);
    else if (key == PAIRS)
        b->n_pairs = ts_scan_count(s, TS_SCAN_MAX_COUNT);
    else if (key == K)
        get_numbers(s, b->k, TS_CENSUS_SETS);
    else if (key == HITS)
        get_counts(s, b->hits, TS_CENSUS_SETS);
    else if (key == TOP_P)
        get_counts(s, b->top_p, TS_CENSUS_TOP_P);
    else if (key == ZEROS)
        b->zeros = ts_scan_count(s, TS_SCAN_MAX_COUNT);
    else if (key == NONFINITE)
        b->nonfinite = ts_scan_count(s, TS_SCAN_MAX_COUNT);
    else if (key == MAX_ABS)
        b->max_abs = ts_scan_amount(s);
    else if (key == COUNT)
        get_counts(s, b->bucket_count, TS_CENSUS_BUCKETS);
    else if (key == MASS_OF_BUCKET)
        get_amounts(s, b->bucket_mass, TS_CENSUS_BUCKETS);
    else if (key == FINE)
        get_fine(s, b);
    else
        get_amounts(s, b->mass, b->width);
}

/* `expected` 0: any width. */
static void get_block(reading *r, ts_census_block *b, uint32_t expected) {
    unsigned seen = 0;
    int key;
    if (!ts_scan_enter(r->s, '{'))
        return;
    while (r->rc == TS_OK && (key = ts_scan_member(r->s, block_keys, N_BLOCK_KEYS, &seen)) >= 0)
        get_member(r, b, key, expected);
    for (key = 0; r->rc == TS_OK && key < N_BLOCK_KEYS; key++)
        if (!(seen & 1u << key))
            ts_scan_fail(r->s, "a block has no '%s'", block_keys[key]);
}

static void get_blocks(reading *r, ts_census_block *out, const ts_census_block *like) {
    if (!ts_scan_enter(r->s, '['))
        return;
    for (uint32_t i = 0; i < r->c->n_layers && r->rc == TS_OK && next(r->s); i++) {
        uint32_t expected = like ? like[i].width : 0;
        if (ts_scan_null(r->s)) {
            if (expected > 0)
                ts_scan_fail(r->s,
                             "block %" PRIu32 " is null, the census has %" PRIu32 " neurons there",
                             i, expected);
        } else if (!ts_scan_failed(r->s)) {
            if (like && expected == 0)
                ts_scan_fail(r->s, "block %" PRIu32 " is one the census does not have", i);
            get_block(r, &out[i], expected);
        }
    }
    if (r->rc == TS_OK)
        expect_end(r->s);
}

/* ---- the document */

static void get_of(reading *r) {
    char name[64];
    if (!ts_scan_enter(r->s, '{'))
        return;
    while (ts_scan_key(r->s, name, sizeof name)) {
        if (strcmp(name, "bytes") == 0)
            r->bytes = ts_scan_count(r->s, TS_SCAN_MAX_COUNT);
        else if (strcmp(name, "xxh3_128") == 0)
            ts_scan_text(r->s, r->xxh3, sizeof r->xxh3);
        else
            ts_scan_skip(r->s);
    }
}

static void get_weights(reading *r) {
    char name[64];
    ts_census *c = r->c;
    if (!ts_scan_enter(r->s, '{'))
        return;
    while (ts_scan_key(r->s, name, sizeof name)) {
        if (strcmp(name, "gate_bytes") == 0)
            get_counts(r->s, c->gate_bytes, c->n_layers);
        else if (strcmp(name, "up_bytes") == 0)
            get_counts(r->s, c->up_bytes, c->n_layers);
        else if (strcmp(name, "down_bytes") == 0)
            get_counts(r->s, c->down_bytes, c->n_layers);
        else if (strcmp(name, "down_block") == 0)
            get_numbers(r->s, c->down_block, c->n_layers);
        else
            ts_scan_skip(r->s);
    }
}

static void get_note(reading *r) {
    char note[4096];
    if (ts_scan_null(r->s) || !ts_scan_text(r->s, note, sizeof note))
        return;
    r->c->site_note = ts_strdup(note);
    if (r->c->site_note == NULL)
        r->rc = ts_fail_nomem(r->err, "a note", strlen(note));
}

static void get_shared(reading *r) {
    if (ts_scan_null(r->s) || ts_scan_failed(r->s))
        return;
    r->c->shared = ts_calloc(r->c->n_layers, sizeof *r->c->shared);
    if (r->c->shared == NULL)
        r->rc = ts_fail_nomem(r->err, "shared experts", r->c->n_layers * sizeof *r->c->shared);
    else
        get_blocks(r, r->c->shared, NULL);
}

static const char *const keys[] = {"format_version",
                                   "num_layers",
                                   "inter",
                                   "decode_passes",
                                   "prefill_passes",
                                   "overlap_pairs",
                                   "fine_steps_per_octave",
                                   "fine_bins",
                                   "kind",
                                   "of",
                                   "fixed_k",
                                   "share_percent",
                                   "top_p",
                                   "site_note",
                                   "weights",
                                   "dense",
                                   "shared"};
enum {
    N_SCALARS = 8,
    KIND = 8,
    OF,
    FIXED_K,
    SHARES,
    TOP_P_SHARES,
    NOTE,
    WEIGHTS,
    DENSE,
    SHARED,
    N_KEYS
};

static void get_top(reading *r, int key, const ts_census *json) {
    uint64_t inter, *const scalars[N_SCALARS] = {&r->version,
                                                 &r->n_layers,
                                                 &inter,
                                                 &r->c->decode_passes,
                                                 &r->c->prefill_passes,
                                                 &r->c->overlap_pairs,
                                                 &r->steps,
                                                 &r->bins};
    if (key < N_SCALARS) {
        *scalars[key] = ts_scan_count(r->s, TS_SCAN_MAX_COUNT);
        if (scalars[key] == &inter && inter != json->inter)
            ts_scan_fail(r->s, "inter is %" PRIu64 ", the census has %" PRIu32, inter, json->inter);
    } else if (key == KIND) {
        ts_scan_text(r->s, r->kind, sizeof r->kind);
    } else if (key == OF) {
        get_of(r);
    } else if (key == FIXED_K) {
        get_counts(r->s, r->ks, TS_CENSUS_FIXED);
    } else if (key == SHARES) {
        get_counts(r->s, r->shares, TS_CENSUS_SHARES);
    } else if (key == TOP_P_SHARES) {
        get_amounts(r->s, r->top_p, TS_CENSUS_TOP_P);
    } else if (key == NOTE) {
        get_note(r);
    } else if (key == WEIGHTS) {
        get_weights(r);
    } else if (key == DENSE) {
        get_blocks(r, r->c->dense, json->dense);
    } else {
        get_shared(r);
    }
}

static void get_document(reading *r, const ts_census *json) {
    int key;
    if (!ts_scan_enter(r->s, '{'))
        return;
    while (r->rc == TS_OK && (key = ts_scan_member(r->s, keys, N_KEYS, &r->seen)) >= 0)
        get_top(r, key, json);
    for (key = 0; r->rc == TS_OK && key < N_KEYS; key++)
        if (!(r->seen & 1u << key))
            ts_scan_fail(r->s, "it has no '%s'", keys[key]);
    if (r->rc == TS_OK)
        ts_scan_end(r->s);
}

/* ---- does it belong to the .json */

static int check_version(const reading *r, ts_error *err) {
    bool same = r->version == 1 && strcmp(r->kind, "ffn-detail") == 0 &&
                r->steps == TS_CENSUS_FINE_STEPS && r->bins == TS_CENSUS_FINE_BINS;
    for (int i = 0; i < TS_CENSUS_FIXED; i++)
        same = same && r->ks[i] == ts_census_fixed_k[i];
    for (int i = 0; i < TS_CENSUS_SHARES; i++)
        same = same && r->shares[i] == ts_census_share_percent[i];
    for (int i = 0; i < TS_CENSUS_TOP_P; i++)
        same = same && fabs(r->top_p[i] - ts_census_top_p[i]) < 1e-9;
    return same ? TS_OK
                : ts_fail(err, TS_ERR_FORMAT, "not the detail of an FFN census this version knows");
}

static bool digits_of(double shown, double exact) {
    return fabs(shown - exact) <= DIGITS * exact;
}

static int same_block(const ts_census_block *shown, const ts_census_block *exact, ts_error *err) {
    for (int i = 0; i < TS_CENSUS_BUCKETS; i++)
        if (shown->bucket_count[i] != exact->bucket_count[i] ||
            !digits_of(shown->bucket_mass[i], exact->bucket_mass[i]))
            return ts_fail(err, TS_ERR_FORMAT, "bucket %d is not the census'", i);
    for (int i = 0; i < TS_CENSUS_FIXED; i++)
        if (shown->hits[i] != exact->hits[i] || shown->k[i] != exact->k[i])
            return ts_fail(err, TS_ERR_FORMAT, "overlap at %" PRIu32 " is not the census'",
                           shown->k[i]);
    for (uint32_t i = 0; i < shown->width; i++)
        if (!digits_of(shown->mass[i], exact->mass[i]))
            return ts_fail(err, TS_ERR_FORMAT,
                           "mass of neuron %" PRIu32 " is %.9g, the census has %.9g", i,
                           exact->mass[i], shown->mass[i]);
    return TS_OK;
}

static int check_same(const ts_census *json, const reading *r, const ts_census_mark *mark,
                      ts_error *err) {
    const ts_census *d = r->c;
    if (r->bytes != mark->bytes || strcmp(r->xxh3, mark->xxh3) != 0)
        return ts_fail(err, TS_ERR_FORMAT,
                       "the detail of another file: expected xxh3-128 %.32s, '%s' has %s", r->xxh3,
                       mark->file, mark->xxh3);
    if (r->n_layers != json->n_layers || d->decode_passes != json->decode_passes ||
        d->prefill_passes != json->prefill_passes || d->overlap_pairs != json->overlap_pairs)
        return ts_fail(err, TS_ERR_FORMAT, "layers or passes are not the census'");
    int rc = check_version(r, err);
    for (uint32_t i = 0; rc == TS_OK && i < json->n_layers; i++) {
        rc = same_block(&json->dense[i], &d->dense[i], err);
        if (rc < 0)
            ts_error_prefix(err, "block %" PRIu32 ": ", i);
    }
    return rc == TS_OK ? ts_census_check(d, err) : rc;
}

/* What the .json and the .meta gave beside the blocks stays. */
static void move_into(ts_census *c, ts_census *detail) {
    ts_census blocks = *c;
    detail->provenance = c->provenance;
    detail->sites_json = c->sites_json;
    detail->sources = c->sources;
    detail->n_sources = c->n_sources;
    detail->partial = c->partial;
    *c = *detail;
    blocks.provenance = NULL;
    blocks.sites_json = NULL;
    blocks.sources = NULL;
    blocks.n_sources = 0;
    *detail = blocks;
}

int ts_census_get_detail(const char *path, const ts_census_mark *json, ts_census *c,
                         ts_error *err) {
    ts_census detail;
    reading r = {.err = err, .c = &detail};
    int rc = ts_census_init(&detail, c->n_layers, false, err);
    detail.inter = c->inter;
    if (rc == TS_OK)
        rc = ts_scan_open(path, &r.s, err);
    if (rc == TS_OK) {
        get_document(&r, c);
        rc = ts_scan_close(r.s);
        rc = r.rc < 0 ? r.rc : rc;
        if (rc == TS_OK && (rc = check_same(c, &r, json, err)) < 0)
            ts_error_prefix(err, "'%s': ", path);
    }
    if (rc == TS_OK)
        move_into(c, &detail);
    ts_census_free(&detail);
    return rc;
}
