/* Owns the census' checkpoint. Refuses another plan, another shape and every damaged byte (a hash
 * at the end, and what must add up). */
#include "instrument/ffn_checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "store/census_sink.h"
#include "store/fingerprint.h"
#include "store/meta_stream.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "numbers are written as they lie in memory");
_Static_assert(sizeof(ts_ffn_progress) == 8 * sizeof(uint64_t), "eight counters");

#define MAGIC "TSFFNCKP"
enum { VERSION = 1, PLAN = 64, HASH = 32 };

/* ---- writing */

static void put_u32(ts_sink *s, uint32_t v) {
    ts_sink_bytes(s, &v, sizeof v);
}

static void put_u64(ts_sink *s, uint64_t v) {
    ts_sink_bytes(s, &v, sizeof v);
}

static void put_hist(ts_sink *s, const ts_hist *h) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < TS_HIST_N_BINS; b++)
        n += h->count[b] > 0;
    put_u64(s, h->n_zero);
    put_u64(s, h->n_nonfinite);
    put_u32(s, n);
    for (uint32_t b = 0; b < TS_HIST_N_BINS; b++) {
        if (h->count[b] == 0)
            continue;
        put_u32(s, b);
        put_u64(s, h->count[b]);
        put_u64(s, h->mantissa[b]);
    }
}

static void put_block(ts_sink *s, const ts_ffn_block *b) {
    put_u32(s, b->width);
    put_u64(s, b->n_rows);
    put_u64(s, b->n_pairs);
    ts_sink_bytes(s, b->hits, sizeof b->hits);
    ts_sink_bytes(s, b->top_p, sizeof b->top_p);
    ts_sink_bytes(s, &b->max_abs, sizeof b->max_abs);
    put_u64(s, b->nonfinite.row);
    put_u32(s, b->nonfinite.neuron);
    put_hist(s, &b->hist);
    ts_sink_bytes(s, b->mass, b->width * sizeof *b->mass);
}

static void put_stats(ts_sink *s, const ts_ffn_stats *stats) {
    put_u32(s, stats ? stats->n_blocks : 0);
    if (stats == NULL)
        return;
    put_u64(s, stats->decode_passes);
    put_u64(s, stats->prefill_passes);
    put_u64(s, stats->overlap_pairs);
    for (uint32_t i = 0; i < stats->n_blocks; i++)
        put_block(s, &stats->blocks[i]);
}

static void put_layer(ts_sink *s, const ts_expert_layer *l) {
    put_u32(s, l->n_experts);
    if (l->n_experts == 0)
        return;
    put_u32(s, l->top_k);
    put_u32(s, l->width);
    ts_sink_bytes(s, l->rows, l->n_experts * sizeof *l->rows);
    ts_sink_bytes(s, l->bucket_count, sizeof l->bucket_count);
    for (uint32_t e = 0; e < l->n_experts; e++)
        if (l->rows[e] > 0)
            ts_sink_bytes(s, l->mass + (size_t)e * l->width, l->width * sizeof *l->mass);
}

static void put_experts(ts_sink *s, const ts_experts *x) {
    put_u64(s, x->decode_passes);
    put_u32(s, x->n_layers);
    for (uint32_t i = 0; i < x->n_layers; i++)
        put_layer(s, &x->layers[i]);
}

int ts_ffn_checkpoint_write(const char *path, const char *plan, const ts_ffn_stats *dense,
                            const ts_ffn_stats *shared, const ts_experts *experts,
                            const ts_ffn_progress *progress, ts_error *err) {
    size_t n = strlen(plan);
    char hash[HASH + 1];
    ts_sink *s;
    if (n > PLAN)
        return ts_fail(err, TS_ERR_ARG, "a plan of %zu bytes, expected at most %d", n, PLAN);
    int rc = ts_sink_open(path, &s, err);
    if (rc < 0)
        return rc;
    ts_sink_text(s, MAGIC);
    put_u32(s, VERSION);
    put_u32(s, (uint32_t)n);
    ts_sink_text(s, plan);
    ts_sink_bytes(s, progress, sizeof *progress);
    put_stats(s, dense);
    put_stats(s, shared);
    if (experts)
        put_experts(s, experts);
    ts_sink_digest(s, hash);
    ts_sink_bytes(s, hash, HASH);
    return ts_sink_close(s);
}

