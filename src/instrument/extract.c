/* Owns ts_extract_run: what comes in as paths, goes through the arithmetic, and comes out as two files. Refuses outputs
 * that exist or are inputs before anything is computed; writes nothing unless all went well. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "host/session.h"
#include "instrument/extract.h"
#include "store/inspect_sniff.h"

enum { DEFAULT_THREADS = 2, NONE = -1 };

_Static_assert((int)TS_EXTRACT_MEAN == (int)TS_DIRECTION_MEAN && (int)TS_EXTRACT_PCA == (int)TS_DIRECTION_PCA &&
                   (int)TS_EXTRACT_PCA_REPENG == (int)TS_DIRECTION_PCA_REPENG &&
                   (int)TS_EXTRACT_SVD == (int)TS_DIRECTION_SVD && (int)TS_EXTRACT_LDA == (int)TS_DIRECTION_LDA,
               "one numbering");

typedef struct extract {
    const ts_session *s; /* nullable */
    ts_extract_options o;
    ts_extract_facts facts;
    ts_extract_set set[2];      /* positive, negative */
    ts_extract_captures captures;
    int32_t first, n_layers;    /* layers of the captures that are extracted */
    bool any_capture;           /* not all inputs are prompts */
    ts_cvec *control;           /* NULL = none */
    const float **orthogonal;   /* [n_layers], into control */
    ts_direction *direction;
    ts_extract_result result;
    ts_lock *lock;
} extract;

TS_API const char *ts_extract_method_name(enum ts_extract_method method) {
    return ts_direction_method_name((enum ts_direction_method)method);
}

/* ---- options */

static int check_paths(const char *const *paths, size_t n, const char *what, ts_error *err) {
    for (size_t i = 0; paths && i < n; i++)
        if (!paths[i])
            return ts_fail(err, TS_ERR_ARG, "a path of the %s set is NULL", what);
    return paths && n ? TS_OK : ts_fail(err, TS_ERR_ARG, "the %s set is empty: captures are needed", what);
}

static int check_options(const extract *x, ts_error *err) {
    const ts_extract_options *o = &x->o;
    int rc = check_paths(o->positive, o->n_positive, "positive", err);

    if (rc == TS_OK)
        rc = check_paths(o->negative, o->n_negative, "negative", err);
    if (rc != TS_OK)
        return rc;
    if (!o->output_path)
        return ts_fail(err, TS_ERR_ARG, "an extraction needs an output");
    if ((unsigned)o->method >= TS_DIRECTION_METHOD_COUNT)
        return ts_fail(err, TS_ERR_ARG, "method: expected 0 to %d, got %d", TS_DIRECTION_METHOD_COUNT - 1, (int)o->method);
    if (!ts_extract_mode_name(o))
        return ts_fail(err, TS_ERR_ARG, "mode: got %d", (int)o->mode);
    if (o->shrinkage != 0 && o->method != TS_EXTRACT_LDA)
        return ts_fail(err, TS_ERR_ARG, "a shrinkage is for the method 'lda', not '%s'", ts_extract_method_name(o->method));
    if (o->n_threads < 0)
        return ts_fail(err, TS_ERR_ARG, "threads: expected at least 1, got %" PRId32, o->n_threads);
    if (o->json_path && (strcmp(o->json_path, o->output_path) == 0 || ts_file_same(o->json_path, o->output_path)))
        return ts_fail(err, TS_ERR_ARG, "'%s' is both the output and the JSON", o->json_path);
    return TS_OK;
}

/* One of the two files: can it be written, and is it none of the paths given? */
static int check_output(const extract *x, const char *path, ts_error *err) {
    const char *const *paths[] = {x->o.positive, x->o.negative, &x->o.orthogonal_path};
    size_t n[] = {x->o.n_positive, x->o.n_negative, x->o.orthogonal_path ? 1 : 0};
    static const char *const beside[] = {NULL};
    int rc = path ? ts_file_check_target(path, err) : TS_OK;

    if (rc == TS_OK && path && x->s)
        rc = ts_session_keep_model(x->s, path, beside, err);
    if (rc != TS_OK || !path)
        return rc;
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < n[k]; i++)
            if (ts_file_same(path, paths[k][i]))
                return ts_fail(err, TS_ERR_ARG, "output '%s' is an input", path);
    return x->o.overwrite ? TS_OK : ts_file_vacant(path, err);
}

