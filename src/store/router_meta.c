/* Owns a routing census' .meta, both ways. Refuses a .meta of another kind or of another file. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "store/meta.h"
#include "store/meta_json.h"
#include "store/router_internal.h"

/* ---- writing */

static void put_source(ts_buf *b, const ts_router_source *s) {
    const char *file = s->path ? ts_path_base(s->path) : "";
    ts_buf_text(b, "\n    {\"file\": ");
    ts_buf_json_string(b, file, strlen(file));
    if (s->xxh3[0])
        ts_buf_printf(b, ", \"xxh3_128\": \"%s\"", s->xxh3);
    ts_buf_printf(b, ", \"rows\": %" PRIu64 ", \"partial\": %s}", s->rows, s->partial ? "true" : "false");
}

static void put_all(ts_buf *b, const ts_router *r, const ts_provenance *prov, const char *sites_json, bool partial,
                    const ts_router_mark *json) {
    ts_buf_text(b, "{\n  \"format_version\": 1,\n  \"kind\": \"router\",\n");
    if (prov != NULL)
        ts_meta_provenance(b, prov);
    else
        ts_buf_text(b, "  \"model\": null,\n");
    ts_buf_printf(b, r->of_plan[0] ? "  \"plan\": \"%s\",\n" : "  \"plan\": null,\n", r->of_plan);
    ts_buf_printf(b, "  \"partial\": %s,\n  \"layers\": %" PRIu32 ",\n  \"rows\": [", partial ? "true" : "false", r->n_layers);
    for (uint32_t i = 0; i < r->n_layers; i++)
        ts_buf_printf(b, "%s%" PRIu64, i ? ", " : "", ts_router_rows(&r->layers[i]));
    ts_buf_printf(b, "],\n  \"sites\": %s,\n  \"data\": ", sites_json ? sites_json : "[]");
    ts_meta_file(b, json->file, json->bytes, json->xxh3);
    ts_buf_text(b, ",\n  \"sources\": [");
    for (size_t i = 0; i < r->n_sources; i++) {
        ts_buf_text(b, i ? "," : "");
        put_source(b, &r->sources[i]);
    }
    ts_buf_text(b, r->n_sources ? "\n  ]\n}\n" : "]\n}\n");
}

int ts_router_put_meta(const char *path, const ts_router *r, const ts_provenance *prov, const char *sites_json, bool partial,
                       const ts_router_mark *json, ts_file **out, ts_error *err) {
    ts_buf b = {0};
    *out = NULL;
    put_all(&b, r, prov, sites_json, partial, json);
    int rc = b.failed ? ts_fail_nomem(err, "meta data", b.length) : ts_file_create(path, out, err);
    if (rc == TS_OK)
        rc = ts_file_write(*out, b.data, b.length, err);
    ts_buf_free(&b);
    return rc;
}

/* ---- reading */

static int take_source(const json_t *v, ts_router_source *s, ts_error *err) {
    const char *file;
    int64_t rows;
    int rc = ts_json_text(v, "file", &file, err);
    if (rc == TS_OK)
        rc = ts_json_int(v, "rows", 0, INT64_MAX, &rows, err);
    if (rc < 0)
        return rc;
    const char *hash = json_string_value(json_object_get(v, "xxh3_128"));
    if (hash != NULL && strlen(hash) != 32)
        return ts_fail(err, TS_ERR_FORMAT, "'xxh3_128': expected 32 digits");
    snprintf(s->xxh3, sizeof s->xxh3, "%s", hash ? hash : "");
    s->rows = (uint64_t)rows;
    s->partial = json_is_true(json_object_get(v, "partial"));
    s->path = ts_strdup(file);
    return s->path ? TS_OK : ts_fail_nomem(err, "a source's name", strlen(file));
}

static int take_sources(const json_t *v, ts_router *r, ts_error *err) {
    const json_t *sources = json_object_get(v, "sources");
    size_t n = json_array_size(sources);
    r->sources = n ? ts_calloc(n, sizeof *r->sources) : NULL;
    if (n > 0 && r->sources == NULL)
        return ts_fail_nomem(err, "sources", n * sizeof *r->sources);
    for (size_t i = 0; i < n; i++) {
        r->n_sources = i + 1;
        int rc = take_source(json_array_get(sources, i), &r->sources[i], err);
        if (rc < 0) {
            ts_error_prefix(err, "'sources' element %zu: ", i);
            return rc;
        }
    }
    return TS_OK;
}

static int take_sites(const json_t *v, ts_router *r, ts_error *err) {
    const json_t *sites = json_object_get(v, "sites");
    if (!json_is_array(sites))
        return TS_OK;
    char *text = json_dumps(sites, 0);
    r->sites_json = text ? ts_strdup(text) : NULL; /* jansson's memory is not ours to give away */
    ts_free(text);
    return r->sites_json ? TS_OK : ts_fail_nomem(err, "sites", 0);
}

static int take_provenance(const json_t *v, ts_router *r, ts_error *err) {
    if (!json_is_object(json_object_get(v, "model")))
        return TS_OK;
    r->provenance = ts_calloc(1, sizeof *r->provenance);
    if (r->provenance == NULL)
        return ts_fail_nomem(err, "provenance", sizeof *r->provenance);
    return ts_meta_provenance_read(v, r->provenance, err);
}

int ts_router_get_meta(const char *path, const char *json_path, const ts_router_mark *json, ts_router *r, ts_error *err) {
    json_t *v;
    const char *kind;
    bool hashed;
    int rc = ts_meta_read(path, &v, err);
    if (rc < 0)
        return rc;
    rc = ts_json_text(v, "kind", &kind, err);
    if (rc == TS_OK && strcmp(kind, "router") != 0)
        rc = ts_fail(err, TS_ERR_FORMAT, "expected the meta data of a routing census, got kind '%.40s'", kind);
    if (rc == TS_OK)
        rc = ts_meta_check_data(v, json_path, 0, json->bytes, &hashed, err);
    if (rc == TS_OK)
        rc = take_provenance(v, r, err);
    if (rc == TS_OK)
        rc = take_sites(v, r, err);
    if (rc == TS_OK)
        rc = take_sources(v, r, err);
    r->partial = json_is_true(json_object_get(v, "partial"));
    if (rc < 0)
        ts_error_prefix(err, "'%s': ", path);
    json_decref(v);
    return rc;
}

int ts_router_name_source(const char *path, const char *xxh3, ts_router *r, ts_error *err) {
    if (r->n_sources > 0)
        return TS_OK;
    r->sources = ts_calloc(1, sizeof *r->sources);
    char *copy = ts_strdup(path);
    if (r->sources == NULL || copy == NULL) {
        ts_free(copy);
        return ts_fail_nomem(err, "a source", strlen(path));
    }
    r->n_sources = 1;
    *r->sources = (ts_router_source){.path = copy, .rows = ts_router_most_rows(r), .partial = r->partial};
    snprintf(r->sources->xxh3, sizeof r->sources->xxh3, "%s", xxh3);
    return TS_OK;
}
