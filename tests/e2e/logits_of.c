/*
 * logits_of.c: command that prints llama.cpp's own logits, for comparison with the oracle.
 *
 * usage: logits_of MODEL IDS KV_TYPE      IDS: a file of token ids, KV_TYPE: f16 or f32
 * Owns: one generation's passes up to the last prompt token, in the structure of `turbospark run`
 * (every token but the last in one pass without output, then the last alone), flash attention off,
 * no callback. Writes the last token's logits to stdout as raw float32. Refuses more than 512
 * tokens.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-backend.h"
#include "llama.h"

enum { MAX_TOKENS = 512 };

static void quiet(enum ggml_log_level level, const char *text, void *userdata) {
    (void)userdata;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

/* Returns how many ids the file holds; 0 if it cannot be read, holds other text or too many. */
static int32_t read_ids(const char *path, llama_token ids[static MAX_TOKENS]) {
    int32_t n = 0;
    char rest[2];
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    while (n < MAX_TOKENS && fscanf(f, "%d", &ids[n]) == 1)
        n++;
    if (fscanf(f, "%1s", rest) == 1)
        n = 0;
    fclose(f);
    return n;
}

static struct llama_context *open_context(struct llama_model *model, enum ggml_type kv) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = MAX_TOKENS;
    params.n_batch = MAX_TOKENS;
    params.n_ubatch = MAX_TOKENS;
    params.n_threads = 1;
    params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = kv;
    params.type_v = kv;
    return llama_init_from_model(model, params);
}

/* With explicit positions and flags no output is asked of any token but the last. */
static int decode(struct llama_context *ctx, const llama_token *ids, int32_t n, llama_pos first,
                  bool output) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    for (int32_t i = 0; i < n; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = first + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = output && i == n - 1;
    }
    batch.n_tokens = n;
    const int rc = llama_decode(ctx, batch);
    llama_batch_free(batch);
    return rc;
}

int main(int argc, char **argv) {
    llama_token ids[MAX_TOKENS];
    struct llama_context *ctx = NULL;
    struct llama_model *model = NULL;
    int rc = 1;
    if (argc != 4 || (strcmp(argv[3], "f16") != 0 && strcmp(argv[3], "f32") != 0)) {
        fputs("usage: logits_of MODEL IDS f16|f32\n", stderr);
        return 2;
    }
    const enum ggml_type kv = strcmp(argv[3], "f32") == 0 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    const int32_t n = read_ids(argv[2], ids);
    llama_log_set(quiet, NULL);
    ggml_backend_load_all();
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    model = n > 0 ? llama_model_load_from_file(argv[1], params) : NULL;
    ctx = model ? open_context(model, kv) : NULL;
    if (!ctx)
        goto cleanup;
    if (n > 1 && decode(ctx, ids, n - 1, 0, false) != 0)
        goto cleanup;
    if (decode(ctx, ids + n - 1, 1, n - 1, true) != 0)
        goto cleanup;
    const size_t n_vocab = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    const float *logits = llama_get_logits_ith(ctx, -1);
    if (fwrite(logits, sizeof *logits, n_vocab, stdout) == n_vocab)
        rc = fflush(stdout) != 0;
cleanup:
    if (rc)
        fprintf(stderr, "logits_of: failed on '%s' with the ids of '%s'\n", argv[1], argv[2]);
    llama_free(ctx);
    llama_model_free(model);
    return rc;
}
