/* `turbospark sweep`: scales x bands x modes of one direction file, one model load. Owns the lists on the line and the
 * table; the walk is the library's. */
#include "cli.h"
#include "options.h"
#include "progress.h"
#include "prompts.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SCALES = 256, MAX_BANDS = 256, MAX_MODES = 8 };

typedef struct sweep {
    cli_common common;
    cli_prompts prompts;
    const char *file, *input, *anchor, *json, *scales_text, *bands_text, *modes_text;
    bool ignore_eos, texts, resume, overwrite, progress;
    int32_t n_predict, parallel, n_random;
    float target, gate;
    uint32_t seed;
    bool seed_given, target_given;
    int from;
    cli_list positive, negative;
    double scales[MAX_SCALES];
    ts_range bands[MAX_BANDS];
    enum ts_steering_mode modes[MAX_MODES];
    size_t n_scales, n_bands, n_modes;
    cli_progress bar;
} sweep;

static const char *const from_names[] = {"all", "prompt", "decode", NULL}; /* enum ts_steering_from */

static int parse(sweep *c, int argc, char **argv) {
    cli_common_table common;
    const cli_option cells[] = {
        OPTION(NULL, "steering", "FILE", CLI_TEXT, &c->file, "the directions: a control-vector GGUF"),
        OPTION(NULL, "scales", "A:B:STEP", CLI_TEXT, &c->scales_text, "scales, or a list of them: 0.5,1,2 (default: {}); 0 is the control"),
        OPTION(NULL, "bands", "LIST", CLI_TEXT, &c->bands_text, "ranges of blocks, such as all,0:9,10:19 (default: {})"),
        OPTION(NULL, "modes", "LIST", CLI_TEXT, &c->modes_text,
               "of 'ablate', 'add', 'clamp', 'renorm' (default: what the file declares)"),
        OPTION(NULL, "steering-target", "C", CLI_FLOAT, &c->target, "clamp: the coefficient to set (default: {})", .min = -1e9, .max = 1e9,
               .given = &c->target_given),
        OPTION(NULL, "steering-gate", "C", CLI_FLOAT, &c->gate, "only rows whose |c| reaches C (default: {})", .min = 0, .max = 1e9),
        OPTION(NULL, "steering-from", "WHICH", CLI_CHOICE, &c->from, "tokens to steer: 'all', 'prompt' or 'decode' (default: {})",
               .choices = from_names),
        OPTION(NULL, "random", "N", CLI_I32, &c->n_random,
               "control arms: N random directions as long as the file's in each cell (default: {})", .min = 0, .max = 64),
        OPTION("s", "seed", "N", CLI_U32, &c->seed, "seed of the random directions; needs --random (default: {})", .max = CLI_SEED_MAX,
               .given = &c->seed_given),
    };
    const cli_option input[] = {
        OPTION("i", "input", "FILE", CLI_TEXT, &c->input, "prompts: one a line, or JSON Lines as for capture"),
        CLI_PROMPT_OPTIONS(&c->prompts),
        OPTION("n", "predict", "N", CLI_I32, &c->n_predict, "tokens to generate from each prompt (default: {})", .min = 1, .max = INT32_MAX),
        OPTION(NULL, "ignore-eos", NULL, CLI_FLAG, &c->ignore_eos, "go on after an end-of-generation token"),
        OPTION(NULL, "parallel", "N", CLI_I32, &c->parallel, "sequences of one batch (default: {})", .min = 1, .max = 256),
    };
    const cli_option measures[] = {
        OPTION(NULL, "anchor", "FILE", CLI_TEXT, &c->anchor, "a human text whose perplexity bounds the usable scales"),
        OPTION(NULL, "score-positive", "TEXT", CLI_LIST, &c->positive,
               "score this continuation of each prompt: its log-probability a token; repeatable"),
        OPTION(NULL, "score-negative", "TEXT", CLI_LIST, &c->negative, "likewise, taken off the score; repeatable"),
    };
    const cli_option result[] = {
        OPTION(NULL, "json", "FILE", CLI_TEXT, &c->json, "write all of it there, with texts; FILE.part.jsonl while it runs"),
        OPTION(NULL, "texts", NULL, CLI_FLAG, &c->texts, "also print the text of each cell's first prompt"),
        OPTION(NULL, "resume", NULL, CLI_FLAG, &c->resume, "continue an interrupted sweep, if there is one"),
        OPTION(NULL, "overwrite", NULL, CLI_FLAG, &c->overwrite, "replace a file that exists"),
        CLI_PROGRESS_OPTION(&c->progress),
    };
    const cli_group groups[] = {CLI_GROUP("Cells", cells),   CLI_GROUP("Prompts", input),      CLI_GROUP("Measures", measures),
                                CLI_GROUP("Result", result), CLI_GROUP("Model", common.model), CLI_GROUP("Messages", common.output)};
    const cli_syntax syntax = {"sweep -m FILE --steering DIR.gguf -i PROMPTS [options]",
                               "Steers along one file's directions at each of scales x bands x modes and measures what it does "
                               "to the text: how strange it becomes, where it changes, which scales are usable.",
                               groups, sizeof(groups) / sizeof(groups[0]), false};
    int n_operands;

    cli_common_options(&c->common, &common);
    return cli_parse(&syntax, argc, argv, &n_operands);
}

