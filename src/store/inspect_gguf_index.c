/* Walks a GGUF header, once and in file order. Refuses versions before 2, counts and lengths that
 * the file has no room for, unknown types, nested arrays and data that lies outside the file.
 * llama.cpp's own reader is not used here: it tells its reasons to a process-wide log and not to
 * its caller. */
#include "store/inspect_gguf_index.h"

#include <inttypes.h>
#include <string.h>

#include "core/mem.h"
#include "store/meta_stream.h"

enum { MAX_KEPT = 256, MAX_TEXT = 1000, MAX_NAME = 65535 };

typedef struct walker {
    FILE *f;
    uint64_t at, size;
    uint64_t alignment;
} walker;

static int fail_at(const walker *w, ts_error *err, const char *what) {
    return ts_fail_at(err, TS_ERR_FORMAT, (int64_t)w->at, "%s at byte %" PRIu64 " of %" PRIu64,
                      what, w->at, w->size);
}

static int take(walker *w, void *bytes, uint64_t n, ts_error *err) {
    if (n > w->size - w->at)
        return fail_at(w, err, "it ends inside its header, cut short");
    int rc = ts_stream_read(w->f, bytes, (size_t)n, err);
    w->at += n;
    return rc;
}

static int skip(walker *w, uint64_t n, ts_error *err) {
    char scratch[512];
    if (n > w->size - w->at)
        return fail_at(w, err, "it ends inside its header, cut short");
    if (n <= sizeof scratch) /* a vocabulary has many short strings: no seek for each */
        return take(w, scratch, n, err);
    if (fseeko(w->f, (off_t)n, SEEK_CUR) != 0)
        return ts_fail_errno(err, TS_ERR_IO, "cannot read");
    w->at += n;
    return TS_OK;
}

/* A length-prefixed string; what does not fit `out` is dropped, *length is the whole. */
static int take_string(walker *w, char *out, size_t size, uint64_t *length, ts_error *err) {
    uint64_t n = 0;
    int rc = take(w, &n, 8, err);
    if (rc < 0)
        return rc;
    if (n > w->size - w->at)
        return fail_at(w, err, "a string is longer than the file");
    size_t keep = n < size ? (size_t)n : size - 1;
    rc = take(w, out, keep, err);
    out[rc == TS_OK ? keep : 0] = '\0';
    *length = n;
    return rc == TS_OK ? skip(w, n - keep, err) : rc;
}

