/* Owns xxh3-128 of files and bytes. The hash is compiled in from the header (no library to link).
 * Refuses what is not a regular file. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "store/fingerprint.h"

#include <unistd.h>

#include "core/fault.h"
#include "core/file.h"
#include "core/mem.h"

enum { BLOCK_SIZE = 1 << 18 };

static void to_hex(XXH128_hash_t hash, char hex[33]) {
    static const char digits[] = "0123456789abcdef";
    XXH128_canonical_t canonical;

    XXH128_canonicalFromHash(&canonical, hash);
    for (size_t i = 0; i < sizeof canonical.digest; i++) {
        hex[2 * i] = digits[canonical.digest[i] >> 4];
        hex[2 * i + 1] = digits[canonical.digest[i] & 15];
    }
    hex[32] = '\0';
}

/* Hashes up to `limit` bytes; *n is how many there were. */
static int hash_fd(int fd, const char *path, uint64_t limit, char hex[33], uint64_t *n,
                   ts_error *err) {
    XXH3_state_t state;
    char *block = ts_malloc(BLOCK_SIZE);
    int rc = TS_OK;

    if (!block)
        return ts_fail_nomem(err, "a read buffer", BLOCK_SIZE);
    XXH3_128bits_reset(&state);
    for (*n = 0; *n < limit;) {
        uint64_t left = limit - *n;
        ssize_t got = ts_sys_read(fd, block, left < BLOCK_SIZE ? (size_t)left : BLOCK_SIZE);

        if (got < 0)
            rc = ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", path);
        if (got <= 0)
            break;
        XXH3_128bits_update(&state, block, (size_t)got);
        *n += (uint64_t)got;
    }
    if (!rc)
        to_hex(XXH3_128bits_digest(&state), hex);
    ts_free(block);
    return rc;
}

int ts_fingerprint_file(const char *path, char hex[33], uint64_t *bytes, ts_error *err) {
    uint64_t size, n;
    int fd, rc = ts_file_open_read(path, &fd, &size, err);

    if (rc)
        return rc;
    rc = hash_fd(fd, path, UINT64_MAX, hex, &n, err);
    close(fd);
    if (!rc && bytes)
        *bytes = n;
    return rc;
}

int ts_fingerprint_prefix(const char *path, uint64_t length, char hex[33], ts_error *err) {
    uint64_t size, n;
    int fd, rc = ts_file_open_read(path, &fd, &size, err);

    if (rc)
        return rc;
    rc = hash_fd(fd, path, length, hex, &n, err);
    close(fd);
    if (!rc && n < length)
        rc =
            ts_fail(err, TS_ERR_FORMAT, "'%s' is too short: expected at least %llu bytes, got %llu",
                    path, (unsigned long long)length, (unsigned long long)n);
    return rc;
}

void ts_fingerprint_bytes(const void *bytes, size_t n, char hex[33]) {
    to_hex(XXH3_128bits(bytes, n), hex);
}
