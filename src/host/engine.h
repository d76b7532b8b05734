/* Everything process-wide about llama.cpp: one-time start, log bridge, versions, devices, abort text. */
#ifndef TS_HOST_ENGINE_H
#define TS_HOST_ENGINE_H

#include "core/error.h"
#include "ggml-backend.h"
#include "llama.h"

/* Loads backends once and routes llama.cpp's log into ours. Cheap to call again. */
void ts_engine_init(void);

/* The error lines llama.cpp logged on this thread since the reset, joined; "" when none. */
void ts_engine_error_reset(void);
const char *ts_engine_error(void);

/* What an assertion of llama.cpp would be about from here on: "model 'x.gguf'". Shortened where it is long; NULL takes it back. */
void ts_engine_subject(const char *kind, const char *name);

/* "CUDA0,CUDA1" or "none" to a NULL-terminated list for llama_model_params.devices (caller frees); NULL text
 * gives NULL. TS_ERR_ARG names the unknown device and lists those found. */
int ts_engine_devices(const char *names, ggml_backend_dev_t **out, ts_error *err);

/* "f16" etc. to a KV cache type; NULL text = f16. */
int ts_engine_kv_type(const char *option, const char *name, enum ggml_type *out, ts_error *err);

int32_t ts_engine_cores(void); /* cores this process may use, at least 1 */

#endif
