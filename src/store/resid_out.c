/* Owns a running capture: rows and generations as they come, checkpoints, resume. Refuses a subset
 * of layers or a mean in the pair format, an existing result, and to go on after a row that was
 * written in part.
 *
 * What makes any kill harmless: the state file names lengths that were fsynced before it, and
 * resume cuts rows and generations back to them. Before the finished data is renamed to its final
 * name the state says so (`finishing`), so that the next process can give it its partial name back
 * and finish again, to the same bytes. */
#include "store/resid_out.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "store/meta_stream.h"
#include "store/resid_internal.h"

enum { RESERVE_BASE = 128 << 10, RESERVE_LAYER = 1 << 10 };

static void out_free(ts_resid_out *o) {
    ts_append_close(o->rows, NULL);
    ts_append_close(o->gen, NULL);
    ts_lock_release(o->data_lock);
    ts_lock_release(o->lock);
    ts_resid_state_free(&o->now);
    ts_resid_paths_free(&o->paths);
    ts_buf_free(&o->saved);
    ts_buf_free(&o->line);
    ts_free(o->layer_ids);
    ts_free(o->plan);
    ts_free(o);
}

static uint64_t header_space(const ts_resid_spec *spec) {
    if (spec->format == TS_CAPTURE_F32)
        return 0;
    return RESERVE_BASE + RESERVE_LAYER * (uint64_t)spec->n_layers;
}

static int check_spec(const ts_resid_spec *spec, ts_error *err) {
    if (spec->path == NULL)
        return ts_fail(err, TS_ERR_ARG, "a capture needs an output path");
    if (spec->n_layers < 1 || spec->n_hidden < 1 || spec->layer_ids == NULL)
        return ts_fail(err, TS_ERR_ARG,
                       "'%s': expected at least one layer of one value, got %" PRId32
                       " of %" PRId32,
                       spec->path, spec->n_layers, spec->n_hidden);
    if (spec->format != TS_CAPTURE_F32 && spec->format != TS_CAPTURE_SAFETENSORS)
        return ts_fail(err, TS_ERR_ARG, "'%s': unknown capture format %d", spec->path,
                       (int)spec->format);
    if (spec->format == TS_CAPTURE_F32 && (spec->layers_subset || spec->mean))
        return ts_fail(err, TS_ERR_ARG, "'%s': the f32 format cannot say %s; use safetensors",
                       spec->path, spec->mean ? "that a row is a mean" : "which layers it holds");
    return TS_OK;
}

static int copy_spec(ts_resid_out *o, const ts_resid_spec *spec, ts_error *err) {
    size_t n = (size_t)spec->n_layers;
    o->format = spec->format;
    o->n_layers = spec->n_layers;
    o->n_hidden = spec->n_hidden;
    o->reserve = header_space(spec);
    o->plan = ts_strdup(spec->plan_hash ? spec->plan_hash : "");
    o->layer_ids = ts_calloc(n, sizeof *o->layer_ids);
    if (o->plan == NULL || o->layer_ids == NULL)
        return ts_fail_nomem(err, "a capture", n * sizeof *o->layer_ids);
    memcpy(o->layer_ids, spec->layer_ids, n * sizeof *o->layer_ids);
    return ts_resid_state_init(&o->now, spec->n_layers, err);
}

/* Leaves o->now at what is durable, or at the start with no partial file left. */
static int find_start(ts_resid_out *o, const ts_resid_spec *spec, ts_error *err) {
    bool found = false, recovered = false;
    int rc = TS_OK;
    if (spec->resume) {
        rc = ts_resid_state_load(o, &found, err);
        if (rc == TS_OK && found)
            rc = ts_resid_paths_recover(&o->paths, o->now.finishing, &recovered, err);
    }
    if (rc == TS_OK && !spec->resume && !spec->overwrite)
        rc = ts_resid_paths_unfinished(&o->paths, err);
    if (rc == TS_OK && !recovered && !spec->overwrite)
        rc = ts_resid_paths_vacant(&o->paths, err);
    if (rc < 0)
        return rc;
    if (!found) {
        if (spec->resume && ts_resid_paths_partial(&o->paths))
            ts_log(TS_LOG_WARN, "'%s' has no checkpoint yet: starting over", o->paths.part);
        ts_resid_paths_remove_partial(&o->paths);
        o->now.row_bytes = o->reserve;
    }
    o->kept = found;
    return ts_resid_state_note(o, err);
}

