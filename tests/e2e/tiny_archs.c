/*
 * tiny_archs.c: metadata of tiny models of every architecture that llama.cpp can build, beside the
 * ones in tiny.c. Owns facts only: sizes and keys, learned from what that release reads.
 */
#include "tiny_recipe.h"

#include <stddef.h>

const char tiny_wide_spec[] =
    "features_length=@embd leading_dense_block_count=1 use_parallel_residual=false logit_scale=1.0\n"
    "time_mix_extra_dim=16 time_decay_extra_dim=16 full_attention_interval=2\n"
    "attention.max_alibi_bias=8.0 attention.clamp_kqv=1.0 attention.group_norm_epsilon=1e-5\n"
    "attention.group_norm_groups=8 attention.q_lora_rank=48 attention.kv_lora_rank=64\n"
    "attention.relative_buckets_count=8 attention.sliding_window=8 attention.sliding_window_pattern=2\n"
    "attention.decay_lora_rank=16 attention.iclr_lora_rank=16\n"
    "attention.value_residual_mix_lora_rank=16 attention.gate_lora_rank=16\n"
    "attention.indexer.head_count=64 attention.indexer.key_length=128\n"
    "attention.indexer.top_k=131072 attention.indexer.block_size=4 attention.indexer.local_blocks=1\n"
    "rope.dimension_sections=[8,8,8,8] posnet.embedding_length=@embd posnet.block_count=@layer\n"
    "convnext.embedding_length=@embd convnext.block_count=@layer xielu.alpha_n=1.0\n"
    "xielu.alpha_p=1.0 xielu.beta=0.5 xielu.eps=1e-6\n"
    "ssm.inner_size=@embd*2 ssm.conv_kernel=4 ssm.state_size=16 ssm.time_step_rank=@h\n"
    "ssm.group_count=2 kda.head_dim=32 kda.safe_gate=true kda.gate_lower_bound=-5.0\n"
    "wkv.head_size=@head shortconv.l_cache=3 residual_scale=0.5 attn_res.block_size=12\n"
    "activation.situ_beta=4.0 activation.situ_linear_beta=25.0\n"
    "expert_feed_forward_length=@ff expert_shared_feed_forward_length=@ff/2\n"
    "expert_latent_length=@ff interleave_moe_layer_step=2 expert_shared_count=1 expert_gating_func=2\n"
    "expert_group_scale=1.0 experts_per_group=1";

#define MLA_SIZES                                                                                                  \
    "attention.key_length=80 attention.value_length=64 attention.key_length_mla=48"                                \
    " attention.value_length_mla=32 rope.dimension_count=16"
#define MLA MLA_SIZES " attention.head_count_kv=1"
#define MLA_HYBRID MLA_SIZES " attention.head_count_kv={0,1}" /* even blocks are recurrent */
#define HYBRID "attention.head_count_kv={0,1}"
#define SWA "attention.sliding_window_pattern={1,0}"
#define SWA_AFTER " " SWA
/* In turn: attention, a state space, an FFN; each block is one of them only. */
#define NEMOTRON_H "attention.head_count_kv={1,0,0} feed_forward_length={0,0,@ff}"
#define DELTA_NET                                                                                                  \
    "rope.dimension_sections=[3,3,2,0] rope.dimension_count=16 ssm.state_size=32 ssm.time_step_rank=4"             \
    " ssm.inner_size=128"
#define GEMMA4                                                                                                     \
    "attention.sliding_window_pattern={1,1,1,1,0} embedding_length_per_layer_input=@embd/2"                        \
    " attention.shared_kv_layers=0 attention.key_length_swa=@head attention.value_length_swa=@head"                \
    " rope.freq_base_swa=10000.0"

