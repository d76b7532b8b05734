/* What inspect takes a file for, under each name it may have; the first byte chooses the name. */
#include "fuzz/fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"x.json",  "x.meta",      "x.safetensors", "x.gguf", "x.trace",
                                        "x.part.state", "x.part.census", "x.detail", "x"};
    ts_error err = {0};
    const char *name;

    if (size == 0)
        return 0;
    name = names[data[0] % (sizeof names / sizeof *names)];
    fuzz_put(name, data + 1, size - 1);
    for (int json = 0; json < 2; json++) {
        char *text = NULL;

        fuzz_expect(ts_inspect(name, json, &text, &err), &err);
        ts_free(text);
    }
    unlink(name);
    return 0;
}
