/*
 * tiny.h: small random models of many architectures, for tests only.
 *
 * Owns the recipe of each model: its metadata, and weights that depend on nothing but the seed and
 * the tensor's name. Refuses nothing about a model's use: whether an architecture can be tapped is
 * what the tests that call this find out.
 */
#ifndef TINY_H
#define TINY_H

#include <stdbool.h>
#include <stdint.h>

struct llama_model;

/* Zero in any field means that architecture's default. */
typedef struct tiny_opts {
    uint32_t n_layer;
    uint32_t n_embd; /* divisible by 2 * n_head */
    uint32_t n_ff;   /* even; the width of one expert in a mixture of experts */
    uint32_t n_head;
    uint32_t n_head_kv;
    uint32_t n_ctx_train;
    uint32_t n_vocab;
    uint32_t n_expert; /* mixtures of experts only */
    uint32_t n_expert_used;
    uint64_t seed;
    int32_t n_gpu_layers; /* 0: everything on the CPU */
    uint32_t dead_of_8;   /* nemotron: of 8 neurons in a row, the first so many never fire, the others always do */
    uint32_t nan_block;   /* counted from 1: neuron 7 of that block's ffn_up is NaN */
    uint32_t no_ffn;      /* not 0: every ffn_down is zero */
} tiny_opts;

/*
 * Names that tiny_model knows, ended by NULL. Mostly llama.cpp's own architecture names;
 * "llama-moe" is the llama architecture with experts. residual named l_out:  llama gemma3 qwen3
 * qwen35 gpt2 nemotron qwen3moe llama-moe deepseek deci mamba residual, other name:  plamo2 several
 * residuals:     deepseek4; hy_v4 and gemma3n (theirs are named l_out all the same) no residual:
 * bert (encoder only, a norm after each join)
 */
extern const char *const tiny_arch_names[];

/*
 * Make a model in memory with llama_model_init_from_user. It has every optional tensor of its
 * architecture, those that real files lack holding the neutral value (scale 1, bias 0).
 * opts may be NULL. The caller frees the model with llama_model_free.
 * On failure returns NULL and points *err (if err is not NULL) at a static text.
 * llama.cpp may abort on a size that it does not accept: call this in a child process.
 */
struct llama_model *tiny_model(const char *arch, const tiny_opts *opts, const char **err);

/*
 * Write the same model as a GGUF file, without those optional tensors. It computes the same logits,
 * to the bit, as the model of tiny_model with the same options. Returns false and sets *err as
 * tiny_model does.
 */
bool tiny_save(const char *arch, const tiny_opts *opts, const char *path, const char **err);

#endif
