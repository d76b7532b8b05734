/* Owns whole files: made beside their target and renamed onto it, or read into memory. Refuses to
 * leave a temporary or a half-written target behind, and to read what is not a regular file. */
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
#include "core/temporary.h"
#include "core/writer.h"

struct ts_file {
    ts_writer writer;
    char *target; /* links resolved */
    ts_temporary temporary; /* in the folder of target */
};

static int create_temporary(ts_file *f, const char *path, ts_error *err) {
    int rc = ts_temporary_create(&f->temporary, path, f->target, err);

    if (rc)
        return rc;
    if (ts_writer_start(&f->writer, f->temporary.fd, path, 0, err)) {
        ts_temporary_end(&f->temporary, true);
        close(f->temporary.fd);
        return TS_ERR_NOMEM;
    }
    return TS_OK;
}

/* A replaced file keeps its permissions; where that is not allowed the umask's stand. */
static void keep_mode(const ts_file *f) {
    struct stat st;

    if (stat(f->target, &st) == 0 && fchmod(f->writer.fd, st.st_mode & 0777))
        return;
}

static void free_names(ts_file *f) {
    ts_free(f->target);
    ts_free(f);
}

int ts_file_create(const char *path, ts_file **out, ts_error *err) {
    ts_file *f = ts_calloc(1, sizeof *f);
    int rc;

    *out = NULL;
    if (!f)
        return ts_fail_nomem(err, "a file", sizeof *f);
    rc = ts_target_resolve(path, &f->target, err);
    if (!rc)
        rc = create_temporary(f, path, err);
    if (rc) {
        free_names(f);
        return rc;
    }
    keep_mode(f);
    *out = f;
    return TS_OK;
}

int ts_file_write(ts_file *f, const void *bytes, size_t n, ts_error *err) {
    return ts_writer_put(&f->writer, bytes, n, err);
}

int ts_file_commit(ts_file *f, ts_error *err) {
    int rc = ts_writer_sync(&f->writer, err);

    if (!rc && ts_sys_rename(f->temporary.name, f->target))
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot write '%s'", f->writer.path);
    ts_temporary_end(&f->temporary, rc != TS_OK);
    ts_writer_end(&f->writer);
    if (!rc)
        rc = ts_target_sync_folder(f->target, err);
    free_names(f);
    return rc;
}

void ts_file_discard(ts_file *f) {
    if (!f)
        return;
    ts_temporary_end(&f->temporary, true);
    ts_writer_end(&f->writer);
    free_names(f);
}

int ts_file_put(const char *path, const void *bytes, size_t n, ts_error *err) {
    ts_file *f;
    int rc = ts_file_create(path, &f, err);

    if (rc)
        return rc;
    rc = ts_file_write(f, bytes, n, err);
    if (rc) {
        ts_file_discard(f);
        return rc;
    }
    return ts_file_commit(f, err);
}

int ts_file_open_read(const char *path, int *fd, uint64_t *size, ts_error *err) {
    struct stat st;
    int rc = TS_OK;

    *fd = ts_sys_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (*fd < 0)
        return ts_fail_errno(err, TS_ERR_IO, "cannot open '%s'", path);
    if (fstat(*fd, &st))
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot open '%s'", path);
    else if (!S_ISREG(st.st_mode))
        rc = ts_fail(err, TS_ERR_IO, "cannot read '%s': expected a regular file, it is %s", path,
                     ts_file_kind(&st));
    if (rc) {
        close(*fd);
        *fd = -1;
        return rc;
    }
    *size = (uint64_t)st.st_size;
    return TS_OK;
}

/* Reads to the end; the size seen before is a hint only, the file may have changed. One byte over
 * `max` is asked for to see that there is more. */
static int read_all(int fd, const char *path, size_t max, size_t hint, char **bytes, size_t *n,
                    ts_error *err) {
    size_t capacity = (hint < max ? hint : max) + 2;

    for (*n = 0;; capacity *= 2) {
        char *grown = ts_realloc(*bytes, capacity, 1);
        ssize_t got;

        if (!grown)
            return ts_fail_nomem(err, path, capacity);
        *bytes = grown;
        do {
            got = ts_sys_read(fd, *bytes + *n, capacity - 1 - *n);
            if (got < 0)
                return ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", path);
            *n += (size_t)got;
            if (*n > max)
                return ts_fail(err, TS_ERR_FORMAT, "'%s' is too large: expected at most %zu bytes",
                               path, max);
        } while (got > 0 && *n < capacity - 1);
        if (got == 0) {
            (*bytes)[*n] = '\0';
            return TS_OK;
        }
    }
}

int ts_file_get(const char *path, size_t max, char **bytes, size_t *n, ts_error *err) {
    uint64_t size;
    int fd, rc;

    *bytes = NULL;
    rc = ts_file_open_read(path, &fd, &size, err);
    if (rc)
        return rc;
    if (size > max)
        rc = ts_fail(err, TS_ERR_FORMAT, "'%s' is too large: expected at most %zu bytes, got %llu",
                     path, max, (unsigned long long)size);
    else
        rc = read_all(fd, path, max, (size_t)size, bytes, n, err);
    close(fd);
    if (rc) {
        ts_free(*bytes);
        *bytes = NULL;
    }
    return rc;
}
