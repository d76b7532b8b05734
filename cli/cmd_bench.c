/* `turbospark bench`: what tapping and steering cost, in one process. Owns the options and the arms
 * of the decode comparison. */
#include "bench.h"
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_PROMPT "The keeper of the lighthouse climbed the stairs, lit the lamp and"
#define DEFAULT_PREDICT 64
#define DEFAULT_REPETITIONS 15
#define SYNTHETIC_PROMPT 13

enum arm {
    OFF,
    OFF_AGAIN,
    REDIRECTED,
    ASKED,
    FFN,
    ADD, /* these three with --steering */
    ABLATE,
    ABLATE_THIRD,
    DECLINED, /* these four with --each-pass */
    ROWS,
    ROWS_ASKED,
    FFN_ASKED,
    ARMS
};

static const char *const arm_names[ARMS] = {
    "off",
    "off again",
    "resid, redirected",
    "resid, asked",
    "ffn census",
    "add, all blocks",
    "ablate, all blocks",
    "ablate, a third",
    "declining callback",
    "rows each pass",
    "rows, asked",
    "ffn census, asked",
};

typedef struct decode {
    cli_common common;
    const char *prompt, *corpus, *json, *steering, *shape;
    ts_synthetic synthetic;
    int32_t n_predict, repetitions;
    bool progress, prompt_given, predict_given, tap_given, each_pass;

    ts_session *sessions[ARMS]; /* [n_arms] the first holds the model for all */
    enum arm arms[ARMS];        /* [n_arms] */
    size_t n_arms;
    int32_t n_layer;
    int32_t *tokens;
    size_t n_tokens;
} decode;

static int parse(decode *d, int argc, char **argv) {
    cli_common_table common;
    const cli_option table[] = {
        OPTION("p", "prompt", "TEXT", CLI_TEXT, &d->prompt,
               "the prompt to go on from (default: '{}')", .given = &d->prompt_given),
        OPTION("n", "predict", "N", CLI_I32, &d->n_predict,
               "tokens to generate a round (default: {})", .min = 2, .max = INT32_MAX,
               .given = &d->predict_given),
        OPTION("r", "repetitions", "N", CLI_I32, &d->repetitions, "rounds (default: {})", .min = 1,
               .max = 100000),
        OPTION(NULL, "corpus", "FILE", CLI_TEXT, &d->corpus,
               "compare captures of this prompt list instead: packed, untapped, --exact"),
        OPTION(NULL, "steering", "FILE", CLI_TEXT, &d->steering,
               "also steer by this control vector: add and ablate on all its blocks, ablate on a "
               "third of the model's"),
        OPTION(NULL, "each-pass", NULL, CLI_FLAG, &d->each_pass,
               "also read every block's row in every pass, redirected and asked, count the FFN "
               "asked, and install a callback that declines everything"),
        OPTION(NULL, "synthetic", "SHAPE", CLI_TEXT, &d->shape,
               "a random model made in memory instead of -m: 135M, 3B, 8B or "
               "L,E,FF,H,HKV[,EXPERTS,USED] (blocks, width, FFN width, heads, key-value heads)"),
        OPTION(NULL, "json", "FILE", CLI_TEXT, &d->json, "also write the raw samples"),
        OPTION(NULL, "progress", NULL, CLI_FLAG, &d->progress,
               "count rounds also when stderr is no terminal"),
    };
    const cli_group groups[] = {CLI_GROUP("Comparison", table), CLI_GROUP("Model", common.model),
                                CLI_GROUP("Messages", common.output)};
    const cli_syntax syntax = {
        "bench {-m FILE | --synthetic SHAPE} [options]",
        "Prints what taking activations and steering cost. The arms run in turn in one "
        "process; each is compared with 'off' of the same round, and so is 'off' itself.",
        groups, sizeof(groups) / sizeof(groups[0]), false};
    int n_operands;

    cli_common_options(&d->common, &common);
    for (size_t i = 0; i < CLI_COMMON_MODEL; i++)
        if (common.model[i].target == &d->common.tap)
            common.model[i].given = &d->tap_given;
    return cli_parse(&syntax, argc, argv, &n_operands);
}

