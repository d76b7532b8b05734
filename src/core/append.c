/* Owns files that grow over a long run (file.h). Refuses to continue a file shorter than what it
 * should hold; never deletes a partial file that could not be committed. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/fault.h"
#include "core/mem.h"
#include "core/target.h"
#include "core/writer.h"

struct ts_append {
    ts_writer writer;
    bool named; /* the folder's entry is durable */
};

static int cut_to(int fd, const char *path, uint64_t length, ts_error *err) {
    struct stat st;

    if (fstat(fd, &st))
        return ts_fail_errno(err, TS_ERR_IO, "cannot open '%s'", path);
    if ((uint64_t)st.st_size < length)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s' is too short: expected at least %llu bytes, got %llu; remove it, or start over with --overwrite", path,
                       (unsigned long long)length, (unsigned long long)st.st_size);
    if ((uint64_t)st.st_size > length && ts_sys_ftruncate(fd, length))
        return ts_fail_errno(err, TS_ERR_IO, "cannot cut '%s' to %llu bytes", path,
                             (unsigned long long)length);
    return TS_OK;
}

int ts_append_open(const char *path, uint64_t length, ts_append **out, ts_error *err) {
    ts_append *a = NULL;
    char *target = NULL;
    int fd, rc;

    *out = NULL;
    rc = ts_target_resolve(path, &target, err); /* refuses; the open below tells the rest */
    ts_free(target);
    if (rc)
        return rc;
    fd = ts_sys_open(path, O_RDWR | (length ? 0 : O_CREAT), 0666);
    if (fd < 0)
        return ts_fail_errno(err, TS_ERR_IO, "cannot open '%s'", path);
    rc = cut_to(fd, path, length, err);
    if (rc)
        goto cleanup;
    a = ts_calloc(1, sizeof *a);
    rc = a ? ts_writer_start(&a->writer, fd, path, length, err)
           : ts_fail_nomem(err, path, sizeof *a);
    if (rc)
        goto cleanup;
    *out = a;
    return TS_OK;

cleanup:
    close(fd);
    ts_free(a);
    return rc;
}

int ts_append_write(ts_append *a, const void *bytes, size_t n, ts_error *err) {
    return ts_writer_put(&a->writer, bytes, n, err);
}

int ts_append_sync(ts_append *a, ts_error *err) {
    int rc = ts_writer_sync(&a->writer, err);

    if (rc || a->named)
        return rc;
    rc = ts_target_sync_folder(a->writer.path, err);
    a->named = rc == TS_OK;
    return rc;
}

uint64_t ts_append_length(const ts_append *a) {
    return a->writer.flushed + a->writer.used;
}

int ts_append_write_at(ts_append *a, uint64_t offset, const void *bytes, size_t n, ts_error *err) {
    return ts_writer_put_at(&a->writer, offset, bytes, n, err);
}

static int copy_rest(const ts_writer *from, ts_file *to, ts_error *err) {
    char block[1 << 14];
    ssize_t got;
    int rc = TS_OK;

    if (lseek(from->fd, 0, SEEK_SET))
        return ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", from->path);
    while (!rc && (got = ts_sys_read(from->fd, block, sizeof block)) != 0)
        rc = got < 0 ? ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", from->path)
                     : ts_file_write(to, block, (size_t)got, err);
    return rc;
}

/* The target lies on another file system, reached by a link: a copy takes the place of the rename.
 */
static int copy_over(const ts_writer *from, const char *target, ts_error *err) {
    ts_file *to;
    int rc = ts_file_create(target, &to, err);

    if (rc)
        return rc;
    rc = copy_rest(from, to, err);
    if (rc)
        ts_file_discard(to);
    else
        rc = ts_file_commit(to, err);
    if (!rc)
        unlink(from->path);
    return rc;
}

static int move_to(const ts_writer *w, const char *target, ts_error *err) {
    if (ts_sys_rename(w->path, target) == 0)
        return ts_target_sync_folder(target, err);
    if (errno == EXDEV)
        return copy_over(w, target, err);
    return ts_fail_errno(err, TS_ERR_IO, "cannot rename '%s' to '%s'", w->path, target);
}

int ts_append_commit(ts_append *a, const char *final, ts_error *err) {
    char *target = NULL;
    int rc = ts_writer_sync(&a->writer, err);

    if (!rc)
        rc = ts_target_resolve(final, &target, err);
    if (!rc)
        rc = move_to(&a->writer, target, err);
    ts_free(target);
    ts_writer_end(&a->writer);
    ts_free(a);
    return rc;
}

int ts_append_close(ts_append *a, ts_error *err) {
    int rc;

    if (!a)
        return TS_OK;
    rc = ts_writer_flush(&a->writer, err);
    ts_writer_end(&a->writer);
    ts_free(a);
    return rc;
}
