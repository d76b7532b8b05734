/* Census traces. */
#include "fuzz/fuzz_file.h"

#include "store/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ts_trace_reader *r;
    ts_trace_pass pass;
    ts_error err = {0};
    bool got = true;
    int rc;

    fuzz_put("x.trace", data, size);
    rc = ts_trace_read("x.trace", &r, &err);
    fuzz_expect(rc, &err);
    for (int i = 0; rc == TS_OK && got && i < 10000; i++) {
        rc = ts_trace_next(r, &pass, &got, &err);
        fuzz_expect(rc, &err);
    }
    ts_trace_read_close(r);
    return 0;
}
