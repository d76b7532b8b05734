/* The command table, --help and --version. Refuses what is no command. */
#include "cli.h"

#include <inttypes.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name */
    const char *about;
} command;

static const command commands[] = {
    {"run", cmd_run, "generate text, with instruments on the side"},
    {"nodes", cmd_nodes, "what can be tapped in a model, and how"},
    {"capture", cmd_capture, "residual streams of a list of prompts, into a file"},
    {"analyze", cmd_analyze, "is the FFN sparse: tables and a verdict from census files"},
    {"merge", cmd_merge, "add up census files"},
    {"census", cmd_census, "FFN activations of a corpus: is there sparsity to exploit?"},
    {"router", cmd_router, "which experts a mixture of experts chooses over a corpus"},
    {"logits", cmd_logits, "logits of a text, one row a token, into a folder"},
    {"kld", cmd_kld, "compare two dumps of logits: KL divergence, perplexity"},
    {"extract", cmd_extract, "a direction a block, from two sets of captures or prompts"},
    {"sweep", cmd_sweep, "scales, bands and modes of a direction, measured side by side"},
    {"inspect", cmd_inspect, "what a file of ours is, without a model"},
    {"bench", cmd_bench, "what tapping costs, against no tap"},
};

enum { N_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void print_help(void) {
    puts("Usage: turbospark COMMAND [options]\n\n"
         "An activation microscope for GGUF models on llama.cpp.\n\nCommands:");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].about);
    puts("\nOptions:\n"
         "  -h, --help     print this text; after a command, its options\n"
         "      --version  print the versions of turbospark and its engine, and the\n"
         "                 devices found");
}

static int print_version(void) {
    size_t n = ts_device_count();
    ts_error err;
    ts_device d;

    printf("turbospark %s\nllama.cpp %s\nggml %s\n", ts_version(), ts_engine_version(),
           ts_ggml_version());
    for (size_t i = 0; i < n; i++) {
        if (ts_device_get(i, &d, &err) != 0)
            return cli_fail_error(&err);
        printf("device %s: %s, %s, %" PRIu64 " of %" PRIu64 " MiB free\n", d.name, d.description,
               d.kind, d.memory_free >> 20, d.memory_total >> 20);
    }
    return CLI_DONE;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2)
        return cli_usage("expected a command");
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "--help") == 0 ||
        strcmp(argv[1], "-h") == 0) {
        if (argc > 2)
            return cli_usage("unexpected argument '%s'", argv[2]);
        if (strcmp(argv[1], "--version") == 0)
            return print_version();
        print_help();
        return CLI_DONE;
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            cli_begin(commands[i].name);
            return commands[i].run(argc - 1, argv + 1);
        }
    return cli_usage(argv[1][0] == '-' ? "unknown option '%s'" : "unknown command '%s'", argv[1]);
}

int main(int argc, char **argv) {
    cli_begin("");
    return cli_end(dispatch(argc, argv));
}