/* ---- lists: -1 to go on */

/* Calls `one` for each part between commas. */
static int each_part(sweep *c, const char *text, int (*one)(sweep *c, const char *part, ts_error *err)) {
    char *copy = strdup(text), *at = copy, *next;
    ts_error err = {0};
    int code = copy ? -1 : cli_fail("out of memory");

    while (at && code < 0) {
        next = strchr(at, ',');
        if (next)
            *next++ = '\0';
        if (one(c, at, &err) != 0)
            code = cli_usage("%s", err.message);
        at = next;
    }
    free(copy);
    return code;
}

static int refuse(ts_error *err, const char *text) {
    snprintf(err->message, sizeof(err->message), "%s", text);
    return TS_ERR_ARG;
}

static int add_scale(sweep *c, const char *part, ts_error *err) {
    if (c->n_scales == MAX_SCALES)
        return refuse(err, "--scales: more than 256 scales");
    return ts_parse_f64("--scales", part, -1e6, 1e6, &c->scales[c->n_scales++], err);
}

static int add_band(sweep *c, const char *part, ts_error *err) {
    if (c->n_bands == MAX_BANDS)
        return refuse(err, "--bands: more than 256 bands");
    if (strcmp(part, "all") == 0) {
        c->bands[c->n_bands++] = (ts_range){0, -1};
        return 0;
    }
    return ts_parse_range("--bands", part, &c->bands[c->n_bands++], err);
}

static int add_mode(sweep *c, const char *part, ts_error *err) {
    if (c->n_modes == MAX_MODES)
        return refuse(err, "--modes: more than 8 modes");
    for (enum ts_steering_mode m = TS_STEERING_ABLATE; m <= TS_STEERING_RENORM; m++)
        if (strcmp(part, ts_steering_mode_name(m)) == 0) {
            c->modes[c->n_modes++] = m;
            return 0;
        }
    snprintf(err->message, sizeof(err->message), "--modes: expected 'ablate', 'add', 'clamp' or 'renorm', got '%.200s'", part);
    return TS_ERR_ARG;
}

/* "A:B:STEP": A, A + STEP, ... up to B. */
static int parse_steps(sweep *c, const char *text) {
    char copy[128], *second, *third;
    double first = 0, last = 0, step = 0;
    ts_error err = {0};
    int rc = 0;

    snprintf(copy, sizeof(copy), "%s", text);
    second = strchr(copy, ':');
    third = second ? strchr(second + 1, ':') : NULL;
    if (!third || strlen(text) >= sizeof(copy))
        return cli_usage("--scales: expected A:B:STEP or a list such as 0.5,1,2, got '%.200s'", text);
    *second++ = *third++ = '\0';
    rc = ts_parse_f64("--scales", copy, -1e6, 1e6, &first, &err);
    if (rc == 0)
        rc = ts_parse_f64("--scales", second, -1e6, 1e6, &last, &err);
    if (rc == 0)
        rc = ts_parse_f64("--scales", third, 1e-9, 2e6, &step, &err);
    if (rc != 0)
        return cli_usage("%s", err.message);
    if (first > last)
        return cli_usage("--scales: a sweep with no cell: '%s' goes up from %g to %g", text, first, last);
    if ((last - first) / step >= MAX_SCALES)
        return cli_usage("--scales: more than %d scales", MAX_SCALES);
    for (int i = 0; i <= (int)((last - first) / step + 1e-9); i++) {
        double scale = first + i * step;

        c->scales[c->n_scales++] = fabs(scale) < 1e-9 * step ? 0 : scale;
    }
    return -1;
}

