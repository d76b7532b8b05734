/* `turbospark census`: counts what ffn_down reads over a prompt list or a text, or zeroes the
 * smallest of it and measures. The walk is the library's. */
#include "cli.h"
#include "options.h"
#include "progress.h"
#include "prompts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LEVELS = 64 };

typedef struct census {
    cli_common common;
    cli_prompts prompts;
    const char *input, *output, *text, *zero, *zero_below, *json;
    bool ignore_eos, trace, resume, overwrite, progress;
    bool predict_given, parallel_given, percent_given;
    int32_t n_predict, parallel, trace_percent;
    cli_progress bar;
    uint64_t n_resumed;
    double percents[MAX_LEVELS], below[MAX_LEVELS];
    size_t n_percents, n_below;
} census;

static int parse(census *c, int argc, char **argv) {
    cli_common_table common;
    const cli_option input[] = {
        OPTION("i", "input", "FILE", CLI_TEXT, &c->input,
               "prompts to generate from: one a line, or JSON Lines as for capture"),
        OPTION(NULL, "text", "FILE", CLI_TEXT, &c->text,
               "read this text instead, teacher-forced in full batches: every token counts"),
        CLI_PROMPT_OPTIONS(&c->prompts),
        OPTION("n", "predict", "N", CLI_I32, &c->n_predict,
               "tokens to generate from each prompt (default: {})", .min = 1, .max = INT32_MAX,
               .given = &c->predict_given),
        OPTION(NULL, "parallel", "N", CLI_I32, &c->parallel,
               "prompts generated side by side in one batch (default: {})", .min = 1, .max = 256,
               .given = &c->parallel_given),
        OPTION(NULL, "ignore-eos", NULL, CLI_FLAG, &c->ignore_eos,
               "go on after an end-of-generation token"),
    };
    const cli_option result[] = {
        OPTION("o", "output", "FILE.json", CLI_TEXT, &c->output,
               "where to; FILE.detail and FILE.meta stand beside it"),
        OPTION(NULL, "trace", NULL, CLI_FLAG, &c->trace,
               "also FILE.trace: each pass's top neurons, for 'analyze --cache'"),
        OPTION(NULL, "trace-percent", "P", CLI_I32, &c->trace_percent,
               "top neurons in the trace, in % of the width: 1, 2, 5, 10 or 20 (default: {})",
               .min = 1, .max = 20, .given = &c->percent_given),
        OPTION(NULL, "resume", NULL, CLI_FLAG, &c->resume,
               "continue an interrupted census, if there is one"),
        OPTION(NULL, "overwrite", NULL, CLI_FLAG, &c->overwrite, "replace files that exist"),
        CLI_PROGRESS_OPTION(&c->progress),
    };
    const cli_option zeroing[] = {
        OPTION(NULL, "zero", "P,P,...", CLI_TEXT, &c->zero,
               "with --text: zero that share (%) of each token's smallest activations in the graph, "
               "and print perplexity, KL and top-1 agreement for each level"),
        OPTION(NULL, "zero-below", "T,T,...", CLI_TEXT, &c->zero_below,
               "likewise every activation smaller than a fixed threshold"),
        OPTION(NULL, "json", "FILE", CLI_TEXT, &c->json, "write the zeroing table there as JSON"),
    };
    const cli_group groups[] = {CLI_GROUP("Input", input), CLI_GROUP("Result", result),
                                CLI_GROUP("Zeroing", zeroing), CLI_GROUP("Model", common.model),
                                CLI_GROUP("Messages", common.output)};
    const cli_syntax syntax = {
        "census -m FILE (-i PROMPTS | --text FILE) (-o OUT.json | --zero P,...) [options]",
        "Counts the FFN activations act(gate) * up of every block: mass per neuron, magnitudes, "
        "overlap of consecutive tokens' top neurons. 'turbospark analyze' reads the result.",
        groups, sizeof(groups) / sizeof(groups[0]), false};
    int n_operands;

    cli_common_options(&c->common, &common);
    return cli_parse(&syntax, argc, argv, &n_operands);
}

/* "0,25,50" into levels. Returns -1 to go on. */
static int parse_levels(const char *name, const char *text, double max, double *levels, size_t *n) {
    char *copy = text ? strdup(text) : NULL, *at = copy, *next;
    ts_error err = {0};
    int code = -1;

    while (at && code < 0) {
        next = strchr(at, ',');
        if (next)
            *next++ = '\0';
        if (*n == MAX_LEVELS)
            code = cli_usage("%s: more than %d levels", name, MAX_LEVELS);
        else if (ts_parse_f64(name, at, 0, max, &levels[(*n)++], &err) != 0)
            code = cli_usage("%s", err.message);
        at = next;
    }
    free(copy);
    return code;
}

