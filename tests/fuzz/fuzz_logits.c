/* Logits dumps: meta.json and the rows, compared with themselves. */
#include "fuzz/fuzz_file.h"

#include "store/logits_dump.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"meta.json", "logits.f16"};
    ts_logits_dump *d;
    ts_error err = {0};
    int rc;

    fuzz_put_all(names, 2, data, size);
    if (access("logits.f16", F_OK) == 0) {
        unlink("logits.f32");
        if (link("logits.f16", "logits.f32") != 0)
            abort();
    }
    rc = ts_logits_open("meta.json", true, &d, &err);
    fuzz_expect(rc, &err);
    if (rc == TS_OK) {
        float *row = malloc((size_t)d->vocab_size * sizeof(float));

        for (int64_t i = 0; row && i < d->rows && i < 64; i++)
            fuzz_expect(ts_logits_read(d, i, row, &err), &err);
        free(row);
        if (ts_logits_comparable(d, "a", d, "a", &err) != TS_OK)
            abort();
        ts_logits_close(d);
    }
    return 0;
}
