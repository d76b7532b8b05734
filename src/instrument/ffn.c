/* Instrument: FFN activation census. Records headful passes (the last prompt token, then each decoded one); the
 * prompt tokens before it are counted in prefill_passes. Refuses a model without a dense or shared FFN, naming what
 * it has. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "instrument/ffn.h"
#include "instrument/ffn_write.h"
#include "store/census.h"
#include "store/meta.h"

typedef struct ffn {
    char *path; /* NULL = measure only */
    bool gate, first;
    ts_lock *lock; /* one writer a path, from the start */
    ts_ffn_census census;
    ts_error deferred; /* by environment: a bad output path is reported after the text */
} ffn;

static int claim_target(ffn *f, ts_session *s, ts_error *err) {
    static const char *const beside[] = {"detail", "meta", NULL};
    int rc = ts_session_keep_model(s, f->path, beside, err);
    if (rc == TS_OK) rc = ts_census_check_target(f->path, true, err);
    if (rc == TS_OK) rc = ts_result_keep(f->path, "ffn", beside, err);
    return rc == TS_OK ? ts_lock_take(f->path, &f->lock, err) : rc;
}

static int ffn_start(void *self, ts_session *s, ts_error *err) {
    ffn *f = self;
    int rc = ts_ffn_census_open(&f->census, s, 1, err);
    if (rc != TS_OK || !f->path) return rc;
    if (!f->gate) return claim_target(f, s, err);
    claim_target(f, s, &f->deferred);
    return TS_OK;
}

static int ffn_begin(void *self, const ts_generation *g, ts_error *err) {
    ffn *f = self;
    f->first = true;
    int rc = ts_ffn_census_wait(&f->census, err); /* the counts are ours alone while they change */
    if (rc == TS_OK) ts_ffn_census_prefill(&f->census, g->n_tokens - 1);
    return rc;
}

static unsigned ffn_wants(void *self, enum ts_pass_kind kind) {
    (void)self;
    return kind == TS_PASS_HEADFUL ? TS_FFN_SITES : 0;
}

static int ffn_pass(void *self, const ts_pass *pass, ts_error *err) {
    ffn *f = self;
    static const int32_t slot = 0;
    bool begins = f->first;
    f->first = false;
    return ts_ffn_census_run(&f->census, pass->run, &slot, &begins, err);
}

static int ffn_finish(void *self, ts_session *s, ts_error *err) {
    ffn *f = self;
    int rc = ts_ffn_census_wait(&f->census, err);
    if (rc != TS_OK || !f->path) return rc;
    if (f->deferred.code) {
        if (err) *err = f->deferred;
        return f->deferred.code;
    }
    if (f->census.dense->decode_passes == 0) {
        ts_log(TS_LOG_WARN, "ffn-hist: no headful pass ran, nothing is written to '%s'", f->path);
        return TS_OK;
    }
    ts_ffn_census_warn(&f->census);
    return ts_ffn_write(&f->census, NULL, "run", f->path, ts_session_stopped(s), true, err);
}

static void ffn_free(void *self) {
    ffn *f = self;
    if (!f) return;
    ts_ffn_census_close(&f->census);
    ts_lock_release(f->lock);
    free(f->path);
    free(f);
}

static const ts_instrument_class ffn_class = {
    .name = "ffn-hist", .sites = TS_FFN_SITES, .start = ffn_start, .begin = ffn_begin, .wants = ffn_wants,
    .pass = ffn_pass, .finish = ffn_finish, .free = ffn_free,
};

int ts_ffn_attach(ts_session *s, const char *path, bool gate, ts_error *err) {
    ffn *f = ts_calloc(1, sizeof(*f));
    if (!f) return ts_fail_nomem(err, "ffn-hist", sizeof(*f));
    f->gate = gate;
    if (path && !(f->path = ts_strdup(path))) {
        free(f);
        return ts_fail_nomem(err, "ffn-hist", strlen(path));
    }
    return ts_session_attach(s, &ffn_class, f, gate, err);
}

int ts_session_attach_ffn(ts_session *s, const ts_ffn_hist_options *opts, ts_error *err) {
    int rc = ts_options_check(opts, sizeof(*opts), "ts_ffn_hist_options", err);
    return rc == TS_OK ? ts_ffn_attach(s, opts->path, false, err) : rc;
}
