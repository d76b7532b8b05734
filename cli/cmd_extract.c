/* `turbospark extract`: a direction a block, from two sets of captures or prompt lists. Owns the
 * options, the table and the notes; the arithmetic is the library's. */
#include "cli.h"
#include "options.h"
#include "progress.h"
#include "prompts.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 4096 };

typedef struct extract {
    cli_common common;
    cli_prompts prompts;
    cli_list positive, negative;
    const char *output, *json, *orthogonal, *shrinkage_text, *layer_ids;
    int method, mode;
    bool drop_nonfinite, overwrite, progress, exact;
    bool layers_given, positions_given;
    double shrinkage;
    ts_range layers;
    ts_positions positions;
    int32_t *layer_blocks; /* [n_layer_blocks] */
    size_t n_layer_blocks;
    cli_progress bar;
} extract;

/* enum ts_extract_method */
static const char *const method_names[] = {"mean", "pca", "pca-repeng", "svd", "lda", NULL};
/* enum ts_steering_mode less TS_STEERING_DECLARED */
static const char *const mode_names[] = {"ablate", "add", "clamp", "renorm", NULL};

static int parse(extract *x, int argc, char **argv) {
    cli_common_table common;
    const cli_option sets[] = {
        OPTION(NULL, "positive", "PATH", CLI_LIST, &x->positive,
               "captures that show the concept: a .json or .safetensors file or a folder of them, "
               "or with -m a prompt list; can be repeated"),
        OPTION(NULL, "negative", "PATH", CLI_LIST, &x->negative,
               "captures that show its opposite, likewise"),
        OPTION(NULL, "layers", "A:B", CLI_RANGE, &x->layers,
               "blocks A to B, from 0, both included (default: all)", .given = &x->layers_given),
        OPTION(NULL, "layer-ids", "N,N,...", CLI_TEXT, &x->layer_ids,
               "block of each layer of captures that do not say (default: 0,1,...)"),
        OPTION(NULL, "drop-nonfinite", NULL, CLI_FLAG, &x->drop_nonfinite,
               "leave out rows with NaN or infinity, of pairs both, instead of refusing them"),
    };
    const cli_option direction[] = {
        OPTION(NULL, "method", "NAME", CLI_CHOICE, &x->method,
               "'mean', 'pca', 'pca-repeng', 'svd' or 'lda' (default: {})",
               .choices = method_names),
        OPTION(NULL, "shrinkage", "G", CLI_TEXT, &x->shrinkage_text,
               "of lda: weight of the even spread, 0.001 to 1 (default: 0.1)"),
        OPTION(NULL, "orthogonal-to", "FILE", CLI_TEXT, &x->orthogonal,
               "take the directions of this control vector out"),
        OPTION(NULL, "mode", "NAME", CLI_CHOICE, &x->mode,
               "what the file declares: 'ablate', 'add', 'clamp' or 'renorm' (default: {})",
               .choices = mode_names),
    };
    const cli_option result[] = {
        OPTION("o", "output", "FILE", CLI_TEXT, &x->output, "the control vector, a GGUF file"),
        OPTION(NULL, "json", "FILE", CLI_TEXT, &x->json, "write the figures there as JSON"),
        OPTION(NULL, "overwrite", NULL, CLI_FLAG, &x->overwrite, "replace files that exist"),
        CLI_PROGRESS_OPTION(&x->progress),
    };
    const cli_option prompts[] = {
        CLI_PROMPT_OPTIONS(&x->prompts),
        OPTION(NULL, "positions", "WHICH", CLI_POSITIONS, &x->positions,
               "tokens of each prompt: 'last', a number (-1 = last), A:B, 'all' or 'mean' "
               "(default: last)",
               .given = &x->positions_given),
        OPTION(NULL, "exact", NULL, CLI_FLAG, &x->exact,
               "one prompt at a time, passes as in run"),
    };
    const cli_group groups[] = {CLI_GROUP("Sets", sets),
                                CLI_GROUP("Direction", direction),
                                CLI_GROUP("Result", result),
                                CLI_GROUP("Prompt lists (with -m)", prompts),
                                CLI_GROUP("Model (for prompt lists)", common.model),
                                CLI_GROUP("Messages", common.output)};
    const cli_syntax syntax = {
        "extract --positive PATH --negative PATH -o DIR.gguf [-m FILE] [options]",
        "Finds the direction of each block's residual stream that leads from one set of captures "
        "to another, prints what it is worth, and writes it as a control vector.",
        groups, sizeof(groups) / sizeof(groups[0]), false};
    int n_operands;

    cli_common_options(&x->common, &common);
    return cli_parse(&syntax, argc, argv, &n_operands);
}

