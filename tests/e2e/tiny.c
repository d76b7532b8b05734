/*
 * tiny.c: metadata and seeded weights of small random models (see tiny.h).
 *
 * Owns: one key writer per family, one rule per kind of tensor, the GGUF writer. Refuses unknown
 * names.
 */
#include "tiny_recipe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

/* ---- metadata ---- */

static const char *key_name(const maker *m, const char *suffix, char buf[static 128]) {
    snprintf(buf, 128, "%s.%s", m->r->arch, suffix);
    return buf;
}

static void put_u32(maker *m, const char *suffix, uint32_t v) {
    char buf[128];
    gguf_set_val_u32(m->meta, key_name(m, suffix, buf), v);
}

static void put_f32(maker *m, const char *suffix, float v) {
    char buf[128];
    gguf_set_val_f32(m->meta, key_name(m, suffix, buf), v);
}

static void put_bool(maker *m, const char *suffix, bool v) {
    char buf[128];
    gguf_set_val_bool(m->meta, key_name(m, suffix, buf), v);
}

static void put_u32s(maker *m, const char *suffix, const uint32_t *v, size_t n) {
    char buf[128];
    gguf_set_arr_data(m->meta, key_name(m, suffix, buf), GGUF_TYPE_UINT32, v, n);
}

/* One value a block, picked from a repeating pattern. */
static void put_pattern(maker *m, const char *suffix, const uint32_t *pattern, size_t n_pattern) {
    uint32_t v[512];
    size_t n = m->o.n_layer < 512 ? m->o.n_layer : 512;
    for (size_t il = 0; il < n; il++)
        v[il] = pattern[il % n_pattern];
    put_u32s(m, suffix, v, n);
}

static void keys_gemma3(maker *m) {
    put_u32(m, "attention.key_length", m->o.n_embd / m->o.n_head);
    put_u32(m, "attention.value_length", m->o.n_embd / m->o.n_head);
    put_u32(m, "attention.sliding_window", 8); /* gemma3: five sliding blocks, then one full one */
}

static void keys_experts(maker *m) {
    put_u32(m, "expert_feed_forward_length", m->o.n_ff);
}

static void keys_deepseek(maker *m) {
    keys_experts(m);
    put_u32(m, "leading_dense_block_count", 1);
    put_u32(m, "expert_shared_count", 2);
    put_f32(m, "expert_weights_scale", 1.5f);
}

/* Gated delta net in even blocks, attention in odd ones. */
static void keys_qwen35(maker *m) {
    const uint32_t sections[4] = {3, 3, 2, 0};
    put_u32s(m, "rope.dimension_sections", sections, 4);
    put_u32(m, "rope.dimension_count", 16);
    put_u32(m, "full_attention_interval", 2);
    put_u32(m, "ssm.conv_kernel", 4);
    put_u32(m, "ssm.state_size", 32);
    put_u32(m, "ssm.group_count", 2);
    put_u32(m, "ssm.time_step_rank", 4);
    put_u32(m, "ssm.inner_size", 4 * 32);
}

/* In turn: a full block, one without attention, one without FFN, one whose attention is one matrix.
 */
static void keys_deci(maker *m) {
    const uint32_t h = m->o.n_head, hk = m->o.n_head_kv, ff = m->o.n_ff;
    put_pattern(m, "attention.head_count", (const uint32_t[]){h, 0, h, h}, 4);
    put_pattern(m, "attention.head_count_kv", (const uint32_t[]){hk, 0, hk, 0}, 4);
    put_pattern(m, "feed_forward_length", (const uint32_t[]){ff, ff / 2, 0, ff}, 4);
}

static void keys_mamba(maker *m) {
    put_u32(m, "attention.head_count", 0);
    put_u32(m, "attention.head_count_kv", 0);
    put_u32(m, "feed_forward_length", 0);
    put_u32(m, "ssm.conv_kernel", 4);
    put_u32(m, "ssm.inner_size", 2 * m->o.n_embd);
    put_u32(m, "ssm.state_size", 16);
    put_u32(m, "ssm.time_step_rank", 8);
}

