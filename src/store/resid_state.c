/* Owns OUT.part.state: what of a capture is durable. Refuses a state of another plan or shape, and
 * a damaged one, by name. Keys: turbospark_partial (1), kind, plan, format, layers, hidden,
 * prompts_done, batches, tokens (counters of the caller), rows, row_bytes, gen_bytes, prompts,
 * prompt_tokens, labels, max_abs, nonfinite, finishing (see resid_out.c). */
#include "store/resid_internal.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "core/mem.h"
#include "store/meta_json.h"

int ts_resid_state_init(ts_resid_state *s, int32_t n_layers, ts_error *err) {
    *s = (ts_resid_state){0};
    s->max_abs = ts_calloc((size_t)n_layers, sizeof *s->max_abs);
    s->nonfinite = ts_calloc((size_t)n_layers, sizeof *s->nonfinite);
    if (s->max_abs == NULL || s->nonfinite == NULL)
        return ts_fail_nomem(err, "layer statistics", (size_t)n_layers * 12);
    return TS_OK;
}

void ts_resid_state_free(ts_resid_state *s) {
    ts_free(s->max_abs);
    ts_free(s->nonfinite);
    s->max_abs = NULL;
    s->nonfinite = NULL;
}

static const char *format_name(const ts_resid_out *o) {
    return o->format == TS_CAPTURE_F32 ? "f32" : "safetensors";
}

int ts_resid_state_note(ts_resid_out *o, ts_error *err) {
    const ts_resid_state *s = &o->now;
    ts_buf *b = &o->saved;
    ts_buf_free(b);
    ts_buf_text(b, "{\n  \"turbospark_partial\": 1,\n  \"kind\": \"resid\",\n  \"plan\": ");
    ts_buf_json_string(b, o->plan, strlen(o->plan));
    ts_buf_printf(b, ",\n  \"format\": \"%s\",\n  \"layers\": %" PRId32 ",\n  \"hidden\": %" PRId32,
                  format_name(o), o->n_layers, o->n_hidden);
    ts_buf_printf(b,
                  ",\n  \"prompts_done\": %" PRIu64 ",\n  \"batches\": %" PRIu64
                  ",\n  \"tokens\": %" PRIu64,
                  s->done.prompts, s->done.batches, s->done.tokens);
    ts_buf_printf(
        b, ",\n  \"rows\": %" PRIu64 ",\n  \"row_bytes\": %" PRIu64 ",\n  \"gen_bytes\": %" PRIu64,
        s->rows, s->row_bytes, s->gen_bytes);
    ts_buf_printf(b, ",\n  \"prompts\": %" PRIu64 ",\n  \"prompt_tokens\": %" PRIu64, s->prompts,
                  s->tokens);
    ts_buf_printf(b, ",\n  \"labels\": %d,\n  \"max_abs\": [", s->labels ? 1 : 0);
    for (int32_t i = 0; i < o->n_layers; i++)
        ts_buf_printf(b, "%s%.9g", i ? ", " : "", (double)s->max_abs[i]);
    ts_buf_text(b, "],\n  \"nonfinite\": [");
    for (int32_t i = 0; i < o->n_layers; i++)
        ts_buf_printf(b, "%s%" PRIu64, i ? ", " : "", s->nonfinite[i]);
    ts_buf_text(b, "]");
    return b->failed ? ts_fail_nomem(err, "the state of a capture", b->length) : TS_OK;
}

int ts_resid_state_put(ts_resid_out *o, uint64_t finishing, ts_error *err) {
    size_t keep = o->saved.length;
    ts_buf_printf(&o->saved, ",\n  \"finishing\": %" PRIu64 "\n}\n", finishing);
    if (o->saved.failed)
        return ts_fail_nomem(err, "the state of a capture", keep);
    int rc = ts_file_put(o->paths.state, o->saved.data, o->saved.length, err);
    o->saved.length = keep;
    o->saved.data[keep] = '\0';
    return rc;
}

static int get_count(const json_t *v, const char *key, uint64_t *out, ts_error *err) {
    int64_t n = 0;
    int rc = ts_json_int(v, key, 0, INT64_MAX, &n, err);
    *out = (uint64_t)n;
    return rc;
}

