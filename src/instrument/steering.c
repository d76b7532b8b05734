/* Steering at run time: each row of a steered block's output is edited before anything reads it, and before a capture of
 * the same block; what is only added everywhere goes through llama.cpp's own adapter where its graph shows it. Scale 0
 * edits nothing, to the bit, and asks for no tap. Refuses blocks without a residual site. */
#include "instrument/steering.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"

#define MAX_FILES 16
#define COLLAPSE_SHARE 0.1 /* of the stream's length; above it ablating everywhere breaks most models */
#define SAMPLE_TOKENS 32   /* looked at before the first generation to tell */

typedef struct steering {
    ts_session *session;
    int32_t n_layer;
    ts_steering_file files[MAX_FILES];
    size_t n_files;
    bool *mask;       /* [n_layer] blocks with an edit */
    float *added;     /* [n_layer][n_embd] what the adapter adds, the sum of its files */
    ts_file *trace;
    bool nonfinite_warned;
    double *c_sum, *x_sum; /* [n_layer] while sampling */
} steering;

/* ---- the edit */

/* Whether a token is steered: prompt tokens stand before the prompt's end. Outside a generation all are prompt. */
static bool chosen(const steering *st, const ts_steering_file *f, int32_t position) {
    const ts_generation *g = st->session->pass.generation;
    bool prompt = !g || position < 0 || (size_t)position < g->n_tokens;
    return f->from == TS_STEERING_ALL || (f->from == TS_STEERING_PROMPT) == prompt;
}

static int trace_row(steering *st, const ts_steering_file *f, const ts_run *run, int32_t block, int32_t token, double c, bool edited,
                     ts_error *err) {
    ts_buf b = {0};
    ts_buf_text(&b, "{\"file\": ");
    ts_buf_json_string(&b, f->name, strlen(f->name));
    ts_buf_printf(&b, ", \"block\": %d, \"position\": %d, \"token\": %d, ", block, ts_run_position(run, token), ts_run_tokens(run)[token]);
    if (isfinite(c)) ts_buf_printf(&b, "\"c\": %.9g, \"edited\": %s}\n", c, edited ? "true" : "false");
    else ts_buf_text(&b, "\"c\": null, \"edited\": false}\n");
    int rc = b.failed ? ts_fail_nomem(err, "trace", 0) : ts_file_write(st->trace, b.data, b.length, err);
    ts_buf_free(&b);
    return rc;
}

static void warn_nonfinite(steering *st, int32_t block, int32_t position) {
    if (st->nonfinite_warned) return;
    ts_log(TS_LOG_WARN, "steering: block %d is not finite at position %d: such rows are left as they are", block, position);
    st->nonfinite_warned = true;
}

static int edit_row(steering *st, const ts_steering_file *f, const ts_run *run, int32_t block, int32_t token, float *row, bool *changed,
                    ts_error *err) {
    double c = 0.0;
    enum ts_steer_outcome outcome = ts_steer_row(&f->axes[block], &f->rule, row, &c);
    *changed = *changed || outcome == TS_STEER_EDITED;
    if (outcome == TS_STEER_NONFINITE) warn_nonfinite(st, block, ts_run_position(run, token));
    return st->trace ? trace_row(st, f, run, block, token, c, outcome == TS_STEER_EDITED, err) : TS_OK;
}

static int edit(const struct ts_run *run, const ts_site *site, float *rows, int64_t n_rows, int64_t width, const int32_t *token_index,
                bool *changed, void *user, ts_error *err) {
    steering *st = user;
    int rc = TS_OK;
    for (int64_t r = 0; r < n_rows; r++)
        for (size_t i = 0; rc == TS_OK && i < st->n_files; i++) {
            const ts_steering_file *f = &st->files[i];
            if (f->by_adapter || f->axes[site->block].n == 0 || !chosen(st, f, ts_run_position(run, token_index[r]))) continue;
            rc = edit_row(st, f, run, site->block, token_index[r], rows + r * width, changed, err);
        }
    return rc;
}

/* ---- the same on a device */

/* Files that look at a token's row, in order. At scale 0 a file only does for the trace. */
static size_t files_of(const steering *st, const ts_run *run, int32_t block, int32_t token, const ts_steering_file **files) {
    size_t n = 0;
    int32_t position = ts_run_position(run, token);
    for (size_t i = 0; i < st->n_files; i++) {
        const ts_steering_file *f = &st->files[i];
        if (f->by_adapter || f->axes[block].n == 0 || !chosen(st, f, position) || (f->rule.scale == 0 && !st->trace)) continue;
        files[n++] = f;
    }
    return n;
}

