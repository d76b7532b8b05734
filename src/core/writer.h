/* A buffered file descriptor that is only appended to and remembers its first failure: what stands
 * behind ts_file and ts_append. Refuses every call after a failure, so that a gap can never be
 * committed. */
#ifndef TS_CORE_WRITER_H
#define TS_CORE_WRITER_H

#include <stdint.h>

#include "core/error.h"

typedef struct ts_writer {
    int fd;
    int failed; /* errno of the first failure, 0 = none */
    char *path; /* for messages; owned */
    char *buffer;
    size_t used;      /* bytes in the buffer */
    uint64_t flushed; /* bytes in the file */
} ts_writer;

/* Takes over fd and a copy of path; appends after `length` bytes. On failure fd is still the
 * caller's. */
int ts_writer_start(ts_writer *w, int fd, const char *path, uint64_t length, ts_error *err);
int ts_writer_put(ts_writer *w, const void *bytes, size_t n, ts_error *err);
int ts_writer_flush(ts_writer *w, ts_error *err);
int ts_writer_put_at(ts_writer *w, uint64_t offset, const void *bytes, size_t n, ts_error *err);
int ts_writer_sync(ts_writer *w, ts_error *err); /* flush, fsync */
void ts_writer_end(ts_writer *w); /* closes and frees; what was not flushed is lost */

#endif
