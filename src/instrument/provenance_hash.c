/* Completes a session's provenance with the shards' fingerprints. */
#include "instrument/provenance.h"
#include "store/fingerprint.h"

int ts_provenance_complete(const ts_session *s, ts_provenance *out, ts_error *err) {
    int rc = ts_session_provenance(s, out, err);
    for (size_t i = 0; rc == TS_OK && i < out->n_shards; i++)
        rc = ts_fingerprint_file(out->shards[i].path, out->shards[i].xxh3, &out->shards[i].bytes, err);
    return rc;
}