/* The same for files that came out of folders. */
static int check_output_in_sets(const extract *x, const char *path, ts_error *err) {
    if (path && (ts_extract_set_holds(&x->set[0], path) || ts_extract_set_holds(&x->set[1], path)))
        return ts_fail(err, TS_ERR_ARG, "output '%s' is an input", path);
    return TS_OK;
}

/* ---- sets */

static int refuse(const char *path, enum ts_file_sort sort, const extract *x, ts_error *err) {
    if (sort == TS_SORT_GGUF)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' is a GGUF file, a model or a control vector: expected captures%s", path,
                       x->s ? " or prompts" : "");
    if (sort == TS_SORT_META)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' stands beside a capture: expected its header, .json", path);
    if (sort == TS_SORT_PARTIAL)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' is the state of an unfinished capture: resume that first", path);
    return ts_fail(err, TS_ERR_FORMAT, "'%s' is no capture (it is %s); to capture a list of prompts a model is needed",
                   path, ts_sort_name(sort));
}

/* What is at a path of a set. */
enum kind { KIND_FOLDER, KIND_CAPTURE, KIND_PROMPTS };

static int look(const extract *x, const char *path, enum kind *kind, ts_error *err) {
    enum ts_file_sort sort;
    struct stat st;
    int rc;

    *kind = KIND_FOLDER;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return TS_OK;
    rc = ts_sniff(path, &sort, err);
    if (rc != TS_OK)
        return rc;
    *kind = sort == TS_SORT_PAIR || sort == TS_SORT_SAFETENSORS ? KIND_CAPTURE : KIND_PROMPTS;
    if (*kind == KIND_PROMPTS && !(x->s && (sort == TS_SORT_UNKNOWN || sort == TS_SORT_JSON)))
        return refuse(path, sort, x, err);
    return TS_OK;
}

/* Every path of a set is looked at, and every prompt list read, before anything is captured. */
static int check_inputs(extract *x, const char *const *paths, size_t n, ts_error *err) {
    int rc = TS_OK;

    for (size_t i = 0; rc == TS_OK && i < n; i++) {
        enum kind kind;

        rc = look(x, paths[i], &kind, err);
        x->any_capture = x->any_capture || kind != KIND_PROMPTS;
        if (rc == TS_OK && kind == KIND_PROMPTS)
            rc = ts_extract_check_prompts(x->s, paths[i], &x->o, err);
    }
    return rc;
}

static int add_prompts(extract *x, ts_extract_set *set, const char *path, ts_error *err) {
    char *capture;
    int rc = ts_extract_capture(&x->captures, x->s, path, &x->o, &capture, err);

    if (rc == TS_OK)
        rc = ts_extract_set_add(set, path, capture, &x->facts, &x->o, err);
    ts_free(capture);
    return rc;
}

static int add_path(extract *x, ts_extract_set *set, const char *path, ts_error *err) {
    enum kind kind;
    int rc = look(x, path, &kind, err);

    if (rc != TS_OK)
        return rc;
    if (kind == KIND_FOLDER)
        return ts_extract_set_add_folder(set, path, &x->facts, &x->o, err);
    if (kind == KIND_CAPTURE)
        return ts_extract_set_add(set, path, path, &x->facts, &x->o, err);
    return add_prompts(x, set, path, err);
}

