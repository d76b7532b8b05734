/* The steering options. Owns the rule that an option belongs to the --steering before it; accepts llama.cpp's
 * --control-vector options, which mean add and share one range of blocks. */
#include "steering.h"
#include "cli.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_SCALE 1.0

static int refuse(ts_error *err, const char *label, const char *text) {
    snprintf(err->message, sizeof(err->message), "'%s' %s", label, text);
    return TS_ERR_ARG;
}

static int open_entry(cli_steering *st, const char *label, const char *path, enum ts_steering_mode mode, ts_error *err) {
    if (st->n == CLI_STEERING_MAX)
        return refuse(err, label, "is given more than 16 times");
    st->entries[st->n] = TS_OPTIONS_INIT(ts_steering_options);
    st->entries[st->n].path = path;
    st->entries[st->n].mode = mode;
    st->entries[st->n].scale = DEFAULT_SCALE;
    st->is_control_vector[st->n] = false;
    st->n++;
    return 0;
}

/* The entry an option belongs to, or an error. */
static ts_steering_options *current(cli_steering *st, const char *label, ts_error *err) {
    if (st->n > 0)
        return &st->entries[st->n - 1];
    refuse(err, label, "needs '--steering FILE' before it");
    return NULL;
}

static int on_file(void *target, const char *label, const char *text, ts_error *err) {
    return open_entry(target, label, text, TS_STEERING_DECLARED, err);
}

static int on_mode(void *target, const char *label, const char *text, ts_error *err) {
    static const char *const names[] = {"ablate", "add", "clamp", "renorm"};
    ts_steering_options *o = current(target, label, err);

    for (int i = 0; o && i < 4; i++)
        if (strcmp(text, names[i]) == 0) {
            o->mode = (enum ts_steering_mode)(TS_STEERING_ABLATE + i);
            return 0;
        }
    if (o)
        snprintf(err->message, sizeof(err->message), "%s: expected 'ablate', 'add', 'clamp' or 'renorm', got '%.200s'", label, text);
    return TS_ERR_ARG;
}

static int on_scale(void *target, const char *label, const char *text, ts_error *err) {
    ts_steering_options *o = current(target, label, err);

    return o ? ts_parse_f64(label, text, -1e6, 1e6, &o->scale, err) : TS_ERR_ARG;
}

static int on_target(void *target, const char *label, const char *text, ts_error *err) {
    ts_steering_options *o = current(target, label, err);

    return o ? ts_parse_f64(label, text, -1e9, 1e9, &o->target, err) : TS_ERR_ARG;
}

static int on_gate(void *target, const char *label, const char *text, ts_error *err) {
    ts_steering_options *o = current(target, label, err);

    return o ? ts_parse_f64(label, text, 0, 1e9, &o->gate, err) : TS_ERR_ARG;
}

static int on_layers(void *target, const char *label, const char *text, ts_error *err) {
    cli_steering *st = target;
    ts_steering_options *o = current(st, label, err);
    int rc = o ? ts_parse_range(label, text, &st->blocks[st->n - 1], err) : TS_ERR_ARG;

    if (rc == 0)
        o->blocks = &st->blocks[st->n - 1];
    return rc;
}

static int on_from(void *target, const char *label, const char *text, ts_error *err) {
    static const char *const names[] = {"all", "prompt", "decode"};
    ts_steering_options *o = current(target, label, err);

    for (int i = 0; o && i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            o->from = (enum ts_steering_from)i;
            return 0;
        }
    if (o)
        snprintf(err->message, sizeof(err->message), "%s: expected 'all', 'prompt' or 'decode', got '%.200s'", label, text);
    return TS_ERR_ARG;
}

static int on_control_vector(void *target, const char *label, const char *text, ts_error *err) {
    cli_steering *st = target;
    int rc = open_entry(st, label, text, TS_STEERING_ADD, err);

    if (rc == 0)
        st->is_control_vector[st->n - 1] = true;
    return rc;
}

