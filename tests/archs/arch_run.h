/* Runs checks in child processes, two at a time: llama.cpp aborts on some metadata, and one abort must not hide the others. */
#ifndef TS_ARCH_RUN_H
#define TS_ARCH_RUN_H

#include "arch_check.h"

typedef struct arch_job {
    const char *recipe;
    bool as_file;      /* written as a GGUF file and loaded from it */
    arch_result result;
} arch_job;

/* Fills the result of each. One whose child died has done = false and a note that says how. */
void arch_run(arch_job *jobs, size_t n);

#endif
