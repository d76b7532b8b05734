/* The keys of a model's header that llama.cpp trusts: each value that would end the process there gets its line here. */
#ifndef TS_HOST_GGUF_KEYS_H
#define TS_HOST_GGUF_KEYS_H

#include "core/error.h"
#include "gguf.h"

/* `path` only names the model. TS_ERR_MODEL says which key, what was expected and what it holds. Keys of a wrong type are left to
 * llama.cpp, which refuses those itself. */
int ts_gguf_check_keys(const struct gguf_context *g, const char *arch, const char *path, ts_error *err);

#endif
