/* Control-vector GGUF files. */
#include "fuzz/fuzz_file.h"

#include "store/cvec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const ts_cvec_model model = {8, 4, "llama", "0123456789abcdef0123456789abcdef"};
    ts_cvec *c;
    ts_error err = {0};
    int rc;

    fuzz_put("x.gguf", data, size);
    rc = ts_cvec_read("x.gguf", &c, &err);
    fuzz_expect(rc, &err);
    if (rc != TS_OK)
        return 0;
    fuzz_expect(ts_cvec_check_model(c, "x.gguf", &model, NULL, &err), &err);
    for (int32_t il = -1; il < 4; il++)
        (void)ts_cvec_find(c, il);
    ts_cvec_free(c);
    return 0;
}
