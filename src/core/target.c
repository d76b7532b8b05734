/* Owns the checks before a result is computed: can it be put where it is wanted. Refuses folders,
 * special files, dangling links, missing or read-only folders, each by name. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/target.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/fault.h"
#include "core/file.h"
#include "core/mem.h"
#include "core/temporary.h"

const char *ts_file_kind(const struct stat *st) {
    if (S_ISDIR(st->st_mode))
        return "a folder";
    if (S_ISFIFO(st->st_mode))
        return "a FIFO";
    if (S_ISSOCK(st->st_mode))
        return "a socket";
    if (S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode))
        return "a device";
    return "a special file";
}

static char *folder_of(const char *path, ts_error *err) {
    const char *base = ts_path_base(path);
    size_t n = (size_t)(base - path);
    char *folder = n ? ts_strndup(path, n > 1 ? n - 1 : 1) : ts_strdup(".");

    if (!folder)
        ts_fail_nomem(err, "the name of a folder", n + 1);
    return folder;
}

static int check_folder(const char *path, ts_error *err) {
    char *folder = folder_of(path, err);
    struct stat st;
    int rc = TS_OK;

    if (!folder)
        return TS_ERR_NOMEM;
    if (stat(folder, &st))
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot write '%s': folder '%s'", path, folder);
    else if (!S_ISDIR(st.st_mode))
        rc = ts_fail(err, TS_ERR_IO, "cannot write '%s': '%s' is not a folder", path, folder);
    else if (faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS))
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot write '%s': folder '%s'", path, folder);
    ts_free(folder);
    return rc;
}

/* `real` becomes the path without links. */
static int check_existing(const char *path, const struct stat *st, char real[PATH_MAX],
                          ts_error *err) {
    if (!S_ISREG(st->st_mode))
        return ts_fail(err, TS_ERR_IO, "cannot write '%s': expected a regular file, it is %s", path,
                       ts_file_kind(st));
    if (!realpath(path, real) || faccessat(AT_FDCWD, real, W_OK, AT_EACCESS))
        return ts_fail_errno(err, TS_ERR_IO, "cannot write '%s'", path);
    return TS_OK;
}

static int check_new(const char *path, ts_error *err) {
    struct stat st;
    const char *base = ts_path_base(path);

    if (!*path)
        return ts_fail(err, TS_ERR_IO, "cannot write '': the path is empty");
    if (lstat(path, &st) == 0)
        return ts_fail(err, TS_ERR_IO,
                       "cannot write '%s': it is a link to a file that does not exist", path);
    if (!*base || strcmp(base, ".") == 0 || strcmp(base, "..") == 0)
        return ts_fail(err, TS_ERR_IO,
                       "cannot write '%s': expected the name of a file, got that of a folder",
                       path);
    return TS_OK;
}

int ts_target_resolve(const char *path, char **out, ts_error *err) {
    char real[PATH_MAX];
    const char *target = path;
    struct stat st;
    int rc;

    *out = NULL;
    if (strcmp(path, "-") == 0)
        return ts_fail(err, TS_ERR_IO, "cannot write '-': results do not go to standard output; a file of that name is './-'");
    if (stat(path, &st) == 0) {
        rc = check_existing(path, &st, real, err);
        target = real;
    } else if (errno == ENOENT) {
        rc = check_new(path, err);
    } else {
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot write '%s'", path);
    }
    if (!rc)
        rc = check_folder(target, err);
    if (rc)
        return rc;
    *out = ts_strdup(target);
    return *out ? TS_OK : ts_fail_nomem(err, "a path", strlen(target) + 1);
}

/* Permissions do not tell all: /proc, quotas, security modules. So for a new file a temporary is made and removed. */
int ts_file_check_target(const char *path, ts_error *err) {
    ts_temporary probe;
    char *target;
    struct stat st;
    int rc = ts_target_resolve(path, &target, err);

    if (rc)
        return rc;
    ts_temporary_sweep(path);
    if (stat(target, &st) != 0)
        rc = ts_temporary_create(&probe, path, target, err);
    else
        probe = (ts_temporary){.fd = -1, .slot = -1};
    if (!rc)
        ts_temporary_end(&probe, true);
    if (!rc && probe.fd >= 0)
        close(probe.fd);
    ts_free(target);
    return rc;
}

int ts_target_sync_folder(const char *path, ts_error *err) {
    char *folder = folder_of(path, err);
    int fd, rc = TS_OK;

    if (!folder)
        return TS_ERR_NOMEM;
    fd = ts_sys_open(folder, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) {
        if (errno != EACCES) /* a folder one may write into but not list */
            rc = ts_fail_errno(err, TS_ERR_IO, "cannot open folder '%s'", folder);
    } else {
        if (ts_sys_fsync(fd) && errno != EINVAL && errno != ENOTSUP)
            rc = ts_fail_errno(err, TS_ERR_IO, "cannot sync folder '%s'", folder);
        close(fd);
    }
    ts_free(folder);
    return rc;
}

int ts_file_free_bytes(const char *path, uint64_t *bytes, ts_error *err) {
    char *folder = folder_of(path, err);
    struct statvfs fs;
    int rc = TS_OK;

    if (!folder)
        return TS_ERR_NOMEM;
    if (statvfs(folder, &fs))
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot tell the free space of folder '%s'", folder);
    else
        *bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_frsize;
    ts_free(folder);
    return rc;
}
