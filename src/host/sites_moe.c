/* Reads a mixture of experts off its graph. Refuses to guess: a factor of another shape than one number a chosen expert is
 * none. */
#include "host/sites_moe.h"

#include <string.h>

/* The node behind a scheduler's copy, by its undecorated name; other tensors are themselves. */
static const struct ggml_tensor *original(struct ggml_tensor *const *nodes, size_t n, const struct ggml_tensor *t) {
    char name[GGML_MAX_NAME];
    if (!t || !ts_node_is_copy(t)) return t;
    ts_node_name(t, name);
    for (size_t i = n; i-- > 0;)
        if (strcmp(nodes[i]->name, name) == 0) return nodes[i];
    return NULL;
}

const struct ggml_tensor *ts_moe_ids(struct ggml_tensor *const *nodes, size_t n, const struct ggml_tensor *down) {
    const struct ggml_tensor *ids = original(nodes, n, down->src[2]), *all = ids ? ids->view_src : NULL;
    if (ids != down->src[2]) return ids;
    bool first_columns = all && all->op == GGML_OP_ARGSORT && ids->view_offs == 0 && ids->nb[0] == all->nb[0];
    return first_columns && ts_node_name_stable(all->name) ? all : ids;
}

/* One number a chosen expert, the same for all of its outputs. A scale stored with the weights has that shape too: it is
 * looked up in a REPEAT of them. */
static bool is_weight(const struct ggml_tensor *t, int64_t n_used) {
    if (!t || t->ne[0] != 1 || t->ne[1] != n_used) return false;
    return t->op != GGML_OP_GET_ROWS || t->src[0]->op != GGML_OP_REPEAT;
}

/* The factor's own node: reshapes are views of it, and only asked for. One of them serves where that node has no name. */
static const struct ggml_tensor *behind_views(struct ggml_tensor *const *nodes, size_t n, const struct ggml_tensor *t) {
    const struct ggml_tensor *named = t = original(nodes, n, t);
    while (t && t->op == GGML_OP_RESHAPE && t->src[0]) {
        t = original(nodes, n, t->src[0]);
        if (t && (ts_node_name_stable(t->name) || !ts_node_name_stable(named->name))) named = t;
    }
    return named;
}

/* down -> scale, bias, weights: each reads the one before. */
static const struct ggml_tensor *weights_after(struct ggml_tensor *const *nodes, size_t n, const struct ggml_tensor *down) {
    const struct ggml_tensor *at = down, *found = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct ggml_tensor *t = nodes[i];
        if (original(nodes, n, t->src[0]) != at || (t->op != GGML_OP_MUL && t->op != GGML_OP_ADD_ID)) continue;
        if (t->op == GGML_OP_MUL && is_weight(t->src[1], down->ne[1])) found = t->src[1];
        at = t;
    }
    return found;
}

/* The same block's experts read an input that was weighed before. */
static const struct ggml_tensor *weights_before(struct ggml_tensor *const *nodes, size_t n, const struct ggml_tensor *down) {
    static const char *const names[] = {"ffn_up_exps.weight", "ffn_gate_exps.weight", "ffn_gate_up_exps.weight"};
    int32_t block = ts_node_weight_block(down->src[0], "ffn_down_exps.weight");
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; nodes[i]->op == GGML_OP_MUL_MAT_ID && k < sizeof(names) / sizeof(names[0]); k++) {
            if (ts_node_weight_block(nodes[i]->src[0], names[k]) != block) continue;
            const struct ggml_tensor *x = original(nodes, n, nodes[i]->src[1]);
            if (x && x->op == GGML_OP_MUL && is_weight(x->src[1], down->ne[1])) return x->src[1];
        }
    return NULL;
}

const struct ggml_tensor *ts_moe_weights(struct ggml_tensor *const *nodes, size_t n, const struct ggml_tensor *down) {
    const struct ggml_tensor *t = weights_after(nodes, n, down);
    return behind_views(nodes, n, t ? t : weights_before(nodes, n, down));
}
