/* Owns writing a trace: encoding, size, resuming. Refuses blocks out of order and a partial file of
 * another trace. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/mem.h"
#include "store/meta_stream.h"
#include "store/trace_internal.h"

struct ts_trace_writer {
    ts_append *file;
    uint32_t n_layers;
    uint32_t *width, *k; /* [n_layers] */
    char *model;
    uint64_t passes, generations;
    ts_buf pass; /* the one being made, reused */
    bool open, first;
    uint32_t next; /* the block that comes next */
};

/* ---- sizes */

static uint32_t varint_bytes(uint32_t v) {
    uint32_t n = 1;
    for (; v >= 0x80; v >>= 7)
        n++;
    return n;
}

/* Gaps add up to at most the width: 1/128 of it says how many can need a second byte, 1/16384 how
 * many a third. */
static uint64_t delta_bytes(uint32_t width, uint32_t k) {
    return (uint64_t)varint_bytes(k) + k + width / 128 + width / 16384;
}

static uint64_t bitset_bytes(uint32_t width) {
    return ((uint64_t)width + 7) / 8;
}

enum ts_trace_encoding ts_trace_choose(uint32_t width, uint32_t k) {
    if (k == 0)
        return TS_TRACE_NONE;
    return delta_bytes(width, k) < bitset_bytes(width) ? TS_TRACE_DELTA : TS_TRACE_BITSET;
}

const char *ts_trace_encoding_name(enum ts_trace_encoding e) {
    return e == TS_TRACE_DELTA ? "delta" : e == TS_TRACE_BITSET ? "bitset" : "none";
}

uint64_t ts_trace_bytes(const ts_trace_spec *spec, uint64_t n_passes) {
    uint64_t pass = 1 + varint_bytes(TS_TRACE_MAX_SLOT), header;
    ts_buf b = {0};
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        enum ts_trace_encoding e = ts_trace_choose(spec->width[i], spec->k[i]);
        pass += e == TS_TRACE_DELTA    ? delta_bytes(spec->width[i], spec->k[i])
                : e == TS_TRACE_BITSET ? bitset_bytes(spec->width[i])
                                       : 0;
    }
    ts_trace_header(&b, spec, NULL);
    header = b.length;
    ts_buf_free(&b);
    return n_passes > (UINT64_MAX - header) / pass ? UINT64_MAX : header + n_passes * pass;
}

/* ---- the header */

static void add_list(ts_buf *b, const char *key, const uint32_t *values, uint32_t n) {
    char text[16];
    ts_buf_printf(b, ",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++) {
        int length = snprintf(text, sizeof text, "%s%" PRIu32, i ? "," : "", values[i]);
        ts_buf_add(b, text, (size_t)length);
    }
    ts_buf_text(b, "]");
}

void ts_trace_header(ts_buf *b, const ts_trace_spec *spec, const ts_trace_at *at) {
    ts_buf_text(b, "{\"turbospark_trace\":1,\"model\":");
    ts_buf_json_string(b, spec->model, strlen(spec->model));
    ts_buf_printf(b, ",\"layers\":%" PRIu32, spec->n_layers);
    add_list(b, "width", spec->width, spec->n_layers);
    add_list(b, "k", spec->k, spec->n_layers);
    ts_buf_text(b, ",\"encoding\":[");
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        ts_buf_text(b, i ? ",\"" : "\"");
        ts_buf_text(b, ts_trace_encoding_name(ts_trace_choose(spec->width[i], spec->k[i])));
        ts_buf_text(b, "\"");
    }
    ts_buf_printf(
        b, "],\"passes\":%20" PRIu64 ",\"generations\":%20" PRIu64 ",\"bytes\":%20" PRIu64 "}\n",
        at ? at->passes : 0, at ? at->generations : 0, at ? at->bytes : 0);
}

static int render_header(const ts_trace_writer *w, const ts_trace_at *at, ts_buf *b,
                         ts_error *err) {
    const ts_trace_spec spec = {w->n_layers, w->width, w->k, w->model};
    ts_trace_header(b, &spec, at);
    return b->failed ? ts_fail_nomem(err, "the header of a trace", b->length) : TS_OK;
}

/* ---- opening */

