/* Owns ts_analyze and ts_merge: reading census files, adding them up, and handing the sum to the parts that make
 * figures and print them. Refuses files of another kind by name, and groups of different models or shapes. */
#include "instrument/analyze.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "instrument/analyze_router.h"
#include "store/inspect_sniff.h"

/* A file of ours of another kind is named before it fails as a census. */
static int refuse_other_kinds(const char *path, ts_error *err) {
    enum ts_file_sort sort;
    int rc = ts_sniff(path, &sort, err);

    if (rc != TS_OK || sort == TS_SORT_CENSUS || sort == TS_SORT_JSON)
        return rc;
    if (sort == TS_SORT_UNKNOWN)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' is of an unknown kind: expected an FFN or a routing census, or a CSV of lines 'layer,expert'", path);
    if (sort == TS_SORT_META || sort == TS_SORT_DETAIL)
        return ts_fail(err, TS_ERR_FORMAT, "'%s' stands beside a result: expected the .json of an FFN census", path);
    return ts_fail(err, TS_ERR_FORMAT, "'%s' is %s: expected an FFN census, the .json of 'census' or '--ffn-hist'",
                   path, ts_sort_name(sort));
}

void ts_analyze_repeats(const char *const *paths, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i && paths[i]; k++)
            if (paths[k] && ts_file_same(paths[i], paths[k])) {
                ts_log(TS_LOG_WARN, "'%s' is given twice and counts twice", paths[i]);
                break;
            }
}

/* Sums the files into *sum, which is empty after a failure. *key as of the first file. */
static int read_group(const char *const *paths, size_t n, ts_census *sum, char **key, ts_error *err) {
    int rc = TS_OK;

    *key = NULL;
    ts_analyze_repeats(paths, n);
    for (size_t i = 0; i < n && rc == TS_OK; i++) {
        ts_census one = {0};

        rc = paths[i] ? refuse_other_kinds(paths[i], err) : ts_fail(err, TS_ERR_ARG, "a path is NULL");
        if (rc == TS_OK)
            rc = i == 0 ? ts_census_read(paths[0], sum, key, err) : ts_census_read(paths[i], &one, NULL, err);
        if (rc == TS_OK && i > 0)
            rc = ts_census_add(sum, &one, err);
        ts_census_free(&one);
    }
    if (rc == TS_OK)
        return TS_OK;
    ts_census_free(sum);
    ts_free(*key);
    *key = NULL;
    return rc;
}

/* Two groups can be compared when model (where both know it) and shape are one. */
static int check_comparable(const ts_census *a, const char *key_a, const ts_census *b, const char *key_b,
                            ts_error *err) {
    if (key_a && key_b && strcmp(key_a, key_b) != 0)
        return ts_fail(err, TS_ERR_ARG, "cannot compare different models: '%.200s' and '%.200s'", key_a, key_b);
    if (a->n_layers != b->n_layers)
        return ts_fail(err, TS_ERR_ARG, "cannot compare different shapes: %" PRIu32 " and %" PRIu32 " blocks",
                       a->n_layers, b->n_layers);
    for (uint32_t il = 0; il < a->n_layers; il++)
        if (a->dense[il].width != b->dense[il].width)
            return ts_fail(err, TS_ERR_ARG,
                           "cannot compare different shapes: block %" PRIu32 " is %" PRIu32 " and %" PRIu32
                           " neurons wide",
                           il, a->dense[il].width, b->dense[il].width);
    return TS_OK;
}

