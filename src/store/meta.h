/* The provenance file (<stem>.meta) of a result, and the same object inside a safetensors header.
 *
 * Keys, in this order: format_version (1), kind ("resid"), model {architecture, name, description,
 * size_bytes, shards [{file, bytes, xxh3_128 or null}]}, engine, ggml, devices, n_threads,
 * n_gpu_layers, n_ctx, n_batch, n_ubatch, n_seq_max, flash_attn, type_k, type_v, swa_full,
 * kv_unified, tap, adds_bos, chat_template (null when none), steering (text or null), plan (hash of
 * corpus and options, null for `run`), partial, layers,
 * hidden, layer_ids [layers], snapshots, sites [..], max_abs [layers] (over finite values),
 * nonfinite [layers], data {file, bytes, xxh3_128}, and, in the .meta only, generations [snapshots]
 * with {prompt_index, position, token, piece, piece_hex (only where the piece is not UTF-8), label
 * (only where given), prompt_tokens (on the first snapshot of each prompt)}, one a line. In a
 * safetensors file `data` is about the tensor hidden_states. */
#ifndef TS_STORE_META_H
#define TS_STORE_META_H

#include <jansson.h>

#include "core/buf.h"
#include "core/provenance.h"

typedef struct ts_meta_resid {
    const ts_provenance *provenance;
    const char *plan; /* NULL or "" = null */
    bool partial;
    int32_t n_layers, n_hidden;
    const int32_t *layer_ids; /* [n_layers] */
    uint64_t n_snapshots;
    const char *sites_json;    /* JSON array, NULL = [] */
    const float *max_abs;      /* [n_layers] */
    const uint64_t *nonfinite; /* [n_layers] */
    const char *data_file;     /* base name */
    uint64_t data_bytes;
    const char *data_xxh3;
} ts_meta_resid;

/* {"file": .., "bytes": .., "xxh3_128": ..}; an empty hash is null. */
void ts_meta_file(ts_buf *b, const char *file, uint64_t bytes, const char *xxh3);
/* The members every kind has, model to steering, each on its line and followed by ",\n". */
void ts_meta_provenance(ts_buf *b, const ts_provenance *p);
/* The object from "{\n" to the `data` member, without what ends it. */
void ts_meta_resid_head(ts_buf *b, const ts_meta_resid *m);

/* The facts back out of a .meta's object. TS_ERR_FORMAT names the key. *out is freed by ts_meta_provenance_free, also
 * after a failure. */
int ts_meta_provenance_read(const json_t *meta, ts_provenance *out, ts_error *err);
void ts_meta_provenance_free(ts_provenance *p);
/* TS_ERR_ARG naming the difference between b's model and a's: architecture, name, files. */
int ts_meta_same_model(const ts_provenance *a, const ts_provenance *b, ts_error *err);
/* One hash for a model of any number of shards: that of its only shard, else of all their hashes in order; "" when
 * one is unknown. */
void ts_meta_model_hash(const ts_provenance *p, char hex[33]);

/* Whether meta data at `path` are those of a whole result of this plan: they name it, and no partial one. */
bool ts_meta_complete(const char *path, const char *plan);
/* Whether they hold this member as ts_meta_... writes it, before anything that grows with the result. */
bool ts_meta_says(const char *path, const char *member);
/* To be resumed, nothing unfinished there: a warning where the result at `path` is `complete`, else TS_ERR_ARG, it exists. */
int ts_result_settle(const char *path, bool complete, ts_error *err);
/* Before a run writes at `path` without being asked to replace: TS_ERR_ARG where something else stands there than the result of
 * an earlier run of this kind (plan "run"), or beside it, NULL-terminated extensions, where there is none. */
int ts_result_keep(const char *path, const char *kind, const char *const *beside, ts_error *err);
/* Reads a .meta without its generations (they may be many): constant memory for any number of
 * snapshots. TS_ERR_FORMAT. The caller drops *out with json_decref. */
int ts_meta_read(const char *path, json_t **out, ts_error *err);
/* Checks bytes [offset, offset + bytes of the file] against the object's `data`: size and, where
 * recorded, hash. TS_ERR_FORMAT names file, expected and found. *hashed says whether there was a
 * hash. */
int ts_meta_check_data(const json_t *meta, const char *path, uint64_t offset, uint64_t bytes,
                       bool *hashed, ts_error *err);

#endif
