/* The keys of a model's header: each value that would end the process inside llama.cpp gets one line that names model, key, what it
 * is and what was expected; and what loads passes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ggml.h"
#include "host/gguf_keys.h"

/* A llama of 4 blocks without experts. */
static struct gguf_context *good(void) {
    static const char *const tokens[] = {"a", "b", "", ""};
    struct gguf_context *g = gguf_init_empty();
    gguf_set_val_u32(g, "llama.block_count", 4);
    gguf_set_val_u32(g, "llama.attention.head_count", 6);
    gguf_set_val_u32(g, "llama.attention.head_count_kv", 3);
    gguf_set_val_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_val_str(g, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", (const char **)(uintptr_t)tokens, 4);
    return g;
}

static void experts(struct gguf_context *g, uint32_t n, uint32_t used, uint32_t groups, uint32_t groups_used) {
    gguf_set_val_u32(g, "llama.expert_count", n);
    gguf_set_val_u32(g, "llama.expert_used_count", used);
    gguf_set_val_u32(g, "llama.expert_group_count", groups);
    gguf_set_val_u32(g, "llama.expert_group_used_count", groups_used);
}

/* Frees g. */
static void passes(struct gguf_context *g) {
    ts_error err = {0};
    if (ts_gguf_check_keys(g, "llama", "x.gguf", &err) != TS_OK) fail_msg("%s", err.message);
    gguf_free(g);
}

static void refused(struct gguf_context *g, const char *says) {
    char text[300];
    ts_error err = {0};
    snprintf(text, sizeof(text), "model 'x.gguf': %s", says);
    assert_int_equal(ts_gguf_check_keys(g, "llama", "x.gguf", &err), TS_ERR_MODEL);
    if (!strstr(err.message, text)) fail_msg("'%s' does not say '%s'", err.message, text);
    gguf_free(g);
}

static void number(const char *key, uint32_t value, const char *says) {
    struct gguf_context *g = good();
    gguf_set_val_u32(g, key, value);
    if (says)
        refused(g, says);
    else
        passes(g);
}

static void test_blocks(void **state) {
    (void)state;
    passes(good());
    number("llama.block_count", 0, "'llama.block_count' is 0, expected 1 to 512");
    number("llama.block_count", 513, "'llama.block_count' is 513, expected 1 to 512");
    number("llama.block_count", 512, NULL);
    number("llama.nextn_predict_layers", 4, "'llama.nextn_predict_layers' is 4, expected less than the 4 of 'llama.block_count'");
    number("llama.nextn_predict_layers", 3, NULL);
    number("llama.full_attention_interval", 0, "'llama.full_attention_interval' is 0, expected 1 or more");
    number("other.block_count", 0, NULL);
}

static void test_experts(void **state) {
    static const struct {
        uint32_t figures[4];
        const char *says; /* NULL = passes */
    } cases[] = {
        {{8, 2, 0, 0}, NULL},
        {{1024, 1024, 0, 0}, NULL},
        {{0, 0, 0, 0}, NULL},
        {{1025, 2, 0, 0}, "'llama.expert_count' is 1025, expected at most 1024"},
        {{8, 9, 0, 0}, "'llama.expert_used_count' is 9, expected 1 to 8, as there are so many experts"},
        {{8, 0, 0, 0}, "'llama.expert_used_count' is 0, expected 1 to 8, as there are so many experts"},
        {{0, 2, 0, 0}, "'llama.expert_used_count' is 2, expected 0, as there are no experts"},
        {{0, 0, 2, 0}, "'llama.expert_group_count' is 2, expected 0, as there are no experts"},
        {{8, 2, 8, 2}, "'llama.expert_group_count' is 8, expected fewer than the 8 experts"},
        {{8, 2, 3, 2}, "'llama.expert_group_count' is 3, expected a number that divides the 8 experts"},
        {{8, 2, 4, 0}, "'llama.expert_group_used_count' is 0, expected 1 to 3, as there are 4 groups"},
        {{8, 2, 4, 4}, "'llama.expert_group_used_count' is 4, expected 1 to 3, as there are 4 groups"},
        {{8, 2, 4, 3}, NULL},
        {{8, 2, 1, 0}, NULL},
    };
    static const uint32_t used[] = {2, 0, 9, 0};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gguf_context *g = good();
        const uint32_t *f = cases[i].figures;
        experts(g, f[0], f[1], f[2], f[3]);
        if (cases[i].says)
            refused(g, cases[i].says);
        else
            passes(g);
    }
    struct gguf_context *g = good(); /* a number a block */
    experts(g, 8, 2, 0, 0);
    gguf_set_arr_data(g, "llama.expert_used_count", GGUF_TYPE_UINT32, used, 4);
    refused(g, "'llama.expert_used_count' is 9");
}

