/* Reports on residual captures and their .meta. Refuses what ts_capture_open refuses, and data
 * beside a .meta that is not what it vouches for. */
#include "store/inspect_internal.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/mem.h"
#include "store/capture_file.h"
#include "store/meta.h"
#include "store/meta_json.h"

/* One layer over all snapshots; the norm leaves non-finite values out. */
typedef struct layer_stats {
    double norm_sum;
    float max_abs;
    uint64_t nonfinite;
} layer_stats;

static const char *text_of(const json_t *v, const char *key) {
    const char *text = json_string_value(json_object_get(v, key));
    return text ? text : "?";
}

static int64_t int_of(const json_t *v, const char *key) {
    return json_integer_value(json_object_get(v, key));
}

void ts_inspect_provenance(ts_report *r, const json_t *meta) {
    const json_t *model = json_object_get(meta, "model");
    const json_t *partial = json_object_get(meta, "partial"),
                 *steering = json_object_get(meta, "steering");
    if (r->json) {
        ts_report_value(r, "meta", meta);
        return;
    }
    ts_report_text(r, "model", "%s '%s' (%s)", text_of(model, "architecture"),
                   text_of(model, "name"), text_of(model, "description"));
    ts_report_int(r, "model_bytes", int_of(model, "size_bytes"));
    ts_report_text(r, "engine", "%s, %s", text_of(meta, "engine"), text_of(meta, "ggml"));
    ts_report_text(r, "devices", "%s", text_of(meta, "devices"));
    ts_report_text(r, "context",
                   "%" PRId64 " tokens, batch %" PRId64 "/%" PRId64 ", threads %" PRId64,
                   int_of(meta, "n_ctx"), int_of(meta, "n_batch"), int_of(meta, "n_ubatch"),
                   int_of(meta, "n_threads"));
    ts_report_text(r, "kv cache", "%s/%s, flash attention %s", text_of(meta, "type_k"),
                   text_of(meta, "type_v"), text_of(meta, "flash_attn"));
    ts_report_text(r, "tap", "%s", text_of(meta, "tap"));
    if (steering != NULL && !json_is_null(steering))
        ts_report_text(r, "steering", "in force");
    if (json_is_true(partial))
        ts_report_text(r, "partial", "yes: it was interrupted");
}

static int read_stats(ts_capture_file *f, layer_stats *stats, ts_error *err) {
    size_t hidden = (size_t)f->shape.n_hidden, layers = (size_t)f->shape.n_layers;
    float *rows = ts_calloc(layers * hidden, sizeof *rows); /* [layer][hidden] */
    int rc = rows ? TS_OK : ts_fail_nomem(err, "a snapshot", layers * hidden * sizeof *rows);
    for (int64_t i = 0; rc == TS_OK && i < f->shape.n_snapshots; i++) {
        rc = ts_capture_read(f, i, rows, err);
        for (size_t l = 0; rc == TS_OK && l < layers; l++) {
            double sum = 0;
            for (size_t j = 0; j < hidden; j++) {
                float x = rows[l * hidden + j], a = fabsf(x);
                if (!(a <= FLT_MAX)) {
                    stats[l].nonfinite++;
                    continue;
                }
                sum += (double)x * (double)x;
                if (a > stats[l].max_abs)
                    stats[l].max_abs = a;
            }
            stats[l].norm_sum += sqrt(sum);
        }
    }
    ts_free(rows);
    return rc;
}

static void report_layers(const ts_capture_file *f, const layer_stats *stats, ts_report *r) {
    ts_report_table(r, "blocks", "  block      mean norm        max |x|    non-finite");
    for (int32_t l = 0; l < f->shape.n_layers; l++) {
        double norm = stats[l].norm_sum / (double)f->shape.n_snapshots;
        int32_t block = ts_capture_layer(f, l);
        ts_report_row(r, l == 0);
        if (r->json)
            ts_buf_printf(&r->b,
                          "{\"block\": %" PRId32 ", \"mean_norm\": %.9g, \"max_abs\": %.9g, "
                          "\"nonfinite\": %" PRIu64 "}",
                          block, norm, (double)stats[l].max_abs, stats[l].nonfinite);
        else
            ts_buf_printf(&r->b, "  %5" PRId32 "  %13.6g  %13.6g  %12" PRIu64 "\n", block, norm,
                          (double)stats[l].max_abs, stats[l].nonfinite);
    }
    ts_report_table_end(r);
}

