/* Owns the text of PATH.json and the order in which a census' files take their places. Refuses a
 * census whose counts do not add up, before anything is written. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/target.h"
#include "store/census_internal.h"

typedef struct paths {
    char *detail, *meta;
} paths;

static void free_paths(paths *p) {
    ts_free(p->detail);
    ts_free(p->meta);
}

static int make_paths(const char *path, paths *p, ts_error *err) {
    p->detail = ts_path_with_extension(path, "detail");
    p->meta = ts_path_with_extension(path, "meta");
    if (p->detail == NULL || p->meta == NULL)
        return ts_fail_nomem(err, "a path", strlen(path));
    if (strcmp(path, p->detail) == 0 || ts_file_same(path, p->detail))
        return ts_fail(err, TS_ERR_ARG,
                       "'%s' would be both census and detail file; name the census .json", path);
    if (strcmp(path, p->meta) == 0 || ts_file_same(path, p->meta) ||
        ts_file_same(p->detail, p->meta))
        return ts_fail(err, TS_ERR_ARG,
                       "'%s' would be both census and meta data; name the census .json", path);
    return TS_OK;
}

static int check_paths(const char *path, const paths *p, bool overwrite, ts_error *err) {
    const char *const files[] = {path, p->detail, p->meta};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int rc = ts_file_check_target(files[i], err);
        if (rc < 0)
            return rc;
        if (!overwrite && (rc = ts_file_vacant(files[i], err)) < 0)
            return rc;
    }
    return TS_OK;
}

int ts_census_check_target(const char *path, bool overwrite, ts_error *err) {
    paths p = {0};
    int rc = *path ? make_paths(path, &p, err) : ts_file_check_target(path, err); /* a message of its own */
    if (rc == TS_OK)
        rc = check_paths(path, &p, overwrite, err);
    free_paths(&p);
    return rc;
}

/* ---- PATH.json */

typedef void (*put_row)(ts_sink *s, const ts_census_block *b);

static void put_hits(ts_sink *s, const ts_census_block *b) {
    for (int i = 0; i < TS_CENSUS_FIXED; i++) {
        ts_sink_bytes(s, ",", i > 0);
        ts_sink_count(s, b->hits[i]);
    }
}

static void put_bucket_counts(ts_sink *s, const ts_census_block *b) {
    for (int i = 0; i < TS_CENSUS_BUCKETS; i++) {
        ts_sink_bytes(s, ",", i > 0);
        ts_sink_count(s, b->bucket_count[i]);
    }
}

static void put_bucket_masses(ts_sink *s, const ts_census_block *b) {
    for (int i = 0; i < TS_CENSUS_BUCKETS; i++) {
        ts_sink_bytes(s, ",", i > 0);
        ts_sink_short(s, b->bucket_mass[i]);
    }
}

static void put_masses(ts_sink *s, const ts_census_block *b) {
    for (uint32_t i = 0; i < b->width; i++) {
        ts_sink_bytes(s, ",", i > 0);
        ts_sink_short(s, b->mass[i]);
    }
}

/* "key":[[..],[..]]; a block without a dense FFN is an empty row */
static void put_rows(ts_sink *s, const char *key, const ts_census *c, put_row put) {
    ts_sink_printf(s, ",\"%s\":[", key);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        ts_sink_text(s, i ? ",[" : "[");
        if (c->dense[i].width > 0)
            put(s, &c->dense[i]);
        ts_sink_text(s, "]");
    }
    ts_sink_text(s, "]");
}

static void put_json(ts_sink *s, const ts_census *c) {
    ts_sink_printf(s,
                   "{\"num_layers\":%u,\"inter\":%u,\"decode_passes\":%llu,\"prefill_passes\":%llu",
                   c->n_layers, c->inter, (unsigned long long)c->decode_passes,
                   (unsigned long long)c->prefill_passes);
    ts_sink_printf(s, ",\"bucket_exp_offset\":%d,\"overlap_ks\":[", TS_CENSUS_BUCKET_OFFSET);
    for (int i = 0; i < TS_CENSUS_FIXED; i++) {
        uint32_t k = ts_census_fixed_k[i] < c->inter ? ts_census_fixed_k[i] : c->inter;
        ts_sink_text(s, i ? ", " : "");
        ts_sink_count(s, k);
    }
    ts_sink_printf(s, "],\"overlap_pairs\":%llu", (unsigned long long)c->overlap_pairs);
    put_rows(s, "overlap_hits", c, put_hits);
    put_rows(s, "hist_count", c, put_bucket_counts);
    put_rows(s, "hist_mass", c, put_bucket_masses);
    put_rows(s, "mass", c, put_masses);
    ts_sink_text(s, "}");
}

