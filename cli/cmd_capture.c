/* `turbospark capture`: residual streams of a prompt list, one open of the model. Owns the progress
 * bar and the lines about sizes; the walk itself is the library's. */
#include "cli.h"
#include "options.h"
#include "progress.h"
#include "prompts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct capture {
    cli_common common;
    cli_prompts prompts;
    const char *input, *output;
    bool exact, resume, overwrite, progress;
    bool layers_given, format_given;
    ts_range layers;
    ts_positions positions;
    int format;

    uint64_t n_resumed; /* tokens of an earlier process */
    cli_progress bar;
} capture;

static const char *const format_names[] = {"f32", "safetensors", NULL}; /* enum ts_capture_format */

static int parse(capture *c, int argc, char **argv) {
    cli_common_table common;
    const cli_option prompts[] = {
        OPTION("i", "input", "FILE", CLI_TEXT, &c->input,
               "prompts: one a line with \\n escapes, or, named .jsonl, JSON Lines with 'prompt', "
               "'messages' or "
               "'token_ids', and an optional 'label'"),
        CLI_PROMPT_OPTIONS(&c->prompts),
    };
    const cli_option rows[] = {
        OPTION("o", "output", "FILE", CLI_TEXT, &c->output,
               "where to: FILE.json, or FILE.safetensors"),
        OPTION(NULL, "format", "NAME", CLI_CHOICE, &c->format,
               "'f32' (header, .f32 and .meta) or 'safetensors' (default: by the output's name)",
               .choices = format_names, .given = &c->format_given),
        OPTION(NULL, "layers", "A:B", CLI_RANGE, &c->layers,
               "blocks A to B, from 0, both included (default: all); needs safetensors",
               .given = &c->layers_given),
        OPTION(NULL, "positions", "WHICH", CLI_POSITIONS, &c->positions,
               "tokens of each prompt: 'last', a number (-1 = last), A:B, 'all' or 'mean' "
               "(default: last)"),
        OPTION(NULL, "exact", NULL, CLI_FLAG, &c->exact,
               "one prompt at a time, passes as in run: equal to run's captures to the bit"),
        OPTION(NULL, "resume", NULL, CLI_FLAG, &c->resume,
               "continue an unfinished capture, if there is one"),
        OPTION(NULL, "overwrite", NULL, CLI_FLAG, &c->overwrite, "replace files that exist"),
        CLI_PROGRESS_OPTION(&c->progress),
    };
    const cli_group groups[] = {CLI_GROUP("Prompts", prompts), CLI_GROUP("Rows", rows),
                                CLI_GROUP("Model", common.model),
                                CLI_GROUP("Messages", common.output)};
    const cli_syntax syntax = {
        "capture -m FILE -i PROMPTS -o OUT [options]",
        "Writes the residual stream of every block for each prompt of a list. Prompts are "
        "packed into batches of up to --ubatch-size tokens.",
        groups, sizeof(groups) / sizeof(groups[0]), false};
    int n_operands;

    cli_common_options(&c->common, &common);
    return cli_parse(&syntax, argc, argv, &n_operands);
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

static int check(capture *c) {
    int code = cli_common_check(&c->common);

    if (code >= 0)
        return code;
    if (!c->input)
        return cli_usage("a list of prompts is needed: '-i FILE'");
    if (!c->output)
        return cli_usage("an output is needed: '-o FILE'");
    if (c->resume && c->overwrite)
        return cli_usage("'--resume' and '--overwrite' exclude each other");
    if (!c->format_given && ends_with(c->output, ".safetensors"))
        c->format = TS_CAPTURE_SAFETENSORS;
    c->bar.drawing = cli_wants_progress(c->progress);
    code = cli_keep_beside(c->output, "model", c->common.model);
    return code < 0 ? cli_keep_beside(c->output, "input", c->input) : code;
}

static void on_plan(const ts_progress *p, void *user) {
    capture *c = user;
    char size[32];

    c->n_resumed = p->tokens_resumed;
    cli_note("%" PRIu64 " prompt%s, %" PRIu64 " token%s; '%s' will take %s%s", p->prompts_total,
             cli_plural(p->prompts_total), p->tokens_total, cli_plural(p->tokens_total), c->output, cli_bytes_text(p->bytes_total, size),
             p->tokens_resumed ? "; resuming" : "");
}

static void on_progress(const ts_progress *p, void *user) {
    cli_progress_draw(&((capture *)user)->bar, p);
}

static void report(const capture *c, const ts_capture_result *r) {
    double rate = r->seconds > 0 ? (double)(r->n_tokens - c->n_resumed) / r->seconds : 0;

    if (r->n_batches == 0) /* a capture that was complete: a warning said so */
        return;
    cli_note("%" PRIu64 " row%s of %" PRIu64 " prompt%s, %" PRIu64
             " token%s in %.1f s (%.0f tokens/s)",
             r->n_rows, cli_plural(r->n_rows), r->n_prompts, cli_plural(r->n_prompts), r->n_tokens,
             cli_plural(r->n_tokens), r->seconds, rate);
    cli_note_skipped(r->n_skipped_empty);
    if (r->n_nonfinite)
        cli_note("warning: %" PRIu64 " value%s not finite", r->n_nonfinite, r->n_nonfinite == 1 ? " is" : "s are");
    cli_note("wrote '%s'", c->output);
}

static int capture_corpus(capture *c, ts_session *session) {
    ts_capture_options opts = TS_OPTIONS_INIT(ts_capture_options);
    ts_capture_result result = {0};
    ts_error err = {0};
    int rc;

    opts.input_path = c->input;
    opts.output_path = c->output;
    CLI_PROMPTS_INTO(&c->prompts, &opts);
    opts.layers = c->layers_given ? &c->layers : NULL;
    opts.positions = c->positions;
    opts.format = (enum ts_capture_format)c->format;
    opts.exact = c->exact;
    opts.resume = c->resume;
    opts.overwrite = c->overwrite;
    opts.on_plan = on_plan;
    opts.on_progress = on_progress;
    opts.user = c;
    rc = ts_capture_run(session, &opts, &result, &err);
    cli_progress_end(&c->bar);
    if (rc != 0)
        return cli_fail_error(&err);
    report(c, &result);
    return CLI_DONE;
}

int cmd_capture(int argc, char **argv) {
    capture c = {0};
    ts_session_options opts;
    ts_session *session = NULL;
    ts_error err;
    int code = parse(&c, argc, argv);

    if (code < 0)
        code = check(&c);
    if (code >= 0)
        return code;
    cli_session_options(&c.common, &opts);
    code = ts_session_open(&opts, &session, &err) == 0 ? capture_corpus(&c, session)
                                                       : cli_fail_error(&err);
    ts_session_close(session);
    return code;
}