static void keys_plamo2(maker *m) {
    const uint32_t h = m->o.n_head, hk = m->o.n_head_kv;
    put_pattern(m, "attention.head_count", (const uint32_t[]){h, h}, 2);
    put_pattern(m, "attention.head_count_kv", (const uint32_t[]){0, hk}, 2);
    put_u32(m, "ssm.conv_kernel", 4);
    put_u32(m, "ssm.inner_size", 2 * m->o.n_embd);
    put_u32(m, "ssm.state_size", 16);
    put_u32(m, "ssm.time_step_rank", 4);
    put_u32(m, "ssm.group_count", 0);
}

static void keys_bert(maker *m) {
    put_bool(m, "attention.causal", false);
    put_u32(m, "pooling_type", 1);
    gguf_set_val_u32(m->meta, "tokenizer.ggml.token_type_count", 2);
}

/* Four residual streams mixed by hyper-connections. */
static void keys_deepseek4(maker *m) {
    const uint32_t hd = m->o.n_embd / m->o.n_head;
    keys_experts(m);
    put_u32(m, "expert_shared_count", 1);
    put_f32(m, "expert_weights_scale", 1.0f);
    put_bool(m, "expert_weights_norm", true);
    put_u32(m, "expert_gating_func", 4);
    put_f32(m, "swiglu_clamp_exp", 10.0f);
    put_u32(m, "attention.key_length", hd);
    put_u32(m, "attention.value_length", hd);
    put_u32(m, "rope.dimension_count", hd / 2);
    put_u32(m, "attention.head_count_kv", 1);
    put_u32(m, "attention.q_lora_rank", 64);
    put_u32(m, "attention.sliding_window", 32);
    put_u32(m, "attention.indexer.head_count", 64);
    put_u32(m, "attention.indexer.key_length", 128);
    put_u32(m, "attention.indexer.top_k", 131072);
    put_u32(m, "attention.output_group_count", 2);
    put_u32(m, "attention.output_lora_rank", 32);
    put_pattern(m, "attention.compress_ratios", (const uint32_t[]){0, 0, 4, 128}, 4);
    put_f32(m, "attention.compress_rope_freq_base", 160000.0f);
    put_u32(m, "hyper_connection.count", 4);
    put_u32(m, "hyper_connection.sinkhorn_iterations", 2);
    put_f32(m, "hyper_connection.epsilon", 1e-6f);
    put_u32(m, "hash_layer_count", 0);
}

/* Four residual streams again, and each block's output has the usual name and three dimensions. */
static void keys_hy_v4(maker *m) {
    keys_experts(m);
    put_u32(m, "leading_dense_block_count", m->o.n_layer);
    put_u32(m, "expert_shared_count", 1);
    put_u32(m, "attention.q_lora_rank", 48);
    put_u32(m, "attention.kv_lora_rank", 64);
    put_u32(m, "attention.key_length_mla", 48);
    put_u32(m, "attention.value_length_mla", 32);
    put_u32(m, "attention.key_length", 64 + 16);
    put_u32(m, "attention.value_length", 64);
    put_u32(m, "attention.head_count_kv", 1);
    put_u32(m, "rope.dimension_count", 16);
    put_u32(m, "hyper_connection.count", 4);
    put_f32(m, "hyper_connection.epsilon", 1e-6f);
    put_f32(m, "hyper_connection.magnitude", 2.0f);
}

