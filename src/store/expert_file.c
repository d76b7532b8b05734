/* Owns PATH.experts, both ways, in memory no larger than its result. Refuses another shape than its own header says, and
 * everything ts_experts_check refuses. */
#include <inttypes.h>
#include <string.h>

#include "core/mem.h"
#include "core/plural.h"
#include "store/census_scan.h"
#include "store/census_sink.h"
#include "store/expert.h"

/* ---- writing */

static void put_counts(ts_sink *s, const uint64_t *counts, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        ts_sink_bytes(s, ",", i > 0);
        ts_sink_count(s, counts[i]);
    }
}

static void put_layer(ts_sink *s, const ts_expert_layer *l) {
    if (l->n_experts == 0) {
        ts_sink_text(s, "null");
        return;
    }
    ts_sink_printf(s, "{\"experts\":%" PRIu32 ",\"top_k\":%" PRIu32 ",\"width\":%" PRIu32 ",\"rows\":[", l->n_experts, l->top_k, l->width);
    put_counts(s, l->rows, l->n_experts);
    ts_sink_text(s, "],\"bucket_count\":[");
    put_counts(s, l->bucket_count, TS_EXPERT_BUCKETS);
    ts_sink_text(s, "],\"mass\":[");
    for (uint32_t e = 0; e < l->n_experts; e++) {
        ts_sink_text(s, e ? ",[" : "[");
        for (uint32_t i = 0; l->rows[e] > 0 && i < l->width; i++) {
            ts_sink_bytes(s, ",", i > 0);
            ts_sink_short(s, l->mass[(size_t)e * l->width + i]);
        }
        ts_sink_text(s, "]");
    }
    ts_sink_text(s, "]}");
}

static void put_all(ts_sink *s, const ts_experts *x) {
    ts_sink_text(s, "{\"format_version\":1,\"kind\":\"experts\",\"model\":");
    ts_sink_string(s, x->model[0] ? x->model : NULL);
    ts_sink_printf(s, ",\"decode_passes\":%" PRIu64 ",\"num_layers\":%" PRIu32 ",\"layers\":[", x->decode_passes, x->n_layers);
    for (uint32_t i = 0; i < x->n_layers; i++) {
        ts_sink_text(s, i ? ",\n" : "\n");
        put_layer(s, &x->layers[i]);
    }
    ts_sink_text(s, "\n]}\n");
}

int ts_experts_write(const ts_experts *x, const char *path, ts_error *err) {
    ts_sink *s = NULL;
    int rc = ts_experts_check(x, err);
    if (rc < 0) {
        ts_error_prefix(err, "the expert census for '%s' does not add up: ", path);
        return rc;
    }
    rc = ts_sink_open(path, &s, err);
    if (rc < 0)
        return rc;
    put_all(s, x);
    return ts_sink_close(s);
}

/* ---- reading */

typedef struct reading {
    ts_scan *scan;
    ts_error *err;
    ts_experts *x;
    uint64_t version, n_layers;
    unsigned seen;
    int rc; /* TS_ERR_NOMEM, which the scan does not know of */
} reading;

static bool reserve(reading *r, void *out, size_t n, size_t each) {
    void *p = ts_calloc(n, each);
    memcpy(out, &p, sizeof p);
    if (p == NULL)
        r->rc = ts_fail_nomem(r->err, "an expert census", n * each);
    return p != NULL;
}

/* Exactly n counts. */
static void read_counts(reading *r, uint64_t *counts, uint32_t n, const char *what) {
    uint32_t i = 0;
    if (!ts_scan_enter(r->scan, '['))
        return;
    for (; ts_scan_more(r->scan); i++) {
        uint64_t count = ts_scan_count(r->scan, TS_SCAN_MAX_COUNT);
        if (i < n)
            counts[i] = count;
    }
    if (i != n && !ts_scan_failed(r->scan))
        ts_scan_fail(r->scan, "%s has %" PRIu32 " element%s, expected %" PRIu32, what, i, ts_plural(i), n);
}

static void read_expert(reading *r, ts_expert_layer *l, uint32_t e) {
    uint32_t i = 0;
    if (!ts_scan_enter(r->scan, '['))
        return;
    for (; ts_scan_more(r->scan); i++) {
        double mass = ts_scan_amount(r->scan);
        if (e < l->n_experts && i < l->width)
            l->mass[(size_t)e * l->width + i] = mass;
    }
    if (i != 0 && e < l->n_experts && l->rows[e] == 0 && !ts_scan_failed(r->scan))
        ts_scan_fail(r->scan, "expert %" PRIu32 " has masses, but no row chose it", e);
    if (i != l->width && i != 0 && !ts_scan_failed(r->scan))
        ts_scan_fail(r->scan, "expert %" PRIu32 " has %" PRIu32 " masses, expected %" PRIu32, e, i, l->width);
}

static void read_masses(reading *r, ts_expert_layer *l) {
    uint32_t e = 0;
    if (!ts_scan_enter(r->scan, '['))
        return;
    for (; ts_scan_more(r->scan); e++)
        read_expert(r, l, e);
    if (e != l->n_experts && !ts_scan_failed(r->scan))
        ts_scan_fail(r->scan, "mass has %" PRIu32 " expert%s, expected %" PRIu32, e, ts_plural(e), l->n_experts);
}

