/* Writes a logits dump (logits_dump.h). */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "core/temporary.h"
#include "store/logits_dump.h"
#include "store/logits_dump_half.h"
#include "store/logits_dump_names.h"
#include "store/meta.h"

struct ts_logits_out {
    ts_logits_spec spec;
    char *folder, *meta, *data, *other; /* other: the data file of the other dtype */
    bool made_folder, partial;
    ts_lock *lock;
    ts_file *file;
    XXH3_state_t *hash;
    void *row; /* [vocab_size] as stored */
    int64_t rows;
};

static size_t row_bytes(const ts_logits_spec *s) {
    return (size_t)s->vocab_size * (s->dtype == TS_LOGITS_F16 ? sizeof(uint16_t) : sizeof(float));
}

static int64_t rows_wanted(const ts_logits_spec *s) {
    return (int64_t)s->n_tokens - 1;
}

uint64_t ts_logits_out_predict(const ts_logits_spec *s) {
    return s->n_tokens > 1 ? (uint64_t)rows_wanted(s) * row_bytes(s) : 0;
}

static int check_spec(const ts_logits_spec *s, ts_error *err) {
    if (s->n_tokens < 2)
        return ts_fail(err, TS_ERR_ARG,
                       "the text is too short: expected at least 2 tokens, got %zu", s->n_tokens);
    if (s->n_tokens > INT32_MAX)
        return ts_fail(err, TS_ERR_ARG, "the text is too long: expected at most %d tokens, got %zu",
                       INT32_MAX, s->n_tokens);
    if (s->vocab_size < 1)
        return ts_fail(err, TS_ERR_ARG, "vocab_size: expected at least 1, got %" PRId32,
                       s->vocab_size);
    if (s->first_scored_position < 0 || s->first_scored_position > rows_wanted(s))
        return ts_fail(err, TS_ERR_ARG,
                       "first_scored_position: expected 0 to %" PRId64 ", got %" PRId64,
                       rows_wanted(s), s->first_scored_position);
    if (s->prompt_len < 0 || s->prompt_len > (int64_t)s->n_tokens)
        return ts_fail(err, TS_ERR_ARG, "prompt_len: expected 0 to %zu, got %" PRId64, s->n_tokens,
                       s->prompt_len);
    return TS_OK;
}

static char *join(const char *folder, const char *name) {
    size_t n = strlen(folder), m = strlen(name);
    char *path = ts_malloc(n + m + 2);

    if (!path)
        return NULL;
    memcpy(path, folder, n);
    path[n] = '/';
    memcpy(path + n + 1, name, m + 1);
    return path;
}

bool ts_logits_dump_holds(const char *folder, const char *path, const char **name) {
    static const char *const names[] = {TS_LOGITS_META, TS_LOGITS_DATA_F16, TS_LOGITS_DATA_F32};
    char file[PATH_MAX];

    for (size_t i = 0; folder && path && i < sizeof names / sizeof *names; i++) {
        if (snprintf(file, sizeof file, "%s/%s", folder, names[i]) >= (int)sizeof file || !ts_file_same(file, path))
            continue;
        if (name)
            *name = names[i];
        return true;
    }
    return false;
}

static int make_names(ts_logits_out *o, ts_error *err) {
    bool half = o->spec.dtype == TS_LOGITS_F16;

    o->folder = ts_strdup(o->spec.folder);
    o->meta = join(o->spec.folder, TS_LOGITS_META);
    o->data = join(o->spec.folder, half ? TS_LOGITS_DATA_F16 : TS_LOGITS_DATA_F32);
    o->other = join(o->spec.folder, half ? TS_LOGITS_DATA_F32 : TS_LOGITS_DATA_F16);
    o->row = ts_malloc(row_bytes(&o->spec));
    o->hash = XXH3_createState();
    if (!o->folder || !o->meta || !o->data || !o->other || !o->row || !o->hash)
        return ts_fail_nomem(err, "a logits dump", row_bytes(&o->spec));
    XXH3_128bits_reset(o->hash);
    return TS_OK;
}

