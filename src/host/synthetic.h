/* Random models of a given shape, for measuring without a download. */
#ifndef TS_HOST_SYNTHETIC_H
#define TS_HOST_SYNTHETIC_H

#include "core/error.h"
#include "llama.h"

/* A llama model of that shape with seeded weights, loaded as a file would be, so that its graph is that of a real model
 * of the shape. TS_ERR_ARG for a shape that cannot be, TS_ERR_NOMEM, TS_ERR_INTERRUPTED once
 * *stop (nullable) is set, TS_ERR_MODEL with llama.cpp's reason. */
int ts_synthetic_load(const ts_synthetic *shape, struct llama_model_params params, const volatile int *stop, struct llama_model **out,
                      ts_error *err);

#endif