/* llama.cpp's "FILE:SCALE". The text stays as it is: another option may share it. */
static int on_scaled(void *target, const char *label, const char *text, ts_error *err) {
    cli_steering *st = target;
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    int rc;

    if (n == 0 || n >= sizeof(st->paths[0])) {
        snprintf(err->message, sizeof(err->message), "%s: expected FILE:SCALE, got '%.200s'", label, text);
        return TS_ERR_ARG;
    }
    rc = on_control_vector(st, label, text, err);
    if (rc != 0)
        return rc;
    st->entries[st->n - 1].path = memcpy(st->paths[st->n - 1], text, n);
    st->paths[st->n - 1][n] = '\0';
    return ts_parse_f64(label, colon + 1, -1e6, 1e6, &st->entries[st->n - 1].scale, err);
}

static int on_range(void *target, const char *label, const char *text, ts_error *err) {
    cli_steering *st = target;

    st->range_given = true;
    return ts_parse_range(label, text, &st->range, err);
}

void cli_steering_options(cli_steering *st, cli_option table[CLI_STEERING_OPTIONS]) {
    const cli_option options[CLI_STEERING_OPTIONS] = {
        OPTION(NULL, "steering", "FILE", CLI_CALL, st,
               "steer along the directions of this control-vector GGUF; repeatable, the options below belong to the one before "
               "them", .call = on_file),
        OPTION(NULL, "steering-mode", "MODE", CLI_CALL, st,
               "'ablate', 'add', 'clamp' or 'renorm' (default: what the file declares)", .call = on_mode),
        OPTION(NULL, "steering-scale", "S", CLI_CALL, st, "how much; 0 is off to the bit (default: 1)", .call = on_scale),
        OPTION(NULL, "steering-layers", "A:B", CLI_CALL, st, "blocks A to B (default: all the file has)", .call = on_layers),
        OPTION(NULL, "steering-target", "C", CLI_CALL, st, "clamp: the coefficient to set (default: 0)", .call = on_target),
        OPTION(NULL, "steering-gate", "C", CLI_CALL, st, "only rows whose |c| reaches C (default: 0)", .call = on_gate),
        OPTION(NULL, "steering-from", "WHICH", CLI_CALL, st,
               "tokens to steer: 'all', 'prompt' or 'decode' (default: all)", .call = on_from),
        OPTION(NULL, "control-vector", "FILE", CLI_CALL, st, "as --steering FILE --steering-mode add", .call = on_control_vector),
        OPTION(NULL, "control-vector-scaled", "FILE:S", CLI_CALL, st, "the same at scale S", .call = on_scaled,
               .pair = true),
        OPTION(NULL, "control-vector-layer-range", "A:B", CLI_CALL, st,
               "blocks A to B for every --control-vector, before or after it; the last range counts; also as two words, 'A B'",
               .call = on_range, .pair = true),
        OPTION(NULL, "steering-trace", "FILE", CLI_TEXT, &st->trace,
               "write c of every token and steered block there, as JSON Lines"),
    };

    memcpy(table, options, sizeof(options));
}

int cli_steering_check(const cli_steering *st, const char *model) {
    bool any = false;
    int code = cli_keep_input(st->trace, "model", model);

    if (st->trace && st->n == 0)
        return cli_usage("'--steering-trace' needs '--steering FILE'");
    for (int i = 0; i < st->n; i++)
        any = any || st->is_control_vector[i];
    if (st->range_given && !any)
        return cli_usage("'--control-vector-layer-range' needs '--control-vector FILE'");
    for (int i = 0; i < st->n && code < 0; i++)
        code = cli_keep_input(st->trace, "control vector", st->entries[i].path);
    return code;
}

bool cli_steering_decodes(const cli_steering *st) {
    for (int i = 0; i < st->n; i++)
        if (st->entries[i].from == TS_STEERING_DECODE)
            return true;
    return false;
}

int cli_steering_attach(const cli_steering *st, ts_session *session) {
    ts_error err = {0};

    for (int i = 0; i < st->n; i++) {
        ts_steering_options opts = st->entries[i];

        if (st->range_given && st->is_control_vector[i] && !opts.blocks)
            opts.blocks = &st->range;
        if (ts_session_attach_steering(session, &opts, &err) != 0)
            return cli_fail_error(&err);
    }
    if (st->trace && ts_session_trace_steering(session, st->trace, &err) != 0)
        return cli_fail_error(&err);
    return -1;
}

void cli_steering_note(const ts_session *session) {
    char *text = NULL;

    if (ts_session_steering_summary(session, &text, NULL) == 0 && text)
        cli_note("steering: %s", text);
    ts_free(text);
}
