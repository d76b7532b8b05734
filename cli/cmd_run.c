/* `turbospark run`: generates text on standard output. Owns the choice of prompt and the order
 * open, attach, start, generate, finish; refuses a line with no prompt or with two. */
#include "cli.h"
#include "options.h"
#include "steering.h"

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_PREDICT 128
#define DEFAULT_TOP_K 40
#define DEFAULT_TOP_P 0.95f
#define RESID_VARIABLE "TURBOSPARK_RESID_CAPTURE"
#define FFN_VARIABLE "TURBOSPARK_FFN_HIST"
#define ROUTER_VARIABLE "TURBOSPARK_ROUTER_HIST"

typedef struct run {
    cli_common common;
    const char *prompt, *file, *messages_file, *chat_template, *resid_path, *ffn_path, *router_path;
    bool chat, ignore_eos, special, logits_hash, top_k_given, top_p_given, seed_given, router_trace;
    uint32_t seed;
    int32_t n_predict, top_k;
    float temperature, top_p;
    cli_steering steering;

    ts_session *session;
    char *text;                /* the file's; freed by ts_free, as the messages are */
    ts_chat_message *messages; /* the messages file's */
    size_t length, n_messages;
    int32_t *tokens;
    size_t n_tokens;
    char last_byte; /* of what was written */
    uint64_t hash;  /* FNV-1a over the bytes of all logits */
    uint64_t n_hashed;
} run;

static int parse(run *r, int argc, char **argv) {
    cli_common_table common;
    const cli_option prompt[] = {
        OPTION("p", "prompt", "TEXT", CLI_TEXT, &r->prompt, "the prompt"),
        OPTION("f", "file", "FILE", CLI_TEXT, &r->file,
               "the prompt is the text of FILE, without one newline at its end"),
        OPTION(NULL, "messages-file", "FILE", CLI_TEXT, &r->messages_file,
               "a chat: a JSON list of objects with 'role' and 'content'"),
        OPTION(NULL, "chat", NULL, CLI_FLAG, &r->chat,
               "wrap the prompt as one user message in the model's chat template"),
        OPTION(NULL, "chat-template", "NAME", CLI_TEXT, &r->chat_template,
               "use this template of llama.cpp's instead of the model's"),
        OPTION(NULL, "special", NULL, CLI_FLAG, &r->special,
               "text such as <|im_start|> in prompt or messages is the control token"),
    };
    const cli_option generation[] = {
        OPTION("n", "predict", "N", CLI_I32, &r->n_predict, "tokens to generate (default: {})",
               .max = INT32_MAX),
        OPTION(NULL, "temp", "T", CLI_FLOAT, &r->temperature,
               "temperature; 0 takes the likeliest token (default: {})", .max = 1000),
        OPTION(NULL, "top-k", "N", CLI_I32, &r->top_k,
               "sample among the N likeliest; 0 = all; needs --temp (default: {})",
               .max = INT32_MAX, .given = &r->top_k_given),
        OPTION(NULL, "top-p", "P", CLI_FLOAT, &r->top_p,
               "sample among the likeliest that add up to P; needs --temp (default: {})", .max = 1,
               .given = &r->top_p_given),
        OPTION("s", "seed", "N", CLI_U32, &r->seed, "seed of the sampling; needs --temp (default: {})",
               .max = CLI_SEED_MAX, .given = &r->seed_given),
        OPTION(NULL, "ignore-eos", NULL, CLI_FLAG, &r->ignore_eos,
               "go on after an end-of-generation token"),
    };
    const cli_option instruments[] = {
        OPTION(NULL, "resid-capture", "FILE.json", CLI_TEXT, &r->resid_path,
               "write every block's residual stream at the last prompt token; also "
               "by " RESID_VARIABLE),
        OPTION(NULL, "ffn-hist", "FILE.json", CLI_TEXT, &r->ffn_path,
               "count the FFN activations of the last prompt token and each generated one; also "
               "by " FFN_VARIABLE),
        OPTION(NULL, "router-hist", "FILE.json", CLI_TEXT, &r->router_path,
               "count the experts that each block's router chose, in every pass; also "
               "by " ROUTER_VARIABLE),
        OPTION(NULL, "router-trace", NULL, CLI_FLAG, &r->router_trace,
               "with --router-hist: also the ids in pass order; also by TURBOSPARK_ROUTER_TRACE=1"),
        OPTION(NULL, "logits-hash", NULL, CLI_FLAG, &r->logits_hash,
               "print 'logits fnv1a64 HASH over N passes' on stderr: FNV-1a, 64 bits, over the "
               "bytes of all logits"),
    };
    cli_option steering[CLI_STEERING_OPTIONS];
    const cli_group groups[] = {CLI_GROUP("Prompt", prompt), CLI_GROUP("Generation", generation),
                                CLI_GROUP("Instruments", instruments),
                                CLI_GROUP("Steering", steering),
                                CLI_GROUP("Model", common.model),
                                CLI_GROUP("Messages", common.output)};
    const cli_syntax syntax = {"run -m FILE (-p TEXT | -f FILE | --messages-file FILE) [options]",
                               "Generates text on standard output, which holds nothing else.",
                               groups, sizeof(groups) / sizeof(groups[0]), false};
    int n_operands;

    cli_common_options(&r->common, &common);
    cli_steering_options(&r->steering, steering);
    return cli_parse(&syntax, argc, argv, &n_operands);
}