static int copy_spec(ts_trace_writer *w, const ts_trace_spec *spec, ts_error *err) {
    size_t n = spec->n_layers;
    w->n_layers = spec->n_layers;
    w->width = ts_calloc(n, sizeof *w->width);
    w->k = ts_calloc(n, sizeof *w->k);
    w->model = ts_strdup(spec->model);
    if (!w->width || !w->k || !w->model)
        return ts_fail_nomem(err, "a trace", n * sizeof *w->width);
    for (size_t i = 0; i < n; i++) {
        if (spec->k[i] > spec->width[i])
            return ts_fail(err, TS_ERR_ARG,
                           "cannot trace %" PRIu32 " of the %" PRIu32 " neurons of block %zu",
                           spec->k[i], spec->width[i], i);
        w->width[i] = spec->width[i];
        w->k[i] = spec->k[i];
    }
    return strlen(spec->model) <= TS_TRACE_MAX_MODEL
               ? TS_OK
               : ts_fail(err, TS_ERR_ARG, "a model hash of %zu bytes, expected at most %d",
                         strlen(spec->model), TS_TRACE_MAX_MODEL);
}

/* A partial file goes on only if it begins as ours would. */
static int check_partial(const char *path, const ts_buf *header, uint64_t length, ts_error *err) {
    FILE *f;
    if (length < header->length)
        return ts_fail(err, TS_ERR_FORMAT,
                       "partial trace '%s': %" PRIu64 " bytes are less than its header has", path,
                       length);
    char *found = ts_malloc(header->length);
    int rc = found ? ts_stream_open(path, &f, NULL, err) : ts_fail_nomem(err, path, header->length);
    if (rc == TS_OK) {
        rc = ts_stream_read(f, found, header->length, err);
        if (rc < 0)
            ts_error_prefix(err, "partial trace '%s': ", path);
        fclose(f);
    }
    if (rc == TS_OK && memcmp(found, header->data, header->length) != 0)
        rc = ts_fail(err, TS_ERR_STATE,
                     "partial trace '%s' belongs to another model or other options", path);
    ts_free(found);
    return rc;
}

static int open_file(ts_trace_writer *w, const char *path, const ts_trace_at *at, ts_error *err) {
    ts_buf header = {0};
    uint64_t length = at ? at->bytes : 0;
    int rc = render_header(w, NULL, &header, err);
    if (rc == TS_OK && length > 0)
        rc = check_partial(path, &header, length, err);
    if (rc == TS_OK)
        rc = ts_append_open(path, length, &w->file, err);
    if (rc == TS_OK && length == 0)
        rc = ts_append_write(w->file, header.data, header.length, err);
    w->passes = length ? at->passes : 0;
    w->generations = length ? at->generations : 0;
    ts_buf_free(&header);
    return rc;
}

static void free_writer(ts_trace_writer *w) {
    ts_free(w->width);
    ts_free(w->k);
    ts_free(w->model);
    ts_buf_free(&w->pass);
    ts_free(w);
}

int ts_trace_open(const char *path, const ts_trace_spec *spec, const ts_trace_at *at,
                  ts_trace_writer **out, ts_error *err) {
    ts_trace_writer *w = ts_calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL)
        return ts_fail_nomem(err, "a trace", sizeof *w);
    int rc = copy_spec(w, spec, err);
    if (rc == TS_OK)
        rc = open_file(w, path, at, err);
    if (rc < 0)
        ts_trace_close(w, NULL);
    else
        *out = w;
    return rc;
}

/* ---- passes */

static void add_varint(ts_buf *b, uint32_t v) {
    unsigned char bytes[5];
    size_t n = 0;
    for (; v >= 0x80; v >>= 7)
        bytes[n++] = (unsigned char)(v | 0x80);
    bytes[n++] = (unsigned char)v;
    ts_buf_add(b, bytes, n);
}

static uint32_t count_ids(const uint8_t *level, uint32_t width, uint8_t rank) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < width; i++)
        n += level[i] <= rank;
    return n;
}

static void add_delta(ts_buf *b, uint32_t n, const uint8_t *level, uint32_t width, uint8_t rank) {
    uint32_t least = 0;
    add_varint(b, n);
    for (uint32_t i = 0; i < width; i++) {
        if (level[i] > rank)
            continue;
        add_varint(b, i - least);
        least = i + 1;
    }
}

