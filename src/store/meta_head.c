/* What the head of meta data says, without reading all of them: whose result this is, and whether it is whole. Refuses nothing:
 * what cannot be read says nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/mem.h"
#include "store/meta.h"

#define HEAD_BYTES ((size_t)1 << 20) /* the plan stands before anything that grows with the result */

static const char *find(const char *bytes, size_t n, const char *what) {
    size_t m = strlen(what);
    for (size_t i = 0; i + m <= n; i++)
        if (memcmp(bytes + i, what, m) == 0) return bytes + i;
    return NULL;
}

/* "plan": HASH and "partial": false, whatever quoting stands around them. */
static bool names_plan(const char *bytes, size_t n, const char *plan) {
    const char *at = find(bytes, n, plan), *partial = at ? find(at, (size_t)(bytes + n - at), "partial") : NULL;
    const char *value = partial ? find(partial, (size_t)(bytes + n - partial), "false") : NULL;
    return value && value - partial < 16;
}

/* The first HEAD_BYTES of a file, *n of them; NULL when it cannot be read. Never waits for a FIFO's writer. */
static char *read_head(const char *path, size_t *n) {
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return NULL;
    char *bytes = ts_malloc(HEAD_BYTES);
    FILE *f = bytes ? fopen(path, "rb") : NULL;
    if (f) {
        *n = fread(bytes, 1, HEAD_BYTES, f);
        fclose(f);
        return bytes;
    }
    free(bytes);
    return NULL;
}

/* Whether the head has `what`, as `test` means it. */
static bool head_has(const char *path, const char *what, bool (*test)(const char *bytes, size_t n, const char *what)) {
    size_t n = 0;
    char *bytes = read_head(path, &n);
    bool has = bytes && test(bytes, n, what);
    free(bytes);
    return has;
}

static bool holds(const char *bytes, size_t n, const char *what) { return find(bytes, n, what) != NULL; }

bool ts_meta_complete(const char *path, const char *plan) { return head_has(path, plan, names_plan); }

bool ts_meta_says(const char *path, const char *member) { return head_has(path, member, holds); }
