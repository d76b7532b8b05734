/* The .meta beside a result, and the provenance in it. */
#include "fuzz/fuzz_file.h"

#include "store/meta.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ts_provenance p = {0};
    ts_error err = {0};
    json_t *meta = NULL;
    bool hashed;
    int rc;

    fuzz_put("x.meta", data, size);
    rc = ts_meta_read("x.meta", &meta, &err);
    fuzz_expect(rc, &err);
    if (rc != TS_OK)
        return 0;
    rc = ts_meta_provenance_read(meta, &p, &err);
    fuzz_expect(rc, &err);
    if (rc == TS_OK) {
        char hex[33];

        ts_meta_model_hash(&p, hex);
    }
    ts_meta_provenance_free(&p);
    fuzz_expect(ts_meta_check_data(meta, "x.meta", 0, size, &hashed, &err), &err);
    json_decref(meta);
    return 0;
}