static int check_shape(decode *d) {
    ts_error err;

    if (!d->shape)
        return -1;
    if (d->common.model)
        return cli_usage("'-m' and '--synthetic' exclude each other");
    if (d->prompt_given)
        return cli_usage("'--synthetic' and '-p' exclude each other: the model reads no text");
    if (ts_parse_synthetic("--synthetic", d->shape, &d->synthetic, &err) != 0)
        return cli_usage("%s", err.message);
    d->common.synthetic = &d->synthetic;
    return -1;
}

static int check(decode *d) {
    int code = check_shape(d);

    if (code < 0 && !d->common.model && !d->shape)
        return cli_usage("a model is needed: '-m FILE' or '--synthetic SHAPE'");
    if (code < 0)
        code = cli_common_check(&d->common);
    if (code < 0 && d->corpus && (d->prompt_given || d->predict_given))
        return cli_usage("'--corpus' and '%s' exclude each other", d->prompt_given ? "-p" : "-n");
    if (code < 0 && d->tap_given)
        return cli_usage("'--tap' is what bench compares: it takes none");
    if (code < 0 && d->corpus && d->each_pass)
        return cli_usage("'--corpus' and '--each-pass' exclude each other");
    if (code < 0 && d->corpus && d->steering)
        return cli_usage("'--corpus' and '--steering' exclude each other");
    if (code < 0)
        code = cli_keep_input(d->json, "model", d->common.model);
    if (code < 0)
        code = cli_keep_input(d->json, "control vector", d->steering);
    return code < 0 ? cli_keep_input(d->json, "input", d->corpus) : code;
}

/* The third is the middle one; that of one or two blocks is block 0, which a direction file cannot
 * name. */
static int attach_steering(const decode *d, ts_session *s, enum arm arm, ts_error *err) {
    const ts_range third = {d->n_layer / 3, d->n_layer / 3 + (d->n_layer + 2) / 3 - 1};
    ts_steering_options opts = TS_OPTIONS_INIT(ts_steering_options);

    if (arm == ABLATE_THIRD && third.last == 0) {
        snprintf(err->message, sizeof(err->message),
                 "the middle third of %d block%s is block 0, which a direction file cannot name",
                 d->n_layer, cli_plural((uint64_t)d->n_layer));
        return err->code = TS_ERR_UNSUPPORTED;
    }
    opts.path = d->steering;
    opts.mode = arm == ADD ? TS_STEERING_ADD : TS_STEERING_ABLATE;
    opts.scale = 1;
    opts.blocks = arm == ABLATE_THIRD ? &third : NULL;
    return ts_session_attach_steering(s, &opts, err);
}

static int attach(const decode *d, ts_session *s, enum arm arm, ts_error *err) {
    ts_resid_options resid = TS_OPTIONS_INIT(ts_resid_options);
    ts_ffn_hist_options ffn = TS_OPTIONS_INIT(ts_ffn_hist_options);

    resid.every_pass = arm == ROWS || arm == ROWS_ASKED;
    switch (arm) {
    case REDIRECTED:
    case ASKED:
    case ROWS:
    case ROWS_ASKED:
        return ts_session_attach_resid(s, &resid, err);
    case FFN:
    case FFN_ASKED:
        return ts_session_attach_ffn(s, &ffn, err);
    case ADD:
    case ABLATE:
    case ABLATE_THIRD:
        return attach_steering(d, s, arm, err);
    default:
        return 0;
    }
}

static int open_arm(decode *d, size_t at, ts_error *err) {
    ts_session_options opts;
    enum arm arm = d->arms[at];
    int rc;

    cli_session_options(&d->common, &opts);
    if (at > 0) {
        opts.model_path = NULL;
        opts.synthetic = NULL;
        opts.share = d->sessions[0];
    }
    opts.tap = arm == ASKED || arm == ROWS_ASKED || arm == FFN_ASKED ? TS_TAP_ASK
               : arm == DECLINED                                     ? TS_TAP_DECLINE
                                                                     : TS_TAP_REDIRECT;
    if ((rc = ts_session_open(&opts, &d->sessions[at], err)) != 0)
        return rc;
    rc = attach(d, d->sessions[at], arm, err);
    return rc == 0 ? ts_session_start(d->sessions[at], err) : rc;
}

