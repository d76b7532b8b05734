/* Says what a file is, without a model. Refuses nothing it can name; what it cannot is one clear
 * error. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "store/inspect_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "store/inspect_sniff.h"

/* No such file, but there may be an unfinished one of that name. */
static int fail_missing(const char *path, ts_error *err) {
    char state[4096];
    struct stat st;
    int n = snprintf(state, sizeof state, "%s.part.state", path);
    if (n > 0 && (size_t)n < sizeof state && stat(state, &st) == 0)
        return ts_fail(err, TS_ERR_IO, "cannot open '%s': the capture is unfinished, see '%s'",
                       path, state);
    errno = ENOENT;
    return ts_fail_errno(err, TS_ERR_IO, "cannot open '%s'", path);
}

static int fail_unknown(const char *path, enum ts_file_sort sort, ts_error *err) {
    const char *hint = ts_path_has_extension(path, "f32") || ts_path_has_extension(path, "part")
                           ? "; of a capture's rows, give the header that names them"
                           : "";
    return ts_fail(
        err, TS_ERR_FORMAT,
        "'%s' is %s: expected a capture, census, routing census or logits dump, their .meta or state, a safetensors or a GGUF file%s", path,
        ts_sort_name(sort), hint);
}

static int fill(const char *path, ts_report *r, ts_error *err) {
    enum ts_file_sort sort;
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return ts_inspect_logits(path, r, err);
    int rc = ts_sniff(path, &sort, err);
    if (rc < 0)
        return rc;
    switch (sort) {
    case TS_SORT_PAIR:
        return ts_inspect_capture(path, r, err);
    case TS_SORT_META:
        return ts_inspect_meta(path, r, err);
    case TS_SORT_PARTIAL:
        return ts_inspect_partial(path, r, err);
    case TS_SORT_CENSUS:
        return ts_inspect_census(path, r, err);
    case TS_SORT_TRACE:
        return ts_inspect_trace(path, r, err);
    case TS_SORT_ROUTER:
    case TS_SORT_ROUTER_CSV:
        return ts_inspect_router(path, sort == TS_SORT_ROUTER_CSV, r, err);
    case TS_SORT_LOGITS:
        return ts_inspect_logits(path, r, err);
    case TS_SORT_SAFETENSORS:
        return ts_inspect_safetensors(path, r, err);
    case TS_SORT_GGUF:
        return ts_inspect_gguf(path, r, err);
    default:
        return fail_unknown(path, sort, err);
    }
}

TS_API int ts_inspect(const char *path, bool as_json, char **text, ts_error *err) {
    ts_report r = {.json = as_json};
    struct stat st;
    if (text == NULL)
        return ts_fail(err, TS_ERR_ARG, "a report needs a place to go to");
    *text = NULL;
    if (path == NULL)
        return ts_fail(err, TS_ERR_ARG, "a report needs a path");
    if (stat(path, &st) != 0 && errno == ENOENT)
        return fail_missing(path, err);
    int rc = fill(path, &r, err);
    if (rc < 0) {
        ts_buf_free(&r.b);
        return rc;
    }
    *text = ts_buf_take(&r.b);
    return *text ? TS_OK : ts_fail_nomem(err, "a report", 1024);
}
