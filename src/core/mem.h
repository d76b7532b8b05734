/* Allocation that can be made to fail on purpose (fault injection counts calls). Refuses overflow. */
#ifndef TS_CORE_MEM_H
#define TS_CORE_MEM_H

#include <stddef.h>

void *ts_malloc(size_t bytes);              /* bytes 0 gives a valid pointer */
void *ts_calloc(size_t n, size_t bytes);    /* NULL on n * bytes overflow */
void *ts_realloc(void *p, size_t n, size_t bytes);
char *ts_strdup(const char *text);
char *ts_strndup(const char *text, size_t n);

#endif
