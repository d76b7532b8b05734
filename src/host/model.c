/* A loaded model, shared by sessions. Owns loading and the refusals that need no context: encoders,
 * embedding and diffusion models, encoder-decoders. */
#include "host/model.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/mem.h"
#include "host/gguf_check.h"
#include "host/synthetic.h"
#include "host/vocab.h"

static void read_meta(const struct llama_model *m, const char *key, char *out, size_t size) {
    if (llama_model_meta_val_str(m, key, out, size) < 0) out[0] = '\0';
}

static void read_own(const ts_model *m, const char *name, char *out, size_t size) {
    char key[128];
    snprintf(key, sizeof(key), "%.63s.%s", m->architecture, name);
    read_meta(m->llama, key, out, size);
}

static int unfit(const ts_model *m, const char *why, ts_error *err) {
    bool file = m->n_shards > 0;
    return ts_fail(err, TS_ERR_MODEL, "%s%s%sarchitecture '%s' %s", file ? "model '" : "", file ? m->shards[0] : "", file ? "': " : "",
                   m->architecture, why);
}

static int refuse_unfit(const ts_model *m, ts_error *err) {
    char causal[16], turned[16], windowed[16];
    read_own(m, "attention.causal", causal, sizeof(causal));
    read_own(m, "rope.dimension_count", turned, sizeof(turned));
    read_own(m, "rope.dimension_count_swa", windowed, sizeof(windowed));
    if (llama_model_has_encoder(m->llama) || !llama_model_has_decoder(m->llama))
        return unfit(m, "has an encoder: only decoder models generate here", err);
    if (llama_model_is_diffusion(m->llama)) return unfit(m, "is a diffusion model: it has no next-token pass", err);
    if (strcmp(causal, "false") == 0) return unfit(m, "is an embedding model (no causal attention): it cannot generate", err);
    if (llama_vocab_type(m->vocab) == LLAMA_VOCAB_TYPE_NONE || llama_vocab_n_tokens(m->vocab) <= 0) return unfit(m, "has no vocabulary here", err);
    bool turns = llama_model_rope_type(m->llama) != LLAMA_ROPE_TYPE_NONE; /* by 0 values a time it would never end */
    if (turns && strcmp(turned, "0") == 0) return unfit(m, "has a 'rope.dimension_count' of 0, expected a positive number", err);
    if (turns && strcmp(windowed, "0") == 0) return unfit(m, "has a 'rope.dimension_count_swa' of 0, expected a positive number", err);
    return TS_OK;
}

/* False ends the load. */
static bool go_on(float progress, void *user) {
    const volatile int *stop = user;
    (void)progress;
    return !stop || !*stop;
}

static int load_path(ts_model *m, const char *path, struct llama_model_params params, ts_error *err) {
    ts_engine_error_reset();
    m->llama = llama_model_load_from_file(path, params);
    if (m->llama) return TS_OK;
    if (!go_on(0, params.progress_callback_user_data)) return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted while model '%s' was loaded", path);
    return ts_fail(err, TS_ERR_MODEL, "llama.cpp cannot load model '%s': %s", path,
                   *ts_engine_error() ? ts_engine_error() : "no reason given");
}

static ts_stamp stamp_of(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) return (ts_stamp){0};
    return (ts_stamp){(uint64_t)st.st_dev, (uint64_t)st.st_ino, (uint64_t)st.st_size, (int64_t)st.st_mtim.tv_sec, (int64_t)st.st_mtim.tv_nsec};
}

static int take_stamps(ts_model *m, ts_error *err) {
    m->stamps = ts_calloc(m->n_shards, sizeof(*m->stamps));
    if (!m->stamps) return ts_fail_nomem(err, "model files", m->n_shards * sizeof(*m->stamps));
    for (size_t i = 0; i < m->n_shards; i++) m->stamps[i] = stamp_of(m->shards[i]);
    return TS_OK;
}

