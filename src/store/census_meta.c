/* Owns a census' .meta, both ways. Refuses a .meta of another kind or of another file, and sizes or
 * hashes that do not match, naming expected and found. */
#include <inttypes.h>
#include <string.h>

#include "core/file.h"
#include "core/mem.h"
#include "store/fingerprint.h"
#include "store/census_internal.h"
#include "store/meta.h"
#include "store/meta_json.h"

/* What stands beside a .meta as .experts; *there false where nothing does. *name is freed by the caller. */
static int mark_experts(const char *meta, ts_census_mark *mark, char **name, bool *there, ts_error *err) {
    *name = ts_path_with_extension(meta, "experts");
    if (*name == NULL)
        return ts_fail_nomem(err, "a path", strlen(meta));
    *there = ts_file_exists(*name);
    mark->file = ts_path_base(*name);
    return *there ? ts_fingerprint_file(*name, mark->xxh3, &mark->bytes, err) : TS_OK;
}

/* ---- writing */

static void put_layers(ts_buf *b, const ts_census *c) {
    ts_buf_printf(b, "  \"layers\": %" PRIu32 ",\n  \"inter\": %" PRIu32 ",\n  \"widths\": [",
                  c->n_layers, c->inter);
    for (uint32_t i = 0; i < c->n_layers; i++)
        ts_buf_printf(b, "%s%" PRIu32, i ? ", " : "", c->dense[i].width);
    ts_buf_printf(b, "],\n  \"decode_passes\": %" PRIu64 ",\n  \"prefill_passes\": %" PRIu64,
                  c->decode_passes, c->prefill_passes);
    ts_buf_printf(b, ",\n  \"overlap_pairs\": %" PRIu64 ",\n", c->overlap_pairs);
}

static void put_extremes(ts_buf *b, const ts_census *c) {
    ts_buf_text(b, "  \"max_abs\": [");
    for (uint32_t i = 0; c->detailed && i < c->n_layers; i++)
        ts_buf_printf(b, "%s%.9g", i ? ", " : "", c->dense[i].max_abs);
    ts_buf_text(b, "],\n  \"nonfinite\": [");
    for (uint32_t i = 0; i < c->n_layers; i++)
        ts_buf_printf(b, "%s%" PRIu64, i ? ", " : "", c->dense[i].nonfinite);
    ts_buf_text(b, "],\n");
}

static void put_source(ts_buf *b, const ts_census_source *s) {
    const char *file = s->path ? ts_path_base(s->path) : "";
    ts_buf_text(b, "\n    {\"file\": ");
    ts_buf_json_string(b, file, strlen(file));
    ts_buf_printf(
        b, ", \"xxh3_128\": \"%s\", \"decode_passes\": %" PRIu64 ", \"prefill_passes\": %" PRIu64,
        s->xxh3, s->decode_passes, s->prefill_passes);
    ts_buf_printf(b, ", \"overlap_pairs\": %" PRIu64 ", \"partial\": %s, \"engine\": ",
                  s->overlap_pairs, s->partial ? "true" : "false");
    ts_buf_json_string(b, s->engine, strlen(s->engine));
    ts_buf_text(b, ", \"devices\": ");
    ts_buf_json_string(b, s->devices, strlen(s->devices));
    ts_buf_text(b, "}");
}

static void put_files(ts_buf *b, const ts_census *c, const ts_census_meta *m, const ts_census_mark *experts) {
    ts_buf_text(b, "  \"data\": ");
    ts_meta_file(b, m->json->file, m->json->bytes, m->json->xxh3);
    ts_buf_text(b, ",\n  \"detail\": ");
    if (m->detail != NULL)
        ts_meta_file(b, m->detail->file, m->detail->bytes, m->detail->xxh3);
    else
        ts_buf_text(b, "null");
    ts_buf_text(b, ",\n  \"experts\": ");
    if (experts != NULL)
        ts_meta_file(b, experts->file, experts->bytes, experts->xxh3);
    else
        ts_buf_text(b, "null");
    ts_buf_text(b, ",\n  \"sources\": [");
    for (size_t i = 0; i < c->n_sources; i++) {
        ts_buf_text(b, i ? "," : "");
        put_source(b, &c->sources[i]);
    }
    ts_buf_text(b, c->n_sources ? "\n  ]\n}\n" : "]\n}\n");
}

