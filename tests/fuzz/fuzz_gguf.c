/* Models, as they are looked at before llama.cpp gets them. */
#include "fuzz/fuzz_file.h"

#include "host/gguf_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char **shards = NULL;
    size_t n = 0;
    ts_error err = {0};

    fuzz_put("x.gguf", data, size);
    fuzz_expect(ts_gguf_check("x.gguf", &shards, &n, &err), &err);
    for (size_t i = 0; shards && i < n; i++)
        ts_free(shards[i]);
    ts_free(shards);
    return 0;
}
