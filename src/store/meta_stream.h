/* Reading files of any size in constant memory. Refuses what is not a regular file. */
#ifndef TS_STORE_META_STREAM_H
#define TS_STORE_META_STREAM_H

#include <stdio.h>

#include "core/error.h"

/* *size may be NULL. TS_ERR_IO with path and reason. The caller closes with fclose. */
int ts_stream_open(const char *path, FILE **out, uint64_t *size, ts_error *err);
/* Exactly n bytes; TS_ERR_FORMAT when the file ends before. The message does not name the path. */
int ts_stream_read(FILE *f, void *bytes, size_t n, ts_error *err);
/* xxh3-128 of `bytes` bytes from `offset`, as ts_fingerprint_file writes it. */
int ts_stream_hash(const char *path, uint64_t offset, uint64_t bytes, char hex[33], ts_error *err);

#endif