static int fill_set(extract *x, int which, ts_error *err) {
    const char *const *paths = which ? x->o.negative : x->o.positive;
    size_t n = which ? x->o.n_negative : x->o.n_positive;
    ts_extract_set *set = &x->set[which];
    int rc = TS_OK;

    set->name = n == 1 ? paths[0] : which ? "negative set" : "positive set";
    set->stop = x->o.stop;
    for (size_t i = 0; rc == TS_OK && i < n; i++)
        rc = add_path(x, set, paths[i], err);
    return rc;
}

/* One file in both sets is a slip of the keyboard, worth more than "the direction is zero". */
static int check_disjoint(const extract *x, ts_error *err) {
    for (size_t i = 0; i < x->set[0].n_sources; i++)
        for (size_t j = 0; j < x->set[1].n_sources; j++)
            if (strcmp(x->set[0].sources[i].path, x->set[1].sources[j].path) == 0)
                return ts_fail(err, TS_ERR_ARG, "'%s' is in both sets", x->set[0].sources[i].path);
    return TS_OK;
}

/* The same before anything is captured. */
static int check_apart(const extract *x, ts_error *err) {
    for (size_t i = 0; i < x->o.n_positive; i++)
        for (size_t j = 0; j < x->o.n_negative; j++)
            if (ts_file_same(x->o.positive[i], x->o.negative[j]))
                return ts_fail(err, TS_ERR_ARG, "'%s' is in both sets", x->o.positive[i]);
    return TS_OK;
}

static int refuse_blocks(ts_error *err) {
    return ts_fail(err, TS_ERR_ARG, "the captures say which blocks they hold: block numbers (--layer-ids) are for those that do not");
}

/* Layers of the captures within the blocks asked for. */
static int choose_layers(extract *x, ts_error *err) {
    const ts_extract_facts *k = &x->facts;
    const ts_range *r = x->o.blocks;
    int32_t first = NONE, last = NONE;

    for (int32_t i = 0; i < k->n_layers; i++)
        if (!r || (k->block[i] >= r->first && k->block[i] <= r->last)) {
            first = first == NONE ? i : first;
            last = i;
        }
    if (r && (first == NONE || k->block[first] != r->first || k->block[last] != r->last))
        return ts_fail(err, TS_ERR_ARG, "blocks %" PRId32 ":%" PRId32 ": '%s' holds blocks %" PRId32 " to %" PRId32,
                       r->first, r->last, k->shape_path, k->block[0], k->block[k->n_layers - 1]);
    if (first == last && k->block[first] == 0)
        return ts_fail(err, TS_ERR_ARG, "only block 0 is left, which a control vector cannot name");
    x->first = x->set[0].first_layer = x->set[1].first_layer = first;
    x->n_layers = last - first + 1;
    return TS_OK;
}

/* ---- control direction */

static int read_control(extract *x, ts_error *err) {
    const ts_extract_facts *k = &x->facts;
    ts_cvec_model model = {k->n_hidden, INT32_MAX, k->architecture, k->hash};
    int32_t n_with = 0, n_written = 0;
    int rc = ts_cvec_check_model(x->control, x->o.orthogonal_path, &model, NULL, err);

    if (rc != TS_OK)
        return rc;
    x->orthogonal = ts_calloc((size_t)x->n_layers, sizeof *x->orthogonal);
    if (!x->orthogonal)
        return ts_fail_nomem(err, "control directions", (size_t)x->n_layers * sizeof *x->orthogonal);
    for (int32_t i = 0; i < x->n_layers; i++) {
        x->orthogonal[i] = ts_cvec_find(x->control, k->block[x->first + i]);
        n_with += x->orthogonal[i] != NULL;
        n_written += k->block[x->first + i] > 0;
    }
    if (n_with == 0)
        return ts_fail(err, TS_ERR_ARG, "'%s' has no direction for any of these blocks", x->o.orthogonal_path);
    if (n_with < n_written)
        ts_log(TS_LOG_WARN, "'%s' has directions for %" PRId32 " of %" PRId32 " blocks: the others are left as they are",
               x->o.orthogonal_path, n_with, n_written);
    return TS_OK;
}

/* ---- the arithmetic */