bool ts_steering_step(const ts_steer_axis *axis, const ts_steer_rule *r, ts_edit_step *s) {
    *s = (ts_edit_step){.u = axis->u32, .v = axis->u32, .b = (float)-r->scale, .gate = (float)r->gate, .restore = r->mode == TS_STEER_RENORM};
    if (r->mode == TS_STEER_CLAMP) s->a = (float)(r->scale * r->target);
    if (r->mode == TS_STEER_ADD) {
        s->v = axis->d;
        s->a = (float)r->scale;
        s->b = 0.0f;
    }
    if (r->scale == 0) *s = (ts_edit_step){.u = axis->u32, .v = axis->u32};
    return isfinite(s->a) && isfinite(s->b);
}

static bool device_steps(const struct ts_run *run, int32_t block, int32_t token, ts_edit_step *steps, size_t *n, void *user) {
    const ts_steering_file *files[MAX_FILES];
    *n = files_of(user, run, block, token, files);
    for (size_t i = 0; i < *n; i++)
        if (!ts_steering_step(&files[i]->axes[block], &files[i]->rule, &steps[i])) return false;
    return true;
}

static int device_taken(const struct ts_run *run, const ts_site *site, int32_t token, size_t step, float c, void *user, ts_error *err) {
    steering *st = user;
    const ts_steering_file *files[MAX_FILES];
    bool finite = fabsf(c) < TS_EDIT_C_MAX; /* false for a NaN */
    if (!finite) warn_nonfinite(st, site->block, ts_run_position(run, token));
    if (!st->trace) return TS_OK;
    files_of(st, run, site->block, token, files);
    const ts_steer_rule *r = &files[step]->rule;
    bool edited = finite && r->scale != 0 && !(fabsf(c) < (float)r->gate);
    return trace_row(st, files[step], run, site->block, token, finite ? (double)c : NAN, edited, err);
}

/* ---- would ablating everywhere break the model */

static int sample(const struct ts_run *run, const ts_site *site, float *rows, int64_t n_rows, int64_t width, const int32_t *token_index,
                  bool *changed, void *user, ts_error *err) {
    steering *st = user;
    (void)run;
    (void)token_index;
    (void)changed;
    (void)err;
    for (int64_t r = 1; r < n_rows; r++) { /* the first token's rows are outliers in most models */
        double sum = 0.0;
        for (int64_t i = 0; i < width; i++) sum += (double)rows[r * width + i] * (double)rows[r * width + i];
        st->x_sum[site->block] += sqrt(sum);
        st->c_sum[site->block] += fabs(ts_steer_coefficient(&st->files[0].axes[site->block], rows + r * width));
    }
    return TS_OK;
}

/* The longest run of blocks that lose at most the share. */
static ts_range safe_band(const steering *st) {
    ts_range best = {0, -1};
    for (int32_t a = 0; a < st->n_layer; a++) {
        int32_t b = a;
        while (b < st->n_layer && st->x_sum[b] > 0 && st->c_sum[b] <= COLLAPSE_SHARE * st->x_sum[b]) b++;
        if (b - a > best.last - best.first + 1) best = (ts_range){a, b - 1};
        if (b > a) a = b - 1;
    }
    return best;
}

static void warn_collapse(const steering *st) {
    double share = 0.0;
    int32_t n = 0;
    for (int32_t il = 0; il < st->n_layer; il++) {
        if (st->x_sum[il] <= 0) continue;
        share += st->c_sum[il] / st->x_sum[il];
        n++;
    }
    if (n == 0 || share / n <= COLLAPSE_SHARE) return;
    ts_range band = safe_band(st);
    if (band.last < band.first)
        ts_log(TS_LOG_WARN, "steering: ablating this direction removes %.0f %% of the stream on average: the text will likely collapse; lower the scale",
               100 * share / n);
    else
        ts_log(TS_LOG_WARN, "steering: ablating on every block removes %.0f %% of the stream on average: the text will likely collapse; try --steering-layers %d:%d",
               100 * share / n, band.first, band.last);
}

