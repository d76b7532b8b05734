/* Owns temporaries: their names, their locks, and the removal of those that ended processes left (temporary.h). Refuses
 * to touch one that is locked, or whose name has another form. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/fault.h"
#include "core/file.h"
#include "core/mem.h"
#include "core/sudden.h"
#include "core/target.h"

enum { MAX_BASE = 200, SUFFIX = 48, TRIES = 10000 }; /* a long base name is cut so that the suffix fits */

/* ---- making one */

/* False when a sweep was quicker than we between creating and locking. Where files cannot be locked no sweep takes one. */
static bool hold(int fd) {
    struct stat st;

    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return false;
    return fstat(fd, &st) != 0 || st.st_nlink > 0;
}

static int open_new(const char *name, bool folder) {
    if (!folder)
        return ts_sys_open(name, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (mkdir(name, 0777))
        return -1;
    int fd = ts_sys_open(name, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        rmdir(name);
    return fd;
}

/* O_EXCL and mkdir decide between threads, processes and containers alike. Returns errno, 0 with t->fd open. */
static int try_name(ts_temporary *t, bool folder) {
    int why = 0;

    t->slot = folder ? -1 : ts_sudden_add(t->name);
    t->fd = open_new(t->name, folder);
    if (t->fd < 0) {
        why = errno;
    } else {
        ts_sudden_made(t->slot);
        if (!hold(t->fd)) {
            close(t->fd);
            t->fd = -1;
            why = EEXIST;
        }
    }
    if (why)
        ts_sudden_drop(t->slot);
    errno = why;
    return why;
}

static int create(ts_temporary *t, const char *path, const char *target, bool folder, ts_error *err) {
    size_t parent = (size_t)(ts_path_base(target) - target), keep = strlen(target);

    if (keep > parent + MAX_BASE)
        keep = parent + MAX_BASE;
    *t = (ts_temporary){.fd = -1, .slot = -1, .name = ts_malloc(keep + SUFFIX)};
    if (!t->name)
        return ts_fail_nomem(err, "a path", keep + SUFFIX);
    for (int i = 0; i < TRIES; i++) {
        snprintf(t->name, keep + SUFFIX, "%.*s.tmp-%ld-%d", (int)keep, target, (long)getpid(), i);
        if (try_name(t, folder) != EEXIST)
            break;
    }
    if (t->fd >= 0)
        return TS_OK;
    ts_fail_errno(err, TS_ERR_IO, "cannot write '%s'", path);
    ts_free(t->name);
    *t = (ts_temporary){.fd = -1, .slot = -1};
    return TS_ERR_IO;
}

int ts_temporary_create(ts_temporary *t, const char *path, const char *target, ts_error *err) {
    return create(t, path, target, false, err);
}

int ts_temporary_folder(ts_temporary *t, const char *path, ts_error *err) {
    return create(t, path, path, true, err);
}

void ts_temporary_end(ts_temporary *t, bool remove_it) {
    if (t->name && remove_it)
        remove(t->name);
    ts_sudden_drop(t->slot);
    ts_free(t->name);
    t->name = NULL;
    t->slot = -1;
}

/* ---- removing what was left */

/* Bytes before ".tmp-<digits>-<digits>" at the end of a name; 0 where it does not end so. */
static size_t stem_of(const char *name) {
    static const char digits[] = "0123456789", mark[] = ".tmp-";
    size_t end = strlen(name), mark_length = sizeof mark - 1;

    for (int part = 0; part < 2; part++) {
        size_t from = end;

        while (end > 0 && strchr(digits, name[end - 1]))
            end--;
        if (end == from || end == 0)
            return 0;
        if (part == 0 && name[--end] != '-')
            return 0;
    }
    return end > mark_length && memcmp(name + end - mark_length, mark, mark_length) == 0 ? end - mark_length : 0;
}

/* Is it the name, cut as create() cuts it, of a file of the result whose base name is `base`? */
static bool is_of_result(const char *stem, size_t n, const char *base) {
    char name[PATH_MAX + 32];
    const char *suffix;
    bool beside;

    for (size_t i = 0; (suffix = ts_result_suffix(i, &beside)); i++) {
        int length = beside ? (int)ts_path_stem_length(base) : (int)strlen(base);
        size_t whole = (size_t)snprintf(name, sizeof name, "%.*s%s", length, base, suffix);

        if (n == (whole < MAX_BASE ? whole : MAX_BASE) && memcmp(stem, name, n) == 0)
            return true;
    }
    return false;
}

static void remove_files(int folder) {
    DIR *d = fdopendir(dup(folder));
    const struct dirent *e;

    while (d && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(folder, e->d_name, 0);
    if (d)
        closedir(d);
}

/* Once locked it stays the one of that name: only its process renames it. */
static void remove_if_left(int parent, const char *name) {
    struct stat by_name, by_fd;

    if (fstatat(parent, name, &by_name, AT_SYMLINK_NOFOLLOW) || !(S_ISREG(by_name.st_mode) || S_ISDIR(by_name.st_mode)))
        return;
    bool folder = S_ISDIR(by_name.st_mode);
    int fd = openat(parent, name, (folder ? O_RDONLY | O_DIRECTORY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &by_fd) == 0 && fstatat(parent, name, &by_name, AT_SYMLINK_NOFOLLOW) == 0 &&
        by_fd.st_dev == by_name.st_dev && by_fd.st_ino == by_name.st_ino) {
        if (folder)
            remove_files(fd);
        unlinkat(parent, name, folder ? AT_REMOVEDIR : 0);
    }
    close(fd);
}

/* Without an allocation: what fails here fails for nobody. */
static void sweep_beside(const char *path) {
    char folder[PATH_MAX];
    const char *base = ts_path_base(path);
    size_t n = (size_t)(base - path), stem;
    const struct dirent *e;
    DIR *d;

    if (n >= sizeof folder || !*base)
        return;
    snprintf(folder, sizeof folder, "%.*s", n ? (int)n : 1, n ? path : ".");
    d = opendir(folder);
    while (d && (e = readdir(d)))
        if ((stem = stem_of(e->d_name)) && is_of_result(e->d_name, stem, base))
            remove_if_left(dirfd(d), e->d_name);
    if (d)
        closedir(d);
}

void ts_temporary_sweep(const char *path) {
    char real[PATH_MAX];
    struct stat st;

    sweep_beside(path);
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && realpath(path, real))
        sweep_beside(real);
}