static int make_sections(ts_analysis *a, ts_error *err) {
    const ts_census *c = a->census;
    const ts_census_block *blocks[] = {c->dense, c->shared};
    static const char *const names[] = {"dense", "shared"};
    int rc = TS_OK;

    for (int i = 0; i < 2 && rc == TS_OK; i++) {
        if (!blocks[i])
            continue;
        rc = ts_analyze_section_make(c, blocks[i], names[i], &a->sections[a->n_sections], err);
        if (rc == TS_OK && a->sections[a->n_sections].n == 0)
            ts_analyze_section_free(&a->sections[a->n_sections]);
        else if (rc == TS_OK)
            a->n_sections++;
    }
    if (rc == TS_OK && a->n_sections == 0 && !a->experts)
        rc = ts_fail(err, TS_ERR_FORMAT, "the census has no block with an FFN");
    return rc;
}

static int replay(const ts_analyze_options *o, const ts_census *sum, ts_analyze_cache *cache, ts_error *err) {
    uint64_t n_passes = 0;
    int rc = ts_analyze_cache_init(cache, sum, err);

    for (size_t i = 0; i < o->n_paths && rc == TS_OK; i++)
        rc = ts_analyze_cache_trace(cache, sum, o->paths[i], &n_passes, err);
    if (rc == TS_OK && n_passes != sum->decode_passes)
        rc = ts_fail(err, TS_ERR_ARG, "the traces hold %" PRIu64 " passes, expected those of the censuses, %" PRIu64,
                     n_passes, sum->decode_passes);
    return rc == TS_OK ? ts_analyze_cache_control(cache, err) : rc;
}

static int print(const ts_analysis *a, bool as_json, char **text, ts_error *err) {
    ts_buf b = {0};

    (as_json ? ts_analysis_json : ts_analysis_text)(&b, a);
    *text = ts_buf_take(&b);
    return *text ? TS_OK : ts_fail_nomem(err, "an analysis", b.length);
}

static int check_options(const ts_analyze_options *o, char **text, ts_error *err) {
    int rc;

    if (!text)
        return ts_fail(err, TS_ERR_ARG, "an analysis needs a place to go to");
    *text = NULL;
    rc = ts_options_check(o, sizeof *o, "ts_analyze_options", err);
    if (rc != TS_OK)
        return rc;
    if (o->n_paths == 0 || !o->paths || (o->n_against && !o->against))
        return ts_fail(err, TS_ERR_ARG, "an analysis needs files");
    return TS_OK;
}

static int refuse_csv_options(const ts_analyze_options *o, ts_error *err) {
    if (!o->csv_top_k && !o->csv_experts)
        return TS_OK;
    return ts_fail(err, TS_ERR_ARG, "--csv-%s is for 'layer,expert' CSV files: '%s' is none", o->csv_top_k ? "top-k" : "experts", o->paths[0]);
}

TS_API int ts_analyze(const ts_analyze_options *opts, char **text, ts_error *err) {
    ts_census sum = {0}, other = {0};
    char *key = NULL, *other_key = NULL;
    ts_analyze_pairs pairs = {0};
    ts_analyze_cache cache = {0};
    ts_experts experts = {0};
    ts_expert_analysis inside = {0};
    ts_analysis a = {.census = &sum};
    int rc = check_options(opts, text, err);

    bool routed = false;
    if (rc == TS_OK)
        rc = ts_route_is(opts->paths[0], &routed, err);
    if (rc != TS_OK || routed)
        return rc == TS_OK ? ts_route_analyze_files(opts, text, err) : rc;
    a.diffable = opts->diffable;
    rc = refuse_csv_options(opts, err);
    if (rc == TS_OK)
        rc = read_group(opts->paths, opts->n_paths, &sum, &key, err);
    if (rc == TS_OK)
        rc = ts_expert_read_group(opts->paths, opts->n_paths, sum.decode_passes, &experts, err);
    if (rc == TS_OK && experts.n_layers) {
        rc = ts_expert_analyze(&inside, &experts, err);
        a.experts = &inside;
    }
    if (rc == TS_OK)
        rc = make_sections(&a, err);
    if (rc == TS_OK && opts->n_against) {
        rc = read_group(opts->against, opts->n_against, &other, &other_key, err);
        if (rc == TS_OK)
            rc = check_comparable(&sum, key, &other, other_key, err);
        if (rc == TS_OK)
            rc = ts_analyze_compare(&sum, &other, &pairs, err);
        a.pairs = &pairs;
        a.against = &other;
    }
    if (rc == TS_OK && opts->cache) {
        rc = replay(opts, &sum, &cache, err);
        a.cache = &cache;
    }
    if (rc == TS_OK)
        rc = print(&a, opts->as_json, text, err);
    ts_analyze_section_free(&a.sections[0]);
    ts_analyze_section_free(&a.sections[1]);
    ts_analyze_pairs_free(&pairs);
    ts_analyze_cache_free(&cache);
    ts_experts_free(&experts);
    ts_expert_analysis_free(&inside);
    ts_census_free(&sum);
    ts_census_free(&other);
    ts_free(key);
    ts_free(other_key);
    return rc;
}