static uint64_t type_bytes(uint32_t type) {
    static const uint8_t bytes[TS_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < TS_GGUF_TYPE_COUNT ? bytes[type] : 0;
}

static int skip_array(walker *w, ts_error *err) {
    uint32_t type = 0;
    uint64_t n = 0, ignored;
    char scratch[2];
    int rc = take(w, &type, 4, err);
    if (rc == TS_OK)
        rc = take(w, &n, 8, err);
    if (rc < 0)
        return rc;
    uint64_t bytes = type_bytes(type);
    if (bytes == 0 && type != TS_GGUF_STRING)
        return fail_at(w, err, "an array of an unknown type");
    if (n > (w->size - w->at) / (bytes ? bytes : 8))
        return fail_at(w, err, "an array has more elements than the file has room for");
    if (bytes > 0)
        return skip(w, n * bytes, err);
    for (uint64_t i = 0; rc == TS_OK && i < n; i++)
        rc = take_string(w, scratch, sizeof scratch, &ignored, err);
    return rc;
}

static void decode(ts_gguf_key *k, const unsigned char raw[8]) {
    uint64_t u = 0;
    for (uint64_t i = type_bytes(k->type); i > 0; i--)
        u = u << 8 | raw[i - 1];
    float f;
    uint32_t low = (uint32_t)u;
    switch (k->type) {
    case TS_GGUF_I8:
        k->integer = (int8_t)u;
        break;
    case TS_GGUF_I16:
        k->integer = (int16_t)u;
        break;
    case TS_GGUF_I32:
        k->integer = (int32_t)u;
        break;
    case TS_GGUF_I64:
        memcpy(&k->integer, &u, sizeof u);
        break;
    case TS_GGUF_F32:
        memcpy(&f, &low, sizeof f);
        k->real = (double)f;
        break;
    case TS_GGUF_F64:
        memcpy(&k->real, &u, sizeof u);
        break;
    default:
        k->integer = u > INT64_MAX ? INT64_MAX : (int64_t)u;
    }
}

static bool wanted(const char *name) {
    static const char *const prefixes[] = {"general.", "controlvector.", "turbospark.", "glp.",
                                           "dspark."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static bool declares_intervention(const char *name) {
    return strcmp(name, "glp.mode") == 0 || strncmp(name, "dspark.", 7) == 0;
}

/* A scalar or string into k. */
static int take_value(walker *w, ts_gguf_key *k, ts_error *err) {
    unsigned char raw[8] = {0};
    char text[MAX_TEXT + 1];
    uint64_t length;
    if (k->type == TS_GGUF_STRING) {
        int rc = take_string(w, text, sizeof text, &length, err);
        if (rc < 0)
            return rc;
        k->text = ts_strdup(text);
        return k->text ? TS_OK : ts_fail_nomem(err, "a key", sizeof text);
    }
    uint64_t bytes = type_bytes(k->type);
    if (bytes == 0)
        return fail_at(w, err, "a key of an unknown type");
    int rc = take(w, raw, bytes, err);
    if (rc == TS_OK)
        decode(k, raw);
    return rc;
}

static int take_key(walker *w, ts_gguf_index *g, ts_error *err) {
    ts_gguf_key k = {0};
    uint64_t length;
    uint32_t type = 0;
    int rc = take_string(w, k.name, sizeof k.name, &length, err);
    if (rc == TS_OK && (length == 0 || length > MAX_NAME))
        return fail_at(w, err, "a key's name is empty or too long");
    if (rc == TS_OK)
        rc = take(w, &type, 4, err);
    if (rc < 0)
        return rc;
    if (type >= TS_GGUF_TYPE_COUNT)
        return fail_at(w, err, "a key of an unknown type");
    if (g->intervention[0] == '\0' && declares_intervention(k.name))
        memcpy(g->intervention, k.name, sizeof g->intervention);
    k.type = (enum ts_gguf_type)type;
    rc = type == TS_GGUF_ARRAY ? skip_array(w, err) : take_value(w, &k, err);
    if (rc == TS_OK && strcmp(k.name, "general.alignment") == 0) {
        if (k.type != TS_GGUF_U32 || k.integer == 0 || (k.integer & (k.integer - 1)) != 0)
            rc = fail_at(w, err, "'general.alignment' is not a u32 power of two");
        w->alignment = (uint64_t)k.integer;
    }
    if (rc == TS_OK && wanted(k.name) && length < sizeof k.name && g->n_kept < MAX_KEPT)
        g->keys[g->n_kept++] = k;
    else
        ts_free(k.text);
    return rc;
}

static int take_tensor(walker *w, ts_gguf_tensor *t, ts_error *err) {
    uint64_t length;
    uint64_t total = 1;
    *t = (ts_gguf_tensor){.shape = {1, 1, 1, 1}};
    int rc = take_string(w, t->name, sizeof t->name, &length, err);
    if (rc == TS_OK && length >= sizeof t->name)
        return fail_at(w, err, "a tensor's name is too long");
    if (rc == TS_OK)
        rc = take(w, &t->n_dims, 4, err);
    if (rc == TS_OK && t->n_dims > 4)
        return fail_at(w, err, "a tensor has more than 4 dimensions");
    for (uint32_t i = 0; rc == TS_OK && i < t->n_dims; i++) {
        rc = take(w, &t->shape[i], 8, err);
        if (rc == TS_OK &&
            (t->shape[i] < 0 || __builtin_mul_overflow(total, (uint64_t)t->shape[i], &total)))
            return fail_at(w, err, "a tensor's shape is out of range");
    }
    if (rc == TS_OK)
        rc = take(w, &t->type, 4, err);
    return rc == TS_OK ? take(w, &t->begin, 8, err) : rc;
}

/* `t->begin` becomes absolute; of other types than F32 only the start is checked. */
static int place_tensor(const walker *w, uint64_t data, ts_gguf_tensor *t, ts_error *err) {
    uint64_t bytes = 0;
    if (t->type == TS_GGUF_TENSOR_F32) {
        bytes = 4;
        for (uint32_t i = 0; i < t->n_dims; i++)
            if (__builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes))
                bytes = UINT64_MAX;
    }
    if (data > w->size || t->begin > w->size - data || bytes > w->size - data - t->begin)
        return ts_fail(err, TS_ERR_FORMAT,
                       "its tensor '%s' lies outside the file of %" PRIu64
                       " bytes, which was cut short or is damaged",
                       t->name, w->size);
    t->begin += data;
    return TS_OK;
}

/* Of a model only the highest offset is kept: the tensor that a file cut short lacks first. */
static int take_tensors(walker *w, ts_gguf_index *g, bool keep, ts_error *err) {
    ts_gguf_tensor t = {0}, last = {0};
    int rc = TS_OK;
    if (keep)
        g->tensors = ts_calloc((size_t)g->n_tensors, sizeof *g->tensors);
    if (keep && g->tensors == NULL)
        return ts_fail_nomem(err, "a tensor index", (size_t)g->n_tensors * sizeof *g->tensors);
    for (uint64_t i = 0; rc == TS_OK && i < g->n_tensors; i++) {
        rc = take_tensor(w, &t, err);
        if (rc == TS_OK && keep)
            g->tensors[i] = t;
        if (t.begin >= last.begin)
            last = t;
    }
    uint64_t data = w->at + (w->alignment - w->at % w->alignment) % w->alignment;
    for (uint64_t i = 0; rc == TS_OK && keep && i < g->n_tensors; i++)
        rc = place_tensor(w, data, &g->tensors[i], err);
    if (rc == TS_OK && !keep && g->n_tensors > 0)
        rc = place_tensor(w, data, &last, err);
    return rc;
}

static int take_counts(walker *w, ts_gguf_index *g, ts_error *err) {
    char magic[4];
    int rc = take(w, magic, 4, err);
    if (rc == TS_OK && memcmp(magic, "GGUF", 4) != 0)
        return ts_fail(err, TS_ERR_FORMAT, "it does not begin with 'GGUF'");
    if (rc == TS_OK)
        rc = take(w, &g->version, 4, err);
    if (rc == TS_OK && (g->version < 2 || g->version > 3))
        return ts_fail(err, TS_ERR_FORMAT, "GGUF version %" PRIu32 ", expected 2 or 3", g->version);
    if (rc == TS_OK)
        rc = take(w, &g->n_tensors, 8, err);
    if (rc == TS_OK)
        rc = take(w, &g->n_keys, 8, err);
    if (rc < 0)
        return rc;
    /* a key takes at least 14 bytes, a tensor 24 */
    uint64_t left = w->size - w->at;
    if (g->n_keys > left / 14 || g->n_tensors > (left - g->n_keys * 14) / 24)
        return ts_fail(err, TS_ERR_FORMAT,
                       "%" PRIu64 " keys and %" PRIu64 " tensors do not fit a file of %" PRIu64
                       " bytes",
                       g->n_keys, g->n_tensors, w->size);
    return TS_OK;
}

int ts_gguf_index_read(const char *path, ts_gguf_index *out, ts_error *err) {
    walker w = {.alignment = 32};
    *out = (ts_gguf_index){0};
    int rc = ts_stream_open(path, &w.f, &w.size, err);
    if (rc < 0)
        return rc;
    out->size = w.size;
    out->keys = ts_calloc(MAX_KEPT, sizeof *out->keys);
    rc = out->keys ? take_counts(&w, out, err)
                   : ts_fail_nomem(err, "keys", MAX_KEPT * sizeof *out->keys);
    for (uint64_t i = 0; rc == TS_OK && i < out->n_keys; i++)
        rc = take_key(&w, out, err);
    if (rc == TS_OK) {
        const char *architecture = ts_gguf_text(out, "general.architecture");
        rc = take_tensors(&w, out, architecture && strcmp(architecture, "controlvector") == 0, err);
    }
    fclose(w.f);
    if (rc < 0) {
        ts_error_prefix(err, "'%s' is not a readable GGUF file: ", path);
        ts_gguf_index_free(out);
    }
    return rc;
}

const ts_gguf_key *ts_gguf_find(const ts_gguf_index *g, const char *name) {
    for (size_t i = 0; i < g->n_kept; i++)
        if (strcmp(g->keys[i].name, name) == 0)
            return &g->keys[i];
    return NULL;
}

const char *ts_gguf_text(const ts_gguf_index *g, const char *name) {
    const ts_gguf_key *k = ts_gguf_find(g, name);
    return k ? k->text : NULL;
}

void ts_gguf_index_free(ts_gguf_index *g) {
    for (size_t i = 0; i < g->n_kept; i++)
        ts_free(g->keys[i].text);
    ts_free(g->keys);
    ts_free(g->tensors);
    *g = (ts_gguf_index){0};
}
