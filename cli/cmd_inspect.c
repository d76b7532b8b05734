/* `turbospark inspect`: says what files are, without a model. A file it cannot read does not hide
 * the next. */
#include "cli.h"
#include "options.h"

#include <string.h>

static int inspect(const char *path, bool json, bool first) {
    char *text = NULL;
    ts_error err;
    size_t n;

    if (ts_inspect(path, json, &text, &err) != 0)
        return cli_fail_error(&err);
    if (!first && !json)
        cli_out("\n", 1);
    n = strlen(text);
    cli_out(text, n);
    if (n == 0 || text[n - 1] != '\n')
        cli_out("\n", 1);
    ts_free(text);
    return CLI_DONE;
}

int cmd_inspect(int argc, char **argv) {
    bool json = false, quiet = false, verbose = false;
    const cli_option table[] = {
        OPTION(NULL, "json", NULL, CLI_FLAG, &json, "print one JSON object a file"),
        OPTION("q", "quiet", NULL, CLI_FLAG, &quiet, "errors only on stderr"),
        OPTION("v", "verbose", NULL, CLI_FLAG, &verbose, "also informational lines on stderr"),
    };
    const cli_group groups[] = {CLI_GROUP("Options", table)};
    const cli_syntax syntax = {
        "inspect FILE... [options]",
        "Says what a file is: a residual capture, a census, a routing census, a control vector, a "
        "model, a folder of logits, their .meta or a partial state. Sizes and hashes are verified.",
        groups, 1, true};
    int n_files, code = cli_parse(&syntax, argc, argv, &n_files);
    bool failed = false;

    if (code >= 0)
        return code;
    cli_verbosity(quiet, verbose);
    if (n_files == 0)
        return cli_usage("a file is needed");
    for (int i = 1; i <= n_files; i++)
        failed |= inspect(argv[i], json, i == 1) != CLI_DONE;
    return failed ? CLI_FAILED : CLI_DONE;
}