/* The next key must be this one: what follows depends on what came before. */
static bool expect_key(reading *r, const char *expected) {
    char name[32];
    if (!ts_scan_key(r->scan, name, sizeof name))
        return ts_scan_failed(r->scan) ? false : ts_scan_fail(r->scan, "the layer ends before '%s'", expected);
    return strcmp(name, expected) == 0 ? true : ts_scan_fail(r->scan, "expected '%s', got '%s'", expected, name);
}

static bool read_size(reading *r, const char *key, uint32_t *out) {
    *out = expect_key(r, key) ? (uint32_t)ts_scan_count(r->scan, TS_EXPERT_MAX_NUMBER) : 0;
    if (*out == 0 && !ts_scan_failed(r->scan))
        ts_scan_fail(r->scan, "%s is 0", key);
    return !ts_scan_failed(r->scan);
}

/* A layer costs what its header says, up to a limit that no model comes near. */
static void read_layer(reading *r, ts_expert_layer *l) {
    uint32_t n, k, width;
    if (ts_scan_null(r->scan) || !ts_scan_enter(r->scan, '{'))
        return;
    if (!read_size(r, "experts", &n) || !read_size(r, "top_k", &k) || !read_size(r, "width", &width))
        return;
    if ((uint64_t)n * width > UINT64_C(1) << 25) {
        ts_scan_fail(r->scan, "%" PRIu32 " experts of %" PRIu32 " neurons are too many", n, width);
        return;
    }
    if (!reserve(r, &l->rows, n, sizeof *l->rows) || !reserve(r, &l->mass, (size_t)n * width, sizeof *l->mass))
        return;
    l->n_experts = n;
    l->top_k = k;
    l->width = width;
    if (expect_key(r, "rows"))
        read_counts(r, l->rows, n, "rows");
    if (expect_key(r, "bucket_count"))
        read_counts(r, l->bucket_count, TS_EXPERT_BUCKETS, "bucket_count");
    if (expect_key(r, "mass"))
        read_masses(r, l);
    if (!ts_scan_failed(r->scan) && ts_scan_more(r->scan))
        ts_scan_fail(r->scan, "a layer goes on after 'mass'");
}

static void read_layers(reading *r) {
    ts_experts *x = r->x;
    if (!ts_scan_enter(r->scan, '['))
        return;
    while (r->rc == TS_OK && ts_scan_more(r->scan)) {
        if (x->n_layers == TS_EXPERT_MAX_LAYERS) {
            ts_scan_fail(r->scan, "more than %d layers", TS_EXPERT_MAX_LAYERS);
            return;
        }
        ts_expert_layer *grown = ts_realloc(x->layers, x->n_layers + 1, sizeof *grown);
        if (grown == NULL) {
            r->rc = ts_fail_nomem(r->err, "an expert census", sizeof *grown);
            return;
        }
        x->layers = grown;
        grown[x->n_layers] = (ts_expert_layer){0};
        read_layer(r, &grown[x->n_layers++]);
    }
}

static void read_object(reading *r) {
    static const char *const keys[] = {"format_version", "decode_passes", "num_layers", "layers", "model"};
    uint64_t *const counts[] = {&r->version, &r->x->decode_passes, &r->n_layers};
    int key;
    if (!ts_scan_enter(r->scan, '{'))
        return;
    while (r->rc == TS_OK && (key = ts_scan_member(r->scan, keys, sizeof keys / sizeof *keys, &r->seen)) >= 0) {
        if (key < 3)
            *counts[key] = ts_scan_count(r->scan, TS_SCAN_MAX_COUNT);
        else if (key == 3)
            read_layers(r);
        else if (!ts_scan_null(r->scan))
            ts_scan_text(r->scan, r->x->model, sizeof r->x->model);
    }
    if (r->rc == TS_OK)
        ts_scan_end(r->scan);
}

static int settle(const reading *r) {
    const unsigned needed = 1u << 0 | 1u << 1 | 1u << 2 | 1u << 3;
    if ((r->seen & needed) != needed)
        return ts_fail(r->err, TS_ERR_FORMAT, "not an expert census: a key is missing");
    if (r->version != 1)
        return ts_fail(r->err, TS_ERR_FORMAT, "format_version is %" PRIu64 ", expected 1", r->version);
    if (r->n_layers != r->x->n_layers)
        return ts_fail(r->err, TS_ERR_FORMAT, "it has %" PRIu32 " layer%s, num_layers is %" PRIu64, r->x->n_layers, ts_plural(r->x->n_layers), r->n_layers);
    return ts_experts_check(r->x, r->err);
}

int ts_experts_read(const char *path, ts_experts *x, ts_error *err) {
    reading r = {.x = x, .err = err};
    *x = (ts_experts){0};
    int rc = ts_scan_open(path, &r.scan, err);
    if (rc < 0)
        return rc;
    read_object(&r);
    rc = ts_scan_close(r.scan);
    if (r.rc < 0)
        rc = r.rc;
    if (rc == TS_OK && (rc = settle(&r)) < 0)
        ts_error_prefix(err, "'%s': ", path);
    if (rc < 0)
        ts_experts_free(x);
    return rc;
}
