/* A loaded model, shared by sessions through a count. Refuses models that cannot generate. */
#ifndef TS_HOST_MODEL_H
#define TS_HOST_MODEL_H

#include "core/error.h"
#include "host/engine.h"

/* What tells a file from another one under its name, or from itself after a change. */
typedef struct ts_stamp {
    uint64_t device, inode, bytes;
    int64_t changed_s, changed_ns;
} ts_stamp;

typedef struct ts_model {
    struct llama_model *llama;
    const struct llama_vocab *vocab;
    bool owned;     /* freed by us; false when the caller brought it */
    int refs;       /* sessions that share one model live on one thread */
    char **shards;  /* [n_shards] paths; none for a model the caller brought */
    size_t n_shards;
    int32_t n_gpu_layers;
    char architecture[64];
    int32_t *specials; /* [n_specials] control tokens that have a text; NULL until a chat asks */
    size_t n_specials;
    bool needs_bytes;  /* some byte has no token of its own: a text may be impossible (vocab.h) */
    bool has_byte[256];
    ts_stamp *stamps;  /* [n_shards] as they were before loading */
} ts_model;

int ts_model_load(const ts_session_options *opts, ts_model **out, ts_error *err);
/* Is the file of shard i still the one that was loaded? */
bool ts_model_unchanged(const ts_model *m, size_t i);
ts_model *ts_model_share(ts_model *m);
void ts_model_release(ts_model *m);
void ts_model_info_fill(const ts_model *m, ts_model_info *out);

#endif