static const recipe recipes[] = {
    {"llama", "llama", 4, 0, NULL, NULL, {0}},
    {"gemma3", "gemma3", 8, SCALED, keys_gemma3, NULL, {0}},
    {"qwen3", "qwen3", 4, 0, NULL, NULL, {0}},
    {"qwen35", "qwen35", 5, 0, keys_qwen35, NULL, {0}},
    {"gpt2", "gpt2", 4, BIAS, NULL, NULL, {0}},
    {"nemotron", "nemotron", 4, BIAS, NULL, NULL, {0}}, /* relu(up)^2, no gate */
    {"qwen3moe", "qwen3moe", 4, MOE, keys_experts, NULL, {0}},
    {"llama-moe", "llama", 4, MOE, NULL, NULL, {0}},
    {"deepseek", "deepseek", 4, MOE, keys_deepseek, NULL, {0}},
    {"deci", "deci", 5, 0, keys_deci, NULL, {0}},
    {"mamba", "mamba", 4, 0, keys_mamba, NULL, {0}},
    {"plamo2", "plamo2", 4, 0, keys_plamo2, NULL, {0}},
    {"bert", "bert", 3, BIAS, keys_bert, NULL, {0}},
    {"deepseek4", "deepseek4", 4, MOE, keys_deepseek4, NULL, {0}},
    {"hy_v4", "hy_v4", 3, 0, keys_hy_v4, NULL, {0}},
    {"gemma3n", "gemma3n", 22, SCALED, keys_gemma3, NULL, {0}}, /* llama.cpp wants more than 20 blocks */
};

const char *const tiny_arch_names[] = {
    "llama", "gemma3", "qwen3",  "qwen35", "gpt2",      "qwen3moe", "llama-moe", "deepseek", "nemotron",
    "deci",  "mamba",  "plamo2", "bert",   "deepseek4", "hy_v4",    "gemma3n",   NULL,
};

static const recipe *find_recipe(const char *name) {
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        if (strcmp(recipes[i].name, name) == 0)
            return &recipes[i];
    }
    for (const recipe *r = tiny_archs; r->name; r++) {
        if (strcmp(r->name, name) == 0)
            return r;
    }
    return NULL;
}

static void put_tokenizer(maker *m) {
    const uint32_t n = m->o.n_vocab;
    char(*texts)[16] = calloc(n, sizeof *texts);
    const char **ptrs = calloc(n, sizeof *ptrs);
    float *scores = calloc(n, sizeof *scores);
    if (texts && ptrs && scores) {
        for (uint32_t i = 0; i < n; i++) {
            snprintf(texts[i], sizeof texts[i], "tok_%u", i);
            ptrs[i] = texts[i];
        }
        gguf_set_val_str(m->meta, "tokenizer.ggml.model", "test");
        gguf_set_arr_str(m->meta, "tokenizer.ggml.tokens", ptrs, n);
        gguf_set_arr_data(m->meta, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, n);
    } else {
        m->failed = true;
    }
    free(texts);
    free(ptrs);
    free(scores);
}

static void put_keys(maker *m) {
    char name[64];
    /* not the architecture: llama.cpp reads meaning into names such as phi3 */
    snprintf(name, sizeof name, "tiny %s", m->r->flags & WIDE ? "model" : m->r->name);
    gguf_set_val_str(m->meta, "general.architecture", m->r->arch);
    gguf_set_val_str(m->meta, "general.name", name);
    put_u32(m, "vocab_size", m->o.n_vocab);
    put_u32(m, "context_length", m->o.n_ctx_train);
    put_u32(m, "embedding_length", m->o.n_embd);
    put_u32(m, "block_count", m->o.n_layer);
    put_u32(m, "feed_forward_length", m->o.n_ff);
    put_u32(m, "attention.head_count", m->o.n_head);
    put_u32(m, "attention.head_count_kv", m->r->flags & BIAS ? m->o.n_head : m->o.n_head_kv);
    put_f32(m, "attention.layer_norm_epsilon", 1e-5f);
    put_f32(m, "attention.layer_norm_rms_epsilon", 1e-5f);
    if (m->r->flags & MOE) {
        put_u32(m, "expert_count", m->o.n_expert);
        put_u32(m, "expert_used_count", m->o.n_expert_used);
    }
    put_tokenizer(m);
    if (m->r->keys)
        m->r->keys(m); /* last: it may replace a common key */
    if (m->r->flags & WIDE)
        tiny_put_spec(m, tiny_wide_spec);
    if (m->r->spec)
        tiny_put_spec(m, m->r->spec);
}

/* ---- weights ---- */