static int parse_lists(sweep *c) {
    int code = strchr(c->scales_text, ':') ? parse_steps(c, c->scales_text) : each_part(c, c->scales_text, add_scale);

    if (code < 0)
        code = each_part(c, c->bands_text, add_band);
    if (code < 0 && c->modes_text)
        code = each_part(c, c->modes_text, add_mode);
    return code;
}

static bool has_mode(const sweep *c, enum ts_steering_mode mode) {
    for (size_t i = 0; i < c->n_modes; i++)
        if (c->modes[i] == mode)
            return true;
    return false;
}

static bool any_scale(const sweep *c) {
    bool any = false;

    for (size_t i = 0; i < c->n_scales; i++)
        any = any || c->scales[i] != 0;
    return any;
}

static int check(sweep *c) {
    int code = cli_common_check(&c->common);
    const char *const inputs[][2] = {{"model", c->common.model}, {"direction file", c->file}, {"prompt list", c->input}, {"anchor", c->anchor}};

    if (code >= 0)
        return code;
    if (!c->file)
        return cli_usage("directions are needed: '--steering FILE'");
    if (!c->input)
        return cli_usage("prompts are needed: '-i FILE'");
    code = parse_lists(c);
    if (code >= 0)
        return code;
    if (c->seed_given && c->n_random == 0)
        return cli_usage("'-s' needs '--random N'");
    if (c->n_random > 0 && !any_scale(c))
        return cli_usage("'--random' needs a scale other than 0");
    if (c->target_given && c->modes_text && !has_mode(c, TS_STEERING_CLAMP))
        return cli_usage("'--steering-target' needs mode 'clamp', '--modes' has '%s'", c->modes_text);
    if (c->n_predict < 2 && c->from == TS_STEERING_DECODE)
        return cli_usage("'--steering-from decode' needs '-n' above 1: the prompt decides the first token");
    if ((c->resume || c->overwrite) && !c->json)
        return cli_usage("'%s' needs '--json FILE'", c->resume ? "--resume" : "--overwrite");
    if (c->resume && c->overwrite)
        return cli_usage("'--resume' and '--overwrite' exclude each other");
    c->bar.drawing = cli_wants_progress(c->progress);
    for (size_t i = 0; code < 0 && i < sizeof(inputs) / sizeof(inputs[0]); i++)
        code = cli_keep_input(c->json, inputs[i][0], inputs[i][1]);
    return code;
}

/* ---- the table */

