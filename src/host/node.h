/* Small questions about one graph node. Names that ggml derives or the scheduler decorates are undone here. */
#ifndef TS_HOST_NODE_H
#define TS_HOST_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "ggml-backend.h"
#include "ggml.h"

/* "CUDA0#blk.3.attn_norm.weight#0" (a scheduler's copy) -> "blk.3.attn_norm.weight"; anything else as it is. */
void ts_node_name(const struct ggml_tensor *t, char out[GGML_MAX_NAME]);
bool ts_node_is_copy(const struct ggml_tensor *t);

/* Block number of "blk.<n>.<suffix>" when the name is exactly that, else -1. */
int32_t ts_node_weight_block(const struct ggml_tensor *t, const char *suffix);
/* Block number of "<prefix><n>", nothing after it, else -1. */
int32_t ts_name_block(const char *name, const char *prefix);
bool ts_node_named(const struct ggml_tensor *t, const char *name); /* undecorated name equals `name` */

/* NULL when the node may be redirected, else why not (static text). */
const char *ts_node_why_not(const struct ggml_tensor *t);
/* A name that a later graph of the same model will carry again ("node_12" and "" will not). */
bool ts_node_name_stable(const char *name);
int64_t ts_node_rows(const struct ggml_tensor *t); /* elements / ne[0]; 0 when empty */

#endif