int ts_census_put_meta(const char *path, const ts_census *c, const ts_census_meta *m, ts_file **out,
                       ts_error *err) {
    ts_buf b = {0};
    ts_census_mark experts = {0};
    char *name;
    bool there = false;
    *out = NULL;
    int rc = mark_experts(path, &experts, &name, &there, err);
    if (rc < 0) {
        ts_free(name);
        return rc;
    }
    ts_buf_text(&b, "{\n  \"format_version\": 1,\n  \"kind\": \"ffn\",\n");
    if (m->provenance != NULL)
        ts_meta_provenance(&b, m->provenance);
    else
        ts_buf_text(&b, "  \"model\": null,\n");
    ts_buf_printf(&b, c->plan[0] ? "  \"plan\": \"%s\",\n" : "  \"plan\": null,\n", c->plan);
    ts_buf_printf(&b, "  \"partial\": %s,\n", m->partial ? "true" : "false");
    put_layers(&b, c);
    ts_buf_text(&b, "  \"sites\": ");
    ts_buf_text(&b, m->sites_json ? m->sites_json : "[]");
    ts_buf_text(&b, ",\n");
    put_extremes(&b, c);
    put_files(&b, c, m, there ? &experts : NULL);
    ts_free(name);
    rc = b.failed ? ts_fail_nomem(err, "meta data", b.length) : ts_file_create(path, out, err);
    if (rc == TS_OK)
        rc = ts_file_write(*out, b.data, b.length, err);
    ts_buf_free(&b);
    return rc;
}

/* ---- reading */

/* Does the object say of the file what stands there? */
static int check_mark(const json_t *v, const char *key, const ts_census_mark *found,
                      ts_error *err) {
    const char *hash = json_string_value(json_object_get(v, "xxh3_128"));
    int64_t bytes;
    int rc = ts_json_int(v, "bytes", 0, INT64_MAX, &bytes, err);
    if (rc < 0) {
        ts_error_prefix(err, "'%s': ", key);
        return rc;
    }
    if ((uint64_t)bytes != found->bytes)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s' was changed: expected %" PRId64 " bytes, found %" PRIu64, found->file,
                       bytes, found->bytes);
    if (hash == NULL || strcmp(hash, found->xxh3) != 0)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' was changed: expected xxh3-128 %.32s, found %s",
                       found->file, hash && strlen(hash) == 32 ? hash : "of 32 digits",
                       found->xxh3);
    return TS_OK;
}

/* A .detail that the .meta knows must be there, and the other way round. */
static int check_files(const json_t *v, const ts_census_mark *json, const ts_census_mark *detail,
                       ts_error *err) {
    const json_t *listed = json_object_get(v, "detail");
    int rc = check_mark(json_object_get(v, "data"), "data", json, err);
    if (rc < 0)
        return rc;
    if (json_is_null(listed) && detail == NULL)
        return TS_OK;
    if (detail == NULL)
        return ts_fail(err, TS_ERR_FORMAT, "its detail file is missing");
    return check_mark(listed, "detail", detail, err);
}

/* The same of the .experts, where the .meta speaks of it. */
static int check_experts(const char *path, const json_t *v, ts_error *err) {
    const json_t *listed = json_object_get(v, "experts");
    ts_census_mark found = {0};
    char *name;
    bool there = false;
    int rc = mark_experts(path, &found, &name, &there, err);
    if (rc == TS_OK && json_is_object(listed) != there && listed != NULL)
        rc = ts_fail(err, TS_ERR_FORMAT, there ? "'%s' is not its own" : "'%s' is missing", found.file);
    if (rc == TS_OK && there && listed != NULL)
        rc = check_mark(listed, "experts", &found, err);
    ts_free(name);
    return rc;
}

