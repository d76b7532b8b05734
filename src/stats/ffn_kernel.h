/*
 * The vectorised loops of the FFN statistics, and the choice between their versions.
 *
 * Owns: one table of function pointers per instruction set. Refuses: any operation whose result
 * could depend on the instruction set. Integers, minima, conversions to a wider type and one
 * addition per destination do not, so all versions are identical to the bit.
 */
#ifndef TS_STATS_FFN_KERNEL_H
#define TS_STATS_FFN_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "stats/hist.h"

/* Nested sets of a row; a level (see topk.h) is 0 to TS_FFN_N_SETS. */
enum { TS_FFN_N_SETS = 9 };

typedef struct ts_ffn_kernel {
    const char *name;
    /* mass[i] += |value[i]| where that is finite; fills bin[n] and describes the row. */
    ts_row (*scan)(double *mass, uint16_t *bin, const float *value, uint32_t n);
    /*
     * level[i] = number of sets whose cut lies above bin[i] (cuts descending, -1: a set without
     * one); bit i of undecided[(n + 63) / 64] says that bin[i] is a cut itself.
     */
    void (*classify)(const uint16_t *bin, uint32_t n, const int16_t cut[TS_FFN_N_SETS],
                     uint8_t *level, uint64_t *undecided);
    /* hits[j] += number of i with max(a[i], b[i]) <= j: the values that both rows have in set j. */
    void (*count_overlap)(const uint8_t *a, const uint8_t *b, uint32_t n,
                          uint64_t hits[TS_FFN_N_SETS]);
} ts_ffn_kernel;

/* The kernels this processor runs, fastest first, at least "c". Static; *n is their number. */
const ts_ffn_kernel *const *ts_ffn_kernels(size_t *n);
/* The kernel of that name ("avx512", "avx2", "neon", "c"; NULL: the fastest), or NULL if it does
 * not run here. */
const ts_ffn_kernel *ts_ffn_kernel_find(const char *name);

#endif
