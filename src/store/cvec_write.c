/* Renders a control vector. The header is a few keys and names, so the bytes are put down here;
 * llama.cpp's writer would end the process where memory runs out. GGUF: little-endian, strings and
 * arrays with a u64 length, data aligned to 32 bytes. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/buf.h"
#include "core/file.h"
#include "store/cvec.h"
#include "store/cvec_names.h"
#include "store/inspect_gguf_index.h"

enum { ALIGNMENT = 32, VERSION = 3 };

static void put_u32(ts_buf *b, uint32_t v) {
    ts_buf_add(b, &v, sizeof v);
}

static void put_u64(ts_buf *b, uint64_t v) {
    ts_buf_add(b, &v, sizeof v);
}

static void put_string(ts_buf *b, const char *s) {
    put_u64(b, strlen(s));
    ts_buf_add(b, s, strlen(s));
}

static void put_text(ts_buf *b, const char *key, const char *text) {
    if (!text)
        return;
    put_string(b, key);
    put_u32(b, TS_GGUF_STRING);
    put_string(b, text);
}

static void put_i32(ts_buf *b, const char *key, int32_t value) {
    put_string(b, key);
    put_u32(b, TS_GGUF_I32);
    ts_buf_add(b, &value, sizeof value);
}

static void put_keys(ts_buf *b, const ts_cvec_spec *s, int32_t n) {
    put_text(b, "general.architecture", TS_CVEC_ARCHITECTURE);
    put_text(b, TS_CVEC_MODEL_HINT, s->model_hint);
    put_i32(b, TS_CVEC_LAYER_COUNT, n);
    put_i32(b, TS_CVEC_LAYER_BASE, 1);
    put_text(b, TS_CVEC_EXTRACTION, s->extraction);
    put_text(b, TS_CVEC_MODE, s->mode);
    put_text(b, TS_CVEC_HOOK, s->hook);
    put_text(b, TS_CVEC_MODEL_HASH, s->model_hash);
}

static uint64_t count_keys(const ts_cvec_spec *s) {
    return 3 + (uint64_t)(s->model_hint != NULL) + (s->extraction != NULL) + (s->mode != NULL) +
           (s->hook != NULL) + (s->model_hash != NULL);
}

static int32_t block_of(const ts_cvec_spec *s, int32_t i) {
    return s->block ? s->block[i] : i;
}

static void pad(ts_buf *b) {
    static const char zero[ALIGNMENT];

    ts_buf_add(b, zero, (ALIGNMENT - b->length % ALIGNMENT) % ALIGNMENT);
}

/* Is `d` a direction that can be written? */
static int check_direction(const float *d, int32_t width, int32_t block, ts_error *err) {
    bool zero = true;

    for (int32_t j = 0; j < width; j++) {
        if (!isfinite(d[j]))
            return ts_fail(err, TS_ERR_ARG,
                           "the direction of block %" PRId32 " is not finite: value %" PRId32
                           " is %g",
                           block, j, (double)d[j]);
        zero = zero && d[j] == 0;
    }
    if (zero)
        return ts_fail(err, TS_ERR_ARG, "the direction of block %" PRId32 " is zero", block);
    return TS_OK;
}

/* *first: the first layer that is written. */
static int check_spec(const ts_cvec_spec *s, int32_t *first, ts_error *err) {
    if (s->width < 1 || s->n < 1)
        return ts_fail(err, TS_ERR_ARG,
                       "a control vector needs at least one direction and value, got %" PRId32
                       " of %" PRId32,
                       s->n, s->width);
    if (s->mode && !ts_cvec_mode_known(s->mode))
        return ts_fail(err, TS_ERR_ARG, "unknown steering mode '%.100s'", s->mode);
    for (int32_t i = 0; i < s->n; i++) {
        int32_t before = i ? block_of(s, i - 1) : -1;

        if (block_of(s, i) <= before || block_of(s, i) > TS_CVEC_MAX_BLOCK)
            return ts_fail(err, TS_ERR_ARG,
                           "blocks: expected ascending numbers from 0 to %d, got %" PRId32
                           " after %" PRId32,
                           TS_CVEC_MAX_BLOCK, block_of(s, i), before);
    }
    *first = block_of(s, 0) == 0;
    if (*first == s->n)
        return ts_fail(err, TS_ERR_ARG,
                       "the format has no name for block 0, and there is no other");
    for (int32_t i = *first; i < s->n; i++) {
        int rc =
            check_direction(s->d + (size_t)i * (size_t)s->width, s->width, block_of(s, i), err);

        if (rc)
            return rc;
    }
    return TS_OK;
}

int ts_cvec_render(const ts_cvec_spec *s, char **bytes, size_t *n, bool *dropped, ts_error *err) {
    size_t row = (size_t)s->width * sizeof(float),
           stride = (row + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    ts_buf b = {0};
    char name[32];
    int32_t first = 0;
    int rc = check_spec(s, &first, err);

    *bytes = NULL;
    if (rc)
        return rc;
    ts_buf_add(&b, "GGUF", 4);
    put_u32(&b, VERSION);
    put_u64(&b, (uint64_t)(s->n - first));
    put_u64(&b, count_keys(s));
    put_keys(&b, s, s->n - first);
    for (int32_t i = first; i < s->n; i++) {
        snprintf(name, sizeof name, "direction.%" PRId32, block_of(s, i));
        put_string(&b, name);
        put_u32(&b, 1); /* dimensions */
        put_u64(&b, (uint64_t)s->width);
        put_u32(&b, TS_GGUF_TENSOR_F32);
        put_u64(&b, (uint64_t)(i - first) * stride);
    }
    for (int32_t i = first; i < s->n; i++) {
        pad(&b);
        ts_buf_add(&b, s->d + (size_t)i * (size_t)s->width, row);
    }
    pad(&b);
    if (dropped)
        *dropped = first > 0;
    *n = b.length;
    *bytes = ts_buf_take(&b);
    return *bytes ? TS_OK : ts_fail_nomem(err, "a control vector", (size_t)s->n * stride);
}

int ts_cvec_write(const char *path, const ts_cvec_spec *spec, bool *dropped, ts_error *err) {
    char *bytes;
    size_t n;
    int rc = ts_cvec_render(spec, &bytes, &n, dropped, err);

    if (rc) {
        ts_error_prefix(err, "control vector '%s': ", path);
        return rc;
    }
    rc = ts_file_put(path, bytes, n, err);
    ts_free(bytes);
    return rc;
}
