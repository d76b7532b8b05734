/* Owns reading a trace in the memory of one pass. Refuses ids out of order or range, sets larger
 * than k, bits past the width, and a file that is shorter or longer than its header says. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "store/meta_json.h"
#include "store/meta_stream.h"
#include "store/trace_internal.h"

enum { MAX_LAYERS = 2048, MAX_WIDTH = 1 << 20 };

struct ts_trace_reader {
    FILE *file;
    char *path;
    ts_trace_info info;
    uint64_t size;
    off_t first;                /* where the passes begin */
    uint64_t pass, generations; /* read so far */
    uint32_t *ids;              /* [capacity] */
    size_t n_ids, capacity;
    size_t *begin;     /* [n_layers + 1] */
    const char *fault; /* the first of the pass at hand */
};

/* ---- the header */

static int get_list(const json_t *v, const char *key, uint32_t n, uint32_t **out, ts_error *err) {
    json_t *array;
    int rc = ts_json_array(v, key, n, &array, err);
    if (rc < 0)
        return rc;
    *out = ts_calloc(n, sizeof **out);
    if (*out == NULL)
        return ts_fail_nomem(err, key, n * sizeof **out);
    for (uint32_t i = 0; rc == TS_OK && i < n; i++) {
        int64_t value = 0;
        rc = ts_json_element(array, key, i, 0, MAX_WIDTH, &value, err);
        (*out)[i] = (uint32_t)value;
    }
    return rc;
}

static int check_encoding(const json_t *v, const ts_trace_info *t, ts_error *err) {
    json_t *array;
    int rc = ts_json_array(v, "encoding", t->n_layers, &array, err);
    for (uint32_t i = 0; rc == TS_OK && i < t->n_layers; i++) {
        const char *found = json_string_value(json_array_get(array, i));
        const char *expected = ts_trace_encoding_name(ts_trace_choose(t->width[i], t->k[i]));
        if (t->k[i] > t->width[i])
            rc = ts_fail(err, TS_ERR_FORMAT,
                         "block %" PRIu32 ": k is %" PRIu32 ", its width %" PRIu32, i, t->k[i],
                         t->width[i]);
        else if (found == NULL || strcmp(found, expected) != 0)
            rc = ts_fail(err, TS_ERR_FORMAT,
                         "'encoding' element %" PRIu32 ": expected '%s', got '%.20s'", i, expected,
                         found ? found : "nothing");
    }
    return rc;
}

static int get_lengths(const json_t *v, ts_trace_reader *r, ts_error *err) {
    int64_t n[3];
    static const char *const keys[] = {"passes", "generations", "bytes"};
    for (int i = 0; i < 3; i++) {
        int rc = ts_json_int(v, keys[i], 0, INT64_MAX, &n[i], err);
        if (rc < 0)
            return rc;
    }
    if (n[2] == 0)
        return ts_fail(err, TS_ERR_FORMAT, "it was not finished");
    if ((uint64_t)n[2] != r->size)
        return ts_fail(err, TS_ERR_FORMAT, "expected %" PRId64 " bytes, found %" PRIu64, n[2],
                       r->size);
    r->info.passes = (uint64_t)n[0];
    r->info.generations = (uint64_t)n[1];
    r->info.bytes = (uint64_t)n[2];
    return TS_OK;
}

static int get_header(const json_t *v, ts_trace_reader *r, ts_error *err) {
    ts_trace_info *t = &r->info;
    const char *model;
    int64_t version, layers = 0;
    int rc = ts_json_int(v, "turbospark_trace", 1, 1, &version, err);
    if (rc == TS_OK)
        rc = ts_json_text(v, "model", &model, err);
    if (rc == TS_OK && strlen(model) > TS_TRACE_MAX_MODEL)
        rc = ts_fail(err, TS_ERR_FORMAT, "'model' is longer than %d bytes", TS_TRACE_MAX_MODEL);
    if (rc == TS_OK)
        rc = ts_json_int(v, "layers", 1, MAX_LAYERS, &layers, err);
    if (rc < 0)
        return rc;
    memcpy(t->model, model, strlen(model) + 1);
    t->n_layers = (uint32_t)layers;
    rc = get_list(v, "width", t->n_layers, &t->width, err);
    if (rc == TS_OK)
        rc = get_list(v, "k", t->n_layers, &t->k, err);
    if (rc == TS_OK)
        rc = check_encoding(v, t, err);
    return rc == TS_OK ? get_lengths(v, r, err) : rc;
}

