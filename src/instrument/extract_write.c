/* What an extraction leaves: the control vector, and its figures as JSON. Refuses to compute any. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "instrument/extract.h"
#include "store/resid_out.h"

const char *ts_extract_mode_name(const ts_extract_options *o) {
    static const char *const names[] = {"add", "ablate", "add", "clamp", "renorm"}; /* enum ts_steering_mode */

    return (size_t)o->mode < sizeof names / sizeof *names ? names[o->mode] : NULL;
}

/* "lda, shrinkage 0.1, orthogonal to 'other.gguf'" */
static void add_extraction(ts_buf *b, const ts_extract_options *o) {
    ts_buf_text(b, ts_extract_method_name(o->method));
    if (o->method == TS_EXTRACT_LDA)
        ts_buf_printf(b, ", shrinkage %g", o->shrinkage > 0 ? o->shrinkage : TS_DIRECTION_SHRINKAGE);
    if (o->orthogonal_path)
        ts_buf_printf(b, ", orthogonal to '%s'", ts_path_base(o->orthogonal_path));
}

static const char *or_null(const char *text) {
    return text[0] ? text : NULL;
}

int ts_extract_write_vector(const ts_extraction *e, ts_error *err) {
    ts_buf extraction = {0};
    ts_cvec_spec spec = {.width = e->result->width,
                         .n = (int32_t)e->result->n_blocks,
                         .block = e->block,
                         .d = e->d,
                         .model_hint = or_null(e->facts->architecture),
                         .mode = ts_extract_mode_name(e->o),
                         .hook = TS_RESID_HOOK,
                         .model_hash = or_null(e->facts->hash)};
    int rc;

    add_extraction(&extraction, e->o);
    if (extraction.failed)
        return ts_fail_nomem(err, "a key", 0);
    spec.extraction = extraction.data;
    rc = ts_cvec_write(e->o->output_path, &spec, NULL, err);
    ts_buf_free(&extraction);
    return rc;
}

/* ---- JSON */

static void add_string(ts_buf *b, const char *before, const char *key, const char *text) {
    ts_buf_printf(b, "%s\"%s\": ", before, key);
    if (text)
        ts_buf_json_string(b, text, strlen(text));
    else
        ts_buf_text(b, "null");
}

static void add_number(ts_buf *b, const char *key, double x) {
    if (isfinite(x))
        ts_buf_printf(b, ", \"%s\": %.9g", key, x);
    else
        ts_buf_printf(b, ", \"%s\": null", key);
}

static void add_set(ts_buf *b, const char *key, const ts_extract_set *set) {
    ts_buf_printf(b, ",\n\"%s\": {\"snapshots\": %" PRId64 ", \"files\": [", key, set->n);
    for (size_t i = 0; i < set->n_sources; i++) {
        add_string(b, i ? ",\n{" : "\n{", "file", set->sources[i].path);
        ts_buf_printf(b, ", \"snapshots\": %" PRId64 "}", set->sources[i].n);
    }
    ts_buf_text(b, "]}");
}

static void add_block(ts_buf *b, const ts_extract_block *r) {
    ts_buf_printf(b, "{\"block\": %" PRId32 ", \"written\": %s, \"positive\": %" PRId64 ", \"negative\": %" PRId64,
                  r->block, r->written ? "true" : "false", r->n_positive, r->n_negative);
    add_number(b, "norm", r->norm);
    add_number(b, "separation", r->separation);
    add_number(b, "share", r->share);
    add_number(b, "removed_share", r->removed_share);
    add_number(b, "auc", r->auc);
    ts_buf_printf(b, ", \"auc_folds\": %" PRId32, r->n_folds);
    add_number(b, "cos_previous", r->cos_previous);
    add_number(b, "eigen_gap", r->eigen_gap);
    add_number(b, "mean_positive", r->mean_positive);
    add_number(b, "mean_negative", r->mean_negative);
    add_number(b, "mean_row_norm", r->mean_row_norm);
    ts_buf_text(b, "}");
}

static void add_extraction_json(ts_buf *b, const ts_extraction *e) {
    const ts_extract_options *o = e->o;

    add_string(b, "{\"format_version\": 1,\n", "kind", "extraction");
    add_string(b, ",\n", "method", ts_extract_method_name(o->method));
    if (o->method == TS_EXTRACT_LDA)
        add_number(b, "shrinkage", o->shrinkage > 0 ? o->shrinkage : TS_DIRECTION_SHRINKAGE);
    add_string(b, ",\n", "mode", ts_extract_mode_name(o));
    add_string(b, ",\n", "output", o->output_path);
    add_string(b, ",\n", "orthogonal_to", o->orthogonal_path);
    add_string(b, ",\n\"model\": {", "architecture", or_null(e->facts->architecture));
    add_string(b, ", ", "description", or_null(e->facts->description));
    add_string(b, ", ", "hash", or_null(e->facts->hash));
    ts_buf_printf(b, "},\n\"hidden\": %" PRId32 ", \"dropped\": %" PRId64, e->result->width, e->result->n_dropped);
    add_set(b, "positive", e->positive);
    add_set(b, "negative", e->negative);
    ts_buf_text(b, ",\n\"blocks\": [");
    for (size_t i = 0; i < e->result->n_blocks; i++) {
        ts_buf_text(b, i ? ",\n" : "\n");
        add_block(b, &e->result->blocks[i]);
    }
    ts_buf_text(b, "]}\n");
}

int ts_extract_write_json(const ts_extraction *e, ts_error *err) {
    ts_buf b = {0};
    int rc;

    add_extraction_json(&b, e);
    rc = b.failed ? ts_fail_nomem(err, "the figures", b.length) : ts_file_put(e->o->json_path, b.data, b.length, err);
    ts_buf_free(&b);
    return rc;
}
