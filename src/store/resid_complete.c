/* Tells a finished result of a plan from a partial or foreign one, by the plan hash its meta data records. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/mem.h"
#include "store/meta.h"
#include "store/resid_out.h"

#define HEAD_BYTES ((size_t)1 << 20) /* the plan stands before anything that grows with the result */

static bool exists(const char *path) {
    struct stat st;
    return path && stat(path, &st) == 0;
}

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

bool ts_meta_complete(const char *path, const char *plan) {
    char *bytes = ts_malloc(HEAD_BYTES);
    FILE *f = bytes ? fopen(path, "rb") : NULL;
    bool complete = f && names_plan(bytes, fread(bytes, 1, HEAD_BYTES, f), plan);
    if (f) fclose(f);
    free(bytes);
    return complete;
}

bool ts_resid_out_complete(const ts_resid_spec *spec) {
    bool pair = spec->format == TS_CAPTURE_F32;
    char *head = pair ? ts_path_with_extension(spec->path, "meta") : ts_strdup(spec->path);
    size_t room = strlen(spec->path) + sizeof(".part.state");
    char *state = ts_malloc(room);
    if (state) {
        strcpy(state, spec->path);
        strcat(state, ".part.state");
    }
    bool complete = head && state && exists(spec->path) && !exists(state) && ts_meta_complete(head, spec->plan_hash);
    free(head);
    free(state);
    return complete;
}
