/* xxh3-128 of files and growing streams, as 32 hex digits, most significant first (XXH128_canonical). */
#ifndef TS_STORE_FINGERPRINT_H
#define TS_STORE_FINGERPRINT_H

#include <stdint.h>

#include "core/error.h"

int ts_fingerprint_file(const char *path, char hex[33], uint64_t *bytes, ts_error *err);
/* Of `length` bytes from the start. TS_ERR_FORMAT when the file is shorter. */
int ts_fingerprint_prefix(const char *path, uint64_t length, char hex[33], ts_error *err);
void ts_fingerprint_bytes(const void *bytes, size_t n, char hex[33]);

#endif
