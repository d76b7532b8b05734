/* The expert-activation census as a file beside an FFN census: PATH.experts. The neurons inside the chosen experts: what each
 * expert's down projection read, in every pass that the census counted.
 *
 * One JSON document, a layer a line. Keys: format_version (1), kind ("experts"), model (hash of its files, or null),
 * decode_passes, num_layers, layers [num_layers]: null, or {experts, top_k, width, rows [expert] (slots that chose it),
 * bucket_count [64] (magnitudes as in the FFN census, over all experts), mass [expert][width] (sum of |a|; an expert that no row
 * chose is an empty row)}. Masses have six digits.
 * Invariants, checked by writer and reader: rows of a layer add up to top_k x decode_passes, bucket_count to that times width.
 */
#ifndef TS_STORE_EXPERT_H
#define TS_STORE_EXPERT_H

#include "core/error.h"

#define TS_EXPERT_MAX_LAYERS 2048
#define TS_EXPERT_MAX_NUMBER (1u << 20) /* of experts, and of neurons in one, against files that lie */
#define TS_EXPERT_BUCKETS 64

typedef struct ts_expert_layer {
    uint32_t n_experts, top_k, width; /* n_experts 0: none, and nothing else is set */
    uint64_t *rows;                   /* [n_experts] */
    double *mass;                     /* [n_experts][width] */
    uint64_t bucket_count[TS_EXPERT_BUCKETS];
} ts_expert_layer;

typedef struct ts_experts {
    uint32_t n_layers;
    ts_expert_layer *layers; /* [n_layers] */
    uint64_t decode_passes;
    char model[33]; /* "" = unknown */
} ts_experts;

int ts_experts_init(ts_experts *x, uint32_t n_layers, ts_error *err);
int ts_expert_layer_init(ts_expert_layer *l, uint32_t n_experts, uint32_t top_k, uint32_t width, ts_error *err);
void ts_experts_free(ts_experts *x);

/* All that must add up. TS_ERR_FORMAT names the layer. */
int ts_experts_check(const ts_experts *x, ts_error *err);
/* Adds src to dst. TS_ERR_ARG naming the difference in shape or model, dst unchanged. */
int ts_experts_add(ts_experts *dst, const ts_experts *src, ts_error *err);

/* Whole or not at all. */
int ts_experts_write(const ts_experts *x, const char *path, ts_error *err);
/* On failure *x is empty. TS_ERR_FORMAT, TS_ERR_IO. */
int ts_experts_read(const char *path, ts_experts *x, ts_error *err);

#endif
