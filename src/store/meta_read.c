/* Reads a .meta in constant memory and checks the data it vouches for. Refuses damaged JSON, another kind's
 * format version, sizes and hashes that do not match. */
#include "store/meta.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/mem.h"
#include "store/meta_json.h"

/* Collects lines up to the one that opens `generations`: JSON strings hold no line breaks, so a line that
 * starts so is a member, and our writers give each generation lines of its own. */
static int read_head(FILE *f, ts_buf *b, ts_error *err) {
    char chunk[8192];
    bool line_start = true;
    while (fgets(chunk, sizeof chunk, f) != NULL) {
        size_t n = strlen(chunk);
        if (line_start && strncmp(chunk, "  \"generations\": [", 18) == 0) {
            ts_buf_text(b, "  \"generations\": []}");
            return TS_OK;
        }
        ts_buf_add(b, chunk, n);
        if (b->length > TS_JSON_MAX_BYTES)
            return ts_fail(err, TS_ERR_FORMAT, "more than %zu bytes before its generations",
                           TS_JSON_MAX_BYTES);
        line_start = n > 0 && chunk[n - 1] == '\n';
    }
    if (ferror(f))
        return ts_fail_errno(err, TS_ERR_IO, "cannot read");
    return TS_OK;
}

int ts_meta_read(const char *path, json_t **out, ts_error *err) {
    ts_buf b = {0};
    int64_t version;
    *out = NULL;
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return ts_fail_errno(err, TS_ERR_IO, "cannot open '%s'", path);
    int rc = read_head(f, &b, err);
    if (rc == TS_OK && b.failed)
        rc = ts_fail_nomem(err, "meta data", b.length);
    if (rc == TS_OK)
        rc = ts_json_parse(b.data ? b.data : "", b.length, out, err);
    if (rc == TS_OK)
        rc = ts_json_int(*out, "format_version", 1, 1, &version, err);
    if (rc < 0) {
        ts_error_prefix(err, "'%s': ", path);
        json_decref(*out);
        *out = NULL;
    }
    fclose(f);
    ts_buf_free(&b);
    return rc;
}

static int hash_stream(FILE *f, uint64_t bytes, char hex[33], ts_error *err) {
    XXH128_canonical_t digest;
    int rc = TS_OK;
    char *chunk = ts_malloc((size_t)1 << 18);
    XXH3_state_t *state = XXH3_createState();
    if (chunk == NULL || state == NULL || XXH3_128bits_reset(state) == XXH_ERROR) {
        rc = ts_fail_nomem(err, "a hash state", (size_t)1 << 18);
        goto cleanup;
    }
    while (bytes > 0) {
        size_t want = bytes < ((uint64_t)1 << 18) ? (size_t)bytes : (size_t)1 << 18;
        size_t got = fread(chunk, 1, want, f);
        if (got == 0) {
            rc = ferror(f) ? ts_fail_errno(err, TS_ERR_IO, "cannot read")
                           : ts_fail(err, TS_ERR_FORMAT, "%" PRIu64 " bytes are missing", bytes);
            goto cleanup;
        }
        XXH3_128bits_update(state, chunk, got);
        bytes -= got;
    }
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(state));
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest.digest[i]);
cleanup:
    XXH3_freeState(state);
    free(chunk);
    return rc;
}

int ts_meta_hash_range(const char *path, uint64_t offset, uint64_t bytes, char hex[33],
                       ts_error *err) {
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return ts_fail_errno(err, TS_ERR_IO, "cannot open '%s'", path);
    int rc = fseeko(f, (off_t)offset, SEEK_SET) == 0 ? hash_stream(f, bytes, hex, err)
                                                      : ts_fail_errno(err, TS_ERR_IO, "cannot seek");
    if (rc < 0)
        ts_error_prefix(err, "'%s': ", path);
    fclose(f);
    return rc;
}

int ts_meta_check_data(const json_t *meta, const char *path, uint64_t offset, uint64_t bytes,
                       bool *hashed, ts_error *err) {
    const json_t *data = json_object_get(meta, "data");
    const char *expected = json_string_value(json_object_get(data, "xxh3_128"));
    char found[33];
    int64_t size;
    *hashed = false;
    int rc = ts_json_int(data, "bytes", 0, INT64_MAX, &size, err);
    if (rc < 0) {
        ts_error_prefix(err, "meta data of '%s': ", path);
        return rc;
    }
    if ((uint64_t)size != bytes)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s' is not what its meta data says: expected %" PRId64
                       " bytes of rows, found %" PRIu64,
                       path, size, bytes);
    if (expected == NULL)
        return TS_OK;
    rc = ts_meta_hash_range(path, offset, bytes, found, err);
    if (rc < 0)
        return rc;
    if (strcmp(expected, found) != 0)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s' was changed or damaged: expected xxh3-128 %.32s, found %s", path,
                       expected, found);
    *hashed = true;
    return TS_OK;
}
