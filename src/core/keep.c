/* Owns what a result must not replace: the files it is made from, and, where nobody asked for overwriting, files that
 * are no result of that kind. Refuses by name. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fault.h"
#include "core/file.h"
#include "core/mem.h"
#include "core/target.h"

/* Itself, those beside it, those it writes while it runs. */
const char *ts_result_suffix(size_t i, bool *beside) {
    static const char *const names[] = {"", ".f32", ".meta", ".detail", ".trace", ".experts", ".part", ".part.gen", ".part.state",
                                        ".part.census", ".part.trace", ".part.jsonl", ".part.router"};
    *beside = i >= 1 && i <= 5;
    return i < sizeof names / sizeof *names ? names[i] : NULL;
}

static char *file_of_result(const char *path, const char *suffix, bool beside) {
    char *name;

    if (beside)
        return ts_path_with_extension(path, suffix + 1);
    name = ts_malloc(strlen(path) + strlen(suffix) + 1);
    if (name)
        sprintf(name, "%s%s", path, suffix);
    return name;
}

int ts_file_keep(const char *path, const char *what, const char *input, ts_error *err) {
    const char *suffix;
    bool beside;
    int rc = TS_OK;

    for (size_t i = 0; rc == TS_OK && path && input && (suffix = ts_result_suffix(i, &beside)); i++) {
        char *name = file_of_result(path, suffix, beside);

        if (!name)
            return ts_fail_nomem(err, "a path", strlen(path) + strlen(suffix) + 1);
        if (ts_file_same(name, input))
            rc = i == 0 ? ts_fail(err, TS_ERR_ARG, "output '%s' is the %s", path, what)
                        : ts_fail(err, TS_ERR_ARG, "output '%s' would replace '%s', the %s", path, name, what);
        ts_free(name);
    }
    return rc;
}

/* '{' or '[' after blanks, or nothing at all. */
static bool looks_like_json(const char *path) {
    char head[256];
    int fd = ts_sys_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    ssize_t n = fd < 0 ? -1 : ts_sys_read(fd, head, sizeof head), i = 0;

    if (fd >= 0)
        close(fd);
    while (i < n && isspace((unsigned char)head[i]))
        i++;
    return n >= 0 && (i == n || head[i] == '{' || head[i] == '[');
}

int ts_file_keep_other(const char *path, ts_error *err) {
    struct stat st;

    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || looks_like_json(path))
        return TS_OK;
    return ts_fail(err, TS_ERR_ARG, "'%s' exists and is not JSON: it is not replaced", path);
}

int ts_file_keep_unfinished(const char *part, ts_error *err) {
    struct stat st;

    if (lstat(part, &st) != 0)
        return TS_OK;
    return ts_fail(err, TS_ERR_ARG, "'%s' is left of an unfinished run: go on with --resume, or start over with --overwrite", part);
}

int ts_file_vacant(const char *path, ts_error *err) {
    struct stat st;

    if (lstat(path, &st) != 0)
        return TS_OK;
    return ts_fail(err, TS_ERR_ARG, "'%s' exists already: remove it, or replace it with --overwrite", path);
}
