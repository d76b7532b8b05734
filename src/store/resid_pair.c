/* Owns the end of a pair: the header to the byte, the .meta, and the order of the renames: data,
 * .meta, header. Refuses to leave a header beside data that is not its own. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "store/resid_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "store/meta.h"

typedef int (*line_fn)(ts_file *f, const ts_resid_gen *g, uint64_t index, ts_error *err);

/* Calls `write` for each generation; there must be one a row. */
static int each_generation(ts_resid_out *o, ts_file *f, line_fn write, ts_error *err) {
    ts_resid_gen g;
    bool got = false;
    uint64_t n = 0;
    int rc = ts_resid_gen_open(o->paths.gen, &g, err);
    while (rc == TS_OK && (rc = ts_resid_gen_next(&g, &got, err)) == TS_OK && got)
        rc = write(f, &g, n++, err);
    if (rc == TS_OK && n != o->now.rows)
        rc = ts_fail(err, TS_ERR_FORMAT, "'%s': expected %" PRIu64 " generations, found %" PRIu64,
                     o->paths.gen, o->now.rows, n);
    ts_resid_gen_close(&g);
    return rc;
}

static int write_buf(ts_file *f, ts_buf *b, ts_error *err) {
    int rc = b->failed ? ts_fail_nomem(err, "a header", b->length)
                       : ts_file_write(f, b->data, b->length, err);
    ts_buf_free(b);
    return rc;
}

static int write_position(ts_file *f, const ts_resid_gen *g, uint64_t index, ts_error *err) {
    char text[16];
    int n = snprintf(text, sizeof text, "%s%" PRId32, index ? ", " : "", g->position);
    return ts_file_write(f, text, (size_t)n, err);
}

static int write_header(ts_resid_out *o, ts_file *f, ts_error *err) {
    const char *data = ts_path_base(o->paths.data);
    ts_buf b = {0};
    ts_buf_printf(&b, "{\n  \"layers\": %" PRId32 ",\n  \"hidden\": %" PRId32, o->n_layers,
                  o->n_hidden);
    ts_buf_printf(&b, ",\n  \"snapshots\": %" PRIu64 ",\n  \"dtype\": \"float32\",\n", o->now.rows);
    ts_buf_text(&b, "  \"layout\": \"[snapshot][layer][hidden]\",\n  \"hook\": \"" TS_RESID_HOOK
                    "\",\n  \"data\": ");
    ts_buf_json_string(&b, data, strlen(data));
    ts_buf_text(&b, ",\n  \"positions\": [");
    int rc = write_buf(f, &b, err);
    if (rc == TS_OK)
        rc = each_generation(o, f, write_position, err);
    return rc == TS_OK ? ts_file_write(f, "]\n}\n", 4, err) : rc;
}

static int write_generation(ts_file *f, const ts_resid_gen *g, uint64_t index, ts_error *err) {
    int rc = ts_file_write(f, index ? ",\n    " : "\n    ", index ? 6 : 5, err);
    return rc == TS_OK ? ts_file_write(f, g->line, g->length, err) : rc;
}

static int write_meta(ts_resid_out *o, ts_file *f, const ts_meta_resid *facts, ts_error *err) {
    ts_buf b = {0};
    ts_meta_resid_head(&b, facts);
    ts_buf_text(&b, ",\n  \"generations\": [");
    int rc = write_buf(f, &b, err);
    if (rc == TS_OK)
        rc = each_generation(o, f, write_generation, err);
    return rc == TS_OK ? ts_file_write(f, "\n  ]\n}\n", 7, err) : rc;
}

/* Everything that can run out of space is on disk before this; from here on only names change. */
static int rename_all(ts_resid_out *o, ts_file **meta, ts_file **header, ts_error *err) {
    if (unlink(o->paths.out) != 0 && errno != ENOENT)
        return ts_fail_errno(err, TS_ERR_IO, "cannot replace '%s'", o->paths.out);
    ts_append *rows = o->rows;
    o->rows = NULL;
    int rc = ts_append_commit(rows, o->paths.data, err);
    if (rc < 0)
        return rc;
    ts_file *f = *meta;
    *meta = NULL;
    rc = ts_file_commit(f, err);
    if (rc < 0)
        return rc;
    f = *header;
    *header = NULL;
    return ts_file_commit(f, err);
}

int ts_resid_finish_pair(ts_resid_out *o, const ts_meta_resid *facts, ts_error *err) {
    ts_file *meta = NULL, *header = NULL;
    int rc = ts_file_create(o->paths.meta, &meta, err);
    if (rc == TS_OK)
        rc = write_meta(o, meta, facts, err);
    if (rc == TS_OK)
        rc = ts_file_create(o->paths.out, &header, err);
    if (rc == TS_OK)
        rc = write_header(o, header, err);
    if (rc == TS_OK)
        rc = ts_resid_state_put(o, facts->data_bytes, err);
    if (rc == TS_OK)
        rc = rename_all(o, &meta, &header, err);
    ts_file_discard(meta);
    ts_file_discard(header);
    return rc;
}