static int make_folder(ts_logits_out *o, ts_error *err) {
    struct stat st;

    if (strcmp(o->folder, "-") == 0)
        return ts_fail(err, TS_ERR_IO, "cannot write '-': results do not go to standard output; a folder of that name is './-'");
    if (mkdir(o->folder, 0777) == 0) {
        o->made_folder = true;
        return TS_OK;
    }
    if (errno != EEXIST)
        return ts_fail_errno(err, TS_ERR_IO, "cannot create the folder '%s'", o->folder);
    if (stat(o->folder, &st) || !S_ISDIR(st.st_mode))
        return ts_fail(err, TS_ERR_IO, "cannot write to '%s': expected a folder", o->folder);
    if (!o->spec.overwrite && ts_file_exists(o->meta))
        return ts_fail(err, TS_ERR_ARG, "'%s' holds a dump already: remove it, or replace it with --overwrite", o->folder);
    return TS_OK;
}

static void sweep(const ts_logits_out *o) {
    const char *const files[] = {o->meta, o->data, o->other};

    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        ts_temporary_sweep(files[i]);
}

static void free_all(ts_logits_out *o) {
    ts_lock_release(o->lock);
    XXH3_freeState(o->hash);
    ts_free(o->folder);
    ts_free(o->meta);
    ts_free(o->data);
    ts_free(o->other);
    ts_free(o->row);
    ts_free(o);
}

int ts_logits_out_open(const ts_logits_spec *spec, ts_logits_out **out, ts_error *err) {
    ts_logits_out *o = NULL;
    int rc = check_spec(spec, err);

    *out = NULL;
    if (rc)
        return rc;
    o = ts_calloc(1, sizeof *o);
    if (!o)
        return ts_fail_nomem(err, "a logits dump", sizeof *o);
    o->spec = *spec;
    rc = make_names(o, err);
    if (!rc)
        rc = make_folder(o, err);
    if (!rc)
        rc = ts_lock_take(o->meta, &o->lock, err);
    if (!rc)
        sweep(o);
    if (!rc)
        rc = ts_file_create(o->data, &o->file, err);
    if (rc) {
        ts_logits_out_discard(o);
        return rc;
    }
    *out = o;
    return TS_OK;
}

/* Returns the first token whose value cannot be stored, or -1. */
static int32_t encode(const ts_logits_spec *s, const float *row, void *to) {
    for (int32_t i = 0; i < s->vocab_size; i++)
        if (isnan(row[i]) || row[i] == INFINITY)
            return i;
    if (s->dtype == TS_LOGITS_F32) {
        memcpy(to, row, row_bytes(s));
        return -1;
    }
    for (int32_t i = 0; i < s->vocab_size; i++) {
        uint16_t h = ts_half_from_float(row[i]);

        if ((h & 0x7fff) == 0x7c00 && row[i] != -INFINITY)
            return i;
        ((uint16_t *)to)[i] = h;
    }
    return -1;
}

int ts_logits_out_add(ts_logits_out *o, const float *row, ts_error *err) {
    int32_t bad;

    if (o->rows == rows_wanted(&o->spec))
        return ts_fail(err, TS_ERR_STATE, "'%s' has all its %" PRId64 " rows", o->folder, o->rows);
    bad = encode(&o->spec, row, o->row);
    if (bad >= 0)
        return ts_fail_at(
            err, TS_ERR_FORMAT, o->rows,
            "row %" PRId64 ": the logit of token %" PRId32 " is %g, which %s does not hold",
            o->rows, bad, (double)row[bad], isfinite(row[bad]) ? "f16 (f32 would)" : "a dump");
    XXH3_128bits_update(o->hash, o->row, row_bytes(&o->spec));
    o->rows++;
    return ts_file_write(o->file, o->row, row_bytes(&o->spec), err);
}

int64_t ts_logits_out_rows(const ts_logits_out *o) {
    return o->rows;
}

