/* What may stand where a result goes: for a run, what an earlier run wrote there; for a resume, all of it. Refuses everything
 * else, by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "store/meta.h"

static int keep(const char *name, const char *why, ts_error *err) {
    return ts_fail(err, TS_ERR_ARG, "'%s' exists and %s: it is not replaced; remove it, or name another file", name, why);
}

static int keep_beside(const char *path, const char *const *beside, ts_error *err) {
    struct stat st;
    int rc = TS_OK;
    for (; rc == TS_OK && *beside; beside++) {
        char *name = ts_path_with_extension(path, *beside);
        if (!name) return ts_fail_nomem(err, "a path", strlen(path));
        if (lstat(name, &st) == 0) rc = keep(name, "is of no earlier run", err);
        free(name);
    }
    return rc;
}

static bool of_a_run(const char *meta, const char *kind) {
    char member[64];
    snprintf(member, sizeof(member), "\"kind\": \"%s\"", kind);
    return ts_meta_says(meta, member) && ts_meta_says(meta, "\"plan\": \"run\"");
}

int ts_result_keep(const char *path, const char *kind, const char *const *beside, ts_error *err) {
    struct stat st;
    char *meta = ts_path_with_extension(path, "meta");
    if (!meta) return ts_fail_nomem(err, "a path", strlen(path));
    bool ours = of_a_run(meta, kind), missing = lstat(path, &st) != 0;
    free(meta);
    if (missing) return ours ? TS_OK : keep_beside(path, beside, err);
    int rc = ts_file_keep_other(path, err);
    if (rc != TS_OK || ours || stat(path, &st) != 0 || st.st_size == 0 || !S_ISREG(st.st_mode)) return rc;
    return keep(path, "was not made by a run like this", err);
}

int ts_result_settle(const char *path, bool complete, ts_error *err) {
    if (!complete) return ts_file_vacant(path, err);
    ts_log(TS_LOG_WARN, "'%s' is complete already: nothing to resume", path);
    return TS_OK;
}