static int check_collapse(steering *st, ts_error *err) {
    ts_session *s = st->session;
    int32_t tokens[SAMPLE_TOKENS], positions[SAMPLE_TOKENS], n_vocab = llama_vocab_n_tokens(s->model->vocab);
    int8_t output[SAMPLE_TOKENS];
    size_t n = s->opts.n_ubatch < SAMPLE_TOKENS ? s->opts.n_ubatch : SAMPLE_TOKENS;
    const ts_steering_file *f = &st->files[0];
    if (st->n_files != 1 || f->rule.mode != TS_STEER_ABLATE || f->rule.scale < 1 || f->rule.gate > 0 || f->n_blocks + 1 < st->n_layer)
        return TS_OK;
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)((11 + 53 * i) % (size_t)n_vocab);
        positions[i] = (int32_t)i;
        output[i] = 1;
    }
    ts_edit look = {.fn = sample, .user = st, .kinds = 1u << TS_SITE_RESID, .blocks = {0, st->n_layer - 1}, .mask = st->mask};
    ts_decode d = {.tokens = tokens, .positions = positions, .output = output, .n = n, .skip_head = true, .edit = &look};
    int rc = ts_session_decode(s, &d, err);
    ts_session_clear(s);
    if (rc == TS_OK) warn_collapse(st);
    return rc;
}

/* ---- as an instrument */

static int require_sites(const steering *st, ts_error *err) {
    for (int32_t il = 0; il < st->n_layer; il++) {
        if (!st->mask[il]) continue;
        int rc = ts_sites_require(&st->session->tap->table, TS_SITE_RESID, il, il, st->session->model->architecture, err);
        if (rc != TS_OK) return rc;
    }
    return TS_OK;
}

/* Blocks that some file would change. At scale 0 there is none, and the trace, if any, still sees c. */
static bool fill_mask(steering *st) {
    bool any = false;
    for (size_t i = 0; i < st->n_files; i++)
        for (int32_t il = 0; il < st->n_layer; il++)
            if (!st->files[i].by_adapter && st->files[i].axes[il].n > 0 && (st->files[i].rule.scale != 0 || st->trace)) any = st->mask[il] = true;
    return any;
}

static int steering_start(void *self, ts_session *s, ts_error *err) {
    steering *st = self;
    size_t used = 0;
    st->mask = ts_calloc((size_t)st->n_layer, sizeof(*st->mask));
    st->c_sum = ts_calloc((size_t)st->n_layer, sizeof(*st->c_sum));
    st->x_sum = ts_calloc((size_t)st->n_layer, sizeof(*st->x_sum));
    if (!st->mask || !st->c_sum || !st->x_sum) return ts_fail_nomem(err, "steering", 0);
    for (size_t i = 0; i < st->n_files; i++) {
        char line[256];
        st->files[i].by_adapter = st->files[i].by_adapter && s->adapter_on;
        ts_steering_file_describe(&st->files[i], st->n_layer, line, sizeof(line));
        int n = used < sizeof(s->steering) ? snprintf(s->steering + used, sizeof(s->steering) - used, "%s%s", used ? "; " : "", line) : 0;
        used += n > 0 ? (size_t)n : 0;
    }
    if (!fill_mask(st)) {
        for (size_t i = 0; i < s->n_attached; i++)
            if (s->attached[i].self == st) s->attached[i].untapped = s->adapter_on && !st->trace;
        return TS_OK;
    }
    int rc = require_sites(st, err);
    if (rc == TS_OK) rc = check_collapse(st, err);
    s->edit = (ts_edit){.fn = edit, .user = st, .kinds = 1u << TS_SITE_RESID, .blocks = {0, st->n_layer - 1}, .mask = st->mask,
                        .steps = device_steps, .taken = device_taken};
    return rc;
}

static unsigned steering_wants(void *self, enum ts_pass_kind kind) {
    (void)self;
    (void)kind;
    return 0; /* it edits, it reads nothing afterwards */
}

static int steering_finish(void *self, ts_session *s, ts_error *err) {
    steering *st = self;
    (void)s;
    ts_file *trace = st->trace;
    st->trace = NULL;
    return trace ? ts_file_commit(trace, err) : TS_OK;
}

static void steering_free(void *self) {
    steering *st = self;
    if (!st) return;
    for (size_t i = 0; i < st->n_files; i++) ts_steering_file_free(&st->files[i], st->n_layer);
    ts_file_discard(st->trace);
    free(st->mask);
    free(st->added);
    free(st->c_sum);
    free(st->x_sum);
    free(st);
}

static const ts_instrument_class steering_class = {
    .name = "steering", .sites = 1u << TS_SITE_RESID, .start = steering_start, .wants = steering_wants,
    .finish = steering_finish, .free = steering_free,
};