/* ---- the three files */

typedef struct output {
    const char *path;
    paths beside;
    ts_sink *json, *detail;
    ts_file *meta;
    ts_census_mark json_mark, detail_mark;
} output;

static int write_json(output *o, const ts_census *c, ts_error *err) {
    int rc = ts_sink_open(o->path, &o->json, err);
    if (rc < 0)
        return rc;
    put_json(o->json, c);
    o->json_mark.file = ts_path_base(o->path);
    return ts_sink_finish(o->json, o->json_mark.xxh3, &o->json_mark.bytes);
}

static int write_detail(output *o, const ts_census *c, ts_error *err) {
    int rc = ts_sink_open(o->beside.detail, &o->detail, err);
    if (rc < 0)
        return rc;
    ts_census_put_detail(o->detail, c, &o->json_mark);
    o->detail_mark.file = ts_path_base(o->beside.detail);
    return ts_sink_finish(o->detail, o->detail_mark.xxh3, &o->detail_mark.bytes);
}

static int remove_old(const char *path, ts_error *err) {
    char *target;
    struct stat st;
    if (stat(path, &st) != 0 && errno == ENOENT)
        return TS_OK;
    int rc = ts_target_resolve(path, &target, err); /* a link stays, the file behind it goes */
    if (rc < 0)
        return rc;
    if (unlink(target) != 0 && errno != ENOENT)
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot replace '%s'", path);
    ts_free(target);
    return rc;
}

/* Everything is written; from here on only names change. The old census goes first, so that at no
 * time one stands beside what belongs to another. */
static int put_in_place(output *o, bool detailed, ts_error *err) {
    int rc = remove_old(o->path, err);
    if (rc == TS_OK && detailed) {
        ts_sink *s = o->detail;
        o->detail = NULL;
        rc = ts_sink_commit(s);
    } else if (rc == TS_OK) {
        rc = remove_old(o->beside.detail, err);
    }
    if (rc == TS_OK) {
        ts_file *f = o->meta;
        o->meta = NULL;
        rc = ts_file_commit(f, err);
    }
    if (rc == TS_OK) {
        ts_sink *s = o->json;
        o->json = NULL;
        rc = ts_sink_commit(s);
    }
    return rc;
}

static int write_files(output *o, const ts_census *c, const ts_provenance *prov,
                       const char *sites_json, bool partial, ts_error *err) {
    const ts_census_meta meta = {
        .provenance = prov ? prov : c->provenance,
        .sites_json = sites_json ? sites_json : c->sites_json,
        .partial = partial,
        .json = &o->json_mark,
        .detail = c->detailed ? &o->detail_mark : NULL,
    };
    int rc = write_json(o, c, err);
    if (rc == TS_OK && c->detailed)
        rc = write_detail(o, c, err);
    if (rc == TS_OK)
        rc = ts_census_put_meta(o->beside.meta, c, &meta, &o->meta, err);
    return rc == TS_OK ? put_in_place(o, c->detailed, err) : rc;
}

int ts_census_write(const ts_census *c, const char *path, const ts_provenance *prov,
                    const char *sites_json, bool partial, bool overwrite, ts_error *err) {
    output o = {.path = path};
    int rc = ts_census_check(c, err);
    if (rc < 0) {
        ts_error_prefix(err, "cannot write '%s': ", path);
        return rc;
    }
    rc = make_paths(path, &o.beside, err);
    if (rc == TS_OK)
        rc = check_paths(path, &o.beside, overwrite, err);
    if (rc == TS_OK)
        rc = write_files(&o, c, prov, sites_json, partial, err);
    ts_sink_discard(o.json);
    ts_sink_discard(o.detail);
    ts_file_discard(o.meta);
    free_paths(&o.beside);
    return rc;
}