/* Finds the first value of a set's snapshot that is not finite; *block is -1 when all are. */
static int find_nonfinite(extract *x, int which, int64_t snapshot, float *rows, int32_t *block, ts_error *err) {
    size_t width = (size_t)x->facts.n_hidden, n = (size_t)x->n_layers * width;
    int rc = ts_extract_set_read(&x->set[which], snapshot, 0, x->n_layers, rows, err);

    *block = NONE;
    for (size_t i = 0; rc == TS_OK && *block == NONE && i < n; i++)
        if (!isfinite(rows[i]))
            *block = x->facts.block[x->first + (int32_t)(i / width)];
    return rc;
}

/* The arithmetic knows a set's snapshots by number; the user has files. */
static int name_nonfinite(extract *x, int64_t snapshot, ts_error *err) {
    float *rows = ts_malloc((size_t)x->n_layers * (size_t)x->facts.n_hidden * sizeof *rows);
    ts_error unused;

    for (int which = 0; rows && which < 2; which++) {
        ts_extract_set *set = &x->set[which];
        const ts_extract_source *s;
        int32_t block;

        if (snapshot >= set->n || find_nonfinite(x, which, snapshot, rows, &block, &unused) || block == NONE)
            continue;
        s = ts_extract_set_find(set, snapshot);
        ts_fail_at(err, TS_ERR_FORMAT, snapshot, "'%s': snapshot %" PRId64 " is not finite in block %" PRId32
                   " (NaN or infinity): such rows are left out only where that is asked for",
                   s->path, snapshot - s->first + s->skip, block);
        break;
    }
    ts_free(rows);
    return TS_ERR_FORMAT;
}

static int compute(extract *x, ts_error *err) {
    ts_direction_options o = {.method = (enum ts_direction_method)x->o.method,
                              .shrinkage = x->o.shrinkage,
                              .drop_nonfinite = x->o.drop_nonfinite,
                              .n_threads = x->o.n_threads ? x->o.n_threads : DEFAULT_THREADS,
                              .block_ids = x->facts.block + x->first,
                              .orthogonal = x->orthogonal};
    ts_direction_set sets[2];
    ts_error local = {0};
    int rc;

    for (int i = 0; i < 2; i++)
        sets[i] = (ts_direction_set){.name = x->set[i].name, .n = x->set[i].n, .n_layers = x->n_layers,
                                     .n_hidden = x->facts.n_hidden, .read = ts_extract_set_read, .user = &x->set[i]};
    local.position = NONE;
    rc = ts_direction_extract(&sets[0], &sets[1], &o, &x->direction, &local);
    if (rc != TS_OK && err)
        *err = local;
    return rc == TS_ERR_FORMAT && local.position >= 0 ? name_nonfinite(x, local.position, err) : rc;
}

static int make_result(extract *x, ts_error *err) {
    ts_extract_result *r = &x->result;

    r->blocks = ts_calloc((size_t)x->n_layers, sizeof *r->blocks);
    if (!r->blocks)
        return ts_fail_nomem(err, "the figures", (size_t)x->n_layers * sizeof *r->blocks);
    r->n_blocks = (size_t)x->n_layers;
    r->width = x->facts.n_hidden;
    r->n_positive = x->set[0].n;
    r->n_negative = x->set[1].n;
    r->n_dropped = x->direction->n_dropped;
    for (int32_t i = 0; i < x->n_layers; i++) {
        const ts_direction_block *b = &x->direction->blocks[i];
        int32_t id = x->facts.block[x->first + i];

        r->blocks[i] = (ts_extract_block){.block = id,
                                          .written = id > 0,
                                          .n_positive = b->n_positive,
                                          .n_negative = b->n_negative,
                                          .norm = b->norm,
                                          .mean_positive = b->mean_positive,
                                          .mean_negative = b->mean_negative,
                                          .separation = b->separation,
                                          .mean_row_norm = b->mean_row_norm,
                                          .share = b->share,
                                          .removed_share = b->removed_share,
                                          .auc = b->auc,
                                          .cos_previous = b->cos_previous,
                                          .eigen_gap = b->eigen_gap,
                                          .n_folds = b->n_folds};
    }
    return TS_OK;
}

