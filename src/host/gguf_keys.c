/* Values of a model's header that llama.cpp asserts on, divides by or looks up unchecked, so that no file ends the process. Owns
 * what holds for every architecture; what a single one asserts is told by the abort line (engine.c). Refuses nothing that loads. */
#include "host/gguf_keys.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/mem.h"

#define MAX_BLOCKS 512   /* LLAMA_MAX_LAYERS */
#define MAX_EXPERTS 1024 /* LLAMA_MAX_EXPERTS */
#define MAX_KEY 192

typedef struct header {
    const struct gguf_context *g;
    const char *arch, *path;
    ts_error *err;
    uint32_t n_block;
} header;

static int64_t find(const header *h, const char *name, char *key) {
    snprintf(key, MAX_KEY, "%.120s.%s", h->arch, name);
    return gguf_find_key(h->g, key);
}

static int wrong(const header *h, const char *name, uint32_t got, const char *expected) {
    return ts_fail(h->err, TS_ERR_MODEL, "model '%s': '%s.%s' is %u, expected %s", h->path, h->arch, name, got, expected);
}

/* A number, or `fallback` where there is none of that type. */
static uint32_t number(const header *h, const char *name, uint32_t fallback) {
    char key[MAX_KEY];
    int64_t id = find(h, name, key);
    return id >= 0 && gguf_get_kv_type(h->g, id) == GGUF_TYPE_UINT32 ? gguf_get_val_u32(h->g, id) : fallback;
}

/* The same where it may be a list with a number for each block. Only lists of the right length are read: llama.cpp refuses others. */
static uint32_t of_block(const header *h, const char *name, uint32_t block, uint32_t fallback) {
    char key[MAX_KEY];
    int64_t id = find(h, name, key);
    if (id < 0 || gguf_get_kv_type(h->g, id) != GGUF_TYPE_ARRAY) return number(h, name, fallback);
    enum gguf_type type = gguf_get_arr_type(h->g, id);
    if ((type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32) || gguf_get_arr_n(h->g, id) != h->n_block) return fallback;
    return ((const uint32_t *)gguf_get_arr_data(h->g, id))[block];
}

static uint32_t most(const header *h, const char *name) {
    uint32_t found = 0;
    for (uint32_t il = 0; il < h->n_block; il++) {
        uint32_t n = of_block(h, name, il, 0);
        if (n > found) found = n;
    }
    return found;
}

static int check_blocks(header *h) {
    h->n_block = number(h, "block_count", 0);
    char key[MAX_KEY], expected[64];
    int64_t id = find(h, "block_count", key);
    if (id < 0 || gguf_get_kv_type(h->g, id) != GGUF_TYPE_UINT32) return TS_OK; /* llama.cpp names it */
    if (h->n_block < 1 || h->n_block > MAX_BLOCKS) return wrong(h, "block_count", h->n_block, "1 to 512");
    uint32_t extra = number(h, "nextn_predict_layers", 0);
    snprintf(expected, sizeof(expected), "less than the %u of '%.20s.block_count'", h->n_block, h->arch);
    return extra >= h->n_block ? wrong(h, "nextn_predict_layers", extra, expected) : TS_OK;
}

/* Every so many blocks is another: it divides by that. */
static int check_interval(const header *h) {
    uint32_t every = number(h, "full_attention_interval", 1);
    return every < 1 ? wrong(h, "full_attention_interval", every, "1 or more") : TS_OK;
}

static int check_groups(const header *h, uint32_t experts) {
    char expected[96];
    uint32_t groups = number(h, "expert_group_count", 0), used = number(h, "expert_group_used_count", 0);
    if (groups >= experts) {
        snprintf(expected, sizeof(expected), "fewer than the %u experts", experts);
        return wrong(h, "expert_group_count", groups, expected);
    }
    if (groups < 2) return TS_OK;
    snprintf(expected, sizeof(expected), "a number that divides the %u experts", experts);
    if (experts % groups != 0) return wrong(h, "expert_group_count", groups, expected);
    snprintf(expected, sizeof(expected), "1 to %u, as there are %u groups", groups - 1, groups);
    return used < 1 || used >= groups ? wrong(h, "expert_group_used_count", used, expected) : TS_OK;
}

/* A block that has experts must use some. */
static int check_used(const header *h, uint32_t experts) {
    char name[64], expected[96];
    for (uint32_t il = 0; il < h->n_block; il++) {
        snprintf(name, sizeof(name), "blk.%u.ffn_down_exps.weight", il);
        if (of_block(h, "expert_used_count", il, 0) > 0 || gguf_find_tensor(h->g, name) < 0) continue;
        snprintf(expected, sizeof(expected), "1 to %u in block %u, which has experts", experts, il);
        return wrong(h, "expert_used_count", 0, expected);
    }
    return TS_OK;
}

static int check_experts(const header *h) {
    char expected[96];
    uint32_t experts = number(h, "expert_count", 0), used = most(h, "expert_used_count"), groups = number(h, "expert_group_count", 0);
    bool hunyuan = strcmp(h->arch, "hunyuan_vl") == 0 || strcmp(h->arch, "hunyuan-dense") == 0;
    if (hunyuan && experts <= 1) experts = used = 0; /* both are a plain FFN there */
    if (experts > MAX_EXPERTS) return wrong(h, "expert_count", experts, "at most 1024");
    snprintf(expected, sizeof(expected), experts ? "1 to %u, as there are so many experts" : "0, as there are no experts", experts);
    if (used > experts || (experts && used < 1)) return wrong(h, "expert_used_count", used, expected);
    if (!experts && groups) return wrong(h, "expert_group_count", groups, expected);
    int rc = experts ? check_used(h, experts) : TS_OK;
    return rc == TS_OK && experts ? check_groups(h, experts) : rc;
}

