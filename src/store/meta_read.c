/* Reads a .meta in constant memory and checks the data it vouches for. Refuses damaged JSON,
 * another format version, sizes and hashes that do not match. */
#include "store/meta.h"

#include <inttypes.h>
#include <string.h>

#include "store/meta_json.h"
#include "store/meta_stream.h"

#define GENERATIONS "  \"generations\": ["

/* Collects lines up to the one that opens `generations`: JSON strings hold no line breaks, so a
 * line that starts so is a member, and our writer gives each generation a line of its own. */
static int read_head(FILE *f, ts_buf *b, ts_error *err) {
    char chunk[8192];
    bool line_start = true;
    while (fgets(chunk, sizeof chunk, f) != NULL) {
        size_t n = strlen(chunk);
        if (line_start && strncmp(chunk, GENERATIONS, sizeof GENERATIONS - 1) == 0) {
            ts_buf_text(b, GENERATIONS "]}");
            return TS_OK;
        }
        ts_buf_add(b, chunk, n);
        if (b->length > TS_JSON_MAX_BYTES)
            return ts_fail(err, TS_ERR_FORMAT, "more than %zu bytes before its generations",
                           TS_JSON_MAX_BYTES);
        line_start = n > 0 && chunk[n - 1] == '\n';
    }
    return ferror(f) ? ts_fail_errno(err, TS_ERR_IO, "cannot read") : TS_OK;
}

int ts_meta_read(const char *path, json_t **out, ts_error *err) {
    ts_buf b = {0};
    int64_t version;
    FILE *f;
    *out = NULL;
    int rc = ts_stream_open(path, &f, NULL, err);
    if (rc < 0)
        return rc;
    rc = read_head(f, &b, err);
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
                       " bytes, found %" PRIu64,
                       path, size, bytes);
    if (expected == NULL)
        return TS_OK;
    rc = ts_stream_hash(path, offset, bytes, found, err);
    if (rc < 0)
        return rc;
    if (strcmp(expected, found) != 0)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s' was changed or damaged: expected xxh3-128 %.32s, found %s", path,
                       strlen(expected) == 32 ? expected : "of 32 digits", found);
    *hashed = true;
    return TS_OK;
}
