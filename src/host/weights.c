/* Sizes of a block's FFN weights as they stand in memory. */
#include "host/weights.h"

static void note(ts_ffn_weights *w, int32_t n_layer, const struct ggml_tensor *weight, const char *gate, const char *up, const char *down) {
    int32_t il;
    if ((il = ts_node_weight_block(weight, gate)) >= 0 && il < n_layer) w[il].gate_bytes = ggml_nbytes(weight);
    if ((il = ts_node_weight_block(weight, up)) >= 0 && il < n_layer) w[il].up_bytes = ggml_nbytes(weight);
    if ((il = ts_node_weight_block(weight, down)) < 0 || il >= n_layer) return;
    w[il].down_bytes = ggml_nbytes(weight);
    w[il].down_block = (uint32_t)ggml_blck_size(weight->type);
}

void ts_weights_learn(ts_ffn_weights *dense, ts_ffn_weights *shared, int32_t n_layer, struct ggml_tensor *const *nodes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (nodes[i]->op != GGML_OP_MUL_MAT || !nodes[i]->src[0]) continue;
        note(dense, n_layer, nodes[i]->src[0], "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight");
        note(dense, n_layer, nodes[i]->src[0], "-", "channel_mix_key.weight", "channel_mix_value.weight"); /* RWKV has no gate */
        note(shared, n_layer, nodes[i]->src[0], "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight");
    }
}