static int check_heads(const header *h) {
    char expected[96];
    for (uint32_t il = 0; il < h->n_block; il++) {
        uint32_t heads = of_block(h, "attention.head_count", il, 0), kv = of_block(h, "attention.head_count_kv", il, heads);
        if (!heads || !kv || heads % kv == 0) continue;
        snprintf(expected, sizeof(expected), "a number that divides the %u heads of block %u", heads, il);
        return wrong(h, "attention.head_count_kv", kv, expected);
    }
    return TS_OK;
}

static int check_epsilon(const header *h, const char *name) {
    char key[MAX_KEY];
    int64_t id = find(h, name, key);
    float value = id >= 0 && gguf_get_kv_type(h->g, id) == GGUF_TYPE_FLOAT32 ? gguf_get_val_f32(h->g, id) : 0;
    if (isfinite(value) && value >= 0) return TS_OK;
    return ts_fail(h->err, TS_ERR_MODEL, "model '%s': '%s' is %g, expected a finite number, 0 or more", h->path, key, (double)value);
}

static int check_scaling(const header *h) {
    static const char *const known[] = {"none", "linear", "yarn", "longrope"};
    char key[MAX_KEY];
    int64_t id = find(h, "rope.scaling.type", key);
    if (id < 0 || gguf_get_kv_type(h->g, id) != GGUF_TYPE_STRING) return TS_OK;
    const char *type = gguf_get_val_str(h->g, id);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(type, known[i]) == 0) return TS_OK;
    return ts_fail(h->err, TS_ERR_MODEL, "model '%s': '%s' is '%.40s', expected none, linear, yarn or longrope", h->path, key, type);
}

/* ---- tokens */

/* Two tokens of one text: a table of indices, looked up by hash. An empty text gets a name of its own in llama.cpp. */
static int check_same(const header *h, int64_t id, size_t n) {
    size_t room = 16;
    while (room < 2 * n) room *= 2;
    uint32_t *at = ts_calloc(room, sizeof(*at)); /* index + 1 */
    if (!at) return ts_fail_nomem(h->err, "tokens", room * sizeof(*at));
    int rc = TS_OK;
    for (size_t i = 0; rc == TS_OK && i < n; i++) {
        const char *text = gguf_get_arr_str(h->g, id, i);
        size_t slot = (size_t)XXH3_64bits(text, strlen(text)) & (room - 1);
        while (*text && at[slot] && strcmp(gguf_get_arr_str(h->g, id, at[slot] - 1), text) != 0) slot = (slot + 1) & (room - 1);
        if (*text && at[slot])
            rc = ts_fail(h->err, TS_ERR_MODEL, "model '%s': 'tokenizer.ggml.tokens' has '%.60s' twice, as tokens %u and %zu", h->path, text,
                         at[slot] - 1, i);
        else if (*text)
            at[slot] = (uint32_t)i + 1;
    }
    free(at);
    return rc;
}

static bool has_tokenizer(const header *h) {
    int64_t id = gguf_find_key(h->g, "tokenizer.ggml.model");
    if (id < 0 || gguf_get_kv_type(h->g, id) != GGUF_TYPE_STRING) return true; /* llama.cpp says what is wrong */
    const char *model = gguf_get_val_str(h->g, id);
    return strcmp(model, "none") != 0 && strcmp(model, "no_vocab") != 0;
}

static int check_tokens(const header *h) {
    int64_t id = gguf_find_key(h->g, "tokenizer.ggml.tokens");
    if (!has_tokenizer(h))
        return ts_fail(h->err, TS_ERR_MODEL, "model '%s' has no tokenizer ('tokenizer.ggml.model' says so): it cannot generate text", h->path);
    if (id < 0 || gguf_get_kv_type(h->g, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(h->g, id) != GGUF_TYPE_STRING) return TS_OK;
    size_t n = gguf_get_arr_n(h->g, id);
    if (n == 0) return ts_fail(h->err, TS_ERR_MODEL, "model '%s': 'tokenizer.ggml.tokens' is empty, expected the vocabulary", h->path);
    if (n > INT32_MAX) return ts_fail(h->err, TS_ERR_MODEL, "model '%s': 'tokenizer.ggml.tokens' has %zu tokens, too many", h->path, n);
    return check_same(h, id, n);
}

int ts_gguf_check_keys(const struct gguf_context *g, const char *arch, const char *path, ts_error *err) {
    header h = {.g = g, .arch = arch, .path = path, .err = err};
    int rc = check_blocks(&h);
    if (rc == TS_OK) rc = check_interval(&h);
    if (rc == TS_OK) rc = check_experts(&h);
    if (rc == TS_OK) rc = check_heads(&h);
    if (rc == TS_OK) rc = check_epsilon(&h, "attention.layer_norm_rms_epsilon");
    if (rc == TS_OK) rc = check_epsilon(&h, "attention.layer_norm_epsilon");
    if (rc == TS_OK) rc = check_epsilon(&h, "attention.group_norm_epsilon");
    if (rc == TS_OK) rc = check_scaling(&h);
    return rc == TS_OK ? check_tokens(&h) : rc;
}