const recipe tiny_archs[] = {
    {"llama4", "llama4", 4, WIDE | MOE, NULL, NULL, {0}},
    {"falcon", "falcon", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"grok", "grok", 4, WIDE | MOE, NULL, NULL, {0}},
    {"gptneox", "gptneox", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"gptneox/parallel", "gptneox", 4, WIDE | BIAS, NULL, "use_parallel_residual=true", {0}},
    {"mpt", "mpt", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"baichuan", "baichuan", 4, WIDE, NULL, NULL, {0}},
    {"starcoder", "starcoder", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"refact", "refact", 4, WIDE, NULL, NULL, {0}},
    {"modern-bert", "modern-bert", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"nomic-bert", "nomic-bert", 4, WIDE | BIAS, NULL, "tokenizer.ggml.token_type_count=2", {0}},
    {"nomic-bert-moe", "nomic-bert-moe", 4, WIDE | MOE | BIAS, NULL,
     "tokenizer.ggml.token_type_count=2 moe_every_n_layers=2", {0}},
    {"neo-bert", "neo-bert", 4, WIDE, NULL, NULL, {0}},
    {"jina-bert-v2", "jina-bert-v2", 4, WIDE | BIAS, NULL, "tokenizer.ggml.token_type_count=2", {0}},
    {"jina-bert-v3", "jina-bert-v3", 4, WIDE | BIAS, NULL, "tokenizer.ggml.token_type_count=2", {0}},
    {"eurobert", "eurobert", 4, WIDE, NULL, NULL, {0}},
    {"bloom", "bloom", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"stablelm", "stablelm", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"qwen", "qwen", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"qwen2", "qwen2", 4, WIDE, NULL, NULL, {0}},
    {"qwen2moe", "qwen2moe", 4, WIDE | MOE, NULL, NULL, {0}},
    {"qwen2vl", "qwen2vl", 4, WIDE, NULL, NULL, {0}},
    {"qwen3next", "qwen3next", 4, WIDE | MOE, NULL, DELTA_NET, {0}},
    {"qwen3vl", "qwen3vl", 4, WIDE, NULL, NULL, {0}},
    {"qwen3vlmoe", "qwen3vlmoe", 4, WIDE | MOE, NULL, NULL, {0}},
    {"qwen35moe", "qwen35moe", 4, WIDE | MOE, NULL, DELTA_NET, {0}},
    {"qwen4exp", "qwen4exp", 4, WIDE | MOE, NULL,
     DELTA_NET " hyper_connection.count=4 hyper_connection.low_rank=8 attention.indexer.key_length=@head", {0}},
    {"phi2", "phi2", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"phi3", "phi3", 4, WIDE, NULL, NULL, {0}},
    {"phimoe", "phimoe", 4, WIDE | MOE | BIAS, NULL, NULL, {0}},
    {"plamo", "plamo", 4, WIDE, NULL, NULL, {0}},
    {"plamo3", "plamo3", 4, WIDE, NULL, NULL, {0}},
    {"codeshell", "codeshell", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"orion", "orion", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"internlm2", "internlm2", 4, WIDE, NULL, NULL, {0}},
    {"minicpm", "minicpm", 4, WIDE, NULL, NULL, {0}},
    {"minicpm/moe", "minicpm", 4, WIDE | MOE, NULL, NULL, {0}},
    {"minicpm3", "minicpm3", 4, WIDE, NULL, "attention.head_count_kv=@h", {0}},
    {"gemma", "gemma", 4, WIDE, NULL, NULL, {0}},
    {"gemma2", "gemma2", 4, WIDE, NULL, NULL, {0}},
    {"gemma4", "gemma4", 5, WIDE | WHOLE, NULL, GEMMA4, {0}},
    {"gemma4/moe", "gemma4", 5, WIDE | MOE | WHOLE, NULL, GEMMA4, {0}},
    {"gemma-embedding", "gemma-embedding", 4, WIDE, NULL, NULL, {0}},
    {"starcoder2", "starcoder2", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"mamba2", "mamba2", 4, WIDE, NULL, NULL, {0}},
    {"maple", "maple", 4, WIDE | MOE, NULL, SWA " swiglu_clamp_exp=7.0", {0}},
    {"jamba", "jamba", 4, WIDE, NULL, HYBRID, {0}},
    {"jamba/moe", "jamba", 4, WIDE | MOE, NULL, HYBRID, {0}},
    {"falcon-h1", "falcon-h1", 4, WIDE, NULL, NULL, {0}},
    {"xverse", "xverse", 4, WIDE, NULL, NULL, {0}},
    {"command-r", "command-r", 4, WIDE, NULL, NULL, {0}},
    {"cohere2", "cohere2", 4, WIDE, NULL, NULL, {0}},
    {"cohere2moe", "cohere2moe", 4, WIDE | MOE, NULL, SWA, {0}},
    {"dbrx", "dbrx", 4, WIDE | MOE, NULL, NULL, {0}},
    {"olmo", "olmo", 4, WIDE, NULL, NULL, {0}},
    {"olmo2", "olmo2", 4, WIDE, NULL, NULL, {0}},
    {"olmoe", "olmoe", 4, WIDE | MOE, NULL, "attention.head_count_kv=@h", {0}},
    {"muse-glimmer", "muse-glimmer", 4, WIDE, NULL, SWA, {0}},
    {"openelm", "openelm", 4, WIDE, NULL, NULL, {0}},
    {"arctic", "arctic", 4, WIDE | MOE, NULL, NULL, {0}},
    {"deepseek2", "deepseek2", 4, WIDE | MOE, NULL, MLA, {0}},
    {"deepseek2/lite", "deepseek2", 4, WIDE | MOE, NULL, "attention.head_count_kv=@h rope.dimension_count=16", {0}},
    {"deepseek2-ocr", "deepseek2-ocr", 4, WIDE | MOE, NULL, "attention.head_count_kv=@h", {0}},
    {"deepseek32", "deepseek32", 4, WIDE | MOE, NULL, MLA, {0}},
    {"chatglm", "chatglm", 4, WIDE, NULL, NULL, {0}},
    {"glm4", "glm4", 4, WIDE, NULL, NULL, {0}},
    {"glm4moe", "glm4moe", 4, WIDE | MOE, NULL, NULL, {0}},
    {"glm-dsa", "glm-dsa", 4, WIDE | MOE, NULL, MLA, {0}},
    {"bitnet", "bitnet", 4, WIDE, NULL, NULL, {0}},
    {"t5", "t5", 4, WIDE, NULL, NULL, {0}},
    {"t5encoder", "t5encoder", 4, WIDE, NULL, NULL, {0}},
    {"jais", "jais", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"jais2", "jais2", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"nemotron_h", "nemotron_h", 6, WIDE, NULL, NEMOTRON_H, {0}},
    {"nemotron_h_moe", "nemotron_h_moe", 6, WIDE | MOE, NULL, NEMOTRON_H, {0}},
    {"exaone", "exaone", 4, WIDE, NULL, NULL, {0}},
    {"exaone4", "exaone4", 4, WIDE, NULL, NULL, {0}},
    {"exaone-moe", "exaone-moe", 4, WIDE | MOE, NULL, NULL, {0}},
    {"rwkv6", "rwkv6", 4, WIDE | BIAS, NULL, "attention.head_count_kv=@h", {0}},
    {"rwkv6qwen2", "rwkv6qwen2", 4, WIDE, NULL, "token_shift_count=1", {0}},
    {"rwkv7", "rwkv7", 4, WIDE | BIAS, NULL, "attention.head_count_kv=@h", {0}},
    {"arwkv7", "arwkv7", 4, WIDE, NULL, "token_shift_count=1", {0}},
    {"granite", "granite", 4, WIDE, NULL, NULL, {0}},
    {"granite/moe", "granite", 4, WIDE | MOE, NULL, NULL, {0}},
    {"granitemoe", "granitemoe", 4, WIDE, NULL, NULL, {0}},
    {"granitemoe/moe", "granitemoe", 4, WIDE | MOE, NULL, NULL, {0}},
    {"granitehybrid", "granitehybrid", 4, WIDE, NULL, HYBRID, {0}},
    {"granitehybrid/moe", "granitehybrid", 4, WIDE | MOE, NULL, HYBRID, {0}},
    {"graniteswitch", "graniteswitch", 4, WIDE, NULL,
     "adapters.count=1 adapters.lora_rank=4 adapters.token_ids_activate=[5] adapters.token_ids_substitute=[6]", {0}},
    {"granite_swa", "granite_swa", 4, WIDE, NULL, SWA, {0}},
    {"granite_swa/moe", "granite_swa", 4, WIDE | MOE, NULL, SWA, {0}},
    {"chameleon", "chameleon", 4, WIDE, NULL, "attention.head_count_kv=@h", {.n_vocab = 10240}},
    {"wavtokenizer-dec", "wavtokenizer-dec", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"plm", "plm", 4, WIDE, NULL, "attention.head_count_kv=@h rope.dimension_count=32", {0}},
    {"bailingmoe", "bailingmoe", 4, WIDE | MOE, NULL, NULL, {0}},
    {"bailingmoe2", "bailingmoe2", 4, WIDE | MOE, NULL, NULL, {0}},
    {"bailingmoe3", "bailingmoe3", 4, WIDE | MOE, NULL, MLA_HYBRID, {0}},
    {"dots1", "dots1", 4, WIDE | MOE, NULL, "attention.head_count_kv=@h", {0}},
    {"dots3note", "dots3note", 4, WIDE | MOE, NULL,
     MLA SWA_AFTER " attention.kv_lora_rank_swa=64 attention.key_length_swa=80"
     " attention.value_length_swa=64 attention.key_length_mla_swa=48"
     " attention.value_length_mla_swa=32 rope.freq_base_swa=10000.0 attention.indexer.types={0,1}", {0}},
    {"arcee", "arcee", 4, WIDE, NULL, NULL, {0}},
    {"afmoe", "afmoe", 4, WIDE | MOE, NULL, NULL, {0}},
    {"laguna", "laguna", 4, WIDE | MOE, NULL, NULL, {0}},
    {"ernie4_5", "ernie4_5", 4, WIDE, NULL, NULL, {0}},
    {"ernie4_5-moe", "ernie4_5-moe", 4, WIDE | MOE, NULL, NULL, {0}},
    {"hunyuan-moe", "hunyuan-moe", 4, WIDE | MOE, NULL, NULL, {0}},
    {"hunyuan-dense", "hunyuan-dense", 4, WIDE, NULL, NULL, {0}},
    {"hunyuan_vl", "hunyuan_vl", 4, WIDE, NULL, NULL, {0}},
    {"hy_v3", "hy_v3", 4, WIDE | MOE, NULL, NULL, {0}},
    {"hy_v4/moe", "hy_v4", 4, WIDE | MOE, NULL,
     MLA " hyper_connection.count=4 hyper_connection.epsilon=1e-6 hyper_connection.magnitude=2.0"
     " attention.indexer.types={1,0}", {0}},
    {"smollm3", "smollm3", 4, WIDE, NULL, NULL, {0}},
    {"gpt-oss", "gpt-oss", 4, WIDE | MOE | BIAS, NULL, NULL, {0}},
    {"lfm2", "lfm2", 4, WIDE, NULL, HYBRID, {0}},
    {"lfm2moe", "lfm2moe", 4, WIDE | MOE, NULL, HYBRID, {0}},
    {"dream", "dream", 4, WIDE, NULL, NULL, {0}},
    {"smallthinker", "smallthinker", 4, WIDE | MOE, NULL, NULL, {0}},
    {"llada", "llada", 4, WIDE, NULL, NULL, {0}},
    {"llada-moe", "llada-moe", 4, WIDE | MOE, NULL, NULL, {0}},
    {"seed_oss", "seed_oss", 4, WIDE, NULL, NULL, {0}},
    {"grovemoe", "grovemoe", 4, WIDE | MOE, NULL, NULL, {0}},
    {"apertus", "apertus", 4, WIDE, NULL, NULL, {0}},
    {"minimax-01", "minimax-01", 4, WIDE | MOE, NULL, NULL, {0}},
    {"hrm_text", "hrm_text", 4, WIDE, NULL, "hrm.layers_per_stack=1 hrm.h_cycles=2 hrm.l_cycles=1", {0}},
    {"minimax-m2", "minimax-m2", 4, WIDE | MOE, NULL, NULL, {0}},
    {"minimax-m3", "minimax-m3", 4, WIDE | MOE, NULL, "rope.dimension_count=32 attention.indexer.head_count=@hk", {0}},
    {"cogvlm", "cogvlm", 4, WIDE, NULL, NULL, {0}},
    {"rnd1", "rnd1", 4, WIDE | MOE, NULL, NULL, {0}},
    {"pangu-embedded", "pangu-embedded", 4, WIDE | BIAS, NULL, NULL, {0}},
    {"mistral3", "mistral3", 4, WIDE, NULL, NULL, {0}},
    {"mistral3/moe", "mistral3", 4, WIDE | MOE, NULL, NULL, {0}},
    {"eagle3", "eagle3", 4, WIDE, NULL, "target_layers=[0,1,2] target_hidden_size=@embd", {0}},
    {"dflash", "dflash", 4, WIDE, NULL, SWA " target_layers=[0,1,2]", {0}},
    {"mistral4", "mistral4", 4, WIDE | MOE, NULL, MLA, {0}},
    {"paddleocr", "paddleocr", 4, WIDE, NULL, NULL, {0}},
    {"mimo2", "mimo2", 4, WIDE | MOE, NULL, SWA, {0}},
    {"step35", "step35", 4, WIDE | MOE, NULL, SWA, {0}},
    {"spark2_5", "spark2_5", 4, WIDE, NULL, SWA, {0}},
    {"llama-embed", "llama-embed", 4, WIDE, NULL, NULL, {0}},
    {"llama-embed/moe", "llama-embed", 4, WIDE | MOE, NULL, NULL, {0}},
    {"maincoder", "maincoder", 4, WIDE, NULL, NULL, {0}},
    {"kimi-linear", "kimi-linear", 4, WIDE | MOE, NULL, MLA_HYBRID, {0}},
    {"kimi-k3", "kimi-k3", 4, WIDE | MOE, NULL, MLA_HYBRID, {0}},
    {"talkie", "talkie", 4, WIDE, NULL, NULL, {0}},
    {"mellum", "mellum", 4, WIDE | MOE, NULL, NULL, {0}},
    {"nanbeige", "nanbeige", 4, WIDE, NULL, NULL, {0}},
    {"nanbeige/looped", "nanbeige", 3, WIDE, NULL, "num_loops=2", {0}},
    {"qwen3tts", "qwen3tts", 4, WIDE, NULL, NULL, {.n_vocab = 3072}},
    {"pockettts", "pockettts", 4, WIDE | BIAS, NULL, NULL, {0}},
    {NULL, NULL, 0, 0, NULL, NULL, {0}},
};