static int check_zeroing(census *c) {
    if (!c->zero && !c->zero_below)
        return c->json ? cli_usage("'--json' needs '--zero' or '--zero-below'") : -1;
    if (!c->text)
        return cli_usage("'%s' needs a text: '--text FILE'", c->zero ? "--zero" : "--zero-below");
    if (c->output || c->trace || c->resume || c->overwrite)
        return cli_usage("'%s' measures: it takes no '-o', '--trace', '--resume' or '--overwrite'",
                         c->zero ? "--zero" : "--zero-below");
    int code = parse_levels("--zero", c->zero, 100, c->percents, &c->n_percents);
    return code < 0 ? parse_levels("--zero-below", c->zero_below, 1e30, c->below, &c->n_below) : code;
}

static int check(census *c) {
    int code = cli_common_check(&c->common);

    if (code >= 0)
        return code;
    if (!!c->input + !!c->text != 1)
        return cli_usage(c->input ? "'-i' and '--text' exclude each other"
                                  : "an input is needed: '-i FILE' or '--text FILE'");
    if (c->text && (c->predict_given || c->parallel_given || c->ignore_eos || c->prompts.chat || c->prompts.chat_template || c->prompts.column))
        return cli_usage("'--text' reads a text as it is: no '-n', '--parallel', '--ignore-eos', "
                         "'--chat', '--chat-template' or '--column'");
    code = check_zeroing(c);
    if (code >= 0)
        return code;
    if (!c->output && !c->zero && !c->zero_below)
        return cli_usage("an output is needed: '-o FILE.json'");
    if (c->resume && c->overwrite)
        return cli_usage("'--resume' and '--overwrite' exclude each other");
    if (c->percent_given && !c->trace)
        return cli_usage("'--trace-percent' needs '--trace'");
    c->bar.drawing = cli_wants_progress(c->progress);
    for (int i = 0; code < 0 && i < 2; i++) {
        const char *path = i ? c->json : c->output;

        code = cli_keep_beside(path, "model", c->common.model);
        if (code < 0)
            code = cli_keep_beside(path, "input", c->input ? c->input : c->text);
    }
    return code;
}

static void on_plan(const ts_progress *p, void *user) {
    census *c = user;
    char size[32];

    c->n_resumed = p->tokens_resumed;
    const char *resuming = p->tokens_resumed ? "; resuming" : "";

    if (c->text)
        cli_note("a text of %" PRIu64 " token%s%s", p->tokens_total, cli_plural(p->tokens_total), resuming);
    else
        cli_note("%" PRIu64 " prompt%s, at most %" PRIu64 " token%s%s", p->prompts_total, cli_plural(p->prompts_total), p->tokens_total,
                 cli_plural(p->tokens_total), resuming);
    if (c->trace)
        cli_note("the trace will take at most %s", cli_bytes_text(p->bytes_total, size));
}

static void on_progress(const ts_progress *p, void *user) {
    cli_progress_draw(&((census *)user)->bar, p);
}

static int count(census *c, ts_session *session) {
    ts_census_options o = TS_OPTIONS_INIT(ts_census_options);
    ts_census_result r = {0};
    ts_error err = {0};

    o.input_path = c->text ? c->text : c->input;
    o.output_path = c->output;
    CLI_PROMPTS_INTO(&c->prompts, &o);
    o.text = c->text != NULL;
    o.n_predict = c->text ? 0 : c->n_predict;
    o.parallel = c->text ? 0 : c->parallel;
    o.ignore_eos = c->ignore_eos;
    o.trace = c->trace;
    o.trace_percent = c->trace_percent;
    o.resume = c->resume;
    o.overwrite = c->overwrite;
    o.on_plan = on_plan;
    o.on_progress = on_progress;
    o.user = c;
    int rc = ts_census_run(session, &o, &r, &err);
    cli_progress_end(&c->bar);
    if (rc != 0)
        return cli_fail_error(&err);
    if (r.complete) /* a warning said so */
        return CLI_DONE;
    cli_note("%" PRIu64 " pass%s counted, %" PRIu64 " prompt token%s before them, %" PRIu64
             " pair%s; %" PRIu64 " token%s in %.1f s (%.0f tokens/s)",
             r.decode_passes, r.decode_passes == 1 ? "" : "es", r.prefill_passes, cli_plural(r.prefill_passes), r.overlap_pairs,
             cli_plural(r.overlap_pairs), r.n_tokens, cli_plural(r.n_tokens), r.seconds,
             r.seconds > 0 ? (double)(r.n_tokens - c->n_resumed) / r.seconds : 0);
    cli_note_skipped(r.n_skipped_empty);
    cli_note("wrote '%s'", c->output);
    return CLI_DONE;
}