/* The header's space is filled with zeros until finish knows the header. */
static int write_reserve(ts_resid_out *o, ts_error *err) {
    static const char zeros[4096];
    int rc = TS_OK;
    for (uint64_t left = o->reserve; rc == TS_OK && left > 0;) {
        size_t n = left < sizeof zeros ? (size_t)left : sizeof zeros;
        rc = ts_append_write(o->rows, zeros, n, err);
        left -= n;
    }
    return rc;
}

int ts_resid_out_open(const ts_resid_spec *spec, ts_resid_out **out, ts_resid_done *done,
                      ts_error *err) {
    *out = NULL;
    *done = (ts_resid_done){0};
    int rc = check_spec(spec, err);
    if (rc < 0)
        return rc;
    ts_resid_out *o = ts_calloc(1, sizeof *o);
    if (o == NULL)
        return ts_fail_nomem(err, "a capture", sizeof *o);
    rc = ts_resid_paths_init(&o->paths, spec, err);
    if (rc == TS_OK)
        rc = ts_lock_take(o->paths.out, &o->lock, err);
    if (rc == TS_OK && o->paths.meta)
        rc = ts_lock_take(o->paths.data, &o->data_lock, err);
    if (rc == TS_OK)
        rc = copy_spec(o, spec, err);
    if (rc == TS_OK)
        rc = find_start(o, spec, err);
    if (rc < 0)
        goto cleanup;
    rc = ts_append_open(o->paths.part, o->kept ? o->now.row_bytes : 0, &o->rows, err);
    if (rc == TS_OK && !o->kept)
        rc = write_reserve(o, err);
    if (rc == TS_OK)
        rc = ts_append_open(o->paths.gen, o->now.gen_bytes, &o->gen, err);
    if (rc < 0)
        goto cleanup;
    *done = o->now.done;
    *out = o;
    return TS_OK;
cleanup:
    out_free(o);
    return rc;
}

/* Per layer, over finite values: max |x|, and how many are not finite. */
static void count_row(ts_resid_out *o, const float *rows) {
    for (int32_t l = 0; l < o->n_layers; l++) {
        const float *x = rows + (size_t)l * (size_t)o->n_hidden;
        float max = o->now.max_abs[l];
        uint64_t bad = 0;
        for (int32_t i = 0; i < o->n_hidden; i++) {
            float a = fabsf(x[i]);
            if (!(a <= FLT_MAX))
                bad++;
            else if (a > max)
                max = a;
        }
        o->now.max_abs[l] = max;
        o->now.nonfinite[l] += bad;
    }
}

int ts_resid_out_add(ts_resid_out *o, const float *rows, const ts_resid_row *row, ts_error *err) {
    size_t bytes = (size_t)o->n_layers * (size_t)o->n_hidden * sizeof *rows;
    if (o->broken)
        return ts_fail(err, TS_ERR_STATE, "'%s': no row can follow one that could not be written",
                       o->paths.part);
    o->line.length = 0;
    ts_resid_gen_render(&o->line, row);
    ts_buf_text(&o->line, "\n");
    if (o->line.failed) {
        ts_buf_free(&o->line);
        return ts_fail_nomem(err, "a generation", row->n_prompt_tokens * 8);
    }
    int rc = ts_append_write(o->rows, rows, bytes, err);
    if (rc == TS_OK)
        rc = ts_append_write(o->gen, o->line.data, o->line.length, err);
    if (rc < 0) {
        o->broken = true;
        return rc;
    }
    count_row(o, rows);
    o->now.rows++;
    if (row->prompt_tokens != NULL) {
        o->now.prompts++;
        o->now.tokens += row->n_prompt_tokens;
        o->now.labels = o->now.labels || row->label != NULL;
    }
    return TS_OK;
}