static int read_line(FILE *f, ts_buf *b, ts_error *err) {
    enum { LIMIT = 1 << 20 };
    char chunk[4096];
    while (b->length < LIMIT && fgets(chunk, sizeof chunk, f) != NULL) {
        size_t n = strlen(chunk);
        ts_buf_add(b, chunk, n);
        if (n == 0 || chunk[n - 1] == '\n')
            break;
    }
    if (b->failed)
        return ts_fail_nomem(err, "the header of a trace", b->length);
    if (ferror(f))
        return ts_fail_errno(err, TS_ERR_IO, "cannot read");
    if (b->length == 0 || b->data[b->length - 1] != '\n')
        return ts_fail(err, TS_ERR_FORMAT, "not a trace: it has no header line");
    return TS_OK;
}

static int read_header(ts_trace_reader *r, ts_error *err) {
    ts_buf b = {0};
    json_t *v = NULL;
    int rc = read_line(r->file, &b, err);
    if (rc == TS_OK)
        rc = ts_json_parse(b.data, b.length, &v, err);
    if (rc == TS_OK)
        rc = get_header(v, r, err);
    r->first = ftello(r->file);
    json_decref(v);
    ts_buf_free(&b);
    if (rc < 0)
        return rc;
    r->begin = ts_calloc((size_t)r->info.n_layers + 1, sizeof *r->begin);
    return r->begin ? TS_OK : ts_fail_nomem(err, "a trace", r->info.n_layers * sizeof *r->begin);
}

int ts_trace_read(const char *path, ts_trace_reader **out, ts_error *err) {
    ts_trace_reader *r = ts_calloc(1, sizeof *r);
    *out = NULL;
    if (r == NULL)
        return ts_fail_nomem(err, path, sizeof *r);
    r->path = ts_strdup(path);
    int rc = r->path ? ts_stream_open(path, &r->file, &r->size, err)
                     : ts_fail_nomem(err, path, strlen(path));
    if (rc == TS_OK && (rc = read_header(r, err)) < 0)
        ts_error_prefix(err, "'%s': ", path);
    if (rc < 0)
        ts_trace_read_close(r);
    else
        *out = r;
    return rc;
}

const ts_trace_info *ts_trace_read_info(const ts_trace_reader *r) {
    return &r->info;
}

void ts_trace_read_close(ts_trace_reader *r) {
    if (r == NULL)
        return;
    if (r->file != NULL)
        fclose(r->file);
    ts_free(r->path);
    ts_free(r->info.width);
    ts_free(r->info.k);
    ts_free(r->ids);
    ts_free(r->begin);
    ts_free(r);
}

/* ---- a pass */

static void fault(ts_trace_reader *r, const char *what) {
    if (r->fault == NULL)
        r->fault = what;
}

static int get_byte(ts_trace_reader *r) {
    int c = r->fault ? EOF : getc_unlocked(r->file);
    if (c == EOF)
        fault(r, "the file ends too early");
    return c;
}

/* At most `max`; 0 after a fault. */
static uint32_t get_varint(ts_trace_reader *r, uint32_t max) {
    uint64_t v = 0;
    int c = 0x80;
    for (int shift = 0; c & 0x80 && !r->fault; shift += 7) {
        c = get_byte(r);
        if (c == EOF)
            return 0;
        v |= (uint64_t)(c & 0x7f) << shift;
        if (shift > 28 || v > max)
            fault(r, "a number is out of range");
    }
    return r->fault ? 0 : (uint32_t)v;
}