/* Blocks without experts may use none. */
static void test_dense_blocks(void **state) {
    static const uint32_t used[] = {0, 2, 2, 0};
    (void)state;
    for (int last = 2; last < 4; last++) {
        struct ggml_context *tensors = ggml_init((struct ggml_init_params){.mem_size = 8 * ggml_tensor_overhead(), .no_alloc = true});
        struct gguf_context *g = good();
        experts(g, 8, 2, 0, 0);
        gguf_set_arr_data(g, "llama.expert_used_count", GGUF_TYPE_UINT32, used, 4);
        for (int il = 1; il <= last; il++) {
            struct ggml_tensor *t = ggml_new_tensor_1d(tensors, GGML_TYPE_F32, 4);
            ggml_format_name(t, "blk.%d.ffn_down_exps.weight", il);
            gguf_add_tensor(g, t);
        }
        if (last == 2)
            passes(g);
        else
            refused(g, "'llama.expert_used_count' is 0, expected 1 to 8 in block 3, which has experts");
        ggml_free(tensors);
    }
}

static void test_heads(void **state) {
    static const uint32_t mixed[] = {6, 3, 0, 2}, odd[] = {6, 3, 4, 2};
    (void)state;
    number("llama.attention.head_count_kv", 4, "'llama.attention.head_count_kv' is 4, expected a number that divides the 6 heads of block 0");
    number("llama.attention.head_count_kv", 0, NULL);
    struct gguf_context *g = good();
    gguf_set_arr_data(g, "llama.attention.head_count_kv", GGUF_TYPE_UINT32, mixed, 4);
    passes(g);
    g = good();
    gguf_set_arr_data(g, "llama.attention.head_count_kv", GGUF_TYPE_UINT32, odd, 4);
    refused(g, "'llama.attention.head_count_kv' is 4, expected a number that divides the 6 heads of block 2");
}

static void test_other(void **state) {
    static const char *const twice[] = {"a", "b", "a"};
    (void)state;
    struct gguf_context *g = good();
    gguf_set_val_f32(g, "llama.attention.layer_norm_rms_epsilon", -1.0f);
    refused(g, "'llama.attention.layer_norm_rms_epsilon' is -1, expected a finite number, 0 or more");
    g = good();
    gguf_set_val_f32(g, "llama.attention.layer_norm_epsilon", NAN);
    refused(g, "'llama.attention.layer_norm_epsilon' is ");
    g = good();
    gguf_set_val_str(g, "llama.rope.scaling.type", "cubic");
    refused(g, "'llama.rope.scaling.type' is 'cubic', expected none, linear, yarn or longrope");
    g = good();
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", (const char **)(uintptr_t)twice, 3);
    refused(g, "'tokenizer.ggml.tokens' has 'a' twice, as tokens 0 and 2");
    g = good();
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", (const char **)(uintptr_t)twice, 0);
    refused(g, "'tokenizer.ggml.tokens' is empty, expected the vocabulary");
}

/* llama.cpp names a wrong type itself: nothing is read here, where it would end the process. */
static void test_types(void **state) {
    static const char *const names[] = {"block_count", "nextn_predict_layers", "expert_count", "expert_used_count", "expert_group_count",
                                        "attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon",
                                        "rope.scaling.type", "full_attention_interval"};
    static const uint32_t few[] = {7};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char key[64];
        snprintf(key, sizeof(key), "llama.%s", names[i]);
        for (int type = 0; type < 4; type++) {
            struct gguf_context *g = good();
            if (type == 0) gguf_set_val_bool(g, key, true);
            if (type == 1) gguf_set_val_i8(g, key, -1);
            if (type == 2) gguf_set_val_u64(g, key, 1u << 20);
            if (type == 3) gguf_set_arr_data(g, key, GGUF_TYPE_UINT32, few, 1); /* not one a block */
            passes(g);
        }
    }
    struct gguf_context *g = good();
    gguf_set_val_u32(g, "tokenizer.ggml.tokens", 3);
    gguf_set_val_u32(g, "tokenizer.ggml.model", 3);
    passes(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks), cmocka_unit_test(test_experts), cmocka_unit_test(test_dense_blocks), cmocka_unit_test(test_heads),
                                       cmocka_unit_test(test_other), cmocka_unit_test(test_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