static void level_text(const ts_zero_row *row, char buf[32]) {
    if (row->threshold)
        snprintf(buf, 32, "< %g", row->level);
    else
        snprintf(buf, 32, "%g %%", row->level);
}

static void print_table(const ts_zero_row *rows, size_t n) {
    char level[32], line[128];
    int length = snprintf(line, sizeof(line), "%-10s %8s %11s %8s %10s %10s %7s  %s\n", "zeroed", "actual", "perplexity",
                          "ratio", "KL mean", "KL max", "top-1", "logits");

    cli_out(line, (size_t)length);
    for (size_t i = 0; i < n; i++) {
        const ts_zero_row *r = &rows[i];

        level_text(r, level);
        length = snprintf(line, sizeof(line), "%-10s %6.2f %% %11.4f %8.4f %10.3g %10.3g %5.1f %%  %s\n", level,
                          100 * r->zeroed, r->perplexity, r->perplexity / r->perplexity_base, r->kl_mean, r->kl_max,
                          100 * r->top1, r->identical ? "same bits" : "differ");
        cli_out(line, (size_t)length);
    }
}

static void write_rows(FILE *f, const ts_zero_row *rows, size_t n) {
    fprintf(f, "[\n");
    for (size_t i = 0; i < n; i++)
        fprintf(f,
                "  {\"%s\": %.9g, \"zeroed\": %.9g, \"perplexity\": %.9g, \"perplexity_base\": %.9g, "
                "\"kl_mean\": %.9g, \"kl_max\": %.9g, \"top1\": %.9g, \"identical\": %s, \"n_scored\": %" PRIu64 "}%s\n",
                rows[i].threshold ? "below" : "percent", rows[i].level, rows[i].zeroed, rows[i].perplexity,
                rows[i].perplexity_base, rows[i].kl_mean, rows[i].kl_max, rows[i].top1,
                rows[i].identical ? "true" : "false", rows[i].n_scored, i + 1 < n ? "," : "");
    fprintf(f, "]\n");
}

static int write_json(const char *path, const ts_zero_row *rows, size_t n) {
    cli_text text;

    if (!cli_text_open(&text))
        return cli_fail("out of memory");
    write_rows(text.file, rows, n);
    return cli_text_save(&text, path);
}

static int zero(census *c, ts_session *session) {
    ts_zero_options o = TS_OPTIONS_INIT(ts_zero_options);
    ts_zero_row rows[2 * MAX_LEVELS];
    ts_error err = {0};

    o.input_path = c->text;
    o.special = c->prompts.special;
    o.percents = c->percents;
    o.n_percents = c->n_percents;
    o.below = c->below;
    o.n_below = c->n_below;
    o.on_progress = on_progress;
    o.user = c;
    int rc = ts_zero_run(session, &o, rows, &err);
    cli_progress_end(&c->bar);
    if (rc != 0)
        return cli_fail_error(&err);
    cli_note("perplexity of the untouched model: %.4f over %" PRIu64 " tokens", rows[0].perplexity_base, rows[0].n_scored);
    print_table(rows, c->n_percents + c->n_below);
    return c->json ? write_json(c->json, rows, c->n_percents + c->n_below) : CLI_DONE;
}

int cmd_census(int argc, char **argv) {
    census c = {.n_predict = 64, .parallel = 1, .trace_percent = 10};
    ts_session_options opts;
    ts_session *session = NULL;
    ts_error err;
    int code = parse(&c, argc, argv);

    if (code < 0)
        code = check(&c);
    if (code >= 0)
        return code;
    cli_session_options(&c.common, &opts);
    code = cli_check_json(c.json);
    if (code < 0 && ts_session_open(&opts, &session, &err) != 0)
        code = cli_fail_error(&err);
    if (code < 0)
        code = c.zero || c.zero_below ? zero(&c, session) : count(&c, session);
    ts_session_close(session);
    return code;
}
