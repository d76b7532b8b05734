/* The comparison of two dumps as one JSON object (kld.h). */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/buf.h"
#include "core/file.h"
#include "instrument/kld.h"

static void add_number(ts_buf *b, const char *name, double value) {
    if (isfinite(value))
        ts_buf_printf(b, "\"%s\": %.9g", name, value);
    else
        ts_buf_printf(b, "\"%s\": null", name);
}

static void add_stats(ts_buf *b, const char *name, const ts_kld_stats *s) {
    const struct {
        const char *name;
        double value;
    } all[] = {{"mean", s->mean}, {"median", s->median}, {"p99", s->p99}, {"max", s->max}};
    ts_buf_printf(b, "    \"%s\": {", name);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        ts_buf_text(b, i ? ", " : "");
        add_number(b, all[i].name, all[i].value);
    }
    ts_buf_text(b, "},\n");
}

static void add_both(ts_buf *b, const char *name, const double values[2]) {
    ts_buf_printf(b, "    \"%s\": {", name);
    add_number(b, "a", values[0]);
    ts_buf_text(b, ", ");
    add_number(b, "b", values[1]);
    ts_buf_text(b, "},\n");
}

static void add_pair(ts_buf *b, const char *name, const ts_kld_pair *p) {
    ts_buf_printf(b, "  \"%s\": {\n", name);
    add_stats(b, "kl_ab", &p->forward);
    add_stats(b, "kl_ba", &p->backward);
    ts_buf_printf(b, "    \"agreement\": %.9g,\n", p->agreement);
    add_both(b, "perplexity", p->perplexity);
    add_both(b, "entropy", p->entropy);
    ts_buf_printf(b, "    \"rows_outside\": %" PRId64 ",\n    \"max_outside\": %.9g,\n    \"identical\": %s,\n", p->n_outside, p->max_outside,
                  p->identical ? "true" : "false");
    if (p->parted_row < 0)
        ts_buf_text(b, "    \"parted\": null\n  }");
    else
        ts_buf_printf(b, "    \"parted\": {\"row\": %" PRId64 ", \"top_a\": %" PRId32 ", \"top_b\": %" PRId32 ", \"token\": %" PRId32 "}\n  }",
                      p->parted_row, p->parted_top[0], p->parted_top[1], p->parted_token);
}

static void add_name(ts_buf *b, const char *key, const char *path) {
    ts_buf_printf(b, "  \"%s\": ", key);
    if (path)
        ts_buf_json_string(b, path, strlen(path));
    else
        ts_buf_text(b, "null");
    ts_buf_text(b, ",\n");
}

int ts_kld_write_json(const char *path, const ts_kld_options *o, const ts_kld_result *r, ts_error *err) {
    ts_buf b = {0};
    ts_buf_text(&b, "{\n  \"kind\": \"kld\",\n  \"format_version\": 1,\n");
    add_name(&b, "a", o->a);
    add_name(&b, "b", o->b);
    add_name(&b, "a2", o->floor);
    ts_buf_printf(&b, "  \"rows\": %" PRId64 ",\n  \"first_scored_position\": %" PRId64 ",\n  \"vocab_size\": %" PRId32 ",\n", r->n_rows,
                  r->first_scored_position, r->n_vocab);
    add_pair(&b, "pair", &r->pair);
    ts_buf_text(&b, ",\n");
    if (r->has_floor)
        add_pair(&b, "floor", &r->floor);
    else
        ts_buf_text(&b, "  \"floor\": null");
    ts_buf_text(&b, "\n}\n");
    int rc = b.failed ? ts_fail_nomem(err, "a comparison", b.length) : ts_file_put(path, b.data, b.length, err);
    ts_buf_free(&b);
    return rc;
}
