/* Files on the way to a result: written beside the target, flushed, fsynced, renamed. Refuses targets that
 * are directories or special files before anything is computed. Every system call here goes through one
 * counted shim so that tests can make each of them fail. */
#ifndef TS_CORE_FILE_H
#define TS_CORE_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/error.h"

typedef struct ts_file ts_file;

/* Opens `<path>.tmp-<pid>-<n>` (n: the first that is free) for writing. A link to a file is followed. TS_ERR_IO
 * with path and reason. */
int ts_file_create(const char *path, ts_file **out, ts_error *err);
int ts_file_write(ts_file *f, const void *bytes, size_t n, ts_error *err);
/* Flush, fsync, rename to the final path, fsync of the folder; frees `f` whatever happens, and removes the
 * temporary when it failed. */
int ts_file_commit(ts_file *f, ts_error *err);
/* Removes the temporary. NULL is fine. */
void ts_file_discard(ts_file *f);

/* Whole small file in one go (create, write, commit). */
int ts_file_put(const char *path, const void *bytes, size_t n, ts_error *err);
/* Whole file into memory, NUL-terminated; refuses more than `max` bytes and anything not a regular file. */
int ts_file_get(const char *path, size_t max, char **bytes, size_t *n, ts_error *err);
/* Opens a regular file for reading; TS_ERR_IO for anything else, without waiting on a FIFO. The caller closes. */
int ts_file_open_read(const char *path, int *fd, uint64_t *size, ts_error *err);

/* Can a file be created at `path`: parent exists and is a writable folder, path is not a folder or special
 * file. Names the reason. Creates nothing that stays, and removes temporaries that ended processes left of it. */
int ts_file_check_target(const char *path, ts_error *err);
/* Free bytes for an unprivileged writer in the folder of `path`. */
int ts_file_free_bytes(const char *path, uint64_t *bytes, ts_error *err);
/* TS_ERR_ARG when a file of a result at `path` is `input`: itself, one beside it (.f32, .meta, .detail, .trace, .experts) or one
 * it writes while it runs (.part...). `what`: the input's role. NULL paths are fine. */
int ts_file_keep(const char *path, const char *what, const char *input, ts_error *err);
/* TS_ERR_ARG when something stands at `path` that is neither empty nor looks like JSON: for outputs that replace an
 * earlier one without being asked. */
int ts_file_keep_other(const char *path, ts_error *err);
/* TS_ERR_ARG when `part` is there: what an unfinished run left is neither continued nor thrown away unasked. */
int ts_file_keep_unfinished(const char *part, ts_error *err);
/* Refuses where anything stands, a link that leads nowhere too. */
int ts_file_vacant(const char *path, ts_error *err);
bool ts_file_exists(const char *path);
bool ts_file_same(const char *a, const char *b); /* both exist and are one inode */

/* "dir/name.json" + "f32" -> "dir/name.f32"; no extension: appended. As Rust's Path::with_extension. NULL on
 * no memory. Caller frees. */
char *ts_path_with_extension(const char *path, const char *extension);
char *ts_path_append(const char *path, const char *suffix); /* one after the other; the caller frees */
const char *ts_path_base(const char *path); /* points into `path` */
size_t ts_path_stem_length(const char *base); /* of a base name: bytes before its extension */
bool ts_path_has_extension(const char *path, const char *extension);

/* A file that grows over a long run, may be cut back and continued: for partial results. All writes are
 * appended and buffered. */
typedef struct ts_append ts_append;
/* Opens or creates `path`, cuts it to `length` bytes (TS_ERR_FORMAT when it is shorter). */
int ts_append_open(const char *path, uint64_t length, ts_append **out, ts_error *err);
int ts_append_write(ts_append *a, const void *bytes, size_t n, ts_error *err);
int ts_append_sync(ts_append *a, ts_error *err); /* flush + fsync */
uint64_t ts_append_length(const ts_append *a);
int ts_append_write_at(ts_append *a, uint64_t offset, const void *bytes, size_t n, ts_error *err); /* flushes first */
/* Flush, fsync, close, rename to `final`. Frees. */
int ts_append_commit(ts_append *a, const char *final, ts_error *err);
int ts_append_close(ts_append *a, ts_error *err); /* flush and keep under its own name; frees */

/* One writer per output path: an advisory lock on `<path>.lock`. TS_ERR_STATE names the path when another
 * process holds it. Released by ts_lock_release or the process's end. */
typedef struct ts_lock ts_lock;
int ts_lock_take(const char *path, ts_lock **out, ts_error *err);
void ts_lock_release(ts_lock *lock);

#endif