static void out(const char *fmt, ...) CLI_PRINTF(1, 2);
static void out(const char *fmt, ...) {
    char line[1024];
    va_list args;

    va_start(args, fmt);
    int n = vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    cli_out(line, n < (int)sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

static const char *band_text(const ts_sweep_result *r, ts_range band, char buf[32]) {
    if (band.first == 0 && band.last == r->n_layer - 1)
        return "all";
    snprintf(buf, 32, "%d:%d", band.first, band.last);
    return buf;
}

/* A number in `width` columns, "-" for none. */
static void put(double value, int width, const char *fmt) {
    char text[32];

    if (isnan(value))
        snprintf(text, sizeof(text), "-");
    else
        snprintf(text, sizeof(text), fmt, value);
    out(" %*s", width, text);
}

static const ts_sweep_band *band_of(const ts_sweep_result *r, const ts_sweep_cell *c) {
    for (size_t i = 0; i < r->n_bands; i++)
        if (r->bands[i].mode == c->mode && r->bands[i].band.first == c->band.first && r->bands[i].band.last == c->band.last)
            return &r->bands[i];
    return NULL;
}

/* '=' no measurable effect, '!' within the limit but its tokens collapsed, '*' usable. */
static const char *mark(const ts_sweep_result *r, const ts_sweep_cell *c) {
    const ts_sweep_band *b = band_of(r, c);
    bool inside = b && c->scale >= b->low && c->scale <= b->high;
    bool beyond = b && (c->scale <= b->collapsed_low || c->scale >= b->collapsed_high);

    if (c->no_effect)
        return "=";
    return !inside ? "" : beyond ? "!" : "*";
}

static void put_row(const ts_sweep_result *r, const ts_sweep_cell *c, bool scored) {
    char buf[32];
    bool base = c->mode == TS_STEERING_DECLARED;

    if (base)
        out("%-21s", ts_steering_mode_name(c->mode));
    else
        out("%-6s %-7s %6.4g", ts_steering_mode_name(c->mode), band_text(r, c->band, buf), c->scale);
    put(c->perplexity, 7, fabs(c->perplexity) < 1000 ? "%.2f" : "%.1e");
    put(100 * c->distinct, 4, "%.0f%%");
    put(c->first_divergence < 0 ? (double)NAN : c->first_divergence, 4, "%.0f");
    put(base ? (double)NAN : c->kl_max, 7, "%.1e");
    put(base ? (double)NAN : c->c - c->c_unsteered, 8, fabs(c->c - c->c_unsteered) < 1e5 ? "%.3g" : "%.1e");
    if (scored) {
        put(c->score, 7, "%.3f");
        put(c->random_mean, 7, "%.3f");
        put(c->random_sd, 5, "%.3f");
    }
    out("%s\n", base ? "" : mark(r, c));
}

static void put_table(const sweep *s, const ts_sweep_result *r) {
    bool scored = s->positive.n + s->negative.n > 0;

    out("%-6s %-7s %6s %7s %4s %4s %7s %8s%s\n", "MODE", "BAND", "SCALE", "PPL", "DIST", "DIV", "KL MAX", "DC",
        scored ? "   SCORE  RANDOM    SD" : "");
    put_row(r, &r->unsteered, scored);
    for (size_t i = 0; i < r->n_cells; i++)
        if (r->cells[i].arm == 0)
            put_row(r, &r->cells[i], scored);
}

/* ---- what the scales are good for */

static void put_rule(const ts_sweep_result *r) {
    if (r->anchor_given)
        out("\nusable (*): from 0 outward, until the perplexity first exceeds the anchor's,\n"
            "%.2f over %" PRId64 " tokens of human text\n",
            r->anchor, r->n_anchor);
    else
        out("\nno anchor given: usable (*) is from 0 outward, until the perplexity first\n"
            "exceeds %.2f, twice that of the unsteered texts; name a human text with --anchor\n",
            r->limit);
}

static void put_crossing(const ts_sweep_band *b) {
    if (isnan(b->crossed_low) && isnan(b->crossed_high))
        out("; no scale crosses\n");
    else if (isnan(b->crossed_low) || isnan(b->crossed_high))
        out("; crosses at %g\n", isnan(b->crossed_low) ? b->crossed_high : b->crossed_low);
    else
        out("; crosses at %g and %g\n", b->crossed_low, b->crossed_high);
}

static void put_collapse(double scale) {
    if (!isnan(scale))
        out("  warning: distinct tokens collapse first, at %g (!)\n", scale);
}

static void put_bands(const ts_sweep_result *r) {
    char buf[32];

    for (size_t i = 0; i < r->n_bands; i++) {
        const ts_sweep_band *b = &r->bands[i];

        out("%s, %s: ", ts_steering_mode_name(b->mode), band_text(r, b->band, buf));
        if (b->no_effect) {
            out("no measurable effect (KL under 1e-4 at each scale)\n");
            continue;
        }
        if (b->usable)
            out("%g to %g", b->low, b->high);
        else
            out("none");
        put_crossing(b);
        put_collapse(b->collapsed_low);
        put_collapse(b->collapsed_high);
    }
}

static void put_text(const ts_sweep_result *r, const ts_sweep_cell *c) {
    char buf[32];

    if (c->mode == TS_STEERING_DECLARED)
        out("\nunsteered:\n");
    else
        out("\n%s, %s, %g%s:\n", ts_steering_mode_name(c->mode), band_text(r, c->band, buf), c->scale, c->arm ? ", random" : "");
    cli_out(c->texts[0], strlen(c->texts[0]));
    cli_out("\n", 1);
}

static void put_result(const sweep *s, const ts_sweep_result *r) {
    put_table(s, r);
    put_rule(r);
    put_bands(r);
    if (!s->texts)
        return;
    put_text(r, &r->unsteered);
    for (size_t i = 0; i < r->n_cells; i++)
        put_text(r, &r->cells[i]);
}

/* ---- the work */

static void on_plan(const ts_progress *p, void *user) {
    (void)user;
    cli_note("%" PRIu64 " cell%s, at most %" PRIu64 " token%s to generate%s", p->prompts_total, cli_plural(p->prompts_total), p->tokens_total,
             cli_plural(p->tokens_total),
             p->tokens_resumed ? "; resuming" : "");
}

static void on_progress(const ts_progress *p, void *user) {
    cli_progress_draw(&((sweep *)user)->bar, p);
}

static void fill_options(sweep *c, ts_sweep_options *o) {
    *o = TS_OPTIONS_INIT(ts_sweep_options);
    o->path = c->file;
    o->input_path = c->input;
    CLI_PROMPTS_INTO(&c->prompts, o);
    o->scales = c->scales;
    o->n_scales = c->n_scales;
    o->bands = c->bands;
    o->n_bands = c->n_bands;
    o->modes = c->modes;
    o->n_modes = c->n_modes;
    o->target = (double)c->target;
    o->gate = (double)c->gate;
    o->from = (enum ts_steering_from)c->from;
    o->n_predict = c->n_predict;
    o->parallel = c->parallel;
    o->ignore_eos = c->ignore_eos;
    o->anchor_path = c->anchor;
    o->positive = c->positive.items;
    o->n_positive = c->positive.n;
    o->negative = c->negative.items;
    o->n_negative = c->negative.n;
    o->n_random = c->n_random;
    o->seed = c->seed;
    o->output_path = c->json;
    o->resume = c->resume;
    o->overwrite = c->overwrite;
    o->on_plan = on_plan;
    o->on_progress = on_progress;
    o->user = c;
}

static int work(sweep *c) {
    ts_session_options opts;
    ts_sweep_options o;
    ts_sweep_result r = {0};
    ts_session *session = NULL;
    ts_error err = {0};

    cli_session_options(&c->common, &opts);
    if (ts_session_open(&opts, &session, &err) != 0)
        return cli_fail_error(&err);
    fill_options(c, &o);
    int rc = ts_sweep_run(session, &o, &r, &err);
    cli_progress_end(&c->bar);
    if (rc == 0 && !r.complete) { /* else a warning said so */
        put_result(c, &r);
        cli_note_skipped(r.n_skipped_empty);
        cli_note("%zu cell%s in %.1f s", r.n_cells - r.n_resumed, cli_plural(r.n_cells - r.n_resumed), r.seconds);
        if (c->json)
            cli_note("wrote '%s'", c->json);
    }
    ts_sweep_free(&r);
    ts_session_close(session);
    return rc == 0 ? CLI_DONE : cli_fail_error(&err);
}

int cmd_sweep(int argc, char **argv) {
    sweep c = {.scales_text = "-2:2:0.5", .bands_text = "all", .n_predict = 32, .parallel = 8};
    int code;

    c.positive.items = calloc((size_t)argc, sizeof(char *));
    c.negative.items = calloc((size_t)argc, sizeof(char *));
    code = c.positive.items && c.negative.items ? parse(&c, argc, argv) : cli_fail("out of memory");
    if (code < 0)
        code = check(&c);
    if (code < 0)
        code = work(&c);
    free(c.positive.items);
    free(c.negative.items);
    return code;
}
