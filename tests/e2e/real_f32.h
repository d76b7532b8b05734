/* The real model with its weights made f32, in memory. Its quantised weights have llama.cpp round every activation to 8
 * bits before each product, so that a last bit's difference grows to some 2e-2 of a row; with f32 weights it stays small
 * and a tolerance means something. */
#ifndef TS_REAL_F32_H
#define TS_REAL_F32_H

#include <stdint.h>

struct llama_model;

/* Its first n_blocks blocks. NULL after printing why. Freed by llama_model_free. */
struct llama_model *real_f32_model(const char *path, uint32_t n_blocks);

#endif