static int load_counts(const json_t *v, ts_resid_state *s, ts_error *err) {
    uint64_t labels = 0;
    const struct {
        const char *key;
        uint64_t *out;
    } members[] = {
        {"prompts_done", &s->done.prompts},
        {"batches", &s->done.batches},
        {"tokens", &s->done.tokens},
        {"rows", &s->rows},
        {"row_bytes", &s->row_bytes},
        {"gen_bytes", &s->gen_bytes},
        {"prompts", &s->prompts},
        {"prompt_tokens", &s->tokens},
        {"labels", &labels},
        {"finishing", &s->finishing},
    };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        int rc = get_count(v, members[i].key, members[i].out, err);
        if (rc < 0)
            return rc;
    }
    s->labels = labels != 0;
    s->done.rows = s->rows;
    return TS_OK;
}

static int load_statistics(const json_t *v, ts_resid_out *o, ts_error *err) {
    json_t *max_abs, *nonfinite;
    size_t n = (size_t)o->n_layers;
    int rc = ts_json_array(v, "max_abs", n, &max_abs, err);
    if (rc == TS_OK)
        rc = ts_json_array(v, "nonfinite", n, &nonfinite, err);
    for (size_t i = 0; rc == TS_OK && i < n; i++) {
        const json_t *m = json_array_get(max_abs, i);
        int64_t count = 0;
        double value = json_number_value(m);
        if (!json_is_number(m) || !(value >= 0 && value <= (double)FLT_MAX))
            return ts_fail(err, TS_ERR_FORMAT, "'max_abs' element %zu is not a float32 from 0", i);
        o->now.max_abs[i] = (float)value;
        rc = ts_json_element(nonfinite, "nonfinite", i, 0, INT64_MAX, &count, err);
        o->now.nonfinite[i] = (uint64_t)count;
    }
    return rc;
}

/* Lengths that cannot belong together would cut the rows at a wrong place. */
static int check_lengths(const ts_resid_out *o, ts_error *err) {
    const ts_resid_state *s = &o->now;
    uint64_t row = (uint64_t)o->n_layers * (uint64_t)o->n_hidden * sizeof(float);
    if (s->row_bytes < o->reserve || s->rows > (INT64_MAX - o->reserve) / row ||
        s->row_bytes - o->reserve != s->rows * row)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'row_bytes' is %" PRIu64 ", which is not %" PRIu64 " rows of %" PRIu64,
                       s->row_bytes, s->rows, row);
    return TS_OK;
}

static int check_plan(const json_t *v, const ts_resid_out *o, ts_error *err) {
    const char *plan, *format;
    int64_t layers, hidden, version;
    int rc = ts_json_int(v, "turbospark_partial", 1, 1, &version, err);
    if (rc == TS_OK)
        rc = ts_json_text(v, "plan", &plan, err);
    if (rc == TS_OK)
        rc = ts_json_text(v, "format", &format, err);
    if (rc == TS_OK)
        rc = ts_json_int(v, "layers", 1, INT32_MAX, &layers, err);
    if (rc == TS_OK)
        rc = ts_json_int(v, "hidden", 1, INT32_MAX, &hidden, err);
    if (rc < 0)
        return rc;
    if (strcmp(plan, o->plan) != 0 || strcmp(format, format_name(o)) != 0 ||
        layers != o->n_layers || hidden != o->n_hidden)
        return ts_fail(err, TS_ERR_STATE,
                       "partial file '%s' belongs to another corpus or options; remove it, or "
                       "start over with --overwrite",
                       o->paths.state);
    return TS_OK;
}

int ts_resid_state_load(ts_resid_out *o, bool *found, ts_error *err) {
    struct stat st;
    json_t *v = NULL;
    *found = false;
    if (lstat(o->paths.state, &st) != 0 && errno == ENOENT)
        return TS_OK;
    int rc = ts_json_file(o->paths.state, &v, err);
    if (rc == TS_OK)
        rc = check_plan(v, o, err);
    if (rc == TS_OK)
        rc = load_counts(v, &o->now, err);
    if (rc == TS_OK)
        rc = load_statistics(v, o, err);
    if (rc == TS_OK)
        rc = check_lengths(o, err);
    if (rc == TS_ERR_FORMAT)
        ts_error_prefix(
            err, "partial file '%s' is damaged; remove it, or start over with --overwrite: ", o->paths.state);
    json_decref(v);
    *found = rc == TS_OK;
    return rc;
}
