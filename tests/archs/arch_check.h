/* What one architecture gives, found out in a child process: its model is built, its sites are learned, and their
 * rows are compared four ways. */
#ifndef TS_ARCH_CHECK_H
#define TS_ARCH_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include <turbospark/turbospark.h>

#define ARCH_KINDS TS_SITE_KIND_COUNT

typedef struct arch_cell {
    int32_t n_redirected, n_asked, n_refused; /* blocks */
} arch_cell;

/* Passed from the child through a pipe, so it holds no pointers. */
typedef struct arch_result {
    bool done;    /* the child came to its end */
    bool built;   /* llama.cpp made a model of it */
    bool opened;  /* and we a site table */
    bool same;    /* every comparison held */
    int32_t n_layer;
    arch_cell cells[ARCH_KINDS];
    char note[240];
} arch_result;

/* A model of this recipe, in memory or from a file of its own. Never fails: what went wrong is in the note. */
void arch_check(const char *recipe, bool as_file, arch_result *out);

#endif
