/* Routing censuses: .json and .meta, or the plain CSV; the first byte chooses. */
#include "fuzz/fuzz_file.h"

#include "store/router.h"

static void census(const uint8_t *data, size_t size) {
    static const char *const names[] = {"x.json", "x.meta"};
    ts_router a, b;
    ts_error err = {0};
    int rc;

    fuzz_put_all(names, 2, data, size);
    rc = ts_router_read("x.json", &a, &err);
    fuzz_expect(rc, &err);
    if (rc != TS_OK)
        return;
    if (ts_router_read("x.json", &b, &err) != TS_OK)
        abort();
    fuzz_expect(ts_router_add(&a, &b, &err), &err);
    fuzz_expect(ts_router_write(&b, "y.json", NULL, NULL, false, true, &err), &err);
    ts_router_free(&a);
    ts_router_free(&b);
}

static void csv(const uint8_t *data, size_t size) {
    const ts_router_csv_options options = {0};
    ts_router r;
    ts_error err = {0};
    int rc;

    fuzz_put("x.csv", data, size);
    rc = ts_router_read_csv("x.csv", &options, &r, &err);
    fuzz_expect(rc, &err);
    if (rc != TS_OK)
        return;
    if (ts_router_check(&r, &err) != TS_OK)
        abort();
    ts_router_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    if (data[0] % 2 == 0)
        census(data + 1, size - 1);
    else
        csv(data + 1, size - 1);
    return 0;
}
