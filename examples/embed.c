/* embed: a llama.cpp program of your own with a turbospark probe on its context. Prints the norm of the
 * residual stream after each block at the last token of a prompt.
 *
 *   cc embed.c $(pkg-config --cflags --libs turbospark) -lm -o embed
 *   ./embed model.gguf "The capital of France is"
 */
#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <turbospark/turbospark.h>

typedef struct norms {
    int32_t n_layer;
    double *of_block; /* [n_layer] */
} norms;

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

/* Called for each graph run of a llama_decode; the last one holds the last token. */
static int on_run(const ts_run *run, void *user, ts_error *err) {
    norms *n = user;
    for (int32_t il = 0; il < n->n_layer; il++) {
        ts_rows rows;
        int rc = ts_run_rows(run, TS_SITE_RESID, il, &rows, err);
        if (rc != TS_OK) return rc;
        if (rows.n_rows == 0) continue; /* the last block runs only the output tokens */
        const float *x = rows.data + (rows.n_rows - 1) * rows.width;
        double sum = 0.0;
        for (int64_t i = 0; i < rows.width; i++) sum += (double)x[i] * (double)x[i];
        n->of_block[il] = sqrt(sum);
    }
    return TS_OK;
}

static int fail(const ts_error *err) {
    fprintf(stderr, "embed: %s\n", err->message);
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: embed MODEL.gguf [PROMPT]\n");
        return 2;
    }
    const char *prompt = argc == 3 ? argv[2] : "The capital of France is";
    llama_log_set(quiet, NULL);
    ggml_backend_load_all();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;

    norms n = {.n_layer = llama_model_n_layer(model)};
    n.of_block = calloc((size_t)n.n_layer, sizeof(double));
    ts_error err = {0};
    ts_probe *probe = NULL;
    ts_probe_options options = TS_OPTIONS_INIT(ts_probe_options);
    options.on_run = on_run;
    options.user = &n;
    if (ts_probe_create(&options, &probe, &err) != TS_OK) return fail(&err);

    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_threads = params.n_threads_batch = 1;
    if (ts_probe_prepare(probe, &params, &err) != TS_OK) return fail(&err); /* before the context is made */
    struct llama_context *ctx = llama_init_from_model(model, params);
    if (!ctx) return 1;
    if (ts_probe_attach(probe, ctx, &err) != TS_OK) return fail(&err);

    llama_token tokens[256];
    int32_t n_tokens = llama_tokenize(llama_model_get_vocab(model), prompt, (int32_t)strlen(prompt), tokens, 256, true, false);
    if (n_tokens <= 0 || llama_decode(ctx, llama_batch_get_one(tokens, n_tokens)) != 0) return 1;
    if (ts_probe_collect(probe, &err) != TS_OK) return fail(&err); /* after each llama_decode */

    printf("block  |x|\n");
    for (int32_t il = 0; il < n.n_layer; il++) printf("%5d  %.3f\n", il, n.of_block[il]);

    llama_free(ctx);
    ts_probe_free(probe); /* outlives the context */
    llama_model_free(model);
    free(n.of_block);
    return 0;
}
