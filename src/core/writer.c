/* Owns buffering and whole writes (writer.h). Refuses to go on after a failure. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/writer.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/fault.h"
#include "core/mem.h"

enum { BUFFER_SIZE = 1 << 16 };

int ts_writer_start(ts_writer *w, int fd, const char *path, uint64_t length, ts_error *err) {
    *w = (ts_writer){.fd = fd, .flushed = length};
    w->path = ts_strdup(path);
    w->buffer = ts_malloc(BUFFER_SIZE);
    if (w->path && w->buffer)
        return TS_OK;
    ts_free(w->path);
    ts_free(w->buffer);
    return ts_fail_nomem(err, "a write buffer", BUFFER_SIZE);
}

static int fail(ts_writer *w, ts_error *err) {
    w->failed = errno ? errno : EIO;
    return ts_fail_errno(err, TS_ERR_IO, "cannot write '%s'", w->path);
}

static int refuse(const ts_writer *w, ts_error *err) {
    errno = w->failed;
    return ts_fail_errno(err, TS_ERR_IO, "cannot write '%s' after an earlier failure", w->path);
}

static int write_all(ts_writer *w, uint64_t offset, const char *bytes, size_t n, ts_error *err) {
    while (n) {
        ssize_t put = ts_sys_pwrite(w->fd, bytes, n, offset);

        if (put <= 0) {
            if (put == 0)
                errno = ENOSPC;
            return fail(w, err);
        }
        bytes += put;
        offset += (uint64_t)put;
        n -= (size_t)put;
    }
    return TS_OK;
}

static int append_all(ts_writer *w, const char *bytes, size_t n, ts_error *err) {
    int rc = write_all(w, w->flushed, bytes, n, err);

    if (!rc)
        w->flushed += n;
    return rc;
}

int ts_writer_flush(ts_writer *w, ts_error *err) {
    int rc;

    if (w->failed)
        return refuse(w, err);
    rc = append_all(w, w->buffer, w->used, err);
    if (!rc)
        w->used = 0;
    return rc;
}

int ts_writer_put(ts_writer *w, const void *bytes, size_t n, ts_error *err) {
    if (w->failed)
        return refuse(w, err);
    if (n > BUFFER_SIZE - w->used) {
        int rc = ts_writer_flush(w, err);

        if (rc)
            return rc;
    }
    if (n >= BUFFER_SIZE)
        return append_all(w, bytes, n, err);
    if (n)
        memcpy(w->buffer + w->used, bytes, n);
    w->used += n;
    return TS_OK;
}

int ts_writer_put_at(ts_writer *w, uint64_t offset, const void *bytes, size_t n, ts_error *err) {
    int rc = ts_writer_flush(w, err);

    if (rc)
        return rc;
    if (offset > w->flushed || n > w->flushed - offset)
        return ts_fail(err, TS_ERR_ARG, "cannot write %zu bytes at %llu of '%s', which has %llu", n,
                       (unsigned long long)offset, w->path, (unsigned long long)w->flushed);
    return write_all(w, offset, bytes, n, err);
}

int ts_writer_sync(ts_writer *w, ts_error *err) {
    int rc = ts_writer_flush(w, err);

    if (rc)
        return rc;
    return ts_sys_fsync(w->fd) ? fail(w, err) : TS_OK;
}

void ts_writer_end(ts_writer *w) {
    close(w->fd);
    ts_free(w->path);
    ts_free(w->buffer);
    w->path = w->buffer = NULL;
}
