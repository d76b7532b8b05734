/* Reports on safetensors files: captures as such, others by their tensors. */
#include "store/inspect_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/meta_json.h"
#include "store/safetensors.h"

enum { SHOWN = 20 };

static void shape_text(const ts_st_tensor *t, char *out, size_t size) {
    size_t used = 0;
    out[0] = '\0';
    for (int32_t i = 0; i < t->n_dims && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRId64, i ? ", " : "", t->shape[i]);
}

static void report_tensor(const ts_st_tensor *t, ts_report *r) {
    char shape[192];
    shape_text(t, shape, sizeof shape);
    if (!r->json) {
        ts_report_line(r, "  %-8s %-28s [%s]", t->dtype, t->name, shape);
        return;
    }
    ts_buf_text(&r->b, "{\"name\": ");
    ts_buf_json_string(&r->b, t->name, strlen(t->name));
    ts_buf_printf(&r->b, ", \"dtype\": \"%s\", \"shape\": [%s], \"bytes\": %" PRIu64 "}", t->dtype,
                  shape, t->end - t->begin);
}

static int report_index(const char *path, const ts_st_index *index, ts_report *r, ts_error *err) {
    json_t *metadata = NULL;
    if (index->metadata != NULL) {
        int rc = ts_json_parse(index->metadata, strlen(index->metadata), &metadata, err);
        if (rc < 0)
            return rc;
    }
    ts_report_begin(r, "safetensors", "safetensors file", path);
    ts_report_int(r, "n_tensors", (int64_t)index->n);
    if (metadata != NULL)
        ts_report_value(r, "metadata", metadata);
    ts_report_table(r, "tensors", "  dtype    tensor                       shape");
    for (size_t i = 0; i < index->n && (r->json || i < SHOWN); i++) {
        ts_report_row(r, i == 0);
        report_tensor(&index->tensors[i], r);
    }
    ts_report_table_end(r);
    if (index->n > SHOWN)
        ts_report_line(r, "  and %zu more", index->n - SHOWN);
    ts_report_end(r);
    json_decref(metadata);
    return TS_OK;
}

int ts_inspect_safetensors(const char *path, ts_report *r, ts_error *err) {
    ts_st_index index;
    int rc = ts_st_read_index(path, &index, err);
    if (rc < 0)
        return rc;
    if (ts_st_find(&index, "hidden_states") != NULL)
        rc = ts_inspect_capture(path, r, err);
    else
        rc = report_index(path, &index, r, err);
    ts_st_index_free(&index);
    return rc;
}