/* A path given by flag, else by variable, must not be a file this run reads. */
static int check_path(const run *r, const char *path) {
    int code = cli_keep_beside(path, "model", r->common.model);

    if (code < 0)
        code = cli_keep_beside(path, "input", r->file);
    if (code < 0)
        code = cli_keep_beside(path, "input", r->messages_file);
    for (int i = 0; code < 0 && i < r->steering.n; i++)
        code = cli_keep_beside(path, "control vector", r->steering.entries[i].path);
    return code;
}

static int check_output(const run *r) {
    const char *resid = r->resid_path ? r->resid_path : getenv(RESID_VARIABLE);
    const char *ffn = r->ffn_path ? r->ffn_path : getenv(FFN_VARIABLE), *trace = r->steering.trace;
    const char *router = r->router_path ? r->router_path : getenv(ROUTER_VARIABLE);
    int code = check_path(r, resid);

    if (code < 0)
        code = check_path(r, ffn);
    if (code < 0)
        code = check_path(r, router);
    if (code < 0 && trace)
        code = cli_keep_input(trace, "input", r->file ? r->file : r->messages_file);
    if (code < 0)
        code = cli_keep_apart("the residual capture", resid, "the FFN census", ffn, false);
    if (code < 0)
        code = cli_keep_apart("the residual capture", resid, "the steering trace", trace, true);
    if (code < 0)
        code = cli_keep_apart("the routing census", router, "the residual capture", resid, false);
    if (code < 0)
        code = cli_keep_apart("the routing census", router, "the FFN census", ffn, false);
    if (code < 0)
        code = cli_keep_apart("the routing census", router, "the steering trace", trace, true);
    return code < 0 ? cli_keep_apart("the FFN census", ffn, "the steering trace", trace, true) : code;
}

static bool taps(const run *r) {
    const char *const variables[] = {RESID_VARIABLE, FFN_VARIABLE, ROUTER_VARIABLE};
    bool any = r->resid_path || r->ffn_path || r->router_path || r->steering.n > 0;

    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        const char *path = getenv(variables[i]);

        any = any || (path && *path);
    }
    return any;
}

