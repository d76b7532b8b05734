/* Owns the text of a .meta: key order and number formats. Refuses nothing; the holder of the facts
 * checked them. No time, host name or absolute path goes in, so equal runs give equal bytes. */
#include "store/meta.h"

#include <inttypes.h>
#include <string.h>

#include "core/file.h"

static void member_text(ts_buf *b, const char *key, const char *text) {
    ts_buf_printf(b, "  \"%s\": ", key);
    ts_buf_json_string(b, text, strlen(text));
    ts_buf_text(b, ",\n");
}

static void member_int(ts_buf *b, const char *key, int64_t value) {
    ts_buf_printf(b, "  \"%s\": %" PRId64 ",\n", key, value);
}

static void member_bool(ts_buf *b, const char *key, bool value) {
    ts_buf_printf(b, "  \"%s\": %s,\n", key, value ? "true" : "false");
}

void ts_meta_file(ts_buf *b, const char *file, uint64_t bytes, const char *xxh3) {
    ts_buf_text(b, "{\"file\": ");
    ts_buf_json_string(b, file, strlen(file));
    ts_buf_printf(b, ", \"bytes\": %" PRIu64 ", \"xxh3_128\": ", bytes);
    if (xxh3[0])
        ts_buf_printf(b, "\"%s\"}", xxh3);
    else
        ts_buf_text(b, "null}");
}

static void member_model(ts_buf *b, const ts_provenance *p) {
    uint64_t size = 0;
    for (size_t i = 0; i < p->n_shards; i++)
        size += p->shards[i].bytes;
    ts_buf_text(b, "  \"model\": {\"architecture\": ");
    ts_buf_json_string(b, p->architecture, strlen(p->architecture));
    ts_buf_text(b, ", \"name\": ");
    ts_buf_json_string(b, p->name, strlen(p->name));
    ts_buf_text(b, ", \"description\": ");
    ts_buf_json_string(b, p->description, strlen(p->description));
    ts_buf_printf(b, ", \"size_bytes\": %" PRIu64 ", \"shards\": [", size);
    for (size_t i = 0; i < p->n_shards; i++) {
        const ts_shard *s = &p->shards[i];
        ts_buf_text(b, i ? ", " : "");
        ts_meta_file(b, s->path ? ts_path_base(s->path) : "", s->bytes, s->xxh3);
    }
    ts_buf_text(b, "]},\n");
}

void ts_meta_provenance(ts_buf *b, const ts_provenance *p) {
    member_model(b, p);
    member_text(b, "engine", p->engine);
    member_text(b, "ggml", p->ggml);
    member_text(b, "devices", p->devices);
    member_int(b, "n_threads", p->n_threads);
    member_int(b, "n_gpu_layers", p->n_gpu_layers);
    member_int(b, "n_ctx", p->n_ctx);
    member_int(b, "n_batch", p->n_batch);
    member_int(b, "n_ubatch", p->n_ubatch);
    member_int(b, "n_seq_max", p->n_seq_max);
    member_text(b, "flash_attn", p->flash_attn);
    member_text(b, "type_k", p->type_k);
    member_text(b, "type_v", p->type_v);
    member_bool(b, "swa_full", p->swa_full);
    member_bool(b, "kv_unified", p->kv_unified);
    member_text(b, "tap", p->tap);
    member_bool(b, "adds_bos", p->adds_bos);
    if (p->chat_template[0])
        member_text(b, "chat_template", p->chat_template);
    else
        ts_buf_text(b, "  \"chat_template\": null,\n");
    ts_buf_text(b, "  \"steering\": ");
    if (p->steering[0])
        ts_buf_json_string(b, p->steering, strlen(p->steering));
    else
        ts_buf_text(b, "null");
    ts_buf_text(b, ",\n");
}

void ts_meta_resid_head(ts_buf *b, const ts_meta_resid *m) {
    ts_buf_text(b, "{\n  \"format_version\": 1,\n  \"kind\": \"resid\",\n");
    ts_meta_provenance(b, m->provenance);
    if (m->plan && m->plan[0])
        member_text(b, "plan", m->plan);
    else
        ts_buf_text(b, "  \"plan\": null,\n");
    member_bool(b, "partial", m->partial);
    member_int(b, "layers", m->n_layers);
    member_int(b, "hidden", m->n_hidden);
    ts_buf_text(b, "  \"layer_ids\": [");
    for (int32_t i = 0; i < m->n_layers; i++)
        ts_buf_printf(b, "%s%" PRId32, i ? ", " : "", m->layer_ids[i]);
    ts_buf_printf(b, "],\n  \"snapshots\": %" PRIu64 ",\n", m->n_snapshots);
    ts_buf_printf(b, "  \"sites\": %s,\n", m->sites_json ? m->sites_json : "[]");
    ts_buf_text(b, "  \"max_abs\": [");
    for (int32_t i = 0; i < m->n_layers; i++)
        ts_buf_printf(b, "%s%.9g", i ? ", " : "", (double)m->max_abs[i]);
    ts_buf_text(b, "],\n  \"nonfinite\": [");
    for (int32_t i = 0; i < m->n_layers; i++)
        ts_buf_printf(b, "%s%" PRIu64, i ? ", " : "", m->nonfinite[i]);
    ts_buf_text(b, "],\n  \"data\": ");
    ts_meta_file(b, m->data_file, m->data_bytes, m->data_xxh3);
}
