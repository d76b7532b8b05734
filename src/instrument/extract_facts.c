/* What all captures of an extraction must agree in. Refuses another shape, other blocks, another model or tokenizer,
 * naming both files and the difference; where a file has no provenance there is nothing to compare. */
#include <inttypes.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "instrument/extract.h"
#include "store/meta.h"

static int meet_shape(ts_extract_facts *k, const char *path, const ts_capture_file *f, ts_error *err) {
    if (!k->shape_path) {
        k->shape_path = path;
        k->n_layers = f->shape.n_layers;
        k->n_hidden = f->shape.n_hidden;
        return TS_OK;
    }
    if (f->shape.n_hidden != k->n_hidden)
        return ts_fail(err, TS_ERR_ARG, "captures differ in width: '%s' has %" PRId32 " values a row, '%s' has %" PRId32,
                       k->shape_path, k->n_hidden, path, f->shape.n_hidden);
    if (f->shape.n_layers != k->n_layers)
        return ts_fail(err, TS_ERR_ARG, "captures differ in layers: '%s' has %" PRId32 ", '%s' has %" PRId32,
                       k->shape_path, k->n_layers, path, f->shape.n_layers);
    return TS_OK;
}

/* Block of layer i where the file does not say. */
static int32_t assumed_block(const ts_extract_options *o, int32_t i) {
    return o->layer_blocks ? o->layer_blocks[i] : i;
}

static int check_assumed(ts_extract_facts *k, const char *path, const ts_extract_options *o, ts_error *err) {
    k->assumed = true;
    if (o->layer_blocks && o->n_layer_blocks != (size_t)k->n_layers)
        return ts_fail(err, TS_ERR_ARG, "'%s' has %" PRId32 " layers, block numbers were given for %zu", path,
                       k->n_layers, o->n_layer_blocks);
    if (!o->layer_blocks)
        ts_log(TS_LOG_WARN, "'%s' does not say which blocks its layers are: taken as 0 to %" PRId32, path,
               k->n_layers - 1);
    return TS_OK;
}

static int take_blocks(ts_extract_facts *k, const char *path, const ts_capture_file *f, const ts_extract_options *o,
                       ts_error *err) {
    int32_t before = -1;
    int rc = f->layer_ids ? TS_OK : check_assumed(k, path, o, err);

    if (rc)
        return rc;
    k->block = ts_calloc((size_t)k->n_layers, sizeof *k->block);
    if (!k->block)
        return ts_fail_nomem(err, "block numbers", (size_t)k->n_layers * sizeof *k->block);
    k->blocks_path = f->layer_ids ? path : NULL;
    for (int32_t i = 0; i < k->n_layers; before = k->block[i++]) {
        k->block[i] = f->layer_ids ? f->layer_ids[i] : assumed_block(o, i);
        if (k->block[i] <= before)
            return ts_fail(err, TS_ERR_ARG, "'%s': layer %" PRId32 " is block %" PRId32 " after block %" PRId32
                           ", expected ascending numbers", path, i, k->block[i], before);
    }
    return TS_OK;
}

static int meet_blocks(ts_extract_facts *k, const char *path, const ts_capture_file *f, const ts_extract_options *o,
                       ts_error *err) {
    if (!k->block)
        return take_blocks(k, path, f, o, err);
    for (int32_t i = 0; i < k->n_layers; i++) {
        int32_t id = f->layer_ids ? f->layer_ids[i] : assumed_block(o, i);

        k->assumed = k->assumed || !f->layer_ids;
        if (!f->layer_ids && o->layer_blocks && o->n_layer_blocks != (size_t)k->n_layers)
            return check_assumed(k, path, o, err);
        if (id != k->block[i])
            return ts_fail(err, TS_ERR_ARG, "captures hold different blocks: layer %" PRId32 " of '%s' is block %" PRId32
                           ", of '%s' block %" PRId32, i, k->shape_path, k->block[i], path, id);
    }
    return TS_OK;
}

static int differ(ts_error *err, const char *what, const char *a, const char *is_a, const char *b, const char *is_b) {
    return ts_fail(err, TS_ERR_ARG, "captures are of different %s: '%s' has '%.100s', '%s' has '%.100s'", what, a, is_a,
                   b, is_b);
}

static int meet_model(ts_extract_facts *k, const char *path, const ts_provenance *p, ts_error *err) {
    char hash[33];

    ts_meta_model_hash(p, hash);
    if (!k->model_path) {
        k->model_path = path;
        memcpy(k->architecture, p->architecture, sizeof k->architecture);
        memcpy(k->description, p->description, sizeof k->description);
        k->adds_bos = p->adds_bos;
    }
    if (strcmp(k->architecture, p->architecture) != 0)
        return differ(err, "models", k->model_path, k->architecture, path, p->architecture);
    if (hash[0] && k->hash[0] && strcmp(hash, k->hash) != 0)
        return differ(err, "models, by the files' hash", k->hash_path, k->hash, path, hash);
    if (strcmp(k->description, p->description) != 0)
        return differ(err, "models", k->model_path, k->description, path, p->description);
    if (hash[0] && !k->hash[0]) {
        memcpy(k->hash, hash, sizeof hash);
        k->hash_path = path;
    }
    if (k->adds_bos != p->adds_bos)
        return differ(err, "tokenizers", k->model_path, k->adds_bos ? "BOS added" : "no BOS", path,
                      p->adds_bos ? "BOS added" : "no BOS");
    return TS_OK;
}

/* Legitimate now and then, but mostly a slip: the direction then holds the difference. Told once each. */
static void warn_about(ts_extract_facts *k, const char *path, const ts_capture_file *f, const ts_provenance *p) {
    const char *steering = json_string_value(json_object_get(f->meta, "steering"));

    if (!k->template_path) {
        k->template_path = path;
        memcpy(k->chat_template, p->chat_template, sizeof k->chat_template);
    } else if (strcmp(k->chat_template, p->chat_template) != 0) {
        ts_log(TS_LOG_WARN, "captures differ in chat template: '%s' has '%s', '%s' has '%s'", k->template_path,
               k->chat_template[0] ? k->chat_template : "none", path, p->chat_template[0] ? p->chat_template : "none");
        memcpy(k->chat_template, p->chat_template, sizeof k->chat_template);
        k->template_path = path;
    }
    if (steering && !k->steered) {
        ts_log(TS_LOG_WARN, "'%s' was captured under steering: %.200s", path, steering);
        k->steered = true;
    }
}

int ts_extract_facts_meet(ts_extract_facts *k, const char *path, const ts_capture_file *f, const ts_extract_options *o,
                          ts_error *err) {
    ts_provenance p = {0};
    int rc = meet_shape(k, path, f, err);

    if (rc == TS_OK)
        rc = meet_blocks(k, path, f, o, err);
    if (rc != TS_OK || !f->meta)
        return rc;
    rc = ts_meta_provenance_read(f->meta, &p, err);
    if (rc != TS_OK)
        ts_error_prefix(err, "the meta data of '%s': ", path);
    else
        rc = meet_model(k, path, &p, err);
    if (rc == TS_OK)
        warn_about(k, path, f, &p);
    ts_meta_provenance_free(&p);
    return rc;
}

void ts_extract_facts_free(ts_extract_facts *k) {
    ts_free(k->block);
    k->block = NULL;
}