/* The first few positions as text. */
static void report_positions(const ts_capture_file *f, ts_report *r) {
    char line[128];
    size_t used = 0;
    int64_t i;
    if (f->positions == NULL || r->json)
        return;
    for (i = 0; i < f->shape.n_snapshots && used < 48; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%" PRId64, i ? ", " : "",
                                 f->positions[i]);
    ts_report_text(r, "positions", "%s%s", line, i < f->shape.n_snapshots ? ", ..." : "");
}

static void report_facts(const ts_capture_file *f, ts_report *r) {
    static const char *const dtypes[] = {"float32", "float16", "bfloat16"};
    bool pair = f->format == TS_CAPTURE_F32;
    ts_report_text(r, "format", "%s", pair ? "pair" : "safetensors");
    ts_report_int(r, "snapshots", f->shape.n_snapshots);
    ts_report_int(r, "layers", f->shape.n_layers);
    ts_report_int(r, "hidden", f->shape.n_hidden);
    ts_report_text(r, "dtype", "%s", dtypes[f->dtype]);
    report_positions(f, r);
    ts_report_text(r, "data", "%s", ts_path_base(f->data));
    ts_report_int(r, "data_bytes", (int64_t)f->bytes);
    ts_report_text(r, "checked", "%s", f->hashed ? "size and hash" : "size (no hash is recorded)");
    if (f->layer_ids == NULL)
        ts_report_text(r, "block_numbers", "not recorded");
    if (f->meta != NULL)
        ts_inspect_provenance(r, f->meta);
}

int ts_inspect_capture(const char *path, ts_report *r, ts_error *err) {
    ts_capture_file *f;
    int rc = ts_capture_open(path, &f, NULL, err);
    if (rc < 0)
        return rc;
    layer_stats *stats = ts_calloc((size_t)f->shape.n_layers, sizeof *stats);
    rc = stats ? read_stats(f, stats, err)
               : ts_fail_nomem(err, "layer statistics", (size_t)f->shape.n_layers * sizeof *stats);
    if (rc == TS_OK) {
        ts_report_begin(r, "capture", "residual capture", path);
        report_facts(f, r);
        report_layers(f, stats, r);
        ts_report_end(r);
    }
    ts_free(stats);
    ts_capture_close(f);
    return rc;
}

/* The data file a .meta names, beside it. A file inside a safetensors header never comes here. */
static int check_beside(const char *path, const json_t *meta, bool *hashed, ts_error *err) {
    const char *name;
    uint64_t size;
    int fd;
    int rc = ts_json_text(json_object_get(meta, "data"), "file", &name, err);
    if (rc == TS_OK && (name[0] == '\0' || strchr(name, '/') != NULL))
        rc = ts_fail(err, TS_ERR_FORMAT, "'file': expected a name beside it, got '%.100s'", name);
    if (rc < 0) {
        ts_error_prefix(err, "'%s': 'data': ", path);
        return rc;
    }
    size_t folder = (size_t)(ts_path_base(path) - path), n = strlen(name) + 1;
    char *data = ts_malloc(folder + n);
    if (data == NULL)
        return ts_fail_nomem(err, "a path", folder + n);
    memcpy(data, path, folder);
    memcpy(data + folder, name, n);
    rc = ts_file_open_read(data, &fd, &size, err);
    if (rc == TS_OK) {
        close(fd);
        rc = ts_meta_check_data(meta, data, 0, size, hashed, err);
    }
    ts_free(data);
    return rc;
}

int ts_inspect_meta(const char *path, ts_report *r, ts_error *err) {
    json_t *meta;
    bool hashed = false;
    int rc = ts_meta_read(path, &meta, err);
    if (rc < 0)
        return rc;
    const json_t *data = json_object_get(meta, "data");
    if (data != NULL)
        rc = check_beside(path, meta, &hashed, err);
    if (rc == TS_OK) {
        ts_report_begin(r, "meta", "meta data", path);
        ts_report_text(r, "of", "%s", text_of(meta, "kind"));
        if (json_object_get(meta, "snapshots") != NULL) {
            ts_report_int(r, "snapshots", int_of(meta, "snapshots"));
            ts_report_int(r, "layers", int_of(meta, "layers"));
            ts_report_int(r, "hidden", int_of(meta, "hidden"));
        }
        if (data != NULL) {
            ts_report_text(r, "data", "%s", text_of(data, "file"));
            ts_report_text(r, "checked", "%s",
                           hashed ? "size and hash" : "size (no hash is recorded)");
        }
        ts_inspect_provenance(r, meta);
        ts_report_end(r);
    }
    json_decref(meta);
    return rc;
}
