/* Tells a finished result of a plan from a partial or foreign one, by the plan hash its meta data records. */
#include <stdio.h>
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

bool ts_meta_complete(const char *path, const char *plan) {
    size_t n = 0;
    char *bytes = read_head(path, &n);
    bool complete = bytes && names_plan(bytes, n, plan);
    free(bytes);
    return complete;
}

bool ts_meta_says(const char *path, const char *member) {
    size_t n = 0;
    char *bytes = read_head(path, &n);
    bool says = bytes && find(bytes, n, member);
    free(bytes);
    return says;
}

static char *state_path(const ts_resid_spec *spec) {
    size_t room = strlen(spec->path) + sizeof(".part.state");
    char *state = ts_malloc(room);
    if (state) snprintf(state, room, "%s.part.state", spec->path);
    return state;
}

int ts_resid_out_keep_unfinished(const ts_resid_spec *spec, ts_error *err) {
    char *state = state_path(spec), quoted[80];
    size_t n = 0;
    if (!state) return ts_fail_nomem(err, "a path", strlen(spec->path));
    snprintf(quoted, sizeof(quoted), "\"%s\"", spec->plan_hash);
    char *bytes = read_head(state, &n);
    int rc = !bytes || find(bytes, n, quoted) ? TS_OK
                                             : ts_fail(err, TS_ERR_ARG, "'%s' is left of an unfinished capture: finish that with 'capture --resume', or remove it", state);
    free(bytes);
    free(state);
    return rc;
}

bool ts_resid_out_complete(const ts_resid_spec *spec) {
    bool pair = spec->format == TS_CAPTURE_F32;
    char *head = pair ? ts_path_with_extension(spec->path, "meta") : ts_strdup(spec->path), *state = state_path(spec);
    bool complete = head && state && exists(spec->path) && !exists(state) && ts_meta_complete(head, spec->plan_hash);
    free(head);
    free(state);
    return complete;
}
