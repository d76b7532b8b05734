/* The state that a census resumes from. */
#include "fuzz/fuzz_file.h"

#include "instrument/ffn_checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint32_t widths[] = {16, 16};
    static const ts_ffn_options options = {.n_slots = 1, .n_workers = 1};
    ts_ffn_stats *dense = NULL, *shared = NULL;
    ts_ffn_progress done;
    ts_error err = {0};
    ts_experts experts = {0}, *x = NULL;
    bool found = false;

    fuzz_put("x.part.census", data, size);
    if (size % 2 == 0 && ts_experts_init(&experts, 2, &err) == 0 && ts_expert_layer_init(&experts.layers[1], 4, 2, 8, &err) == 0)
        x = &experts; /* else as of a model without */
    if (ts_ffn_stats_create(&dense, widths, 2, &options) == 0 && ts_ffn_stats_create(&shared, widths, 2, &options) == 0)
        fuzz_expect(ts_ffn_checkpoint_read("x.part.census", "plan", dense, shared, x, &done, &found, &err), &err);
    ts_ffn_stats_free(dense);
    ts_ffn_stats_free(shared);
    ts_experts_free(&experts);
    return 0;
}