bool ts_model_unchanged(const ts_model *m, size_t i) {
    ts_stamp now = stamp_of(m->shards[i]), then = m->stamps[i];
    return now.device == then.device && now.inode == then.inode && now.bytes == then.bytes && now.changed_s == then.changed_s &&
           now.changed_ns == then.changed_ns;
}

static int load(ts_model *m, const ts_session_options *opts, ts_error *err) {
    ggml_backend_dev_t *devices = NULL;
    int rc = opts->model_path ? ts_gguf_check(opts->model_path, &m->shards, &m->n_shards, err) : TS_OK;
    if (rc == TS_OK) rc = take_stamps(m, err);
    ts_engine_subject("model", opts->model_path ? opts->model_path : "synthetic");
    if (rc == TS_OK) rc = ts_engine_devices(opts->device, &devices, err);
    if (rc != TS_OK) return rc;
    struct llama_model_params params = llama_model_default_params();
    if (opts->n_gpu_layers == TS_GPU_LAYERS_NONE) params.n_gpu_layers = 0;
    if (opts->n_gpu_layers > 0) params.n_gpu_layers = opts->n_gpu_layers;
    params.devices = devices;
    params.progress_callback = go_on;
    params.progress_callback_user_data = (void *)(uintptr_t)opts->stop;
    m->n_gpu_layers = params.n_gpu_layers;
    m->owned = true;
    rc = opts->synthetic ? ts_synthetic_load(opts->synthetic, params, opts->stop, &m->llama, err) : load_path(m, opts->model_path, params, err);
    free(devices);
    return rc;
}

int ts_model_load(const ts_session_options *opts, ts_model **out, ts_error *err) {
    *out = NULL;
    ts_engine_init();
    ts_model *m = ts_calloc(1, sizeof(*m));
    if (!m) return ts_fail_nomem(err, "model", sizeof(*m));
    int rc = TS_OK;
    m->refs = 1;
    if (opts->model)
        m->llama = opts->model;
    else
        rc = load(m, opts, err);
    if (rc == TS_OK) {
        m->vocab = llama_model_get_vocab(m->llama);
        read_meta(m->llama, "general.architecture", m->architecture, sizeof(m->architecture));
        rc = refuse_unfit(m, err);
        if (rc == TS_OK) ts_vocab_learn(m);
    }
    if (rc != TS_OK) {
        ts_model_release(m);
        m = NULL;
    }
    *out = m;
    return rc;
}

ts_model *ts_model_share(ts_model *m) {
    m->refs++;
    return m;
}

void ts_model_release(ts_model *m) {
    if (!m || --m->refs > 0) return;
    if (m->owned) llama_model_free(m->llama);
    for (size_t i = 0; m->shards && i < m->n_shards; i++) free(m->shards[i]);
    free(m->shards);
    free(m->specials);
    free(m->stamps);
    free(m);
}

void ts_model_info_fill(const ts_model *m, ts_model_info *out) {
    memset(out, 0, sizeof(*out));
    snprintf(out->architecture, sizeof(out->architecture), "%s", m->architecture);
    read_meta(m->llama, "general.name", out->name, sizeof(out->name));
    llama_model_desc(m->llama, out->description, sizeof(out->description));
    out->size_bytes = llama_model_size(m->llama);
    out->n_params = llama_model_n_params(m->llama);
    out->n_layer = llama_model_n_layer(m->llama);
    out->n_embd = llama_model_n_embd(m->llama);
    out->n_ctx_train = llama_model_n_ctx_train(m->llama);
    out->n_vocab = llama_vocab_n_tokens(m->vocab);
    out->hybrid = llama_model_is_hybrid(m->llama);
    out->recurrent = llama_model_is_recurrent(m->llama);
    out->has_chat_template = llama_model_chat_template(m->llama, NULL) != NULL;
    out->adds_bos = llama_vocab_get_add_bos(m->vocab);
}
