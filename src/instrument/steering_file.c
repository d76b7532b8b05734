/* One control-vector file made ready to steer. Refuses files that declare no mode when none is asked for, other models,
 * other widths, and ranges that leave no block. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "instrument/provenance.h"
#include "instrument/steering.h"
#include "store/meta.h"

static int choose_mode(ts_steering_file *f, const ts_steering_options *o, ts_error *err) {
    static const enum ts_steer_mode modes[] = {[TS_STEERING_ABLATE] = TS_STEER_ABLATE, [TS_STEERING_ADD] = TS_STEER_ADD,
                                               [TS_STEERING_CLAMP] = TS_STEER_CLAMP, [TS_STEERING_RENORM] = TS_STEER_RENORM};
    if (o->mode < TS_STEERING_DECLARED || o->mode > TS_STEERING_RENORM) return ts_fail(err, TS_ERR_ARG, "unknown steering mode %d", (int)o->mode);
    if (o->mode != TS_STEERING_DECLARED) {
        f->rule.mode = modes[o->mode];
        return TS_OK;
    }
    if (f->vectors->mode && ts_steer_mode_find(f->vectors->mode, &f->rule.mode)) return TS_OK;
    return ts_fail(err, TS_ERR_ARG, "'%s' declares no mode: its makers may mean add or ablate; say which with --steering-mode", o->path);
}

/* A file of ours names the model it was made from; only then is hashing it worth its time. */
static int check_model(const ts_steering_file *f, const ts_session *s, const char *path, ts_error *err) {
    char hash[33] = "";
    bool hint_differs = false;
    ts_provenance prov = {0};
    int rc = f->vectors->model_hash ? ts_provenance_complete(s, &prov, err) : TS_OK;
    if (rc == TS_OK && f->vectors->model_hash) ts_meta_model_hash(&prov, hash);
    ts_provenance_free(&prov);
    if (rc != TS_OK) return rc;
    ts_cvec_model model = {.width = llama_model_n_embd(s->model->llama), .n_blocks = llama_model_n_layer(s->model->llama),
                           .architecture = s->model->architecture, .hash = hash};
    rc = ts_cvec_check_model(f->vectors, path, &model, &hint_differs, err);
    if (rc == TS_OK && hint_differs)
        ts_log(TS_LOG_WARN, "'%s' was made for '%s', the model is '%s'", path, f->vectors->model_hint, s->model->architecture);
    return rc;
}

static int make_axes(ts_steering_file *f, int32_t n_layer, const ts_steering_options *o, ts_error *err) {
    ts_range blocks = o->blocks ? *o->blocks : (ts_range){0, n_layer - 1};
    if (blocks.first < 0 || blocks.last < blocks.first || blocks.last >= n_layer)
        return ts_fail(err, TS_ERR_ARG, "'%s': blocks %d:%d are asked for, the model has blocks 0:%d", o->path, blocks.first, blocks.last,
                       n_layer - 1);
    f->axes = ts_calloc((size_t)n_layer, sizeof(*f->axes));
    if (!f->axes) return ts_fail_nomem(err, "directions", (size_t)n_layer * sizeof(*f->axes));
    for (int32_t i = 0; i < f->vectors->n; i++) {
        int32_t block = f->vectors->block[i];
        if (block < blocks.first || block > blocks.last) continue;
        int rc = ts_steer_axis_init(&f->axes[block], f->vectors->d + (size_t)i * (size_t)f->vectors->width, f->vectors->width, err);
        if (rc != TS_OK) return rc;
        f->n_blocks++;
    }
    if (f->n_blocks > 0) return TS_OK;
    return ts_fail(err, TS_ERR_ARG, "'%s' has no direction for blocks %d:%d", o->path, blocks.first, blocks.last);
}

int ts_steering_file_open(ts_steering_file *f, const ts_session *s, const ts_steering_options *o, ts_error *err) {
    memset(f, 0, sizeof(*f));
    int rc = ts_options_check(o, sizeof(*o), "ts_steering_options", err);
    if (rc == TS_OK && !o->path) rc = ts_fail(err, TS_ERR_ARG, "steering: no file");
    if (rc == TS_OK && (o->from < TS_STEERING_ALL || o->from > TS_STEERING_DECODE))
        rc = ts_fail(err, TS_ERR_ARG, "steering: unknown choice of tokens %d", (int)o->from);
    if (rc == TS_OK) rc = ts_cvec_read(o->path, &f->vectors, err);
    if (rc == TS_OK && !(f->name = ts_strdup(ts_path_base(o->path)))) rc = ts_fail_nomem(err, "steering", 0);
    if (rc == TS_OK) rc = choose_mode(f, o, err);
    if (rc != TS_OK) return rc;
    f->rule.scale = o->scale;
    f->rule.target = o->target;
    f->rule.gate = o->gate;
    f->from = o->from;
    rc = ts_steer_rule_check(&f->rule, err);
    if (rc == TS_OK) rc = check_model(f, s, o->path, err);
    return rc == TS_OK ? make_axes(f, llama_model_n_layer(s->model->llama), o, err) : rc;
}

void ts_steering_file_free(ts_steering_file *f, int32_t n_layer) {
    for (int32_t il = 0; f->axes && il < n_layer; il++) ts_steer_axis_free(&f->axes[il]);
    free(f->axes);
    free(f->name);
    ts_cvec_free(f->vectors);
    memset(f, 0, sizeof(*f));
}

void ts_steering_file_describe(const ts_steering_file *f, int32_t n_layer, char *out, size_t size) {
    static const char *const from[] = {"", ", prompt only", ", decode only"};
    char target[48] = "", gate[48] = "";
    if (f->rule.mode == TS_STEER_CLAMP) snprintf(target, sizeof(target), " to %g", f->rule.target);
    if (f->rule.gate > 0) snprintf(gate, sizeof(gate), " where |c| >= %g", f->rule.gate);
    snprintf(out, size, "%s%s at scale %g on %d of %d blocks%s%s%s ('%.120s')", ts_steer_mode_name(f->rule.mode), target, f->rule.scale,
             f->n_blocks, n_layer, gate, from[f->from], f->by_adapter ? ", by llama.cpp's adapter" : "", f->name);
}