static int take_source(const json_t *v, ts_census_source *s, ts_error *err) {
    const char *file, *hash;
    int64_t n[3];
    static const char *const keys[] = {"decode_passes", "prefill_passes", "overlap_pairs"};
    int rc = ts_json_text(v, "file", &file, err);
    if (rc == TS_OK)
        rc = ts_json_text(v, "xxh3_128", &hash, err);
    if (rc == TS_OK && strlen(hash) != 32)
        rc = ts_fail(err, TS_ERR_FORMAT, "'xxh3_128': expected 32 digits");
    for (int i = 0; rc == TS_OK && i < 3; i++)
        rc = ts_json_int(v, keys[i], 0, INT64_MAX, &n[i], err);
    if (rc < 0)
        return rc;
    const char *engine = json_string_value(json_object_get(v, "engine"));
    const char *devices = json_string_value(json_object_get(v, "devices"));
    memcpy(s->xxh3, hash, sizeof s->xxh3);
    s->decode_passes = (uint64_t)n[0];
    s->prefill_passes = (uint64_t)n[1];
    s->overlap_pairs = (uint64_t)n[2];
    s->partial = json_is_true(json_object_get(v, "partial"));
    snprintf(s->engine, sizeof s->engine, "%s", engine ? engine : "");
    snprintf(s->devices, sizeof s->devices, "%s", devices ? devices : "");
    s->path = ts_strdup(file);
    return s->path ? TS_OK : ts_fail_nomem(err, "a source's name", strlen(file));
}

static int take_sources(const json_t *v, ts_census *c, ts_error *err) {
    const json_t *sources = json_object_get(v, "sources");
    size_t n = json_array_size(sources);
    if (n == 0)
        return TS_OK;
    c->sources = ts_calloc(n, sizeof *c->sources);
    if (c->sources == NULL)
        return ts_fail_nomem(err, "sources", n * sizeof *c->sources);
    for (size_t i = 0; i < n; i++) {
        c->n_sources = i + 1;
        int rc = take_source(json_array_get(sources, i), &c->sources[i], err);
        if (rc < 0) {
            ts_error_prefix(err, "'sources' element %zu: ", i);
            return rc;
        }
    }
    return TS_OK;
}

static int take_sites(const json_t *v, ts_census *c, ts_error *err) {
    const json_t *sites = json_object_get(v, "sites");
    if (!json_is_array(sites))
        return TS_OK;
    char *text = json_dumps(sites, 0);
    c->sites_json = text ? ts_strdup(text) : NULL; /* jansson's memory is not ours to give away */
    ts_free(text);
    return c->sites_json ? TS_OK : ts_fail_nomem(err, "sites", 0);
}

static int take_provenance(const json_t *v, ts_census *c, ts_error *err) {
    if (!json_is_object(json_object_get(v, "model")))
        return TS_OK;
    c->provenance = ts_calloc(1, sizeof *c->provenance);
    if (c->provenance == NULL)
        return ts_fail_nomem(err, "provenance", sizeof *c->provenance);
    return ts_meta_provenance_read(v, c->provenance, err);
}

int ts_census_get_meta(const char *path, const ts_census_mark *json, const ts_census_mark *detail,
                       ts_census *c, ts_error *err) {
    json_t *v;
    const char *kind;
    int rc = ts_meta_read(path, &v, err);
    if (rc < 0)
        return rc;
    rc = ts_json_text(v, "kind", &kind, err);
    if (rc == TS_OK && strcmp(kind, "ffn") != 0)
        rc = ts_fail(err, TS_ERR_FORMAT,
                     "expected the meta data of an FFN census, got kind '%.40s'", kind);
    if (rc == TS_OK)
        rc = check_files(v, json, detail, err);
    if (rc == TS_OK)
        rc = check_experts(path, v, err);
    if (rc == TS_OK)
        rc = take_provenance(v, c, err);
    if (rc == TS_OK)
        rc = take_sites(v, c, err);
    if (rc == TS_OK)
        rc = take_sources(v, c, err);
    c->partial = json_is_true(json_object_get(v, "partial"));
    if (rc < 0)
        ts_error_prefix(err, "'%s': ", path);
    json_decref(v);
    return rc;
}
