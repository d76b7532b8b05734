/* llama.cpp's adapter of added vectors. Always hands over the full length, zeros included: a shorter buffer would leave
 * an earlier vector in the blocks behind it. Refuses to believe that an architecture applies it. */
#include "host/adapter.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "host/engine.h"

static bool is_zero(const float *row, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (row[i] != 0.0f) return false;
    return true;
}

int ts_adapter_set(struct llama_context *ctx, const float *rows, ts_error *err) {
    const struct llama_model *model = llama_get_model(ctx);
    int32_t n_layer = llama_model_n_layer(model), n_embd = llama_model_n_embd(model), first = 1, last = n_layer - 1;
    size_t width = (size_t)n_embd;
    while (rows && first < last && is_zero(rows + (size_t)first * width, width)) first++;
    while (rows && last > first && is_zero(rows + (size_t)last * width, width)) last--;
    ts_engine_error_reset();
    if (llama_set_adapter_cvec(ctx, rows ? rows + width : NULL, (size_t)(n_layer - 1) * width, n_embd, first, last) == 0) return TS_OK;
    return ts_fail(err, TS_ERR_ENGINE, "llama.cpp does not take the vectors: %s", *ts_engine_error() ? ts_engine_error() : "no reason given");
}

static bool same(const struct ggml_tensor *added, const float *row, size_t n, float *buf) {
    if (!added || added->type != GGML_TYPE_F32 || ggml_nelements(added) != (int64_t)n || !ggml_is_contiguous(added) || !added->buffer)
        return false;
    ggml_backend_tensor_get(added, buf, 0, n * sizeof(*buf));
    return memcmp(buf, row, n * sizeof(*buf)) == 0;
}

bool ts_adapter_applied(const ts_site_table *table, const float *rows, int32_t n_embd) {
    size_t n = (size_t)n_embd;
    float *buf = ts_malloc(n * sizeof(*buf));
    bool applied = buf != NULL;
    for (int32_t il = 1; il < table->n_layer && applied; il++) {
        const float *row = rows + (size_t)il * n;
        const ts_site_entry *site = ts_sites_find(table, TS_SITE_RESID, il);
        applied = is_zero(row, n) || (site && site->pub.how != TS_HOW_REFUSED && same(site->added, row, n, buf));
    }
    free(buf);
    return applied;
}
