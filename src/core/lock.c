/* Owns the one-writer rule: an advisory lock on `<path>.lock`, one per real file. Refuses to wait.
 */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/fault.h"
#include "core/mem.h"
#include "core/sudden.h"
#include "core/target.h"

struct ts_lock {
    int fd, slot; /* slot: in core/sudden.h */
    char *name;
};

/* Is the file we locked still the one under that name? The holder before us may have removed it in
 * between. */
static bool still_named(const ts_lock *l) {
    struct stat by_fd, by_name;

    return fstat(l->fd, &by_fd) == 0 && stat(l->name, &by_name) == 0 &&
           by_fd.st_dev == by_name.st_dev && by_fd.st_ino == by_name.st_ino;
}

static int lock_file(ts_lock *l, const char *path, ts_error *err) {
    for (;;) {
        int busy;

        l->slot = ts_sudden_add(l->name);
        l->fd = ts_sys_open(l->name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0666);
        if (l->fd < 0) {
            ts_sudden_drop(l->slot);
            return ts_fail_errno(err, TS_ERR_IO, "cannot write '%s'", path);
        }
        do
            busy = flock(l->fd, LOCK_EX | LOCK_NB);
        while (busy && errno == EINTR);
        if (!busy && still_named(l)) {
            ts_sudden_made(l->slot);
            return TS_OK;
        }
        ts_sudden_drop(l->slot);
        close(l->fd);
        if (busy && errno == EWOULDBLOCK)
            return ts_fail(err, TS_ERR_STATE, "cannot write '%s': another run is writing it", path);
        if (busy)
            return ts_fail_errno(err, TS_ERR_IO, "cannot lock '%s'", path);
    }
}

int ts_lock_take(const char *path, ts_lock **out, ts_error *err) {
    ts_lock *l = ts_calloc(1, sizeof *l);
    char *target = NULL;
    size_t size;
    int rc;

    *out = NULL;
    if (!l)
        return ts_fail_nomem(err, "a lock", sizeof *l);
    rc = ts_target_resolve(path, &target, err);
    if (rc)
        goto cleanup;
    size = strlen(target) + sizeof ".lock";
    l->name = ts_malloc(size);
    if (!l->name) {
        rc = ts_fail_nomem(err, "a path", size);
        goto cleanup;
    }
    snprintf(l->name, size, "%s.lock", target);
    rc = lock_file(l, path, err);

cleanup:
    ts_free(target);
    if (rc) {
        ts_free(l->name);
        ts_free(l);
        return rc;
    }
    *out = l;
    return TS_OK;
}

void ts_lock_release(ts_lock *l) {
    if (!l)
        return;
    ts_sudden_drop(l->slot); /* before another process may have a lock of that name */
    unlink(l->name);         /* while still locked: see still_named */
    close(l->fd);
    ts_free(l->name);
    ts_free(l);
}
