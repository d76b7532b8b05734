/* Hashes of all rows of one arm, by kind and block. */
#ifndef TS_ARCH_ROWS_H
#define TS_ARCH_ROWS_H

#include "arch_check.h"

#define ARCH_BLOCKS 64 /* the head is block -1, and each stands one further */

typedef struct arch_rows {
    uint64_t hash[ARCH_KINDS][ARCH_BLOCKS]; /* over the bytes of every row, in order */
    int64_t n[ARCH_KINDS][ARCH_BLOCKS];     /* bytes hashed */
    bool bad;                               /* a row was all zero or not finite */
    uint64_t logits;
    bool logits_bad;
} arch_rows;

void arch_rows_begin(arch_rows *r);
void arch_rows_add(arch_rows *r, int kind, int32_t block, const void *bytes, size_t n);

#endif
