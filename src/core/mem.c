/* Owns every allocation of the library. Refuses products that overflow and sizes no object can
 * have. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/mem.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <turbospark/turbospark.h>

#include "core/fault.h"

static bool refused(size_t n, size_t bytes) {
    if (bytes != 0 && n > (size_t)PTRDIFF_MAX / bytes) {
        errno = ENOMEM;
        return true;
    }
    return ts_fault_hit(ENOMEM);
}

void *ts_malloc(size_t bytes) {
    return refused(1, bytes) ? NULL : malloc(bytes ? bytes : 1);
}

void *ts_calloc(size_t n, size_t bytes) {
    if (refused(n, bytes))
        return NULL;
    return n && bytes ? calloc(n, bytes) : calloc(1, 1);
}

void *ts_realloc(void *p, size_t n, size_t bytes) {
    if (refused(n, bytes))
        return NULL;
    return realloc(p, n && bytes ? n * bytes : 1);
}

char *ts_strndup(const char *text, size_t n) {
    size_t length = strnlen(text, n);
    char *copy = ts_malloc(length + 1);

    if (!copy)
        return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

char *ts_strdup(const char *text) {
    return ts_strndup(text, strlen(text));
}

void ts_free(void *memory) {
    free(memory);
}
