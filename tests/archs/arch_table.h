/* The table of architectures as text. */
#ifndef TS_ARCH_TABLE_H
#define TS_ARCH_TABLE_H

#include <stdio.h>

#include "arch_list.h"
#include "arch_run.h"

typedef struct arch_entry {
    const arch_row *row;
    arch_job *memory, *file; /* NULL without a model */
} arch_entry;

typedef struct arch_counts {
    int n_archs, resid, ffn, refused; /* by architecture: one captured variant is enough */
    int n_models, wrong;              /* wrong: a comparison did not hold */
} arch_counts;

void arch_table_print(FILE *out, const arch_entry *entries, size_t n, arch_counts *counts);

#endif
