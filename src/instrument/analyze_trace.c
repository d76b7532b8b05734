/* Owns the way from a .trace to the caches. Refuses a trace of another model, another shape or another number of passes
 * than its census. */
#include "instrument/analyze.h"

#include <inttypes.h>
#include <string.h>

#include "core/file.h"
#include "store/meta.h"
#include "store/trace.h"

static int check_model(const ts_trace_info *t, const ts_census *c, ts_error *err) {
    char hash[33] = "";

    if (c->provenance)
        ts_meta_model_hash(c->provenance, hash);
    if (*hash && *t->model && strcmp(hash, t->model) != 0)
        return ts_fail(err, TS_ERR_ARG, "its model has hash %s, the census' %s", t->model, hash);
    return TS_OK;
}

static int check_shape(const ts_trace_info *t, const ts_census *c, ts_error *err) {
    if (t->n_layers != c->n_layers)
        return ts_fail(err, TS_ERR_ARG, "it has %" PRIu32 " blocks, the census %" PRIu32, t->n_layers, c->n_layers);
    for (uint32_t il = 0; il < t->n_layers; il++)
        if (t->k[il] && t->width[il] != c->dense[il].width)
            return ts_fail(err, TS_ERR_ARG, "its block %" PRIu32 " is %" PRIu32 " neurons wide, the census' %" PRIu32, il,
                           t->width[il], c->dense[il].width);
    return TS_OK;
}

static int replay_passes(ts_analyze_cache *c, ts_trace_reader *r, ts_error *err) {
    const ts_trace_info *t = ts_trace_read_info(r);
    ts_trace_pass pass;
    bool got = false;
    int rc = TS_OK;

    while (rc == TS_OK && (rc = ts_trace_next(r, &pass, &got, err)) == TS_OK && got)
        for (uint32_t il = 0; il < t->n_layers && rc == TS_OK; il++)
            if (t->k[il])
                rc = ts_analyze_cache_pass(c, il, pass.ids + pass.begin[il],
                                           (uint32_t)(pass.begin[il + 1] - pass.begin[il]), err);
    return rc;
}

int ts_analyze_cache_trace(ts_analyze_cache *c, const ts_census *census, const char *census_path, uint64_t *n_passes,
                           ts_error *err) {
    char *path = ts_path_with_extension(census_path, "trace");
    ts_trace_reader *r = NULL;
    int rc = path ? ts_trace_read(path, &r, err) : ts_fail_nomem(err, "a path", strlen(census_path));

    if (rc == TS_ERR_IO)
        ts_error_prefix(err, "no trace to replay (see 'census --trace'): ");
    if (rc == TS_OK) {
        *n_passes += ts_trace_read_info(r)->passes;
        rc = check_model(ts_trace_read_info(r), census, err);
        if (rc == TS_OK)
            rc = check_shape(ts_trace_read_info(r), census, err);
        if (rc != TS_OK)
            ts_error_prefix(err, "'%s': ", path);
    }
    if (rc == TS_OK)
        rc = replay_passes(c, r, err);
    ts_trace_read_close(r);
    ts_free(path);
    return rc;
}
