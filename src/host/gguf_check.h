/* Looks at model files before llama.cpp does, so that each common fault gets its own clear line. */
#ifndef TS_HOST_GGUF_CHECK_H
#define TS_HOST_GGUF_CHECK_H

#include "core/error.h"

/* `path` must be a GGUF model whose shards (all named in *shards, [n], caller frees each and the array) are
 * there and complete, and whose keys llama.cpp can take. */
int ts_gguf_check(const char *path, char ***shards, size_t *n, ts_error *err);

#endif