/* ---- reading */

typedef struct reading {
    FILE *file;
    ts_error *err;
    int rc; /* the first failure */
} reading;

static void get(reading *r, void *out, size_t n) {
    if (r->rc == TS_OK)
        r->rc = ts_stream_read(r->file, out, n, r->err);
    if (r->rc < 0)
        memset(out, 0, n);
}

static uint32_t get_u32(reading *r) {
    uint32_t v;
    get(r, &v, sizeof v);
    return v;
}

static uint64_t get_u64(reading *r) {
    uint64_t v;
    get(r, &v, sizeof v);
    return v;
}

static void wrong(reading *r, const char *what) {
    if (r->rc == TS_OK)
        r->rc = ts_fail(r->err, TS_ERR_FORMAT, "%s", what);
}

static void other(reading *r, const char *what) {
    if (r->rc == TS_OK)
        r->rc = ts_fail(r->err, TS_ERR_STATE, "it belongs to another %s", what);
}

static void get_hist(reading *r, ts_hist *h, uint64_t expected) {
    uint64_t sum = 0;
    memset(h, 0, sizeof *h);
    h->n_zero = get_u64(r);
    h->n_nonfinite = get_u64(r);
    uint32_t n = get_u32(r), least = 0;
    if (h->n_zero > expected || h->n_nonfinite > expected - h->n_zero)
        wrong(r, "its counts do not add up");
    for (uint32_t i = 0; r->rc == TS_OK && i < n; i++) {
        uint32_t b = get_u32(r);
        uint64_t count = get_u64(r), mantissa = get_u64(r);
        if (b < least || b >= TS_HIST_N_BINS || count > expected - sum || mantissa >> 23 > count) {
            wrong(r, "its histogram is not one");
            return;
        }
        h->count[b] = count;
        h->mantissa[b] = mantissa;
        sum += count;
        least = b + 1;
    }
    if (sum + h->n_zero + h->n_nonfinite != expected)
        wrong(r, "its counts do not add up");
}

static void get_block(reading *r, ts_ffn_block *b) {
    if (get_u32(r) != b->width)
        other(r, "width of the FFN");
    b->n_rows = get_u64(r);
    b->n_pairs = get_u64(r);
    get(r, b->hits, sizeof b->hits);
    get(r, b->top_p, sizeof b->top_p);
    get(r, &b->max_abs, sizeof b->max_abs);
    b->nonfinite.row = get_u64(r);
    b->nonfinite.neuron = get_u32(r);
    if (b->n_rows > TS_HIST_MAX_COUNT / (b->width ? b->width : 1))
        wrong(r, "it has too many rows");
    else
        get_hist(r, &b->hist, b->n_rows * b->width);
    get(r, b->mass, b->width * sizeof *b->mass);
    if (!isfinite(b->max_abs) || b->max_abs < 0.0f)
        wrong(r, "a largest magnitude is not one");
    for (uint32_t i = 0; i < b->width; i++)
        if (!isfinite(b->mass[i]) || b->mass[i] < 0.0)
            wrong(r, "a mass is not one");
}

static void get_stats(reading *r, ts_ffn_stats *stats) {
    if (get_u32(r) != (stats ? stats->n_blocks : 0))
        other(r, "number of blocks");
    if (stats == NULL || r->rc < 0)
        return;
    stats->decode_passes = get_u64(r);
    stats->prefill_passes = get_u64(r);
    stats->overlap_pairs = get_u64(r);
    for (uint32_t i = 0; r->rc == TS_OK && i < stats->n_blocks; i++)
        get_block(r, &stats->blocks[i]);
}