/* While nothing is to be edited or traced: no site, so no callback for its sake. */
static const ts_instrument_class idle_class = {
    .name = "steering", .start = steering_start, .wants = steering_wants, .finish = steering_finish, .free = steering_free,
};

/* ---- the adapter */

/* One the adapter can do: it adds to every row, has none for block 0, and nothing before it edits. */
static bool addable(const steering *st, const ts_steering_file *f) {
    return f->rule.mode == TS_STEER_ADD && f->rule.gate == 0 && f->from == TS_STEERING_ALL && f->axes[0].n == 0 && !st->trace;
}

static void add_rows(const steering *st, const ts_steering_file *f, size_t width) {
    for (int32_t il = 1; il < st->n_layer; il++)
        for (size_t i = 0; f->axes[il].n > 0 && i < width; i++)
            st->added[(size_t)il * width + i] += (float)f->rule.scale * f->axes[il].d[i];
}

/* After every change of what is attached: which files the adapter takes, and whether a tap is needed at all. */
static int plan(steering *st, ts_error *err) {
    ts_session *s = st->session;
    size_t width = (size_t)llama_model_n_embd(s->model->llama), n = (size_t)st->n_layer * width;
    bool edited = false, any = false;
    if (!st->added && !(st->added = ts_calloc(n, sizeof(*st->added)))) return ts_fail_nomem(err, "vectors to add", n * sizeof(*st->added));
    memset(st->added, 0, n * sizeof(*st->added));
    for (size_t i = 0; i < st->n_files; i++) {
        ts_steering_file *f = &st->files[i];
        f->by_adapter = f->rule.scale != 0 && !edited && addable(st, f);
        edited = edited || (f->rule.scale != 0 && !f->by_adapter);
        any = any || f->by_adapter;
        if (f->by_adapter) add_rows(st, f, width);
    }
    s->added = any ? st->added : NULL;
    for (size_t i = 0; i < s->n_attached; i++)
        if (s->attached[i].self == st) s->attached[i].class = any || edited || st->trace ? &steering_class : &idle_class;
    return TS_OK;
}

/* The session's steering, made when there is none. */
static int find_or_make(ts_session *s, steering **out, ts_error *err) {
    for (size_t i = 0; i < s->n_attached; i++)
        if (s->attached[i].class == &steering_class || s->attached[i].class == &idle_class) {
            *out = s->attached[i].self;
            return s->started ? ts_fail(err, TS_ERR_STATE, "steering must be attached before the session starts") : TS_OK;
        }
    steering *st = ts_calloc(1, sizeof(*st));
    if (!st) return ts_fail_nomem(err, "steering", sizeof(*st));
    st->session = s;
    st->n_layer = llama_model_n_layer(s->model->llama);
    *out = st;
    return ts_session_attach(s, &idle_class, st, false, err);
}

int ts_session_attach_steering(ts_session *s, const ts_steering_options *opts, ts_error *err) {
    steering *st = NULL;
    ts_steering_file f;
    int rc = ts_steering_file_open(&f, s, opts, err);
    if (rc == TS_OK) rc = find_or_make(s, &st, err);
    if (rc == TS_OK && st->n_files == MAX_FILES) rc = ts_fail(err, TS_ERR_ARG, "steering: more than %d files", MAX_FILES);
    if (rc != TS_OK) {
        ts_steering_file_free(&f, llama_model_n_layer(s->model->llama));
        return rc;
    }
    st->files[st->n_files++] = f;
    return plan(st, err);
}

int ts_session_trace_steering(ts_session *s, const char *path, ts_error *err) {
    steering *st = NULL;
    int rc = find_or_make(s, &st, err);
    if (rc == TS_OK && st->trace) rc = ts_fail(err, TS_ERR_STATE, "steering is traced already");
    if (rc == TS_OK) rc = ts_session_keep_model(s, path, (const char *const[]){NULL}, err);
    if (rc == TS_OK) rc = ts_output_check(path, err); /* no control vector is JSON */
    if (rc == TS_OK) rc = ts_file_create(path, &st->trace, err);
    return rc == TS_OK ? plan(st, err) : rc;
}

int ts_session_steering_summary(const ts_session *s, char **text, ts_error *err) {
    *text = NULL;
    if (!s->steering[0]) return TS_OK;
    *text = ts_strdup(s->steering);
    return *text ? TS_OK : ts_fail_nomem(err, "summary", 0);
}