static void add_bitset(ts_buf *b, const uint8_t *level, uint32_t width, uint8_t rank) {
    for (uint32_t i = 0; i < width; i += 8) {
        unsigned char byte = 0;
        for (uint32_t j = 0; j < 8 && i + j < width; j++)
            byte |= (unsigned char)((level[i + j] <= rank) << j);
        ts_buf_add(b, &byte, 1);
    }
}

/* Blocks that are not traced are passed over. */
static void skip_untraced(ts_trace_writer *w) {
    while (w->next < w->n_layers && w->k[w->next] == 0)
        w->next++;
}

int ts_trace_begin(ts_trace_writer *w, uint32_t slot, bool first_of_generation, ts_error *err) {
    if (w->open)
        return ts_fail(err, TS_ERR_STATE, "a pass of the trace has no end");
    if (w->passes == 0 && !first_of_generation)
        return ts_fail(err, TS_ERR_ARG, "the first pass of a trace begins no generation");
    if (slot > TS_TRACE_MAX_SLOT)
        return ts_fail(err, TS_ERR_ARG, "sequence %" PRIu32 " of a trace, expected at most %d",
                       slot, TS_TRACE_MAX_SLOT);
    w->open = true;
    w->first = first_of_generation;
    w->next = 0;
    w->pass.length = 0;
    ts_buf_add(&w->pass, w->first ? "G" : "P", 1);
    add_varint(&w->pass, slot);
    skip_untraced(w);
    return TS_OK;
}

int ts_trace_block(ts_trace_writer *w, uint32_t block, const uint8_t *level, uint8_t rank,
                   ts_error *err) {
    if (!w->open || block != w->next || block >= w->n_layers)
        return ts_fail(err, TS_ERR_STATE, "block %" PRIu32 " of the trace is out of order", block);
    uint32_t width = w->width[block], n = count_ids(level, width, rank);
    if (n > w->k[block])
        return ts_fail(err, TS_ERR_ARG,
                       "block %" PRIu32 " of the trace: %" PRIu32 " ids, expected at most %" PRIu32,
                       block, n, w->k[block]);
    if (ts_trace_choose(width, w->k[block]) == TS_TRACE_DELTA)
        add_delta(&w->pass, n, level, width, rank);
    else
        add_bitset(&w->pass, level, width, rank);
    w->next++;
    skip_untraced(w);
    return TS_OK;
}

int ts_trace_end(ts_trace_writer *w, ts_error *err) {
    if (!w->open || w->next != w->n_layers)
        return ts_fail(err, TS_ERR_STATE, "a pass of the trace ends before block %" PRIu32,
                       w->next);
    if (w->pass.failed)
        return ts_fail_nomem(err, "a pass of the trace", w->pass.length);
    int rc = ts_append_write(w->file, w->pass.data, w->pass.length, err);
    w->open = false;
    if (rc == TS_OK) {
        w->passes++;
        w->generations += w->first;
    }
    return rc;
}

static ts_trace_at where(const ts_trace_writer *w) {
    return (ts_trace_at){ts_append_length(w->file), w->passes, w->generations};
}

int ts_trace_sync(ts_trace_writer *w, ts_trace_at *at, ts_error *err) {
    *at = where(w);
    return ts_append_sync(w->file, err);
}

int ts_trace_finish(ts_trace_writer *w, const char *final, ts_error *err) {
    ts_trace_at at = where(w);
    ts_buf header = {0};
    int rc = w->open ? ts_fail(err, TS_ERR_STATE, "a pass of the trace has no end")
                     : render_header(w, &at, &header, err);
    if (rc == TS_OK)
        rc = ts_append_write_at(w->file, 0, header.data, header.length, err);
    ts_buf_free(&header);
    if (rc < 0) {
        ts_trace_close(w, NULL);
        return rc;
    }
    rc = ts_append_commit(w->file, final, err);
    free_writer(w);
    return rc;
}

int ts_trace_close(ts_trace_writer *w, ts_error *err) {
    if (w == NULL)
        return TS_OK;
    int rc = ts_append_close(w->file, err);
    free_writer(w);
    return rc;
}
