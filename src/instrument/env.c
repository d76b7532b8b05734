/* The environment gates: one variable an instrument, its value the output path. */
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "instrument/ffn.h"
#include "instrument/resid.h"
#include "instrument/router.h"

/* It only says how the routing census is taken: alone, or with another value, it is a mistake. */
static void check_trace(const ts_session *s) {
    const char *trace = getenv("TURBOSPARK_ROUTER_TRACE");
    bool attached = false;
    if (!trace || !*trace || strcmp(trace, "0") == 0) return;
    for (size_t i = 0; i < s->n_attached; i++) attached = attached || ts_router_is(s->attached[i].class);
    if (strcmp(trace, "1") != 0)
        ts_log(TS_LOG_WARN, "TURBOSPARK_ROUTER_TRACE: expected 1, got '%.40s': no trace is kept", trace);
    else if (!attached)
        ts_log(TS_LOG_WARN, "TURBOSPARK_ROUTER_TRACE does nothing without a routing census (TURBOSPARK_ROUTER_HIST)");
}

int ts_session_attach_env(ts_session *s, ts_error *err) {
    static const struct {
        const char *variable;
        int (*attach)(ts_session *, const char *, bool, ts_error *);
    } gates[] = {{"TURBOSPARK_RESID_CAPTURE", ts_resid_attach}, {"TURBOSPARK_FFN_HIST", ts_ffn_attach},
                 {"TURBOSPARK_ROUTER_HIST", ts_router_attach_gate}};
    for (size_t i = 0; i < sizeof(gates) / sizeof(gates[0]); i++) {
        const char *path = getenv(gates[i].variable);
        int rc = path && *path ? gates[i].attach(s, path, true, err) : TS_OK;
        if (rc != TS_OK) return rc;
    }
    check_trace(s);
    return TS_OK;
}
