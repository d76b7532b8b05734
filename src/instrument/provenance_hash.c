/* Completes a session's provenance with the shards' fingerprints. */
#include "instrument/provenance.h"
#include "core/log.h"
#include "host/session.h"
#include "store/fingerprint.h"

int ts_provenance_complete(const ts_session *s, ts_provenance *out, ts_error *err) {
    int rc = ts_session_provenance(s, out, err);
    for (size_t i = 0; rc == TS_OK && i < out->n_shards; i++) {
        rc = ts_fingerprint_file(out->shards[i].path, out->shards[i].xxh3, &out->shards[i].bytes, err);
        if (rc != TS_OK || ts_model_unchanged(s->model, i)) continue;
        /* What was captured is not lost for it; it only cannot say of which file it is. */
        ts_log(TS_LOG_WARN, "model '%s' was changed after it was loaded: it has xxh3-128 %s now, the result records none",
               out->shards[i].path, out->shards[i].xxh3);
        out->shards[i].xxh3[0] = '\0';
    }
    return rc;
}