int ts_logits_out_cut(ts_logits_out *o, ts_error *err) {
    ts_logits_spec *s = &o->spec;

    if (o->rows == 0 || ts_file_exists(o->meta))
        return ts_fail(err, TS_ERR_STATE, "'%s' was not written", o->folder);
    s->n_tokens = (size_t)o->rows + 1;
    if (s->first_scored_position > o->rows)
        s->first_scored_position = o->rows;
    if (s->prompt_len > o->rows + 1)
        s->prompt_len = o->rows + 1;
    o->partial = true;
    return TS_OK;
}

static void add_data(ts_buf *b, const ts_logits_out *o) {
    XXH128_canonical_t digest;

    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(o->hash));
    ts_buf_printf(b, "  \"data\": {\"file\": \"%s\", \"bytes\": %" PRIu64 ", \"xxh3_128\": \"",
                  ts_path_base(o->data), ts_logits_out_predict(&o->spec));
    for (size_t i = 0; i < sizeof digest.digest; i++)
        ts_buf_printf(b, "%02x", digest.digest[i]);
    ts_buf_text(b, "\"}\n}\n");
}

static void render_meta(ts_buf *b, const ts_logits_out *o, const char *members) {
    const ts_logits_spec *s = &o->spec;

    ts_buf_printf(b,
                  "{\n  \"rows\": %" PRId64 ",\n  \"vocab_size\": %" PRId32 ",\n  \"token_ids\": [",
                  o->rows, s->vocab_size);
    for (size_t i = 0; i < s->n_tokens; i++)
        ts_buf_printf(b, "%s%" PRId32, i ? ", " : "", s->token_ids[i]);
    ts_buf_printf(b,
                  "],\n  \"first_scored_position\": %" PRId64 ",\n  \"prompt_len\": %" PRId64
                  ",\n  \"dtype\": \"%s\",\n  \"format_version\": 1,\n  \"kind\": \"logits\",\n",
                  s->first_scored_position, s->prompt_len,
                  s->dtype == TS_LOGITS_F16 ? "f16" : "f32");
    if (s->provenance)
        ts_meta_provenance(b, s->provenance);
    if (o->partial)
        ts_buf_text(b, "  \"partial\": true,\n");
    if (members)
        ts_buf_text(b, members);
    add_data(b, o);
}

/* A dump that is replaced loses its meta.json first: it is never beside rows that are not its own.
 */
static int replace(ts_logits_out *o, const ts_buf *meta, ts_error *err) {
    ts_file *file = o->file;
    int rc;

    if (unlink(o->meta) && errno != ENOENT)
        return ts_fail_errno(err, TS_ERR_IO, "cannot replace '%s'", o->meta);
    o->file = NULL;
    rc = ts_file_commit(file, err);
    if (rc)
        return rc;
    if (unlink(o->other) && errno != ENOENT)
        return ts_fail_errno(err, TS_ERR_IO, "cannot remove '%s'", o->other);
    rc = ts_file_put(o->meta, meta->data, meta->length, err);
    if (rc) { /* the meta may stand there all the same, when it is its folder that could not be synced */
        unlink(o->meta);
        unlink(o->data);
    }
    return rc;
}

int ts_logits_out_finish(ts_logits_out *o, const char *members, ts_error *err) {
    ts_buf b = {0};
    int rc = TS_OK;

    if (o->rows != rows_wanted(&o->spec))
        rc = ts_fail(err, TS_ERR_STATE, "'%s' has %" PRId64 " rows, expected %" PRId64, o->folder,
                     o->rows, rows_wanted(&o->spec));
    if (!rc) {
        render_meta(&b, o, members ? members : o->spec.members);
        if (b.failed)
            rc = ts_fail_nomem(err, "a logits dump", b.length);
    }
    if (!rc)
        rc = replace(o, &b, err);
    ts_buf_free(&b);
    if (rc)
        ts_logits_out_discard(o);
    else
        free_all(o);
    return rc;
}

void ts_logits_out_discard(ts_logits_out *o) {
    if (!o)
        return;
    ts_file_discard(o->file);
    ts_lock_release(o->lock); /* its file lies in the folder */
    o->lock = NULL;
    if (o->made_folder)
        rmdir(o->folder);
    free_all(o);
}
