/* `turbospark logits`: the logits of a text into a folder. The walk is the library's. */
#include "cli.h"
#include "options.h"
#include "progress.h"
#include "steering.h"

#include <inttypes.h>
#include <string.h>

enum { F16, F32 };

typedef struct logits {
    cli_common common;
    const char *input, *output;
    int dtype;
    uint32_t window, stride;
    bool special, window_given, stride_given, overwrite, progress;
    cli_progress bar;
    cli_steering steering;
    ts_session *session;
} logits;

static const char *const dtypes[] = {"f16", "f32", NULL};

static int parse(logits *c, int argc, char **argv) {
    cli_common_table common;
    const cli_option text[] = {
        OPTION("f", "file", "FILE", CLI_TEXT, &c->input,
               "the text, read as it is; nothing is sampled"),
        OPTION(NULL, "special", NULL, CLI_FLAG, &c->special,
               "text such as <|im_start|> is the control token"),
        OPTION(NULL, "window", "N", CLI_U32, &c->window,
               "tokens of one context (default: --ctx-size); a longer text runs in several",
               .min = 1, .max = INT32_MAX, .given = &c->window_given),
        OPTION(
            NULL, "stride", "N", CLI_U32, &c->stride,
            "tokens from one window's start to the next; each scored token has at least window - "
            "stride tokens before it (default: half a window; a window if the text fits)",
            .min = 1, .max = INT32_MAX, .given = &c->stride_given),
    };
    const cli_option result[] = {
        OPTION("o", "output", "FOLDER", CLI_TEXT, &c->output,
               "where to: meta.json with logits.f16 or logits.f32"),
        OPTION(NULL, "dtype", "NAME", CLI_CHOICE, &c->dtype, "'f16' or 'f32' (default: {})",
               .choices = dtypes),
        OPTION(NULL, "overwrite", NULL, CLI_FLAG, &c->overwrite, "replace a dump that is there"),
        CLI_PROGRESS_OPTION(&c->progress),
    };
    cli_option steering[CLI_STEERING_OPTIONS];
    const cli_group groups[] = {CLI_GROUP("Text", text), CLI_GROUP("Result", result),
                                CLI_GROUP("Steering", steering), CLI_GROUP("Model", common.model),
                                CLI_GROUP("Messages", common.output)};
    const cli_syntax syntax = {
        "logits -m FILE -f TEXT -o FOLDER [options]",
        "Writes the logits that follow each token of a text. 'turbospark kld' compares two such "
        "folders.",
        groups, sizeof(groups) / sizeof(groups[0]), false};
    int n_operands;

    cli_common_options(&c->common, &common);
    cli_steering_options(&c->steering, steering);
    return cli_parse(&syntax, argc, argv, &n_operands);
}

/* The text takes the place of a prompt: no token of it was decoded. */
static int check_steering(const logits *c) {
    int code = cli_steering_check(&c->steering, c->common.model);

    if (code < 0 && cli_steering_decodes(&c->steering))
        return cli_usage("'--steering-from decode' edits nothing here: the text is all prompt");
    return code < 0 ? cli_keep_input(c->steering.trace, "text", c->input) : code;
}

/* A file of the folder may be one of those read, or the trace. */
static int keep_inputs(const logits *c) {
    static const char *const names[] = {"meta.json", "logits.f16", "logits.f32"};
    char path[4096];
    int code = cli_keep_apart("the logits", c->output, "the steering trace", c->steering.trace, true);

    for (size_t i = 0; code < 0 && i < sizeof(names) / sizeof(names[0]); i++) {
        if (snprintf(path, sizeof(path), "%s/%s", c->output, names[i]) >= (int)sizeof(path))
            return cli_fail("the name '%.80s...' is too long", c->output);
        code = cli_keep_input(path, "model", c->common.model);
        if (code < 0)
            code = cli_keep_input(path, "text", c->input);
        for (int k = 0; code < 0 && k < c->steering.n; k++)
            code = cli_keep_input(path, "control vector", c->steering.entries[k].path);
        if (code < 0)
            code = cli_keep_apart("the logits", path, "the steering trace", c->steering.trace, true);
    }
    return code;
}

static int check(logits *c) {
    int code = cli_common_check(&c->common);

    if (code >= 0)
        return code;
    if (!c->input)
        return cli_usage("a text is needed: '-f FILE'");
    if (!c->output)
        return cli_usage("an output is needed: '-o FOLDER'");
    if (c->common.tap && c->steering.n == 0)
        return cli_usage("'--tap' needs something to tap: '--steering FILE'");
    if (c->stride_given && !c->window_given)
        return cli_usage("'--stride' needs '--window'");
    if (c->stride > c->window)
        return c->window == 1 ? cli_usage("--stride: expected 1 (the window), got %" PRIu32, c->stride)
                              : cli_usage("--stride: expected 1 to %" PRIu32 " (the window), got %" PRIu32, c->window, c->stride);
    c->bar.drawing = cli_wants_progress(c->progress);
    code = check_steering(c);
    return code < 0 ? keep_inputs(c) : code;
}

static void on_plan(const ts_progress *p, void *user) {
    const logits *c = user;
    char size[32];

    cli_note("%" PRIu64 " token%s to compute; '%s' will take %s", p->tokens_total, cli_plural(p->tokens_total), c->output,
             cli_bytes_text(p->bytes_total, size));
    cli_steering_note(c->session);
}

static void on_progress(const ts_progress *p, void *user) {
    cli_progress_draw(&((logits *)user)->bar, p);
}

static int write_dump(logits *c) {
    ts_logits_options o = TS_OPTIONS_INIT(ts_logits_options);
    ts_logits_result r = {0};
    ts_error err = {0};

    o.input_path = c->input;
    o.output_path = c->output;
    o.f32 = c->dtype == F32;
    o.window = c->window;
    o.stride = c->stride;
    o.special = c->special;
    o.overwrite = c->overwrite;
    o.on_plan = on_plan;
    o.on_progress = on_progress;
    o.user = c;
    int rc = ts_logits_run(c->session, &o, &r, &err);
    cli_progress_end(&c->bar);
    if (rc == 0)
        rc = ts_session_finish(c->session, &err); /* the trace */
    else if (rc == TS_ERR_INTERRUPTED)
        ts_session_finish(c->session, NULL); /* as far as it went; the reason stays */
    if (rc != 0)
        return cli_fail_error(&err);
    cli_note("%" PRId64 " row%s of %" PRId64 " token%s in %" PRIu32
             " window%s, scored from row %" PRId64 "; %.1f s",
             r.n_rows, cli_plural((uint64_t)r.n_rows), r.n_tokens, cli_plural((uint64_t)r.n_tokens), r.n_windows, cli_plural(r.n_windows),
             r.first_scored_position, r.seconds);
    cli_note("wrote '%s'", c->output);
    return CLI_DONE;
}

int cmd_logits(int argc, char **argv) {
    logits c = {.dtype = F16};
    ts_session_options opts;
    ts_error err;
    int code = parse(&c, argc, argv);

    if (code < 0)
        code = check(&c);
    if (code >= 0)
        return code;
    cli_session_options(&c.common, &opts);
    code = ts_session_open(&opts, &c.session, &err) == 0 ? cli_steering_attach(&c.steering, c.session)
                                                         : cli_fail_error(&err);
    if (code < 0)
        code = write_dump(&c);
    ts_session_close(c.session);
    return code;
}
