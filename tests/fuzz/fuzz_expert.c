/* The .experts file beside an FFN census. */
#include "fuzz/fuzz_file.h"

#include "store/expert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ts_experts a, b;
    ts_error err = {0};
    int rc;

    fuzz_put("x", data, size);
    rc = ts_experts_read("x", &a, &err);
    fuzz_expect(rc, &err);
    if (rc != TS_OK)
        return 0;
    if (ts_experts_write(&a, "y", &err) != TS_OK || ts_experts_read("y", &b, &err) != TS_OK)
        abort();
    fuzz_expect(ts_experts_add(&a, &b, &err), &err);
    ts_experts_free(&a);
    ts_experts_free(&b);
    return 0;
}
