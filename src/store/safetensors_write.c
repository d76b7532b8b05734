/* Renders a safetensors header into a space of a given size. Refuses what does not fit. */
#include "store/safetensors.h"

#include <inttypes.h>
#include <string.h>

static void add_tensor(ts_buf *b, const ts_st_tensor *t) {
    ts_buf_json_string(b, t->name, strlen(t->name));
    ts_buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype);
    for (int32_t i = 0; i < t->n_dims; i++)
        ts_buf_printf(b, "%s%" PRId64, i ? "," : "", t->shape[i]);
    ts_buf_printf(b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->begin, t->end);
}

int ts_st_header(const ts_st_tensor *tensors, size_t n, const char *metadata_json, size_t reserve,
                 ts_buf *out, ts_error *err) {
    uint64_t length = reserve - 8;
    char prefix[8];
    if (reserve < 8 || reserve % 8 != 0)
        return ts_fail(err, TS_ERR_ARG, "a header space of %zu bytes: expected a multiple of 8",
                       reserve);
    for (int i = 0; i < 8; i++)
        prefix[i] = (char)(length >> 8 * i & 0xff);
    ts_buf_add(out, prefix, sizeof prefix);
    ts_buf_text(out, "{");
    if (metadata_json != NULL) {
        ts_buf_text(out, "\"__metadata__\":");
        ts_buf_text(out, metadata_json);
    }
    for (size_t i = 0; i < n; i++) {
        ts_buf_text(out, i || metadata_json ? "," : "");
        add_tensor(out, &tensors[i]);
    }
    ts_buf_text(out, "}");
    if (!out->failed && out->length > reserve) {
        int rc = ts_fail(err, TS_ERR_ARG, "a header of %zu bytes does not fit %zu", out->length,
                         reserve);
        ts_buf_free(out);
        return rc;
    }
    while (!out->failed && out->length < reserve) {
        static const char spaces[] =
            "                                                                ";
        size_t left = reserve - out->length;
        ts_buf_add(out, spaces, left < sizeof spaces - 1 ? left : sizeof spaces - 1);
    }
    return out->failed ? ts_fail_nomem(err, "a header", reserve) : TS_OK;
}
