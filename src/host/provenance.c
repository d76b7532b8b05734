/* The facts of a session that result files carry. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "host/session.h"

static int copy_shards(const ts_model *m, ts_provenance *out, ts_error *err) {
    out->shards = ts_calloc(m->n_shards + 1, sizeof(*out->shards));
    if (!out->shards) return ts_fail_nomem(err, "shards", m->n_shards * sizeof(*out->shards));
    for (size_t i = 0; i < m->n_shards; i++) {
        struct stat st;
        out->shards[i].path = ts_strdup(m->shards[i]);
        if (!out->shards[i].path) return ts_fail_nomem(err, "shard path", strlen(m->shards[i]));
        out->n_shards = i + 1;
        if (stat(m->shards[i], &st) == 0) out->shards[i].bytes = (uint64_t)st.st_size;
    }
    return TS_OK;
}

static void list_devices(const ts_session *s, char *out, size_t size) {
    size_t used = 0;
    bool cpu_only = s->model->n_gpu_layers == 0;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        bool cpu = ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
        if ((cpu_only && !cpu) || used >= size) continue;
        int n = snprintf(out + used, size - used, "%s%s (%s)", used ? ", " : "", ggml_backend_dev_name(dev),
                         ggml_backend_dev_description(dev));
        used += n > 0 ? (size_t)n : 0;
    }
}

int ts_session_provenance(const ts_session *s, ts_provenance *out, ts_error *err) {
    static const char *const flash[] = {"auto", "on", "off"};
    memset(out, 0, sizeof(*out));
    ts_model_info info;
    ts_model_info_fill(s->model, &info);
    snprintf(out->architecture, sizeof(out->architecture), "%s", info.architecture);
    snprintf(out->name, sizeof(out->name), "%s", info.name);
    snprintf(out->description, sizeof(out->description), "%s", info.description);
    snprintf(out->engine, sizeof(out->engine), "llama.cpp %s", llama_version());
    snprintf(out->ggml, sizeof(out->ggml), "ggml %s", ggml_version());
    list_devices(s, out->devices, sizeof(out->devices));
    snprintf(out->flash_attn, sizeof(out->flash_attn), "%s", flash[s->opts.flash_attn]);
    snprintf(out->type_k, sizeof(out->type_k), "%s", s->opts.type_k ? s->opts.type_k : "f16");
    snprintf(out->type_v, sizeof(out->type_v), "%s", s->opts.type_v ? s->opts.type_v : "f16");
    snprintf(out->tap, sizeof(out->tap), "%s", s->opts.tap == TS_TAP_ASK ? "ask" : "redirect");
    out->n_threads = s->opts.n_threads;
    out->n_gpu_layers = s->model->n_gpu_layers;
    out->n_ctx = s->opts.n_ctx;
    out->n_batch = s->opts.n_batch;
    out->n_ubatch = s->opts.n_ubatch;
    out->n_seq_max = s->opts.n_seq_max;
    out->swa_full = false;
    out->kv_unified = s->unified;
    out->adds_bos = info.adds_bos;
    memcpy(out->chat_template, s->chat_template, sizeof(out->chat_template));
    memcpy(out->steering, s->steering, sizeof(out->steering));
    return copy_shards(s->model, out, err);
}

void ts_provenance_free(ts_provenance *p) {
    for (size_t i = 0; i < p->n_shards; i++) free(p->shards[i].path);
    free(p->shards);
    memset(p, 0, sizeof(*p));
}

static int keep_file(const ts_session *s, const char *path, ts_error *err) {
    for (size_t i = 0; i < s->model->n_shards; i++)
        if (ts_file_same(path, s->model->shards[i])) return ts_fail(err, TS_ERR_ARG, "output '%s' is the model", path);
    return TS_OK;
}

int ts_session_keep_model(const ts_session *s, const char *path, const char *const *extensions, ts_error *err) {
    int rc = keep_file(s, path, err);
    bool several = *extensions != NULL; /* then also names it takes while it runs */
    for (; rc == TS_OK && *extensions; extensions++) {
        char *beside = ts_path_with_extension(path, *extensions);
        rc = beside ? keep_file(s, beside, err) : ts_fail_nomem(err, "output path", strlen(path));
        free(beside);
    }
    for (size_t i = 0; rc == TS_OK && several && i < s->model->n_shards; i++) rc = ts_file_keep(path, "model", s->model->shards[i], err);
    return rc;
}

char *ts_session_sites_json(const ts_session *s) {
    ts_buf b = {0};
    ts_buf_text(&b, "[");
    for (size_t i = 0; s->tap && i < s->tap->n_slots; i++) {
        const ts_site *site = &s->tap->slots[i].site.pub;
        bool asked = s->tap->want == TS_TAP_ASK;
        ts_buf_printf(&b, "%s{\"site\": \"%s\", \"block\": %d, \"tensor\": ", i ? ", " : "", ts_site_kind_name(site->kind), site->block);
        ts_buf_json_string(&b, site->tensor, strlen(site->tensor));
        ts_buf_printf(&b, ", \"how\": \"%s\"}", ts_site_how_name(asked ? TS_HOW_ASKED : site->how));
    }
    ts_buf_text(&b, "]");
    return ts_buf_take(&b);
}
