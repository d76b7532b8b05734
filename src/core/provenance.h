/* Where a capture comes from: the facts every result file carries. Plain data, filled by the host room,
 * written by the store. All strings owned by the holder of the struct. */
#ifndef TS_CORE_PROVENANCE_H
#define TS_CORE_PROVENANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ts_shard {
    char *path;     /* as opened; files record the base name only */
    uint64_t bytes;
    char xxh3[33];  /* xxh3-128, hex; "" when not computed (a model built in memory) */
} ts_shard;

typedef struct ts_provenance {
    char architecture[64], name[128], description[128];
    ts_shard *shards; /* [n_shards] */
    size_t n_shards;
    char engine[64], ggml[64]; /* "llama.cpp 0.5.0", "ggml 0.25.1" */
    char devices[256];         /* "CPU" or "CUDA0 (NVIDIA H200), CPU" */
    char flash_attn[16], type_k[16], type_v[16], tap[16];
    int32_t n_threads, n_gpu_layers;
    uint32_t n_ctx, n_batch, n_ubatch, n_seq_max;
    bool swa_full, kv_unified, adds_bos;
    char chat_template[128];   /* "" when none was applied */
    char steering[512];        /* what was edited while this was made, "" = nothing */
} ts_provenance;

#endif
