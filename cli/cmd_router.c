/* `turbospark router`: counts the experts that each block's router chooses over a prompt list. The walk is the library's. */
#include "cli.h"
#include "options.h"
#include "progress.h"
#include "prompts.h"

#include <inttypes.h>
#include <string.h>

typedef struct router {
    cli_common common;
    cli_prompts prompts;
    const char *input, *output, *csv;
    bool ignore_eos, trace, resume, overwrite, progress;
    int32_t n_predict, parallel;
    cli_progress bar;
    uint64_t n_resumed;
} router;

static int parse(router *r, int argc, char **argv) {
    cli_common_table common;
    const cli_option input[] = {
        OPTION("i", "input", "FILE", CLI_TEXT, &r->input, "prompts: one a line, or JSON Lines as for capture"),
        CLI_PROMPT_OPTIONS(&r->prompts),
        OPTION("n", "predict", "N", CLI_I32, &r->n_predict,
               "tokens to generate from each prompt; 0 = prompts only (default: {})", .max = INT32_MAX),
        OPTION(NULL, "parallel", "N", CLI_I32, &r->parallel,
               "prompts run side by side in one batch; 1 gives the passes of 'run' (default: {})", .min = 1, .max = 256),
        OPTION(NULL, "ignore-eos", NULL, CLI_FLAG, &r->ignore_eos, "go on after an end-of-generation token"),
    };
    const cli_option result[] = {
        OPTION("o", "output", "FILE.json", CLI_TEXT, &r->output, "where to; FILE.meta stands beside it"),
        OPTION(NULL, "trace", NULL, CLI_FLAG, &r->trace, "also the ids in pass order: for overlaps, windows and caches"),
        OPTION(NULL, "csv", "FILE.csv", CLI_TEXT, &r->csv, "also every slot as a line 'layer,expert', pass by pass; implies --trace"),
        OPTION(NULL, "resume", NULL, CLI_FLAG, &r->resume, "continue an interrupted census, if there is one"),
        OPTION(NULL, "overwrite", NULL, CLI_FLAG, &r->overwrite, "replace files that exist"),
        CLI_PROGRESS_OPTION(&r->progress),
    };
    const cli_group groups[] = {CLI_GROUP("Input", input), CLI_GROUP("Result", result), CLI_GROUP("Model", common.model),
                                CLI_GROUP("Messages", common.output)};
    const cli_syntax syntax = {"router -m FILE -i PROMPTS -o OUT.json [options]",
                               "Counts which experts each block's router chooses, prompt and generated tokens alike, with the "
                               "weights they get. 'turbospark analyze' reads the result.",
                               groups, sizeof(groups) / sizeof(groups[0]), false};
    int n_operands;

    cli_common_options(&r->common, &common);
    return cli_parse(&syntax, argc, argv, &n_operands);
}

static int check(router *r) {
    int code = cli_common_check(&r->common);
    const char *outputs[] = {r->output, r->csv};

    if (code >= 0)
        return code;
    if (!r->input)
        return cli_usage("an input is needed: '-i FILE'");
    if (!r->output)
        return cli_usage("an output is needed: '-o FILE.json'");
    if (r->resume && r->overwrite)
        return cli_usage("'--resume' and '--overwrite' exclude each other");
    r->bar.drawing = cli_wants_progress(r->progress);
    for (int i = 0; code < 0 && i < 2; i++) {
        code = cli_keep_beside(outputs[i], "model", r->common.model);
        if (code < 0)
            code = cli_keep_beside(outputs[i], "input", r->input);
    }
    return code < 0 ? cli_keep_apart("the routing census", r->output, "the CSV", r->csv, true) : code;
}

static void on_plan(const ts_progress *p, void *user) {
    router *r = user;
    char size[32];

    r->n_resumed = p->tokens_resumed;
    cli_note("%" PRIu64 " prompt%s, at most %" PRIu64 " token%s%s", p->prompts_total, cli_plural(p->prompts_total), p->tokens_total,
             cli_plural(p->tokens_total), p->tokens_resumed ? "; resuming" : "");
    if (p->bytes_total)
        cli_note("the trace will take at most %s of memory", cli_bytes_text(p->bytes_total, size));
}

static void on_progress(const ts_progress *p, void *user) {
    cli_progress_draw(&((router *)user)->bar, p);
}

static int count(router *r, ts_session *session) {
    ts_router_options o = TS_OPTIONS_INIT(ts_router_options);
    ts_router_result t = {0};
    ts_error err = {0};

    o.input_path = r->input;
    o.output_path = r->output;
    o.csv_path = r->csv;
    CLI_PROMPTS_INTO(&r->prompts, &o);
    o.n_predict = r->n_predict;
    o.parallel = r->parallel;
    o.ignore_eos = r->ignore_eos;
    o.trace = r->trace;
    o.resume = r->resume;
    o.overwrite = r->overwrite;
    o.on_plan = on_plan;
    o.on_progress = on_progress;
    o.user = r;
    int rc = ts_router_run(session, &o, &t, &err);
    cli_progress_end(&r->bar);
    if (rc != 0)
        return cli_fail_error(&err);
    if (t.complete) /* a warning said so */
        return CLI_DONE;
    cli_note("%d block%s of %d expert%s, %d a token: %" PRIu64 " slot%s counted; %" PRIu64 " token%s in %.1f s (%.0f tokens/s)", t.n_blocks,
             cli_plural((uint64_t)t.n_blocks), t.n_experts, cli_plural((uint64_t)t.n_experts), t.top_k, t.n_slots, cli_plural(t.n_slots),
             t.n_tokens, cli_plural(t.n_tokens), t.seconds,
             t.seconds > 0 ? (double)(t.n_tokens - r->n_resumed) / t.seconds : 0);
    cli_note_skipped(t.n_skipped_empty);
    cli_note("wrote '%s'", r->output);
    return CLI_DONE;
}

int cmd_router(int argc, char **argv) {
    router r = {.n_predict = 64, .parallel = 1};
    ts_session_options opts;
    ts_session *session = NULL;
    ts_error err;
    int code = parse(&r, argc, argv);

    if (code < 0)
        code = check(&r);
    if (code >= 0)
        return code;
    cli_session_options(&r.common, &opts);
    if (ts_session_open(&opts, &session, &err) != 0)
        code = cli_fail_error(&err);
    if (code < 0)
        code = count(&r, session);
    ts_session_close(session);
    return code;
}
