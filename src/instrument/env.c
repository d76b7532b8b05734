/* The environment gates: one variable an instrument, its value the output path. */
#include <stdlib.h>

#include "instrument/ffn.h"
#include "instrument/resid.h"
#include "instrument/router.h"

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
    return TS_OK;
}
