/* Instrument: routing census of a generation. Counts every pass, prompt tokens as prefill, then the headful passes. Refuses a
 * model without experts, naming its architecture. */
#include "instrument/router.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "store/meta.h"

typedef struct router {
    char *path; /* NULL = measure only */
    bool gate, trace;
    ts_lock *lock; /* one writer a path, from the start */
    ts_router_census census;
    ts_error deferred; /* by environment: a bad output path is reported after the text */
} router;

static int claim_target(router *r, ts_session *s, ts_error *err) {
    static const char *const beside[] = {"meta", NULL};
    int rc = ts_session_keep_model(s, r->path, beside, err);
    if (rc == TS_OK) rc = ts_router_check_target(r->path, true, err);
    if (rc == TS_OK) rc = ts_result_keep(r->path, "router", beside, err);
    return rc == TS_OK ? ts_lock_take(r->path, &r->lock, err) : rc;
}

static int router_start(void *self, ts_session *s, ts_error *err) {
    router *r = self;
    int rc = ts_router_census_open(&r->census, s, 1, r->trace, err);
    if (rc != TS_OK || !r->path) return rc;
    if (!r->gate) return claim_target(r, s, err);
    claim_target(r, s, &r->deferred);
    return TS_OK;
}

static int router_begin(void *self, const ts_generation *g, ts_error *err) {
    (void)g;
    return ts_router_census_begin(&((router *)self)->census, 0, err);
}

static int router_pass(void *self, const ts_pass *pass, ts_error *err) {
    enum ts_router_phase phase = pass->kind == TS_PASS_PREFILL ? TS_ROUTER_PREFILL : TS_ROUTER_DECODE;
    return ts_router_census_run(&((router *)self)->census, pass->run, phase, err);
}

static int router_finish(void *self, ts_session *s, ts_error *err) {
    router *r = self;
    int rc = ts_router_census_flush(&r->census, err);
    if (rc != TS_OK || !r->path) return rc;
    if (r->deferred.code) {
        if (err) *err = r->deferred;
        return r->deferred.code;
    }
    if (ts_router_most_rows(&r->census.record) == 0) {
        ts_log(TS_LOG_WARN, "router-hist: no pass ran, nothing is written to '%s'", r->path);
        return TS_OK;
    }
    ts_router_census_warn(&r->census);
    return ts_router_census_write(&r->census, NULL, r->path, ts_session_stopped(s), true, err);
}

static void router_free(void *self) {
    router *r = self;
    if (!r) return;
    ts_router_census_close(&r->census);
    ts_lock_release(r->lock);
    free(r->path);
    free(r);
}

static const ts_instrument_class router_class = {
    .name = "router-hist", .sites = TS_ROUTER_SITES, .start = router_start, .begin = router_begin, .pass = router_pass,
    .finish = router_finish, .free = router_free,
};

int ts_router_attach(ts_session *s, const char *path, bool trace, bool gate, ts_error *err) {
    router *r = ts_calloc(1, sizeof(*r));
    if (!r) return ts_fail_nomem(err, "router-hist", sizeof(*r));
    r->gate = gate;
    r->trace = trace;
    if (path && !(r->path = ts_strdup(path))) {
        free(r);
        return ts_fail_nomem(err, "router-hist", strlen(path));
    }
    return ts_session_attach(s, &router_class, r, gate, err);
}

bool ts_router_is(const ts_instrument_class *class) { return class == &router_class; }

int ts_router_attach_gate(ts_session *s, const char *path, bool gate, ts_error *err) {
    const char *trace = getenv("TURBOSPARK_ROUTER_TRACE");
    return ts_router_attach(s, path, trace && strcmp(trace, "1") == 0, gate, err);
}

int ts_session_attach_router(ts_session *s, const ts_router_hist_options *opts, ts_error *err) {
    int rc = ts_options_check(opts, sizeof(*opts), "ts_router_hist_options", err);
    return rc == TS_OK ? ts_router_attach(s, opts->path, opts->trace, false, err) : rc;
}