static int sync_all(ts_resid_out *o, ts_error *err) {
    if (o->broken)
        return ts_fail(err, TS_ERR_STATE, "'%s' ends inside a row; what was kept before it is good",
                       o->paths.part);
    int rc = ts_append_sync(o->rows, err);
    return rc == TS_OK ? ts_append_sync(o->gen, err) : rc;
}

int ts_resid_out_checkpoint(ts_resid_out *o, const ts_resid_done *done, ts_error *err) {
    int rc = sync_all(o, err);
    if (rc < 0)
        return rc;
    o->now.done = *done;
    o->now.row_bytes = ts_append_length(o->rows);
    o->now.gen_bytes = ts_append_length(o->gen);
    rc = ts_resid_state_note(o, err);
    if (rc == TS_OK)
        rc = ts_resid_state_put(o, 0, err);
    o->kept = o->kept || rc == TS_OK;
    return rc;
}

uint64_t ts_resid_out_rows(const ts_resid_out *o) {
    return o->now.rows;
}

uint64_t ts_resid_out_nonfinite(const ts_resid_out *o) {
    uint64_t n = 0;
    for (int32_t l = 0; l < o->n_layers; l++)
        n += o->now.nonfinite[l];
    return n;
}

/* The rows are on disk; what a format adds behind them is not among the bytes counted here. */
static int finish(ts_resid_out *o, const ts_provenance *prov, const char *sites_json, bool partial, ts_error *err) {
    char hash[33];
    const ts_meta_resid facts = {
        .provenance = prov,
        .plan = o->plan,
        .partial = partial,
        .n_layers = o->n_layers,
        .n_hidden = o->n_hidden,
        .layer_ids = o->layer_ids,
        .n_snapshots = o->now.rows,
        .sites_json = sites_json,
        .max_abs = o->now.max_abs,
        .nonfinite = o->now.nonfinite,
        .data_file = ts_path_base(o->paths.data),
        .data_bytes = ts_append_length(o->rows) - o->reserve,
        .data_xxh3 = hash,
    };
    int rc = ts_stream_hash(o->paths.part, o->reserve, facts.data_bytes, hash, err);
    if (rc < 0)
        return rc;
    return o->format == TS_CAPTURE_F32 ? ts_resid_finish_pair(o, &facts, err) : ts_resid_finish_st(o, &facts, err);
}

int ts_resid_out_finish(ts_resid_out *o, const ts_provenance *prov, const char *sites_json,
                        bool partial, ts_error *err) {
    if (o->now.rows == 0 && !o->broken) {
        int rc =
            ts_fail(err, TS_ERR_STATE, "nothing was captured: '%s' is not written", o->paths.out);
        ts_resid_out_abandon(o, true);
        return rc;
    }
    int rc = sync_all(o, err);
    if (rc == TS_OK)
        rc = finish(o, prov, sites_json, partial, err);
    if (rc == TS_OK && !(partial && o->kept)) /* the state of an interrupted one takes the data back */
        ts_resid_paths_remove_partial(&o->paths);
    out_free(o);
    return rc;
}

void ts_resid_out_abandon(ts_resid_out *o, bool remove) {
    if (o == NULL)
        return;
    if (remove || !o->kept) /* without a state there is nothing to resume */
        ts_resid_paths_remove_partial(&o->paths);
    out_free(o);
}

static uint64_t times(uint64_t a, uint64_t b) {
    return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}
static uint64_t plus(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* Generously: a generation takes some 130 bytes and up to 8 a prompt token, and stands in the
 * partial file and in the .meta at once; the safetensors columns take 12 bytes a row and 4 a token.
 */
uint64_t ts_resid_out_predict(const ts_resid_spec *spec, uint64_t rows, uint64_t tokens) {
    bool pair = spec->format == TS_CAPTURE_F32;
    uint64_t row = times((uint64_t)spec->n_layers * 4, (uint64_t)spec->n_hidden);
    uint64_t gen = plus(times(rows, 130), times(tokens, 8));
    uint64_t all = plus(times(rows, row), plus(gen, header_space(spec)));
    all = plus(all, pair ? plus(gen, times(rows, 8)) : plus(times(rows, 24), times(tokens, 4)));
    return plus(all, (uint64_t)16 << 10);
}