static int check(const run *r) {
    int code = cli_common_check(&r->common), n = !!r->prompt + !!r->file + !!r->messages_file;

    if (code >= 0)
        return code;
    if (n == 0)
        return cli_usage("a prompt is needed: '-p TEXT', '-f FILE' or '--messages-file FILE'");
    if (n > 1)
        return cli_usage("'-p', '-f' and '--messages-file' exclude each other");
    if (r->chat_template && !r->chat && !r->messages_file)
        return cli_usage("'--chat-template' needs '--chat' or '--messages-file'");
    if ((r->top_k_given || r->top_p_given || r->seed_given) && r->temperature <= 0)
        return cli_usage("'%s' needs '--temp' above 0", r->top_k_given ? "--top-k" : r->top_p_given ? "--top-p" : "-s");
    if (r->n_predict == 0 && (r->temperature > 0 || r->ignore_eos))
        return cli_usage("'%s' needs '-n' above 0", r->temperature > 0 ? "--temp" : "--ignore-eos");
    if (r->router_trace && !r->router_path)
        return cli_usage("'--router-trace' needs '--router-hist'");
    if (r->n_predict < 2 && cli_steering_decodes(&r->steering))
        return cli_usage("'--steering-from decode' needs '-n' above 1: the prompt decides the first token");
    code = cli_steering_check(&r->steering, r->common.model);
    if (code < 0 && r->common.tap && !taps(r))
        return cli_usage("'--tap' needs something to tap: an instrument or '--steering'");
    return code < 0 ? check_output(r) : code;
}

static size_t without_newline(const char *text, size_t length) {
    if (length > 0 && text[length - 1] == '\n')
        length--;
    return length > 0 && text[length - 1] == '\r' && text[length] == '\n' ? length - 1 : length;
}

/* What needs no model comes first, so that a wrong file costs no time. */
static int read_prompt(run *r, ts_error *err) {
    int rc = 0;

    if (r->messages_file)
        return ts_chat_messages_read(r->messages_file, &r->messages, &r->n_messages, err);
    if (r->file) {
        if ((rc = ts_text_file_read(r->file, &r->text, &r->length, err)) != 0)
            return rc;
        r->length = without_newline(r->text, r->length);
        r->text[r->length] = '\0';
        r->prompt = r->text;
    } else {
        r->length = strlen(r->prompt);
    }
    if (r->length == 0) {
        snprintf(err->message, sizeof(err->message), "the prompt is empty");
        rc = TS_ERR_ARG;
    }
    return rc;
}

static int tokenize_prompt(run *r, ts_error *err) {
    const ts_chat_message single = {"user", r->prompt};
    unsigned flags = r->special ? TS_TOKENIZE_SPECIAL : 0;

    if (r->chat || r->messages_file)
        return ts_session_chat_tokenize(r->session, r->messages_file ? r->messages : &single,
                                        r->messages_file ? r->n_messages : 1, r->chat_template,
                                        flags, &r->tokens, &r->n_tokens, err);
    return ts_session_tokenize(r->session, r->prompt, r->length, flags, &r->tokens, &r->n_tokens,
                               err);
}

static int attach(run *r, ts_error *err) {
    ts_resid_options resid = TS_OPTIONS_INIT(ts_resid_options);
    ts_ffn_hist_options ffn = TS_OPTIONS_INIT(ts_ffn_hist_options);
    ts_router_hist_options router = TS_OPTIONS_INIT(ts_router_hist_options);
    const char *trace = getenv("TURBOSPARK_ROUTER_TRACE");
    int rc = 0;

    if (r->resid_path) {
        resid.path = r->resid_path;
        unsetenv(RESID_VARIABLE); /* the flag takes the place of its variable */
        rc = ts_session_attach_resid(r->session, &resid, err);
    }
    if (rc == 0 && r->ffn_path) {
        ffn.path = r->ffn_path;
        unsetenv(FFN_VARIABLE);
        rc = ts_session_attach_ffn(r->session, &ffn, err);
    }
    if (rc == 0 && r->router_path) {
        router.path = r->router_path;
        router.trace = r->router_trace || (trace && strcmp(trace, "1") == 0);
        unsetenv(ROUTER_VARIABLE);
        rc = ts_session_attach_router(r->session, &router, err);
    }
    return rc != 0 ? rc : ts_session_attach_env(r->session, err);
}

