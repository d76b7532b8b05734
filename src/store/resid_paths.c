/* Owns the names of a capture's files: which they are, which are in the way. Refuses names that coincide and, for the pair,
 * those its header could not spell. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "store/resid_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fault.h"
#include "core/mem.h"
#include "core/utf8.h"

void ts_resid_paths_free(ts_resid_paths *p) {
    ts_free(p->out);
    ts_free(p->data);
    ts_free(p->meta);
    ts_free(p->part);
    ts_free(p->gen);
    ts_free(p->state);
    *p = (ts_resid_paths){0};
}

/* The pair's three files must be three, and its header must be able to name the data. */
static int check_pair(const ts_resid_paths *p, ts_error *err) {
    const char *base = ts_path_base(p->data);
    if (strcmp(p->out, p->data) == 0 || ts_file_same(p->out, p->data))
        return ts_fail(err, TS_ERR_ARG,
                       "'%s' would be both header and data file; name the header .json", p->out);
    if (strcmp(p->out, p->meta) == 0 || ts_file_same(p->out, p->meta) ||
        ts_file_same(p->data, p->meta))
        return ts_fail(err, TS_ERR_ARG,
                       "'%s' would be both header and meta data; name the header .json", p->out);
    if (ts_utf8_valid(base, strlen(base)) != strlen(base))
        return ts_fail(err, TS_ERR_ARG, "'%s' is not valid UTF-8: the header could not name '%s'",
                       p->out, base);
    return ts_file_check_target(p->meta, err);
}

/* A link would be replaced by the file renamed over it, and the pair's files belong beside each other. */
static int refuse_links(const ts_resid_paths *p, ts_error *err) {
    const char *const files[] = {p->out, p->data, p->meta};
    struct stat st;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i] != NULL && lstat(files[i], &st) == 0 && S_ISLNK(st.st_mode))
            return ts_fail(err, TS_ERR_IO, "cannot write '%s': it is a link; name the file it leads to", files[i]);
    return TS_OK;
}

int ts_resid_paths_init(ts_resid_paths *p, const ts_resid_spec *spec, ts_error *err) {
    bool pair = spec->format == TS_CAPTURE_F32;
    *p = (ts_resid_paths){.out = ts_strdup(spec->path)};
    p->data = pair ? ts_path_with_extension(spec->path, "f32") : ts_strdup(spec->path);
    p->meta = pair ? ts_path_with_extension(spec->path, "meta") : NULL;
    p->part = ts_path_append(spec->path, ".part");
    p->gen = ts_path_append(spec->path, ".part.gen");
    p->state = ts_path_append(spec->path, ".part.state");
    if (!p->out || !p->data || (pair && !p->meta) || !p->part || !p->gen || !p->state)
        return ts_fail_nomem(err, "paths", strlen(spec->path));
    int rc = ts_file_check_target(p->out, err);
    if (rc == TS_OK)
        rc = ts_file_check_target(p->data, err);
    if (rc == TS_OK && pair)
        rc = check_pair(p, err);
    return rc == TS_OK ? refuse_links(p, err) : rc;
}

int ts_resid_paths_vacant(const ts_resid_paths *p, ts_error *err) {
    const char *const files[] = {p->out, p->data, p->meta};
    int rc = TS_OK;
    for (size_t i = 0; rc == TS_OK && i < sizeof files / sizeof *files; i++)
        if (files[i] != NULL)
            rc = ts_file_vacant(files[i], err);
    return rc;
}

bool ts_resid_paths_partial(const ts_resid_paths *p) {
    struct stat st;
    return lstat(p->part, &st) == 0 && st.st_size > 0;
}

int ts_resid_paths_unfinished(const ts_resid_paths *p, ts_error *err) {
    int rc = ts_file_keep_unfinished(p->state, err);
    return rc == TS_OK && ts_resid_paths_partial(p) ? ts_file_keep_unfinished(p->part, err) : rc;
}

static int remove_file(const char *path, ts_error *err) {
    if (path != NULL && unlink(path) != 0 && errno != ENOENT)
        return ts_fail_errno(err, TS_ERR_IO, "cannot remove '%s'", path);
    return TS_OK;
}

int ts_resid_paths_recover(const ts_resid_paths *p, uint64_t finishing, bool *recovered,
                           ts_error *err) {
    struct stat st;
    int rc = TS_OK;
    *recovered = false;
    if (finishing == 0 || lstat(p->part, &st) == 0)
        return TS_OK;
    if (lstat(p->data, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != finishing)
        return TS_OK;
    if (p->meta != NULL) {
        rc = remove_file(p->out, err);
        if (rc == TS_OK)
            rc = remove_file(p->meta, err);
    }
    if (rc == TS_OK && ts_sys_rename(p->data, p->part) != 0)
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot rename '%s' to '%s'", p->data, p->part);
    *recovered = rc == TS_OK;
    return rc;
}

void ts_resid_paths_remove_partial(const ts_resid_paths *p) {
    unlink(p->state);
    unlink(p->gen);
    unlink(p->part);
}
