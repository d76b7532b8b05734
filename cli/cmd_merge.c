/* `turbospark merge`: adds up census files into one. Refuses to write over what it reads. */
#include "cli.h"
#include "options.h"

typedef struct merge {
    const char *output;
    bool overwrite, quiet, verbose;
} merge;

static int parse(merge *o, int argc, char **argv, int *n_files) {
    const cli_option table[] = {
        OPTION("o", "output", "FILE", CLI_TEXT, &o->output,
               "the sum, FILE.json; .meta and .detail go beside it"),
        OPTION(NULL, "overwrite", NULL, CLI_FLAG, &o->overwrite, "replace existing files"),
        OPTION("q", "quiet", NULL, CLI_FLAG, &o->quiet, "errors only on stderr"),
        OPTION("v", "verbose", NULL, CLI_FLAG, &o->verbose, "also informational lines on stderr"),
    };
    const cli_group groups[] = {CLI_GROUP("Options", table)};
    const cli_syntax syntax = {"merge -o FILE FILE... [options]",
                               "Adds up FFN or routing censuses of one model: counts exactly, masses as sums. "
                               "The sum's .meta lists where they came from.",
                               groups, 1, true};

    return cli_parse(&syntax, argc, argv, n_files);
}

int cmd_merge(int argc, char **argv) {
    merge o = {0};
    ts_error err;
    int n_files, code = parse(&o, argc, argv, &n_files);

    if (code >= 0)
        return code;
    cli_verbosity(o.quiet, o.verbose);
    if (!o.output)
        return cli_usage("an output file is needed: '-o FILE'");
    if (n_files == 0)
        return cli_usage("a census file is needed");
    if (ts_merge((const char *const *)argv + 1, (size_t)n_files, o.output, o.overwrite, &err) != 0)
        return cli_fail_error(&err);
    cli_note("added up %d file%s into '%s'", n_files, cli_plural((uint64_t)n_files), o.output);
    return CLI_DONE;
}