static uint64_t mix(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Mean 0, variance 1, nearly normal: four uniforms, so that no libm decides a bit of a weight. */
static float noise(uint64_t *state) {
    const uint64_t r = mix(state);
    uint64_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (r >> (16 * i)) & 0xffff;
    return ((float)sum / 65536.0f - 2.0f) * 1.7320508f;
}

static uint64_t name_seed(uint64_t seed, const char *name) {
    uint64_t h = 0xcbf29ce484222325u ^ (seed * 0x9e3779b97f4a7c15u);
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}

static bool ends_with(const char *s, const char *tail) {
    const size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

/* Tensors that llama_model_init_from_user makes though real files of the architecture lack them. */
static bool is_extra(const maker *m, const char *name) {
    if ((m->r->flags & WHOLE) || strstr(name, "indexer.k_norm.bias"))
        return false;
    if (ends_with(name, "scale") || strstr(name, "rope_freqs"))
        return true;
    if (strncmp(name, "cls", 3) == 0 || strstr(name, "exp_probs_b_vl"))
        return true;
    if (strstr(name, "ssm_") || strstr(name, "exp_probs_b"))
        return false;
    if (strstr(name, "time_mix_first") && strcmp(m->r->arch, "rwkv6qwen2") == 0)
        return true;
    return ends_with(name, ".bias") && !(m->r->flags & BIAS);
}

/* A weight is mean + spread * noise, or the negative of its size where a decay must be negative. */
typedef struct rule {
    float mean;
    float spread;
    bool negative;
} rule;

static rule rule_of(const maker *m, const char *name, int64_t n_in) {
    const float fan = 1.0f / sqrtf((float)n_in);
    if (strstr(name, "token_embd."))
        return (rule){0.0f, m->r->flags & SCALED ? fan : 1.0f, false};
    if (ends_with(name, "scale") || strstr(name, "rope_freqs"))
        return (rule){1.0f, 0.0f, false};
    if (ends_with(name, ".bias"))
        return (rule){0.0f, is_extra(m, name) ? 0.0f : 0.1f, false};
    if (strstr(name, "norm"))
        return (rule){1.0f, 0.1f, false};
    if (ends_with(name, "ssm_a"))
        return (rule){-0.5f, 0.3f, true};
    if (ends_with(name, "ssm_d"))
        return (rule){1.0f, 0.1f, false};
    if (strstr(name, "ffn_gate_inp"))
        return (rule){0.0f, 2.0f * fan, false};
    return (rule){0.0f, fan, false};
}

static bool is_ffn_up(const maker *m, const char *name) {
    char own[64];
    snprintf(own, sizeof own, "blk.%u.ffn_up.weight", m->o.nan_block - 1);
    return strcmp(name, own) == 0;
}

static void fill(const maker *m, const char *name, int64_t n_in, float *x, int64_t n) {
    const rule r = rule_of(m, name, n_in);
    uint64_t state = name_seed(m->o.seed, name);
    for (int64_t i = 0; i < n; i++) {
        x[i] = r.mean + r.spread * noise(&state);
        if (r.negative)
            x[i] = -fabsf(x[i]);
    }
    /* |w x| is about 11 at most: what reads it has the bias' sign */
    if (m->o.dead_of_8 && ends_with(name, "ffn_up.bias"))
        for (int64_t i = 0; i < n; i++)
            x[i] = (uint32_t)(i % 8) < m->o.dead_of_8 ? -100.0f : 100.0f;
    if (m->o.no_ffn && ends_with(name, "ffn_down.weight"))
        memset(x, 0, (size_t)n * sizeof *x);
    if (m->o.nan_block && is_ffn_up(m, name))
        for (int64_t i = 0; i < n_in; i++)
            x[7 * n_in + i] = NAN;
}

static void keep_copy(maker *m, const struct ggml_tensor *t, const float *x) {
    if (is_extra(m, t->name) || ggml_get_tensor(m->copies, t->name))
        return;
    if (ggml_get_mem_size(m->copies) - ggml_used_mem(m->copies) < ggml_nbytes(t) + 1024) { /* it would abort */
        m->failed = m->too_large = true;
        return;
    }
    struct ggml_tensor *c = ggml_new_tensor(m->copies, t->type, ggml_n_dims(t), t->ne);
    ggml_set_name(c, t->name);
    memcpy(c->data, x, ggml_nbytes(c));
}

static void set_tensor(struct ggml_tensor *t, void *userdata) {
    maker *m = userdata;
    const int64_t n = ggml_nelements(t);
    float *x = t->type == GGML_TYPE_F32 ? malloc((size_t)n * sizeof *x) : NULL;
    if (!x) {
        m->failed = true;
        return;
    }
    fill(m, t->name, t->ne[0], x, n);
    ggml_backend_tensor_set(t, x, 0, ggml_nbytes(t));
    if (m->copies)
        keep_copy(m, t, x);
    free(x);
}

/* ---- models and files ---- */

static uint32_t or_default(uint32_t v, uint32_t def) {
    return v ? v : def;
}

static tiny_opts with_defaults(const recipe *r, const tiny_opts *opts) {
    tiny_opts o = opts ? *opts : (tiny_opts){0};
    o.n_layer = or_default(o.n_layer, r->n_layer);
    o.n_embd = or_default(o.n_embd, or_default(r->size.n_embd, 128));
    o.n_ff = or_default(o.n_ff, or_default(r->size.n_ff, 192));
    o.n_head = or_default(o.n_head, or_default(r->size.n_head, 2));
    o.n_head_kv = or_default(o.n_head_kv, or_default(r->size.n_head_kv, 1));
    o.n_ctx_train = or_default(o.n_ctx_train, or_default(r->size.n_ctx_train, 2048));
    o.n_vocab = or_default(o.n_vocab, or_default(r->size.n_vocab, 160));
    o.n_expert = or_default(o.n_expert, or_default(r->size.n_expert, 8));
    o.n_expert_used = or_default(o.n_expert_used, or_default(r->size.n_expert_used, 2));
    return o;
}

static struct llama_model *build(maker *m, const char *name, const tiny_opts *opts,
                                 const char **err) {
    const char *why = NULL;
    struct llama_model *model = NULL;
    m->r = find_recipe(name);
    if (!m->r) {
        why = "no tiny model of that name";
        goto cleanup;
    }
    m->o = with_defaults(m->r, opts);
    if (m->o.n_expert_used > m->o.n_expert || m->o.n_expert > 1024) {
        why = "expected at most 1024 experts, and no more of them used";
        goto cleanup;
    }
    m->meta = gguf_init_empty();
    put_keys(m);

    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = m->o.n_gpu_layers;
    model = llama_model_init_from_user(m->meta, set_tensor, m, params);
    if (!model) {
        why = "llama.cpp refused the tiny model";
    } else if (m->failed) {
        why = m->too_large ? "too large for a tiny model" : "out of memory, or a tensor that is not f32";
        llama_model_free(model);
        model = NULL;
    }
cleanup:
    if (why && err)
        *err = why;
    return model;
}

struct llama_model *tiny_model(const char *arch, const tiny_opts *opts, const char **err) {
    maker m = {0};
    struct llama_model *model = build(&m, arch, opts, err);
    gguf_free(m.meta);
    return model;
}

bool tiny_save(const char *arch, const tiny_opts *opts, const char *path, const char **err) {
    bool ok = false;
    maker m = {0};
    struct llama_model *model = NULL;
    m.copies = ggml_init((struct ggml_init_params){(size_t)256 << 20, NULL, false});
    if (!m.copies) {
        if (err)
            *err = "out of memory";
        goto cleanup;
    }
    model = build(&m, arch, opts, err);
    if (!model)
        goto cleanup;
    struct ggml_tensor *t = ggml_get_first_tensor(m.copies);
    for (; t; t = ggml_get_next_tensor(m.copies, t))
        gguf_add_tensor(m.meta, t);
    ok = gguf_write_to_file(m.meta, path, false);
    if (!ok && err)
        *err = "cannot write the file";
cleanup:
    llama_model_free(model);
    gguf_free(m.meta);
    ggml_free(m.copies);
    return ok;
}
