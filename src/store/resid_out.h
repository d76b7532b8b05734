/* Writing residual captures: the seed's pair (header .json + .f32) with .meta beside it, or one safetensors
 * file. Streams rows to partial files so that a long capture uses constant memory, survives a kill and ends
 * with the same bytes; a short one (`run`) uses the same path. Refuses a layer subset or a mean in the pair
 * format.
 *
 * Partial files of OUT: `OUT.part` (rows, f32 LE), `OUT.part.gen` (one JSON object a snapshot and line) and
 * `OUT.part.state` (JSON: plan hash, what is done, lengths and running statistics; replaced by rename after
 * rows and generations were fsynced). They disappear on finish, but that an interrupted capture keeps the last two, by
 * which a resume takes its data file back. No time stamp goes into any result. */
#ifndef TS_STORE_RESID_OUT_H
#define TS_STORE_RESID_OUT_H

#include "core/error.h"
#include "core/provenance.h"

#define TS_RESID_HOOK "residual stream at the OUTPUT of each layer (post-FFN join)"

typedef struct ts_resid_out ts_resid_out;

typedef struct ts_resid_spec {
    const char *path;             /* OUT.json or OUT.safetensors */
    enum ts_capture_format format;
    int32_t n_layers, n_hidden;   /* rows captured per snapshot, width */
    const int32_t *layer_ids;     /* [n_layers], block numbers */
    bool layers_subset, mean;     /* refused in TS_CAPTURE_F32 */
    const char *plan_hash;        /* hex; a partial file of another plan is refused by name */
    bool resume, overwrite;       /* without overwrite an existing result is refused, without either an unfinished one */
} ts_resid_spec;

/* One snapshot's facts. */
typedef struct ts_resid_row {
    int64_t prompt_index;
    int32_t position;             /* token position in the prompt; -1 for a mean */
    int32_t token;                /* id at that position; -1 for a mean */
    const char *piece;            /* its text, any bytes */
    size_t piece_length;
    const int32_t *prompt_tokens; /* [n_prompt_tokens]; NULL when written with an earlier row of this prompt */
    size_t n_prompt_tokens;
    const char *label;            /* nullable */
} ts_resid_row;

/* What an earlier process left done (all zero on a fresh start). */
typedef struct ts_resid_done {
    uint64_t prompts, batches, rows, tokens;
} ts_resid_done;

/* A finished, whole result of this plan stands at spec->path: there is nothing to resume. */
bool ts_resid_out_complete(const ts_resid_spec *spec);
/* TS_ERR_ARG where the state of an unfinished capture of another plan stands beside spec->path. */
int ts_resid_out_keep_unfinished(const ts_resid_spec *spec, ts_error *err);
int ts_resid_out_open(const ts_resid_spec *spec, ts_resid_out **out, ts_resid_done *done, ts_error *err);
/* Appends one snapshot: `rows` is [n_layers][n_hidden]. Updates max |x| and non-finite count per layer. */
int ts_resid_out_add(ts_resid_out *o, const float *rows, const ts_resid_row *row, ts_error *err);
/* Makes what was added durable and records the counters for resume. */
int ts_resid_out_checkpoint(ts_resid_out *o, const ts_resid_done *done, ts_error *err);
uint64_t ts_resid_out_rows(const ts_resid_out *o);
uint64_t ts_resid_out_nonfinite(const ts_resid_out *o);
/* Writes the result: data, then .meta, then the header that names it (or the one safetensors file), each by
 * rename, data before header; frees `o` also on failure (partial files stay for resume). `partial` is recorded.
 * `sites_json` is the JSON array of sites for the meta data. Zero rows: TS_ERR_STATE, nothing is written. */
int ts_resid_out_finish(ts_resid_out *o, const ts_provenance *prov, const char *sites_json, bool partial, ts_error *err);
/* Leaves the partial files as of the last checkpoint and frees. `remove` deletes them. */
void ts_resid_out_abandon(ts_resid_out *o, bool remove);
/* Predicted bytes of all files for `rows` snapshots and `tokens` prompt tokens. */
uint64_t ts_resid_out_predict(const ts_resid_spec *spec, uint64_t rows, uint64_t tokens);

#endif