static void add_id(ts_trace_reader *r, uint32_t id) {
    if (r->n_ids == r->capacity) {
        size_t capacity = r->capacity ? r->capacity * 2 : 1024;
        uint32_t *grown = ts_realloc(r->ids, capacity, sizeof *grown);
        if (grown == NULL) {
            fault(r, "no memory for its ids");
            return;
        }
        r->ids = grown;
        r->capacity = capacity;
    }
    r->ids[r->n_ids++] = id;
}

static void get_delta(ts_trace_reader *r, uint32_t width, uint32_t k) {
    uint32_t n = get_varint(r, k), least = 0;
    for (uint32_t i = 0; i < n && !r->fault; i++) {
        if (least == width) {
            fault(r, "an id is past the width");
            return;
        }
        uint32_t id = least + get_varint(r, width - 1 - least);
        add_id(r, id);
        least = id + 1;
    }
}

static void get_bitset(ts_trace_reader *r, uint32_t width, uint32_t k) {
    size_t before = r->n_ids;
    for (uint32_t i = 0; i < width && !r->fault; i += 8) {
        int c = get_byte(r);
        for (uint32_t j = 0; c > 0 && j < 8; j++) {
            if (!(c >> j & 1))
                continue;
            if (i + j >= width)
                fault(r, "an id is past the width");
            add_id(r, i + j);
        }
    }
    if (r->n_ids - before > k)
        fault(r, "a block has more than k ids");
}

static void get_pass(ts_trace_reader *r, ts_trace_pass *out) {
    const ts_trace_info *t = &r->info;
    int tag = get_byte(r);
    if (tag != 'G' && tag != 'P')
        fault(r, "it does not begin as a pass");
    out->first = tag == 'G';
    out->slot = get_varint(r, TS_TRACE_MAX_SLOT);
    r->n_ids = 0;
    for (uint32_t i = 0; i < t->n_layers && !r->fault; i++) {
        enum ts_trace_encoding e = ts_trace_choose(t->width[i], t->k[i]);
        r->begin[i] = r->n_ids;
        if (e == TS_TRACE_DELTA)
            get_delta(r, t->width[i], t->k[i]);
        else if (e == TS_TRACE_BITSET)
            get_bitset(r, t->width[i], t->k[i]);
    }
    r->begin[t->n_layers] = r->n_ids;
    out->ids = r->ids;
    out->begin = r->begin;
}

static int check_end(const ts_trace_reader *r, ts_error *err) {
    if (r->generations != r->info.generations)
        return ts_fail(err, TS_ERR_FORMAT, "'%s': expected %" PRIu64 " generations, found %" PRIu64,
                       r->path, r->info.generations, r->generations);
    if (getc_unlocked(r->file) != EOF)
        return ts_fail(err, TS_ERR_FORMAT, "'%s': something follows its %" PRIu64 " passes",
                       r->path, r->info.passes);
    return TS_OK;
}

int ts_trace_next(ts_trace_reader *r, ts_trace_pass *out, bool *got, ts_error *err) {
    *got = false;
    if (r->pass == r->info.passes)
        return check_end(r, err);
    get_pass(r, out);
    if (r->fault != NULL && ferror(r->file))
        return ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", r->path);
    if (r->fault != NULL)
        return ts_fail(err, TS_ERR_FORMAT, "'%s': pass %" PRIu64 " of %" PRIu64 ": %s", r->path,
                       r->pass, r->info.passes, r->fault);
    r->pass++;
    r->generations += out->first;
    *got = true;
    return TS_OK;
}

int ts_trace_rewind(ts_trace_reader *r, ts_error *err) {
    r->pass = r->generations = 0;
    r->fault = NULL;
    clearerr(r->file);
    return fseeko(r->file, r->first, SEEK_SET)
               ? ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", r->path)
               : TS_OK;
}