/* ---- checks */

/* "2,14,27" into block numbers. */
static int parse_layer_ids(extract *x) {
    char *copy = x->layer_ids ? strdup(x->layer_ids) : NULL, *at = copy, *next;
    int64_t value;
    ts_error err;
    int code = -1;

    if (!x->layer_ids)
        return -1;
    x->layer_blocks = calloc(MAX_LAYERS, sizeof(x->layer_blocks[0]));
    if (!copy || !x->layer_blocks)
        code = cli_fail("out of memory");
    for (; at && code < 0; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = '\0';
        if (x->n_layer_blocks == MAX_LAYERS)
            code = cli_usage("--layer-ids: more than %d numbers", MAX_LAYERS);
        else if (ts_parse_i64("--layer-ids", at, 0, 999998, &value, &err) != 0)
            code = cli_usage("%s", err.message);
        else
            x->layer_blocks[x->n_layer_blocks++] = (int32_t)value;
    }
    free(copy);
    return code;
}

/* What only makes sense with a model. -t counts for the arithmetic too. */
static int check_no_model(const extract *x) {
    const cli_common *c = &x->common;
    const struct {
        bool used;
        const char *name;
    } options[] = {
        {x->prompts.column, "--column"}, {x->prompts.chat, "--chat"}, {x->prompts.chat_template, "--chat-template"},
        {x->prompts.special, "--special"}, {x->positions_given, "--positions"}, {x->exact, "--exact"},
        {c->device, "--device"}, {c->n_gpu_layers, "-ngl"}, {c->n_ctx, "-c"}, {c->n_batch, "-b"},
        {c->n_ubatch, "-ub"}, {c->flash_attn, "-fa"}, {c->type_k, "-ctk"}, {c->type_v, "-ctv"},
        {c->tap, "--tap"},
    };

    for (size_t i = 0; !c->model && i < sizeof(options) / sizeof(options[0]); i++)
        if (options[i].used)
            return cli_usage("'%s' needs a model: '-m FILE'", options[i].name);
    return -1;
}

static int check_shrinkage(extract *x) {
    ts_error err;

    if (!x->shrinkage_text)
        return -1;
    if (x->method != TS_EXTRACT_LDA)
        return cli_usage("'--shrinkage' needs '--method lda'");
    if (ts_parse_f64("--shrinkage", x->shrinkage_text, 0.001, 1, &x->shrinkage, &err) != 0)
        return cli_usage("%s", err.message);
    return -1;
}

static int keep_inputs(const extract *x, const char *output) {
    int code = cli_keep_input(output, "model", x->common.model);

    for (size_t i = 0; code < 0 && i < x->positive.n; i++)
        code = cli_keep_input(output, "positive set", x->positive.items[i]);
    for (size_t i = 0; code < 0 && i < x->negative.n; i++)
        code = cli_keep_input(output, "negative set", x->negative.items[i]);
    return code < 0 ? cli_keep_input(output, "control direction", x->orthogonal) : code;
}

static int check(extract *x) {
    int code;

    cli_verbosity(x->common.quiet, x->common.verbose);
    if (!x->positive.n)
        return cli_usage("a positive set is needed: '--positive PATH'");
    if (!x->negative.n)
        return cli_usage("a negative set is needed: '--negative PATH'");
    if (!x->output)
        return cli_usage("an output is needed: '-o FILE'");
    if ((code = check_shrinkage(x)) >= 0 || (code = check_no_model(x)) >= 0 ||
        (code = parse_layer_ids(x)) >= 0 || (code = keep_inputs(x, x->output)) >= 0 ||
        (code = keep_inputs(x, x->json)) >= 0)
        return code;
    x->bar.drawing = cli_wants_progress(x->progress);
    return -1;
}

/* ---- table */

/* A figure, "-" where it does not apply. */
static void print_cell(int width, int digits, double value) {
    char buf[32];

    if (isnan(value))
        snprintf(buf, sizeof(buf), "-");
    else
        snprintf(buf, sizeof(buf), "%.*f", digits, value);
    printf("%*s", width, buf);
}