/* A synthetic model reads no text: ids as many as the default prompt has in most vocabularies. */
static int make_tokens(decode *d, const ts_model_info *info, ts_error *err) {
    if (!d->shape)
        return ts_session_tokenize(d->sessions[0], d->prompt, strlen(d->prompt), 0, &d->tokens,
                                   &d->n_tokens, err);
    d->n_tokens = SYNTHETIC_PROMPT;
    if (!(d->tokens = malloc(SYNTHETIC_PROMPT * sizeof(d->tokens[0])))) {
        snprintf(err->message, sizeof(err->message), "out of memory");
        return err->code = TS_ERR_NOMEM;
    }
    for (int32_t i = 0; i < SYNTHETIC_PROMPT; i++)
        d->tokens[i] = (int32_t)((100 + 37 * (int64_t)i) % info->n_vocab);
    return 0;
}

/* What the model has no site for is not compared. */
static void drop_arm(decode *d, size_t at) {
    ts_session_close(d->sessions[at]);
    d->n_arms--;
    for (size_t a = at; a < d->n_arms; a++)
        d->arms[a] = d->arms[a + 1];
    d->sessions[at] = NULL;
}

static int open_arms(decode *d, ts_model_info *info, ts_error *err) {
    int rc = 0;

    for (size_t a = 0; a < d->n_arms && rc == 0; a++) {
        rc = open_arm(d, a, err);
        if (rc == TS_ERR_UNSUPPORTED && a > 1) {
            cli_note("'%s' is left out: %s", arm_names[d->arms[a]], err->message);
            drop_arm(d, a--);
            rc = 0;
        }
        if (rc == 0 && a == 0) {
            rc = ts_session_model_info(d->sessions[0], info, err);
            d->n_layer = info->n_layer;
        }
    }
    return rc == 0 ? make_tokens(d, info, err) : rc;
}

static int run_arm(size_t arm, void *user, double *tokens_per_s, ts_error *err) {
    decode *d = user;
    ts_generate_options opts = TS_OPTIONS_INIT(ts_generate_options);
    ts_generate_result result;
    int rc;

    opts.tokens = d->tokens;
    opts.n_tokens = d->n_tokens;
    opts.n_predict = d->n_predict;
    opts.ignore_eos = true;
    rc = ts_session_generate(d->sessions[arm], &opts, &result, err);
    if (rc == 0)
        *tokens_per_s = 1e3 * result.n_decode_passes / result.decode_ms;
    return rc;
}

static int bench_decode(decode *d, bool drawing) {
    ts_model_info info;
    ts_error err;
    bench_plan plan = {.work = "decode",
                       .info = &info,
                       .common = &d->common,
                       .repetitions = d->repetitions,
                       .drawing = drawing,
                       .run = run_arm,
                       .user = d};
    int code = cli_check_json(d->json);

    if (code >= 0)
        return code;
    if (open_arms(d, &info, &err) != 0)
        return cli_fail_error(&err);
    plan.n_arms = d->n_arms;
    for (size_t a = 0; a < d->n_arms; a++)
        plan.arms[a].name = arm_names[d->arms[a]];
    if (bench_run(&plan, &err) != 0) {
        code = cli_fail_error(&err);
    } else {
        snprintf(plan.title, sizeof(plan.title),
                 "decode: %.60s, %zu prompt tokens, %d generated, %d rounds", info.description,
                 d->n_tokens, d->n_predict, d->repetitions);
        bench_print_table(&plan);
        code = bench_json_write(&plan, d->json);
    }
    bench_free(&plan);
    return code;
}

static void choose_arms(decode *d) {
    for (int arm = OFF; arm < ARMS; arm++)
        if (arm < ADD || (arm < DECLINED ? d->steering != NULL : d->each_pass))
            d->arms[d->n_arms++] = (enum arm)arm;
}

int cmd_bench(int argc, char **argv) {
    decode d = {
        .prompt = DEFAULT_PROMPT, .n_predict = DEFAULT_PREDICT, .repetitions = DEFAULT_REPETITIONS};
    bool drawing;
    int code = parse(&d, argc, argv);

    if (code < 0)
        code = check(&d);
    if (code >= 0)
        return code;
    drawing = cli_wants_progress(d.progress);
    if (d.corpus)
        return bench_corpus(&d.common, d.corpus, d.repetitions, drawing, d.json);
    choose_arms(&d);
    code = bench_decode(&d, drawing);
    for (size_t a = d.n_arms; a-- > 0;) /* the one that holds the model goes last */
        ts_session_close(d.sessions[a]);
    ts_free(d.tokens);
    return code;
}
