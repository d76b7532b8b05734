/* The options every command with a model takes, and how they become a session's. */
#include "options.h"
#include "cli.h"

#include <string.h>

#define TOKENS_MAX 2147483647.0
#define THREADS_MAX 512 /* ggml's GGML_MAX_N_THREADS */

static const char *const flash_names[] = {"auto", "on", "off", NULL}; /* enum ts_flash */
static const char *const tap_names[] = {"redirect", "ask", NULL};     /* enum ts_tap_method */

void cli_common_options(cli_common *c, cli_common_table *table) {
    const cli_option model[CLI_COMMON_MODEL] = {
        OPTION("m", "model", "FILE", CLI_TEXT, &c->model,
               "the model, a GGUF file; of a split one, the first shard"),
        OPTION("ngl", "gpu-layers", "N", CLI_LAYERS, &c->n_gpu_layers,
               "blocks on the GPU: a number, 0 for none, or 'all' (default: all that fit)"),
        OPTION(NULL, "device", "LIST", CLI_TEXT, &c->device,
               "devices to use, comma-separated, or 'none' for the CPU alone (default: all)"),
        OPTION("t", "threads", "N", CLI_I32, &c->n_threads,
               "threads that compute (default: the cores this process may use)", .min = 1,
               .max = THREADS_MAX),
        OPTION("c", "ctx-size", "N", CLI_U32, &c->n_ctx,
               "tokens of context (default: the model's, at most 4096)", .min = 1,
               .max = TOKENS_MAX),
        OPTION("b", "batch-size", "N", CLI_U32, &c->n_batch,
               "tokens a call computes at most (default: 2048)", .min = 1, .max = TOKENS_MAX),
        OPTION("ub", "ubatch-size", "N", CLI_U32, &c->n_ubatch,
               "tokens computed together (default: 512)", .min = 1, .max = TOKENS_MAX),
        OPTION("fa", "flash-attn", "WHEN", CLI_CHOICE, &c->flash_attn,
               "flash attention: 'on', 'off' or 'auto' (default: {})", .choices = flash_names),
        OPTION("ctk", "cache-type-k", "TYPE", CLI_TEXT, &c->type_k,
               "type of the K cache: f32, f16, bf16, q8_0, ... (default: f16)"),
        OPTION("ctv", "cache-type-v", "TYPE", CLI_TEXT, &c->type_v,
               "type of the V cache (default: f16)"),
        OPTION(NULL, "tap", "HOW", CLI_CHOICE, &c->tap,
               "take activations by 'redirect', or 'ask' for each node (default: {})",
               .choices = tap_names),
    };
    const cli_option output[CLI_COMMON_OUTPUT] = {
        OPTION("q", "quiet", NULL, CLI_FLAG, &c->quiet, "errors only on stderr"),
        OPTION("v", "verbose", NULL, CLI_FLAG, &c->verbose,
               "also timings and llama.cpp's own lines on stderr"),
    };

    memcpy(table->model, model, sizeof(model));
    memcpy(table->output, output, sizeof(output));
}

int cli_common_check(const cli_common *c) {
    cli_verbosity(c->quiet, c->verbose);
    return c->model || c->synthetic ? -1 : cli_usage("a model is needed: '-m FILE'");
}

void cli_session_options(const cli_common *c, ts_session_options *out) {
    *out = TS_OPTIONS_INIT(ts_session_options);
    out->model_path = c->model;
    out->synthetic = c->synthetic;
    out->n_gpu_layers = c->n_gpu_layers;
    out->device = c->device;
    out->n_threads = c->n_threads;
    out->n_ctx = c->n_ctx;
    out->n_batch = c->n_batch;
    out->n_ubatch = c->n_ubatch;
    out->flash_attn = (enum ts_flash)c->flash_attn;
    out->type_k = c->type_k;
    out->type_v = c->type_v;
    out->tap = (enum ts_tap_method)c->tap;
    out->stop = cli_stop_flag();
}