/* Neither a file to merge nor one that stands beside it is replaced. */
static int keep_shard(const char *output, const char *shard, ts_error *err) {
    static const char *const beside[] = {"detail", "meta", "trace", "experts"};
    int rc = TS_OK;

    if (shard && ts_file_same(shard, output))
        return ts_fail(err, TS_ERR_ARG, "output '%s' is one of the files to merge", output);
    rc = ts_file_keep(output, "file to merge", shard, err);
    for (size_t i = 0; rc == TS_OK && shard && i < sizeof beside / sizeof *beside; i++) {
        char *path = ts_path_with_extension(shard, beside[i]);

        rc = path ? ts_file_keep(output, "detail or .meta of a file to merge", path, err)
                  : ts_fail_nomem(err, "a path", strlen(shard));
        ts_free(path);
    }
    return rc;
}

/* What stands beside the files is added up too; without it none stays beside the sum. */
static int merge_experts(const char *const *paths, size_t n_paths, uint64_t decode_passes, const char *output, bool overwrite,
                         ts_error *err) {
    ts_experts experts = {0};
    char *beside = ts_path_with_extension(output, "experts");
    int rc = beside ? ts_expert_read_group(paths, n_paths, decode_passes, &experts, err) : ts_fail_nomem(err, "a path", strlen(output));

    if (rc == TS_OK && !overwrite)
        rc = ts_file_vacant(beside, err);
    if (rc == TS_OK && experts.n_layers)
        rc = ts_experts_write(&experts, beside, err);
    else if (rc == TS_OK && ts_file_exists(beside) && unlink(beside) != 0)
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot remove '%s'", beside);
    ts_experts_free(&experts);
    ts_free(beside);
    return rc;
}

TS_API int ts_merge(const char *const *paths, size_t n_paths, const char *output, bool overwrite, ts_error *err) {
    ts_census sum = {0};
    ts_lock *lock = NULL;
    char *key = NULL;
    int rc;

    if (!paths || n_paths == 0 || !output)
        return ts_fail(err, TS_ERR_ARG, "merging needs files and an output");
    bool routed = false;
    rc = ts_route_is(paths[0], &routed, err);
    if (rc != TS_OK || routed)
        return rc == TS_OK ? ts_route_merge(paths, n_paths, output, overwrite, err) : rc;
    rc = ts_census_check_target(output, overwrite, err);
    for (size_t i = 0; i < n_paths && rc == TS_OK; i++)
        rc = keep_shard(output, paths[i], err);
    if (rc == TS_OK)
        rc = ts_lock_take(output, &lock, err);
    if (rc == TS_OK)
        rc = read_group(paths, n_paths, &sum, &key, err);
    if (rc == TS_OK)
        rc = merge_experts(paths, n_paths, sum.decode_passes, output, overwrite, err);
    if (rc == TS_OK)
        rc = ts_census_write(&sum, output, NULL, NULL, sum.partial, overwrite, err);
    ts_lock_release(lock);
    ts_census_free(&sum);
    ts_free(key);
    return rc;
}
