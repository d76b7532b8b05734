/* The real model with its weights made f32. */
#include "real_f32.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>
#include <gguf.h>
#include <llama.h>

static const struct ggml_tensor *source(struct ggml_context *file, const char *name) {
    struct ggml_tensor *t = ggml_get_tensor(file, name);
    if (!t && strcmp(name, "output.weight") == 0) return ggml_get_tensor(file, "token_embd.weight"); /* the head is tied */
    return t;
}

/* Tensors the file lacks are optional ones: a scale of 1, a bias of 0. */
static void fill(float *x, int64_t n, const struct ggml_tensor *from, const char *name) {
    if (from && from->type != GGML_TYPE_F32) {
        ggml_get_type_traits(from->type)->to_float(from->data, x, n);
    } else if (from) {
        memcpy(x, from->data, (size_t)n * sizeof(*x));
    } else {
        for (int64_t i = 0; i < n; i++) x[i] = strstr(name, "bias") ? 0.0f : 1.0f;
    }
}

static void set_tensor(struct ggml_tensor *t, void *file) {
    int64_t n = ggml_nelements(t);
    const struct ggml_tensor *from = source(file, t->name);
    float *x = malloc((size_t)n * sizeof(*x));
    if (!x || t->type != GGML_TYPE_F32 || (from && ggml_nelements(from) != n)) abort();
    fill(x, n, from, t->name);
    ggml_backend_tensor_set(t, x, 0, (size_t)n * sizeof(*x));
    free(x);
}

struct llama_model *real_f32_model(const char *path, uint32_t n_blocks) {
    struct ggml_context *file = NULL;
    struct gguf_context *all = gguf_init_from_file(path, (struct gguf_init_params){.ctx = &file});
    if (!all) {
        fprintf(stderr, "cannot read '%s'\n", path);
        return NULL;
    }
    struct gguf_context *meta = gguf_init_empty();
    gguf_set_kv(meta, all);
    gguf_set_val_u32(meta, "llama.block_count", n_blocks);
    struct llama_model *model = llama_model_init_from_user(meta, set_tensor, file, llama_model_default_params());
    if (!model) fprintf(stderr, "llama.cpp refused '%s' with f32 weights\n", path);
    gguf_free(meta);
    gguf_free(all);
    ggml_free(file);
    return model;
}
