/* Reads the index of a safetensors file and checks it against the file's size. Refuses headers over
 * 100 MB, overlaps, holes, wrong sizes, unknown data types and names or shapes that are too long.
 */
#include "store/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "store/meta_json.h"
#include "store/meta_stream.h"

enum { MAX_HEADER = 100000000 };

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[] = {
    {"F32", 32},    {"F16", 16}, {"BF16", 16}, {"F64", 64},    {"I64", 64},
    {"I32", 32},    {"I16", 16}, {"I8", 8},    {"U8", 8},      {"BOOL", 8},
    {"U16", 16},    {"U32", 32}, {"U64", 64},  {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"C64", 64}, {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

static int read_dtype(const json_t *entry, ts_st_tensor *t, uint32_t *bits, ts_error *err) {
    const char *name;
    int rc = ts_json_text(entry, "dtype", &name, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(name, dtypes[i].name) != 0)
            continue;
        memcpy(t->dtype, name, strlen(name) + 1);
        *bits = dtypes[i].bits;
        return TS_OK;
    }
    return ts_fail(err, TS_ERR_FORMAT, "unknown dtype '%.16s'", name);
}

/* *bytes: what dtype and shape take */
static int read_shape(const json_t *entry, ts_st_tensor *t, uint32_t bits, uint64_t *bytes,
                      ts_error *err) {
    const json_t *shape = json_object_get(entry, "shape");
    size_t n = json_array_size(shape), limit = sizeof t->shape / sizeof *t->shape;
    uint64_t total = bits;
    if (!json_is_array(shape) || n > limit)
        return ts_fail(err, TS_ERR_FORMAT, "'shape': expected an array of at most %zu numbers",
                       limit);
    t->n_dims = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        int rc = ts_json_element(shape, "shape", i, 0, INT64_MAX, &t->shape[i], err);
        if (rc < 0)
            return rc;
        if (__builtin_mul_overflow(total, (uint64_t)t->shape[i], &total))
            return ts_fail(err, TS_ERR_FORMAT, "'shape' has more elements than a file can hold");
    }
    if (total % 8 != 0)
        return ts_fail(err, TS_ERR_FORMAT, "'shape' of dtype '%s' does not end on a byte",
                       t->dtype);
    *bytes = total / 8;
    return TS_OK;
}

static int read_tensor(const char *name, const json_t *entry, uint64_t data, uint64_t size,
                       ts_st_tensor *t, ts_error *err) {
    uint64_t bytes = 0;
    uint32_t bits = 0;
    json_t *offsets;
    int64_t begin, end;
    *t = (ts_st_tensor){0};
    if (strlen(name) >= sizeof t->name)
        return ts_fail(err, TS_ERR_FORMAT, "the name has %zu bytes, expected at most %zu",
                       strlen(name), sizeof t->name - 1);
    memcpy(t->name, name, strlen(name) + 1);
    int rc = read_dtype(entry, t, &bits, err);
    if (rc == TS_OK)
        rc = read_shape(entry, t, bits, &bytes, err);
    if (rc == TS_OK)
        rc = ts_json_array(entry, "data_offsets", 2, &offsets, err);
    if (rc == TS_OK)
        rc = ts_json_element(offsets, "data_offsets", 0, 0, (int64_t)(size - data), &begin, err);
    if (rc == TS_OK)
        rc = ts_json_element(offsets, "data_offsets", 1, begin, (int64_t)(size - data), &end, err);
    if (rc < 0)
        return rc;
    if ((uint64_t)(end - begin) != bytes)
        return ts_fail(err, TS_ERR_FORMAT,
                       "dtype and shape take %" PRIu64 " bytes, 'data_offsets' have %" PRId64,
                       bytes, end - begin);
    t->begin = data + (uint64_t)begin;
    t->end = data + (uint64_t)end;
    return TS_OK;
}

