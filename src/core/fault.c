/* Owns the counted system calls (fault.h) and, in fault builds, the counter. Refuses to know what a
 * file means. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef TS_FAULT_INJECTION
#include <stdatomic.h>

enum { UNREAD = -1 }; /* the environment was not looked at yet */

static atomic_long fault_at = UNREAD;
static atomic_long fault_calls;
static atomic_bool files_only;

static long fault_number(void) {
    long at = atomic_load(&fault_at);

    if (at == UNREAD) {
        const char *text = getenv("TS_FAULT_AT");

        at = text ? strtol(text, NULL, 10) : 0;
        atomic_store(&fault_at, at < 0 ? 0 : at);
    }
    return at;
}

bool ts_fault_hit(int error_number) {
    long at = fault_number();

    if (error_number == ENOMEM && atomic_load(&files_only))
        return false;
    if (atomic_fetch_add(&fault_calls, 1) + 1 != at)
        return false;
    errno = error_number;
    return true;
}

void ts_fault_arm(long at) {
    atomic_store(&fault_at, at);
    atomic_store(&fault_calls, 0);
}

void ts_fault_files_only(bool only) {
    atomic_store(&files_only, only);
}

long ts_fault_count(void) {
    return atomic_load(&fault_calls);
}
#endif

int ts_sys_open(const char *path, int flags, mode_t mode) {
    int fd;

    if (ts_fault_hit(EMFILE))
        return -1;
    do
        fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

ssize_t ts_sys_read(int fd, void *bytes, size_t n) {
    ssize_t got;

    if (ts_fault_hit(EIO))
        return -1;
    do
        got = read(fd, bytes, n);
    while (got < 0 && errno == EINTR);
    return got;
}

ssize_t ts_sys_pwrite(int fd, const void *bytes, size_t n, uint64_t offset) {
    ssize_t put;

    if (ts_fault_hit(ENOSPC))
        return -1;
    do
        put = pwrite(fd, bytes, n, (off_t)offset);
    while (put < 0 && errno == EINTR);
    return put;
}

int ts_sys_fsync(int fd) {
    int rc;

    if (ts_fault_hit(EIO))
        return -1;
    do
        rc = fsync(fd);
    while (rc < 0 && errno == EINTR);
    return rc;
}

int ts_sys_ftruncate(int fd, uint64_t length) {
    int rc;

    if (ts_fault_hit(EIO))
        return -1;
    do
        rc = ftruncate(fd, (off_t)length);
    while (rc < 0 && errno == EINTR);
    return rc;
}

int ts_sys_rename(const char *from, const char *to) {
    return ts_fault_hit(EIO) ? -1 : rename(from, to);
}
