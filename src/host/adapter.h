/* llama.cpp's own adapter: one vector a block, added to its output by the graph itself. */
#ifndef TS_HOST_ADAPTER_H
#define TS_HOST_ADAPTER_H

#include "host/sites.h"
#include "llama.h"

/* `rows` is [n_layer][n_embd], zero where nothing is added; the first, of block 0, is not used. NULL takes the adapter
 * out. The context's next graph is another one than before. TS_ERR_ENGINE. */
int ts_adapter_set(struct llama_context *ctx, const float *rows, ts_error *err);

/* Whether the graph that `table` was learned from adds these very values, and at the residual site: an architecture
 * may take the adapter and never look at it. A vector that is zero needs no such place. */
bool ts_adapter_applied(const ts_site_table *table, const float *rows, int32_t n_embd);

#endif
