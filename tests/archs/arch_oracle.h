/* Rows taken without our library: llama.cpp steps through its graph one node at a time, and what a consumer is about to
 * read is hashed just before it reads it. Knows nodes by the weights beside them, not by the site table. */
#ifndef TS_ARCH_ORACLE_H
#define TS_ARCH_ORACLE_H

#include "arch_rows.h"

struct ggml_tensor;

typedef struct arch_oracle {
    arch_rows *rows;
    const ts_site *sites; /* [n_sites]; for the residual's names, and where one weight is used twice */
    size_t n_sites;
} arch_oracle;

/* llama.cpp's eval callback, with an arch_oracle as its user data. */
bool arch_oracle_step(struct ggml_tensor *t, bool ask, void *user);

#endif
