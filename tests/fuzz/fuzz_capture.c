/* Residual pairs: header, .meta and .f32 of one capture. */
#include "fuzz/fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"x.json", "x.meta", "x.f32"};
    ts_capture_shape shape;
    ts_capture_file *f;
    ts_error err = {0};
    int rc;

    fuzz_put_all(names, 3, data, size);
    rc = ts_capture_open("x.json", &f, &shape, &err);
    fuzz_expect(rc, &err);
    if (rc == TS_OK) {
        float *rows = malloc((size_t)shape.n_layers * (size_t)shape.n_hidden * sizeof(float));

        for (int32_t i = 0; i < shape.n_layers; i++)
            (void)ts_capture_layer(f, i);
        for (int64_t i = 0; rows && i < shape.n_snapshots && i < 64; i++) {
            (void)ts_capture_position(f, i);
            fuzz_expect(ts_capture_read(f, i, rows, &err), &err);
        }
        free(rows);
    }
    ts_capture_close(f);
    return 0;
}
