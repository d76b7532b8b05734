/* FFN censuses: .json, .detail and .meta; what is read can be added up and written again. */
#include "fuzz/fuzz_file.h"

#include "store/census.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"x.json", "x.meta", "x.detail"};
    ts_census a, b;
    ts_error err = {0};
    char *key = NULL;
    int rc;

    fuzz_put_all(names, 3, data, size);
    rc = ts_census_read("x.json", &a, &key, &err);
    fuzz_expect(rc, &err);
    ts_free(key);
    if (rc != TS_OK)
        return 0;
    rc = ts_census_read("x.json", &b, NULL, &err);
    if (rc != TS_OK)
        abort();
    fuzz_expect(ts_census_add(&a, &b, &err), &err);
    fuzz_expect(ts_census_write(&b, "y.json", NULL, NULL, b.partial, true, &err), &err);
    ts_census_free(&a);
    ts_census_free(&b);
    return 0;
}