/* Returns -1 to go on, else the exit code. */
static int open_and_start(run *r) {
    ts_session_options opts;
    ts_error err = {0};
    int code;

    cli_session_options(&r->common, &opts);
    if (read_prompt(r, &err) != 0 || ts_session_open(&opts, &r->session, &err) != 0)
        return cli_fail_error(&err);
    code = cli_steering_attach(&r->steering, r->session);
    if (code >= 0)
        return code;
    if (attach(r, &err) != 0 || tokenize_prompt(r, &err) != 0 ||
        ts_session_start(r->session, &err) != 0)
        return cli_fail_error(&err);
    cli_steering_note(r->session);
    return -1;
}

static void on_text(const char *bytes, size_t length, void *user) {
    run *r = user;

    if (length > 0)
        r->last_byte = bytes[length - 1];
    cli_out(bytes, length);
}

static void on_logits(const float *logits, int32_t n_vocab, void *user) {
    run *r = user;
    const unsigned char *bytes = (const unsigned char *)logits;
    uint64_t h = r->hash;

    for (size_t i = 0; i < (size_t)n_vocab * sizeof(float); i++)
        h = (h ^ bytes[i]) * UINT64_C(0x100000001b3);
    r->hash = h;
    r->n_hashed++;
}

static int generate(run *r, ts_generate_result *result, ts_error *err) {
    ts_generate_options opts = TS_OPTIONS_INIT(ts_generate_options);

    opts.tokens = r->tokens;
    opts.n_tokens = r->n_tokens;
    opts.n_predict = r->n_predict;
    opts.ignore_eos = r->ignore_eos;
    opts.temperature = r->temperature;
    opts.top_k = r->top_k > 0 ? r->top_k : -1;      /* the API's 0 is its default, ours is "all" */
    opts.top_p = r->top_p > 0 ? r->top_p : FLT_MIN; /* likewise; the likeliest token always stays */
    opts.seed = r->seed;
    opts.on_text = on_text;
    opts.on_logits = r->logits_hash ? on_logits : NULL;
    opts.user = r;
    return ts_session_generate(r->session, &opts, result, err);
}

static void report(const run *r, const ts_generate_result *t) {
    double decode_s = t->decode_ms / 1e3;

    if (isatty(STDOUT_FILENO) && r->last_byte && r->last_byte != '\n')
        cli_out("\n", 1);
    if (r->logits_hash)
        fprintf(stderr, "logits fnv1a64 %016" PRIx64 " over %" PRIu64 " passes\n", r->hash,
                r->n_hashed);
    if (cli_verbose())
        cli_note("%d prompt token%s in %.1f ms, %d token%s generated, %d decode pass%s in %.1f ms "
                 "(%.1f a second)",
                 t->n_prompt, cli_plural((uint64_t)t->n_prompt), t->prefill_ms, t->n_generated, cli_plural((uint64_t)t->n_generated),
                 t->n_decode_passes, t->n_decode_passes == 1 ? "" : "es", t->decode_ms,
                 decode_s > 0 ? t->n_decode_passes / decode_s : 0.0);
}

/* The text is out first; then what the instruments have, also of a generation that broke off. */
static int generate_and_finish(run *r) {
    ts_generate_result result = {0};
    ts_error err = {0};
    int rc = generate(r, &result, &err), code = CLI_DONE;

    if (rc == 0 || rc == TS_ERR_INTERRUPTED)
        report(r, &result);
    if (rc != 0)
        code = cli_fail_error(&err);
    if (rc == 0 || rc == TS_ERR_INTERRUPTED || rc == TS_ERR_ENGINE)
        if (ts_session_finish(r->session, &err) != 0)
            code = cli_fail_error(&err);
    return code;
}

int cmd_run(int argc, char **argv) {
    run r = {.n_predict = DEFAULT_PREDICT,
             .top_k = DEFAULT_TOP_K,
             .top_p = DEFAULT_TOP_P,
             .hash = UINT64_C(0xcbf29ce484222325)};
    int code = parse(&r, argc, argv);

    if (code < 0)
        code = check(&r);
    if (code < 0)
        code = open_and_start(&r);
    if (code < 0)
        code = generate_and_finish(&r);
    ts_session_close(r.session);
    ts_free(r.tokens);
    ts_free(r.text);
    ts_free(r.messages);
    return code;
}
