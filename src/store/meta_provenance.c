/* Owns the way back from a .meta to the facts it was made of. Refuses members of another type and
 * text that does not fit; a member that is absent stays empty, for files of other versions. */
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/mem.h"
#include "store/fingerprint.h"
#include "store/meta.h"
#include "store/meta_json.h"

static int take_text(const json_t *v, const char *key, char *out, size_t size, ts_error *err) {
    const json_t *member = json_object_get(v, key);
    const char *text;
    if (member == NULL || json_is_null(member))
        return TS_OK;
    int rc = ts_json_text(v, key, &text, err);
    if (rc == TS_OK && strlen(text) >= size)
        rc = ts_fail(err, TS_ERR_FORMAT, "'%s': expected at most %zu bytes, got %zu", key, size - 1,
                     strlen(text));
    if (rc == TS_OK)
        memcpy(out, text, strlen(text) + 1);
    return rc;
}

static int take_shard(const json_t *v, ts_shard *out, ts_error *err) {
    const char *file;
    int64_t bytes;
    int rc = ts_json_text(v, "file", &file, err);
    if (rc == TS_OK)
        rc = ts_json_int(v, "bytes", 0, INT64_MAX, &bytes, err);
    if (rc == TS_OK)
        rc = take_text(v, "xxh3_128", out->xxh3, sizeof out->xxh3, err);
    if (rc < 0)
        return rc;
    out->bytes = (uint64_t)bytes;
    out->path = ts_strdup(file);
    return out->path ? TS_OK : ts_fail_nomem(err, "a shard's name", strlen(file));
}

static int take_model(const json_t *model, ts_provenance *out, ts_error *err) {
    const json_t *shards = json_object_get(model, "shards");
    int rc = take_text(model, "architecture", out->architecture, sizeof out->architecture, err);
    if (rc == TS_OK)
        rc = take_text(model, "name", out->name, sizeof out->name, err);
    if (rc == TS_OK)
        rc = take_text(model, "description", out->description, sizeof out->description, err);
    if (rc < 0)
        return rc;
    size_t n = json_array_size(shards);
    out->shards = ts_calloc(n, sizeof *out->shards);
    if (out->shards == NULL)
        return ts_fail_nomem(err, "shards", n * sizeof *out->shards);
    for (; rc == TS_OK && out->n_shards < n; out->n_shards++)
        rc = take_shard(json_array_get(shards, out->n_shards), &out->shards[out->n_shards], err);
    return rc;
}

static int take_texts(const json_t *v, ts_provenance *p, ts_error *err) {
    const struct {
        const char *key;
        char *out;
        size_t size;
    } texts[] = {
        {"engine", p->engine, sizeof p->engine},
        {"ggml", p->ggml, sizeof p->ggml},
        {"devices", p->devices, sizeof p->devices},
        {"flash_attn", p->flash_attn, sizeof p->flash_attn},
        {"type_k", p->type_k, sizeof p->type_k},
        {"type_v", p->type_v, sizeof p->type_v},
        {"tap", p->tap, sizeof p->tap},
        {"chat_template", p->chat_template, sizeof p->chat_template},
    };
    int rc = TS_OK;
    for (size_t i = 0; rc == TS_OK && i < sizeof texts / sizeof *texts; i++)
        rc = take_text(v, texts[i].key, texts[i].out, texts[i].size, err);
    return rc;
}

/* An integer member within [min, max], 0 where absent. */
static int take_int(const json_t *v, const char *key, int64_t min, int64_t max, int64_t *out,
                    ts_error *err) {
    *out = 0;
    return json_object_get(v, key) ? ts_json_int(v, key, min, max, out, err) : TS_OK;
}

static int take_numbers(const json_t *v, ts_provenance *p, ts_error *err) {
    int64_t n[6];
    static const char *const keys[] = {"n_threads", "n_gpu_layers", "n_ctx",
                                       "n_batch",   "n_ubatch",     "n_seq_max"};
    for (int i = 0; i < 6; i++) {
        int rc =
            take_int(v, keys[i], i < 2 ? INT32_MIN : 0, i < 2 ? INT32_MAX : UINT32_MAX, &n[i], err);
        if (rc < 0)
            return rc;
    }
    p->n_threads = (int32_t)n[0];
    p->n_gpu_layers = (int32_t)n[1];
    p->n_ctx = (uint32_t)n[2];
    p->n_batch = (uint32_t)n[3];
    p->n_ubatch = (uint32_t)n[4];
    p->n_seq_max = (uint32_t)n[5];
    p->swa_full = json_is_true(json_object_get(v, "swa_full"));
    p->kv_unified = json_is_true(json_object_get(v, "kv_unified"));
    p->adds_bos = json_is_true(json_object_get(v, "adds_bos"));
    return TS_OK;
}

int ts_meta_provenance_read(const json_t *meta, ts_provenance *out, ts_error *err) {
    *out = (ts_provenance){0};
    int rc = take_model(json_object_get(meta, "model"), out, err);
    if (rc == TS_OK)
        rc = take_texts(meta, out, err);
    return rc == TS_OK ? take_numbers(meta, out, err) : rc;
}

void ts_meta_provenance_free(ts_provenance *p) {
    for (size_t i = 0; i < p->n_shards; i++)
        ts_free(p->shards[i].path);
    ts_free(p->shards);
    *p = (ts_provenance){0};
}

void ts_meta_model_hash(const ts_provenance *p, char hex[33]) {
    ts_buf b = {0};
    hex[0] = '\0';
    for (size_t i = 0; i < p->n_shards; i++) {
        if (p->shards[i].xxh3[0] == '\0')
            b.failed = true;
        ts_buf_text(&b, p->shards[i].xxh3);
    }
    if (p->n_shards == 1)
        memcpy(hex, p->shards[0].xxh3, sizeof p->shards[0].xxh3);
    else if (p->n_shards > 1 && !b.failed)
        ts_fingerprint_bytes(b.data, b.length, hex);
    ts_buf_free(&b);
}

/* ---- one model or two */

static int check_shards(const ts_provenance *a, const ts_provenance *b, ts_error *err) {
    if (a->n_shards != b->n_shards)
        return ts_fail(err, TS_ERR_ARG, "its model '%s' has %zu files, expected %zu", b->name,
                       b->n_shards, a->n_shards);
    for (size_t i = 0; i < a->n_shards; i++) {
        const ts_shard *x = &a->shards[i], *y = &b->shards[i];
        if (x->xxh3[0] && y->xxh3[0] && strcmp(x->xxh3, y->xxh3) != 0)
            return ts_fail(err, TS_ERR_ARG,
                           "its model file '%s' has xxh3-128 %s, expected %s ('%s')",
                           ts_path_base(y->path), y->xxh3, x->xxh3, ts_path_base(x->path));
    }
    return TS_OK;
}

int ts_meta_same_model(const ts_provenance *a, const ts_provenance *b, ts_error *err) {
    if (strcmp(a->architecture, b->architecture) != 0)
        return ts_fail(err, TS_ERR_ARG, "its model has architecture '%s', expected '%s'",
                       b->architecture, a->architecture);
    if (strcmp(a->name, b->name) != 0)
        return ts_fail(err, TS_ERR_ARG, "its model is '%s', expected '%s'", b->name, a->name);
    return check_shards(a, b, err);
}
