/* Owns ts_analyze and ts_merge on routing censuses: reading files of either format and adding them up. Refuses files of
 * another kind by name, and groups of different models or shapes. */
#include "instrument/analyze_router.h"

#include <string.h>

#include "core/file.h"
#include "core/locale_c.h"
#include "core/mem.h"
#include "instrument/analyze.h"
#include "store/inspect_sniff.h"

int ts_route_is(const char *path, bool *is, ts_error *err) {
    enum ts_file_sort sort = TS_SORT_UNKNOWN;
    int rc = path ? ts_sniff(path, &sort, err) : ts_fail(err, TS_ERR_ARG, "a path is NULL");

    *is = rc == TS_OK && (sort == TS_SORT_ROUTER || sort == TS_SORT_ROUTER_CSV);
    return rc;
}

static int read_one(const char *path, const ts_router_csv_options *csv, ts_router *out, ts_error *err) {
    enum ts_file_sort sort = TS_SORT_UNKNOWN;
    int rc = path ? ts_sniff(path, &sort, err) : ts_fail(err, TS_ERR_ARG, "a path is NULL");

    if (rc != TS_OK)
        return rc;
    if (sort == TS_SORT_ROUTER_CSV)
        return ts_router_read_csv(path, csv, out, err);
    if (sort == TS_SORT_ROUTER || sort == TS_SORT_JSON)
        return ts_router_read(path, out, err);
    return ts_fail(err, TS_ERR_FORMAT, "'%s' is %s: expected a routing census like the first file", path, ts_sort_name(sort));
}

/* Sums the files into *sum, which is empty after a failure. */
static int read_group(const char *const *paths, size_t n, const ts_router_csv_options *csv, ts_router *sum, ts_error *err) {
    ts_analyze_repeats(paths, n);
    int rc = read_one(paths[0], csv, sum, err);

    for (size_t i = 1; i < n && rc == TS_OK; i++) {
        ts_router one = {0};

        rc = read_one(paths[i], csv, &one, err);
        if (rc == TS_OK)
            rc = ts_router_add(sum, &one, err);
        ts_router_free(&one);
    }
    if (rc != TS_OK)
        ts_router_free(sum);
    return rc;
}

static int print(ts_route_analysis *a, const ts_analyze_options *o, char **text, ts_error *err) {
    ts_buf b = {0};
    ts_locale_c locale = ts_locale_c_enter();

    a->diffable = o->diffable;
    (o->as_json ? ts_route_json : ts_route_text)(&b, a);
    ts_locale_c_leave(locale);
    *text = ts_buf_take(&b);
    return *text ? TS_OK : ts_fail_nomem(err, "an analysis", b.length);
}

/* What the options are for must be there. */
static int check_options(const ts_analyze_options *o, ts_error *err) {
    bool csv = false;
    int rc = TS_OK;

    if (o->cache)
        return ts_fail(err, TS_ERR_ARG, "--cache replays the neurons of FFN censuses: '%s' is a routing census, whose tables have its caches already",
                       o->paths[0]);
    for (size_t i = 0; i < o->n_paths + o->n_against && rc == TS_OK && !csv; i++) {
        enum ts_file_sort sort = TS_SORT_UNKNOWN;
        const char *path = i < o->n_paths ? o->paths[i] : o->against[i - o->n_paths];

        rc = path ? ts_sniff(path, &sort, err) : ts_fail(err, TS_ERR_ARG, "a path is NULL");
        csv = sort == TS_SORT_ROUTER_CSV;
    }
    if (rc != TS_OK || csv || (!o->csv_top_k && !o->csv_experts))
        return rc;
    return ts_fail(err, TS_ERR_ARG, "--csv-%s is for 'layer,expert' CSV files: '%s' is none", o->csv_top_k ? "top-k" : "experts", o->paths[0]);
}

int ts_route_analyze_files(const ts_analyze_options *o, char **text, ts_error *err) {
    const ts_router_csv_options csv = {o->csv_top_k, o->csv_experts};
    ts_router sum = {0}, other = {0};
    ts_route_analysis a = {0};
    int rc = check_options(o, err);

    if (rc == TS_OK)
        rc = read_group(o->paths, o->n_paths, &csv, &sum, err);
    if (rc == TS_OK && o->n_against) {
        rc = read_group(o->against, o->n_against, &csv, &other, err);
        if (rc == TS_OK && ts_router_same_shape(&sum, &other, err) != TS_OK) {
            ts_error_prefix(err, "cannot compare '%s' with '%s': ", o->against[0], o->paths[0]);
            rc = TS_ERR_ARG;
        }
    }
    if (rc == TS_OK)
        rc = ts_route_analyze(&a, &sum, o->n_against ? &other : NULL, err);
    if (rc == TS_OK)
        rc = print(&a, o, text, err);
    ts_route_analysis_free(&a);
    ts_router_free(&sum);
    ts_router_free(&other);
    return rc;
}

int ts_route_merge(const char *const *paths, size_t n_paths, const char *output, bool overwrite, ts_error *err) {
    const ts_router_csv_options csv = {0};
    ts_router sum = {0};
    ts_lock *lock = NULL;
    int rc = ts_router_check_target(output, overwrite, err);

    for (size_t i = 0; i < n_paths && rc == TS_OK; i++)
        rc = paths[i] && ts_file_same(paths[i], output)
                 ? ts_fail(err, TS_ERR_ARG, "output '%s' is one of the files to merge", output)
                 : ts_file_keep(output, "file to merge", paths[i], err);
    if (rc == TS_OK)
        rc = ts_lock_take(output, &lock, err);
    if (rc == TS_OK)
        rc = read_group(paths, n_paths, &csv, &sum, err);
    if (rc == TS_OK)
        rc = ts_router_write(&sum, output, NULL, NULL, sum.partial, overwrite, err);
    ts_lock_release(lock);
    ts_router_free(&sum);
    return rc;
}
