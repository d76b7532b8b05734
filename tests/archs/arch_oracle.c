/* Rows taken node by node. Owns the second reading of a graph; refuses nothing. */
#include "arch_oracle.h"

#include <ggml-backend.h>
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "e2e/e2e.h"

/* The rows of a tensor in memory order of its logical elements. Caller frees. */
static char *copy_rows(const struct ggml_tensor *t, size_t *n) {
    size_t row = ggml_row_size(t->type, t->ne[0]);
    *n = row * (size_t)(t->ne[1] * t->ne[2] * t->ne[3]);
    char *out = malloc(*n + 1), *at = out;
    assert_non_null(out);
    for (int64_t l = 0; l < t->ne[3]; l++)
        for (int64_t k = 0; k < t->ne[2]; k++)
            for (int64_t j = 0; j < t->ne[1]; j++, at += row)
                ggml_backend_tensor_get(t, at, (size_t)j * t->nb[1] + (size_t)k * t->nb[2] + (size_t)l * t->nb[3], row);
    return out;
}

static void add(arch_oracle *o, int kind, int32_t block, const struct ggml_tensor *t) {
    size_t n;
    char *bytes = copy_rows(t, &n);
    arch_rows_add(o->rows, kind, block, bytes, n);
    free(bytes);
}

static int32_t block_of(const struct ggml_tensor *weight, const char *const *tails) {
    int block = -1, used = 0;
    if (!weight || sscanf(weight->name, "blk.%d.%n", &block, &used) != 1 || used == 0) return -1;
    for (; *tails; tails++)
        if (strcmp(weight->name + used, *tails) == 0) return block;
    return -1;
}

/* A model that loops over its blocks uses a weight several times: which use this is, only the node's name tells. */
static void look_at_down(arch_oracle *o, enum ts_site_kind kind, int32_t block, const struct ggml_tensor *x) {
    for (size_t i = 0; i < o->n_sites; i++)
        if (o->sites[i].kind == kind && strcmp(o->sites[i].tensor, x->name) == 0 && strncmp(x->name, "node_", 5) != 0) {
            block = o->sites[i].block;
            break;
        }
    add(o, (int)kind, block, x);
}

static void look_at_matmul(arch_oracle *o, const struct ggml_tensor *t) {
    static const char *const down[] = {"ffn_down.weight", "channel_mix_value.weight", NULL};
    static const char *const shared[] = {"ffn_down_shexp.weight", NULL};
    static const char *const experts[] = {"ffn_down_exps.weight", NULL};
    bool ids = t->op == GGML_OP_MUL_MAT_ID;
    int32_t block;
    if ((block = block_of(t->src[0], down)) >= 0 && !ids) look_at_down(o, TS_SITE_FFN, block, t->src[1]);
    if ((block = block_of(t->src[0], shared)) >= 0 && !ids) look_at_down(o, TS_SITE_FFN_SHEXP, block, t->src[1]);
    if ((block = block_of(t->src[0], experts)) < 0 || !ids) return;
    look_at_down(o, TS_SITE_EXPERTS, block, t->src[1]);
    add(o, TS_SITE_ROUTER, block, t->src[2]);
}

bool arch_oracle_step(struct ggml_tensor *t, bool ask, void *user) {
    arch_oracle *o = user;
    if (ask && (t->op == GGML_OP_MUL_MAT || t->op == GGML_OP_MUL_MAT_ID)) look_at_matmul(o, t);
    if (!ask) {
        for (size_t i = 0; i < o->n_sites; i++)
            if (o->sites[i].kind == TS_SITE_RESID && o->sites[i].how != TS_HOW_REFUSED && strcmp(o->sites[i].tensor, t->name) == 0)
                add(o, TS_SITE_RESID, o->sites[i].block, t);
    }
    return true;
}