/* As the other accumulators: of the shape that the caller made. */
static void get_layer(reading *r, ts_expert_layer *l) {
    uint32_t n = get_u32(r);
    if (n != l->n_experts || (n && (get_u32(r) != l->top_k || get_u32(r) != l->width))) {
        other(r, "shape of the experts");
        return;
    }
    if (n == 0)
        return;
    get(r, l->rows, n * sizeof *l->rows);
    get(r, l->bucket_count, sizeof l->bucket_count);
    for (uint32_t e = 0; r->rc == TS_OK && e < n; e++)
        if (l->rows[e] > 0)
            get(r, l->mass + (size_t)e * l->width, l->width * sizeof *l->mass);
}

static void get_experts(reading *r, ts_experts *x) {
    x->decode_passes = get_u64(r);
    if (get_u32(r) != x->n_layers)
        other(r, "number of blocks");
    for (uint32_t i = 0; r->rc == TS_OK && i < x->n_layers; i++)
        get_layer(r, &x->layers[i]);
    if (r->rc == TS_OK)
        r->rc = ts_experts_check(x, r->err);
}

static void get_head(reading *r, const char *plan) {
    char magic[sizeof MAGIC - 1], stored[PLAN];
    get(r, magic, sizeof magic);
    if (memcmp(magic, MAGIC, sizeof magic) != 0 || get_u32(r) != VERSION)
        wrong(r, "it is not the checkpoint of a census, or of another version");
    uint32_t n = get_u32(r);
    if (n > PLAN) {
        wrong(r, "its plan is too long");
        return;
    }
    get(r, stored, n);
    if (n != strlen(plan) || memcmp(stored, plan, n) != 0)
        other(r, "corpus or options; remove it, or start over with --overwrite");
}

/* Everything but the hash itself, before a byte of it is believed. */
static int check_hash(const char *path, uint64_t size, ts_error *err) {
    char found[HASH + 1], stored[HASH];
    FILE *f;
    if (size < HASH)
        return ts_fail(err, TS_ERR_FORMAT, "the file ends too early");
    int rc = ts_fingerprint_prefix(path, size - HASH, found, err);
    if (rc == TS_OK)
        rc = ts_stream_open(path, &f, NULL, err);
    if (rc < 0)
        return rc;
    if (fseeko(f, (off_t)(size - HASH), SEEK_SET) != 0)
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot read");
    else
        rc = ts_stream_read(f, stored, HASH, err);
    fclose(f);
    if (rc == TS_OK && memcmp(found, stored, HASH) != 0)
        rc =
            ts_fail(err, TS_ERR_FORMAT, "it was changed or cut: its hash is not that of its bytes");
    return rc;
}

static int read_all(const char *path, const char *plan, ts_ffn_stats *dense, ts_ffn_stats *shared,
                    ts_experts *experts, ts_ffn_progress *progress, ts_error *err) {
    reading r = {.err = err};
    uint64_t size;
    int rc = ts_stream_open(path, &r.file, &size, err);
    if (rc < 0)
        return rc;
    r.rc = check_hash(path, size, err);
    if (r.rc == TS_OK) {
        get_head(&r, plan);
        get(&r, progress, sizeof *progress);
        get_stats(&r, dense);
        get_stats(&r, shared);
        if (experts && r.rc == TS_OK)
            get_experts(&r, experts);
    }
    if (r.rc == TS_OK && (uint64_t)ftello(r.file) != size - HASH)
        wrong(&r, "it is longer than its blocks");
    fclose(r.file);
    return r.rc;
}

int ts_ffn_checkpoint_read(const char *path, const char *plan, ts_ffn_stats *dense,
                           ts_ffn_stats *shared, ts_experts *experts, ts_ffn_progress *progress,
                           bool *found, ts_error *err) {
    struct stat st;
    *found = false;
    if (lstat(path, &st) != 0 && errno == ENOENT)
        return TS_OK;
    int rc = read_all(path, plan, dense, shared, experts, progress, err);
    if (rc == TS_ERR_FORMAT || rc == TS_ERR_STATE)
        ts_error_prefix(err, "checkpoint '%s': ", path);
    *found = rc == TS_OK;
    return rc;
}
