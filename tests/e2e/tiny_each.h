/* Runs a group of tests once for each tiny architecture, each in a child process: llama.cpp aborts on some metadata,
 * and one abort must not hide the other architectures. */
#ifndef TS_TINY_EACH_H
#define TS_TINY_EACH_H

#include "e2e.h"
#include "tiny.h"

/* The architecture and its model in this child. */
const char *tiny_arch(void);
struct llama_model *tiny_loaded(void);
/* Session options over it: a context of 512 tokens, all else the default. */
ts_session_options tiny_session(uint32_t n_ubatch);

/* `run` is called in a child for each of `archs` (ended by NULL), with its model; it returns the number of failed
 * tests. Returns how many architectures failed. */
int tiny_each(const char *const *archs, int (*run)(void));

#endif