static void print_table(const ts_extract_result *r) {
    char rows[48];

    printf("%5s%10s%9s%8s%9s%7s%8s%8s%14s\n", "BLOCK", "NORM", "SEP", "SHARE", "REMOVED", "AUC",
           "COS", "GAP", "ROWS");
    for (size_t i = 0; i < r->n_blocks; i++) {
        const ts_extract_block *b = &r->blocks[i];

        printf("%5" PRId32 "%10.4g", b->block, b->norm);
        print_cell(9, 2, b->separation);
        print_cell(8, 4, b->share);
        print_cell(9, 4, b->removed_share);
        print_cell(7, 3, b->auc);
        print_cell(8, 3, b->cos_previous);
        print_cell(8, 3, b->eigen_gap);
        snprintf(rows, sizeof(rows), "%" PRId64 "+%" PRId64, b->n_positive, b->n_negative);
        printf("%14s\n", rows);
    }
}

static void report(const extract *x, const ts_extract_result *r) {
    size_t n_written = 0;

    for (size_t i = 0; i < r->n_blocks; i++)
        n_written += r->blocks[i].written;
    if (n_written < r->n_blocks)
        cli_note("block 0 is left out of '%s': the format cannot name it", x->output);
    if (r->n_dropped)
        cli_note("%" PRId64 " row%s left out for not being finite", r->n_dropped, r->n_dropped == 1 ? " was" : "s were");
    cli_note("wrote '%s': %zu direction%s of %" PRId32 " value%s, %s of %" PRId64
             " positive and %" PRId64 " negative snapshot%s, mode %s",
             x->output, n_written, cli_plural(n_written), r->width, cli_plural((uint64_t)r->width), method_names[x->method],
             r->n_positive, r->n_negative, cli_plural((uint64_t)r->n_negative), mode_names[x->mode]);
}

/* ---- work */

static void on_plan(const ts_progress *p, void *user) {
    extract *x = user;
    char size[32];

    cli_progress_end(&x->bar); /* of the list before */
    cli_note("capturing %" PRIu64 " prompt%s, %" PRIu64 " token%s, %s for the time being",
             p->prompts_total, cli_plural(p->prompts_total), p->tokens_total, cli_plural(p->tokens_total), cli_bytes_text(p->bytes_total, size));
}

static void on_progress(const ts_progress *p, void *user) {
    cli_progress_draw(&((extract *)user)->bar, p);
}

static void fill_options(extract *x, ts_extract_options *o) {
    *o = TS_OPTIONS_INIT(ts_extract_options);
    o->positive = x->positive.items;
    o->n_positive = x->positive.n;
    o->negative = x->negative.items;
    o->n_negative = x->negative.n;
    o->output_path = x->output;
    o->json_path = x->json;
    o->method = (enum ts_extract_method)x->method;
    o->mode = (enum ts_steering_mode)(x->mode + TS_STEERING_ABLATE);
    o->orthogonal_path = x->orthogonal;
    o->shrinkage = x->shrinkage;
    o->drop_nonfinite = x->drop_nonfinite;
    o->overwrite = x->overwrite;
    o->n_threads = x->common.n_threads;
    o->blocks = x->layers_given ? &x->layers : NULL;
    o->layer_blocks = x->layer_blocks;
    o->n_layer_blocks = x->n_layer_blocks;
    CLI_PROMPTS_INTO(&x->prompts, o);
    o->exact = x->exact;
    o->positions = x->positions;
    o->on_plan = on_plan;
    o->on_progress = on_progress;
    o->user = x;
    o->stop = cli_stop_flag();
}

static int work(extract *x) {
    ts_extract_options options;
    ts_session_options so;
    ts_session *session = NULL;
    ts_extract_result result = {0};
    ts_error err = {0};
    int rc = 0;

    cli_session_options(&x->common, &so);
    fill_options(x, &options);
    if (x->common.model)
        rc = ts_session_open(&so, &session, &err);
    if (rc == 0)
        rc = ts_extract_run(session, &options, &result, &err);
    cli_progress_end(&x->bar);
    ts_session_close(session);
    if (rc != 0)
        return cli_fail_error(&err);
    print_table(&result);
    report(x, &result);
    ts_free(result.blocks);
    return CLI_DONE;
}

int cmd_extract(int argc, char **argv) {
    extract x = {.mode = TS_STEERING_ADD - TS_STEERING_ABLATE};
    int code;

    x.positive.items = calloc((size_t)argc, sizeof(char *));
    x.negative.items = calloc((size_t)argc, sizeof(char *));
    code = x.positive.items && x.negative.items ? parse(&x, argc, argv) : cli_fail("out of memory");
    if (code < 0)
        code = check(&x);
    if (code < 0)
        code = work(&x);
    free(x.positive.items);
    free(x.negative.items);
    free(x.layer_blocks);
    return code;
}
