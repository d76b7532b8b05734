/* `turbospark analyze`: tables and a verdict from census files, without a model. */
#include "cli.h"
#include "options.h"

#include <stdlib.h>
#include <string.h>

typedef struct analyze {
    cli_list against;
    bool cache, json, diffable, quiet, verbose;
    int32_t csv_top_k, csv_experts;
} analyze;

static int parse(analyze *o, int argc, char **argv, int *n_files) {
    const cli_option table[] = {
        OPTION(NULL, "against", "FILE", CLI_LIST, &o->against,
               "compare with this census, block by block; given again, the files are summed"),
        OPTION(NULL, "cache", NULL, CLI_FLAG, &o->cache,
               "replay the .trace beside each FILE through neuron caches"),
        OPTION(NULL, "csv-top-k", "N", CLI_I32, &o->csv_top_k,
               "of a 'layer,expert' CSV: experts a token (default: the shortest run of one layer)", .min = 1, .max = 1 << 20),
        OPTION(NULL, "csv-experts", "N", CLI_I32, &o->csv_experts,
               "of a 'layer,expert' CSV: experts of a layer (default: the largest id and one)", .min = 1, .max = 1 << 20),
        OPTION(NULL, "json", NULL, CLI_FLAG, &o->json, "print one JSON object instead of tables"),
        OPTION(NULL, "diffable", NULL, CLI_FLAG, &o->diffable, "leave out the files' names"),
        OPTION("q", "quiet", NULL, CLI_FLAG, &o->quiet, "errors only on stderr"),
        OPTION("v", "verbose", NULL, CLI_FLAG, &o->verbose, "also informational lines on stderr"),
    };
    const cli_group groups[] = {CLI_GROUP("Options", table)};
    const cli_syntax syntax = {
        "analyze FILE... [options]",
        "Sums censuses of one model and prints what they say. Of routing censuses (the .json of "
        "'router' or 'run --router-hist', or a CSV): how evenly experts are used, how much recurs "
        "from token to token, each beside uniform routing. Of FFN censuses (the .json of 'census' or 'run --ffn-hist'): "
        "how few neurons hold the mass, what thresholds would skip, how much of "
        "it recurs from token to token, and a verdict on a neuron cache.",
        groups, 1, true};

    return cli_parse(&syntax, argc, argv, n_files);
}

static int show(const ts_analyze_options *opts) {
    char *text = NULL;
    ts_error err;

    if (ts_analyze(opts, &text, &err) != 0)
        return cli_fail_error(&err);
    cli_out(text, strlen(text));
    ts_free(text);
    return CLI_DONE;
}

int cmd_analyze(int argc, char **argv) {
    analyze o = {.against.items = calloc((size_t)argc, sizeof(char *))};
    ts_analyze_options opts = TS_OPTIONS_INIT(ts_analyze_options);
    int n_files, code = o.against.items ? parse(&o, argc, argv, &n_files) : cli_fail("out of memory");

    if (code < 0) {
        cli_verbosity(o.quiet, o.verbose);
        opts.paths = (const char *const *)argv + 1;
        opts.n_paths = (size_t)n_files;
        opts.against = o.against.items;
        opts.n_against = o.against.n;
        opts.cache = o.cache;
        opts.csv_top_k = (uint32_t)o.csv_top_k;
        opts.csv_experts = (uint32_t)o.csv_experts;
        opts.as_json = o.json;
        opts.diffable = o.diffable;
        code = n_files > 0 ? show(&opts) : cli_usage("a census file is needed");
    }
    free(o.against.items);
    return code;
}