static int write_files(const extract *x, ts_error *err) {
    ts_extraction e = {.o = &x->o, .facts = &x->facts, .positive = &x->set[0], .negative = &x->set[1],
                       .result = &x->result, .d = x->direction->d, .block = x->facts.block + x->first};
    int rc = ts_extract_write_vector(&e, err);

    if (rc != TS_OK || !x->o.json_path)
        return rc;
    rc = ts_extract_write_json(&e, err);
    if (rc != TS_OK)
        ts_error_prefix(err, "'%s' is written, the JSON is not: ", x->o.output_path);
    return rc;
}

static int prepare(extract *x, ts_error *err) {
    int rc = check_options(x, err);

    if (rc == TS_OK)
        rc = check_output(x, x->o.output_path, err);
    if (rc == TS_OK)
        rc = check_output(x, x->o.json_path, err);
    if (rc == TS_OK)
        rc = ts_lock_take(x->o.output_path, &x->lock, err);
    if (rc == TS_OK)
        rc = check_inputs(x, x->o.positive, x->o.n_positive, err);
    if (rc == TS_OK)
        rc = check_inputs(x, x->o.negative, x->o.n_negative, err);
    if (rc == TS_OK)
        rc = check_apart(x, err);
    if (rc == TS_OK && x->o.layer_blocks && !x->any_capture)
        rc = refuse_blocks(err);
    if (rc == TS_OK && x->o.orthogonal_path)
        rc = ts_cvec_read(x->o.orthogonal_path, &x->control, err);
    for (int which = 0; rc == TS_OK && which < 2; which++)
        rc = fill_set(x, which, err);
    if (rc == TS_OK && x->o.layer_blocks && !x->facts.assumed)
        rc = refuse_blocks(err);
    if (rc == TS_OK)
        rc = check_output_in_sets(x, x->o.output_path, err);
    if (rc == TS_OK)
        rc = check_output_in_sets(x, x->o.json_path, err);
    if (rc == TS_OK)
        rc = check_disjoint(x, err);
    if (rc == TS_OK)
        rc = choose_layers(x, err);
    if (rc == TS_OK && x->o.orthogonal_path)
        rc = read_control(x, err);
    if (rc == TS_OK && !x->facts.hash[0])
        ts_log(TS_LOG_WARN, "the captures do not say which model they are of: '%s' will not refuse another",
               x->o.output_path);
    return rc;
}

TS_API int ts_extract_run(const ts_session *s, const ts_extract_options *opts, ts_extract_result *out, ts_error *err) {
    extract x = {.s = s};
    int rc;

    if (out)
        *out = (ts_extract_result){0};
    if (!opts)
        return ts_fail(err, TS_ERR_ARG, "an extraction needs options");
    rc = ts_options_check(opts, sizeof *opts, "ts_extract_options", err);
    if (rc != TS_OK)
        return rc;
    memcpy(&x.o, opts, opts->size < sizeof x.o ? opts->size : sizeof x.o);
    if (!x.o.stop && s)
        x.o.stop = s->opts.stop;
    rc = prepare(&x, err);
    if (rc == TS_OK)
        rc = compute(&x, err);
    if (rc == TS_OK)
        rc = make_result(&x, err);
    if (rc == TS_OK)
        rc = write_files(&x, err);
    if (rc == TS_OK && out) {
        *out = x.result;
        x.result.blocks = NULL;
    }
    ts_lock_release(x.lock);
    ts_free(x.result.blocks);
    ts_direction_free(x.direction);
    ts_free((void *)x.orthogonal);
    ts_cvec_free(x.control);
    for (int which = 0; which < 2; which++)
        ts_extract_set_free(&x.set[which]);
    ts_extract_captures_free(&x.captures);
    ts_extract_facts_free(&x.facts);
    return rc;
}
