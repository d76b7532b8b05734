/* Sizes of a block's FFN weights as they stand in memory, for what a neuron costs to keep. */
#ifndef TS_HOST_WEIGHTS_H
#define TS_HOST_WEIGHTS_H

#include "core/error.h"
#include "host/node.h"

typedef struct ts_ffn_weights {
    uint64_t gate_bytes, up_bytes, down_bytes; /* 0 when the block has no such tensor */
    uint32_t down_block;                       /* elements of a quantisation block along the FFN width; 1 = none */
} ts_ffn_weights;

/* Fills [n_layer] each for the dense FFN and the shared expert from a graph's MUL_MAT nodes. */
void ts_weights_learn(ts_ffn_weights *dense, ts_ffn_weights *shared, int32_t n_layer, struct ggml_tensor *const *nodes, size_t n);

#endif
