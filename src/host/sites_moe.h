/* Mixture-of-experts structure, read off the MUL_MAT_ID with blk.N.ffn_down_exps.weight: the tensor that holds the chosen
 * experts' ids and the one that is multiplied into their outputs. By structure only: names differ and fusions may
 * leave a named node unwritten. */
#ifndef TS_HOST_SITES_MOE_H
#define TS_HOST_SITES_MOE_H

#include <stddef.h>

#include "host/node.h"

/* The node whose rows begin with the ids of `down`, a MUL_MAT_ID: the whole ARGSORT where the ids are the first columns of
 * one, else (or where they cross devices) the ids themselves. NULL when the graph does not hold them. `nodes` [n] in graph
 * order, of a one-token run. */
const struct ggml_tensor *ts_moe_ids(struct ggml_tensor *const *nodes, size_t n, const struct ggml_tensor *down);
/* What is multiplied into the experts' outputs, after norm and scale; where an architecture weighs the experts' inputs
 * instead, that factor. NULL when the graph shows none. */
const struct ggml_tensor *ts_moe_weights(struct ggml_tensor *const *nodes, size_t n, const struct ggml_tensor *down);

#endif