static int by_offset(const void *a, const void *b) {
    const ts_st_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Sorted by offset the tensors must fill the data section without gap or overlap. */
static int check_cover(ts_st_index *index, uint64_t data, uint64_t size, ts_error *err) {
    uint64_t at = data;
    if (index->n > 1)
        qsort(index->tensors, index->n, sizeof *index->tensors, by_offset);
    for (size_t i = 0; i < index->n; i++) {
        const ts_st_tensor *t = &index->tensors[i];
        if (t->begin != at)
            return ts_fail(err, TS_ERR_FORMAT,
                           "tensor '%s' begins at byte %" PRIu64 ", expected %" PRIu64 ": %s",
                           t->name, t->begin, at,
                           t->begin < at ? "two overlap" : "there is a hole");
        at = t->end;
    }
    if (at != size)
        return ts_fail(err, TS_ERR_FORMAT,
                       "the tensors end at byte %" PRIu64 ", the file at %" PRIu64, at, size);
    return TS_OK;
}

static int read_metadata(const json_t *v, ts_st_index *index, ts_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(v))
        return ts_fail(err, TS_ERR_FORMAT, "'__metadata__' is not an object");
    json_object_foreach((json_t *)v, key, value) {
        if (!json_is_string(value))
            return ts_fail(err, TS_ERR_FORMAT, "'__metadata__': expected strings only");
    }
    index->metadata = json_dumps(v, JSON_COMPACT);
    return index->metadata ? TS_OK : ts_fail_nomem(err, "meta data", json_object_size(v));
}

static int read_entries(json_t *header, uint64_t data, uint64_t size, ts_st_index *index,
                        ts_error *err) {
    const char *name;
    json_t *entry;
    int rc = TS_OK;
    index->tensors = ts_calloc(json_object_size(header), sizeof *index->tensors);
    if (index->tensors == NULL)
        return ts_fail_nomem(err, "a tensor index", json_object_size(header));
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            rc = read_metadata(entry, index, err);
        else
            rc = read_tensor(name, entry, data, size, &index->tensors[index->n++], err);
        if (rc < 0) {
            ts_error_prefix(err, "tensor '%.64s': ", name);
            return rc;
        }
    }
    return check_cover(index, data, size, err);
}

/* The length, then the JSON text, both checked against the file before memory is taken. */
static int read_header(FILE *f, uint64_t size, char **text, uint64_t *length, ts_error *err) {
    unsigned char prefix[8];
    int rc = ts_stream_read(f, prefix, sizeof prefix, err);
    if (rc < 0)
        return rc;
    *length = 0;
    for (int i = 7; i >= 0; i--)
        *length = *length << 8 | prefix[i];
    if (*length > MAX_HEADER)
        return ts_fail(err, TS_ERR_FORMAT, "its header has %" PRIu64 " bytes, expected at most %d",
                       *length, MAX_HEADER);
    if (*length > size - 8)
        return ts_fail(err, TS_ERR_FORMAT,
                       "its header has %" PRIu64 " bytes, the file only %" PRIu64, *length, size);
    *text = ts_malloc((size_t)*length + 1);
    if (*text == NULL)
        return ts_fail_nomem(err, "a header", (size_t)*length);
    return ts_stream_read(f, *text, (size_t)*length, err);
}

int ts_st_read_index(const char *path, ts_st_index *out, ts_error *err) {
    char *text = NULL;
    json_t *header = NULL;
    uint64_t size, length = 0;
    FILE *f;
    *out = (ts_st_index){0};
    int rc = ts_stream_open(path, &f, &size, err);
    if (rc < 0)
        return rc;
    rc = read_header(f, size, &text, &length, err);
    if (rc == TS_OK)
        rc = ts_json_parse(text, (size_t)length, &header, err);
    if (rc == TS_OK)
        rc = read_entries(header, 8 + length, size, out, err);
    if (rc < 0) {
        ts_error_prefix(err, "'%s' is not a readable safetensors file: ", path);
        ts_st_index_free(out);
    }
    json_decref(header);
    ts_free(text);
    fclose(f);
    return rc;
}

const ts_st_tensor *ts_st_find(const ts_st_index *index, const char *name) {
    for (size_t i = 0; i < index->n; i++)
        if (strcmp(index->tensors[i].name, name) == 0)
            return &index->tensors[i];
    return NULL;
}

void ts_st_index_free(ts_st_index *index) {
    ts_free(index->tensors);
    free(index->metadata); /* jansson's */
    *index = (ts_st_index){0};
}
