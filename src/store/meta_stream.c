/* Owns reading in constant memory. Refuses folders, FIFOs and devices, and files that end too
 * early. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "store/meta_stream.h"

#include <inttypes.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/file.h"
#include "core/mem.h"

enum { CHUNK = 1 << 18 };

int ts_stream_open(const char *path, FILE **out, uint64_t *size, ts_error *err) {
    uint64_t bytes;
    int fd;
    *out = NULL;
    int rc = ts_file_open_read(path, &fd, &bytes, err);
    if (rc < 0)
        return rc;
    *out = fdopen(fd, "rb");
    if (*out == NULL) {
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", path);
        close(fd);
        return rc;
    }
    if (size != NULL)
        *size = bytes;
    return TS_OK;
}

int ts_stream_read(FILE *f, void *bytes, size_t n, ts_error *err) {
    if (fread(bytes, 1, n, f) == n)
        return TS_OK;
    if (ferror(f))
        return ts_fail_errno(err, TS_ERR_IO, "cannot read");
    return ts_fail(err, TS_ERR_FORMAT, "the file ends too early");
}

static int hash_stream(FILE *f, XXH3_state_t *state, char *chunk, uint64_t bytes, ts_error *err) {
    while (bytes > 0) {
        size_t n = bytes < CHUNK ? (size_t)bytes : CHUNK;
        int rc = ts_stream_read(f, chunk, n, err);
        if (rc < 0)
            return rc;
        XXH3_128bits_update(state, chunk, n);
        bytes -= n;
    }
    return TS_OK;
}

static void digest_hex(const XXH3_state_t *state, char hex[33]) {
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(state));
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest.digest[i]);
}

int ts_stream_hash(const char *path, uint64_t offset, uint64_t bytes, char hex[33], ts_error *err) {
    FILE *f;
    int rc = ts_stream_open(path, &f, NULL, err);
    if (rc < 0)
        return rc;
    char *chunk = ts_malloc(CHUNK);
    XXH3_state_t *state = XXH3_createState();
    if (chunk == NULL || state == NULL || XXH3_128bits_reset(state) == XXH_ERROR)
        rc = ts_fail_nomem(err, "a hash", CHUNK);
    else if (fseeko(f, (off_t)offset, SEEK_SET) != 0)
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot read");
    else
        rc = hash_stream(f, state, chunk, bytes, err);
    if (rc == TS_OK)
        digest_hex(state, hex);
    else
        ts_error_prefix(err, "'%s': ", path);
    XXH3_freeState(state);
    ts_free(chunk);
    fclose(f);
    return rc;
}
