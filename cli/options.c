/* Turns a table of options into popt's, walks the line with it, and hands each value to the
 * library's parsers. Refuses what the table does not name and operands a command does not take. */
#include "options.h"
#include "cli.h"

#include <popt.h>
#include <stdlib.h>
#include <string.h>

/* One thing found on the line: an option with its value, or an operand (option NULL). */
typedef struct found {
    const cli_option *option;
    const char *text; /* into argv */
} found;

typedef struct parser {
    const cli_syntax *syntax;
    int argc;
    char **argv;
    const cli_option **by_value; /* popt's `val` is an index into it, from 1 */
    struct poptOption *table;
    found *line;
    char **joined; /* [n_joined] values made of two words */
    size_t n_options, n_found, n_joined;
    bool help;
} parser;

/* "-n" or "--exact": how messages name an option. */
static const char *option_label(const cli_option *o, char buf[32]) {
    snprintf(buf, 32, "%s%s", o->dash ? "-" : "--", o->dash ? o->dash : o->name);
    return buf;
}

/* popt replaces "!#:+" inside values by other arguments. Nobody expects that of a prompt: the mark
 * is hidden while popt looks at the line. */
static void swap_mark(int argc, char **argv, const char *from, char to) {
    for (int i = 1; i < argc; i++)
        for (char *p = argv[i]; (p = strstr(p, from)); p++)
            *p = to;
}

/* popt returns copies; the same bytes stand in argv, at the end of an argument, and live longer
 * there. */
static const char *in_argv(const parser *p, char *copy) {
    size_t n = copy ? strlen(copy) : 0;
    const char *text = NULL;

    for (int i = 1; copy && !text && i < p->argc; i++) {
        size_t length = strlen(p->argv[i]);

        if (length >= n && strcmp(p->argv[i] + length - n, copy) == 0)
            text = p->argv[i] + length - n;
    }
    free(copy);
    return text;
}

static void add_entry(parser *p, size_t *n, const cli_option *o, const char *name, char letter,
                      unsigned flags) {
    unsigned arg = o->value ? POPT_ARG_STRING : POPT_ARG_NONE;

    p->table[(*n)++] = (struct poptOption){
        .longName = name, .shortName = letter, .argInfo = arg | flags, .val = (int)p->n_options};
}

static bool is_pair(const parser *p, const char *word) {
    for (size_t g = 0; g < p->syntax->n_groups; g++)
        for (size_t i = 0; i < p->syntax->groups[g].n; i++) {
            const cli_option *o = &p->syntax->groups[g].options[i];

            if (o->pair && strncmp(word, "--", 2) == 0 && strcmp(word + 2, o->name) == 0)
                return true;
        }
    return false;
}

static bool is_number(const char *word) {
    char *end;

    (void)strtod(word, &end);
    return end != word && *end == '\0';
}

/* llama.cpp's users write some values as two words; popt knows one. Joins them in argv. */
static bool join_pairs(parser *p) {
    p->joined = calloc((size_t)p->argc + 1, sizeof(p->joined[0]));
    for (int i = 1; p->joined && i + 2 < p->argc && strcmp(p->argv[i], "--") != 0; i++) {
        char *a = p->argv[i + 1], *b = p->argv[i + 2], *both;
        size_t size = strlen(a) + strlen(b) + 2;

        if (!is_pair(p, p->argv[i]) || strchr(a, ':') || !is_number(b))
            continue;
        if (!(both = malloc(size)))
            return false;
        snprintf(both, size, "%s:%s", a, b);
        p->joined[p->n_joined++] = p->argv[i + 1] = both;
        for (int k = i + 2; k < p->argc; k++) /* argv ends with a NULL */
            p->argv[k] = p->argv[k + 1];
        p->argc--;
    }
    return p->joined != NULL;
}

static bool build_table(parser *p) {
    static const cli_option help = {.dash = "h", .name = "help"};
    size_t total = 1, n = 0;

    for (size_t g = 0; g < p->syntax->n_groups; g++)
        total += p->syntax->groups[g].n;
    p->by_value = calloc(total + 1, sizeof(p->by_value[0]));
    p->table = calloc(2 * total + 1, sizeof(p->table[0])); /* the last one stays all zero */
    p->line = calloc((size_t)p->argc + 1, sizeof(p->line[0]));
    if (!p->by_value || !p->table || !p->line)
        return false;
    for (size_t g = 0; g <= p->syntax->n_groups; g++) {
        bool last = g == p->syntax->n_groups;

        for (size_t i = 0; i < (last ? 1 : p->syntax->groups[g].n); i++) {
            const cli_option *o = last ? &help : &p->syntax->groups[g].options[i];
            bool letter = o->dash && !o->dash[1];

            p->by_value[++p->n_options] = o;
            add_entry(p, &n, o, o->name, letter ? o->dash[0] : '\0', 0);
            if (o->dash && !letter)
                add_entry(p, &n, o, o->dash, '\0', POPT_ARGFLAG_ONEDASH);
        }
    }
    return true;
}

/* Splits the line into `p->line`. Values are not looked at yet, so that --help wins over a wrong
 * one. */
static int split_line(parser *p, poptContext context) {
    const char **operands;
    int value;

    while ((value = poptGetNextOpt(context)) > 0) {
        const cli_option *o = p->by_value[value];

        if ((size_t)value == p->n_options)
            p->help = true;
        else
            p->line[p->n_found++] =
                (found){o, in_argv(p, o->value ? poptGetOptArg(context) : NULL)};
    }
    if (value < -1 && !p->help)
        return cli_usage("option '%s': %s", poptBadOption(context, POPT_BADOPTION_NOALIAS),
                         poptStrerror(value));
    operands = poptGetArgs(context);
    for (; operands && *operands; operands++)
        p->line[p->n_found++] = (found){NULL, in_argv(p, strdup(*operands))};
    return -1;
}

static int parse_choice(const char *label, const cli_option *o, const char *text, ts_error *err) {
    size_t used = 0;

    for (int i = 0; o->choices[i]; i++)
        if (strcmp(text, o->choices[i]) == 0) {
            *(int *)o->target = i;
            return 0;
        }
    used = (size_t)snprintf(err->message, sizeof(err->message), "%s: expected ", label);
    for (int i = 0; o->choices[i]; i++)
        used += (size_t)snprintf(err->message + used, sizeof(err->message) - used, "%s'%s'",
                                 i == 0              ? ""
                                 : o->choices[i + 1] ? ", "
                                                     : " or ",
                                 o->choices[i]);
    snprintf(err->message + used, sizeof(err->message) - used, ", got '%.200s'", text);
    return TS_ERR_ARG;
}

/* "0" is no layer at all; "auto" and "all" leave it to llama.cpp, which takes all that fit. */
static int parse_layers(const char *label, const cli_option *o, const char *text, ts_error *err) {
    int64_t n = 0;
    int rc = 0;

    if (strcmp(text, "auto") == 0 || strcmp(text, "all") == 0)
        *(int32_t *)o->target = 0;
    else if ((rc = ts_parse_i64(label, text, 0, INT32_MAX, &n, err)) == 0)
        *(int32_t *)o->target = n ? (int32_t)n : TS_GPU_LAYERS_NONE;
    if (rc != 0)
        snprintf(err->message, sizeof(err->message), "%s: expected a number of blocks, 'all' or 'auto', got '%.200s'", label, text);
    return rc;
}

static int parse_number(const char *label, const cli_option *o, const char *text, ts_error *err) {
    int64_t whole = 0;
    double real = 0;
    int rc = o->kind == CLI_FLOAT
                 ? ts_parse_f64(label, text, o->min, o->max, &real, err)
                 : ts_parse_i64(label, text, (int64_t)o->min, (int64_t)o->max, &whole, err);

    if (rc != 0)
        return rc;
    if (o->kind == CLI_FLOAT)
        *(float *)o->target = (float)real;
    else if (o->kind == CLI_U32)
        *(uint32_t *)o->target = (uint32_t)whole;
    else
        *(int32_t *)o->target = (int32_t)whole;
    return 0;
}

static int apply(const cli_option *o, const char *text, ts_error *err) {
    char buf[32];
    const char *label = option_label(o, buf);

    if (o->given)
        *o->given = true;
    switch (o->kind) {
    case CLI_FLAG:
        *(bool *)o->target = true;
        return 0;
    case CLI_TEXT:
        *(const char **)o->target = text;
        return 0;
    case CLI_LIST:
        ((cli_list *)o->target)->items[((cli_list *)o->target)->n++] = text;
        return 0;
    case CLI_CALL:
        return o->call(o->target, label, text, err);
    case CLI_CHOICE:
        return parse_choice(label, o, text, err);
    case CLI_RANGE:
        return ts_parse_range(label, text, o->target, err);
    case CLI_POSITIONS:
        return ts_parse_positions(label, text, o->target, err);
    case CLI_LAYERS:
        return parse_layers(label, o, text, err);
    default:
        return parse_number(label, o, text, err);
    }
}

static int apply_line(parser *p, int *n_operands) {
    ts_error err;

    *n_operands = 0;
    for (size_t i = 0; i < p->n_found; i++) {
        const found *f = &p->line[i];

        if (f->option && apply(f->option, f->text, &err) != 0)
            return cli_usage("%s", err.message);
        if (!f->option && !p->syntax->operands)
            return cli_usage("unexpected argument '%s'", f->text);
        if (!f->option)
            p->argv[++*n_operands] = (char *)(uintptr_t)f->text;
    }
    return -1;
}

int cli_parse(const cli_syntax *syntax, int argc, char **argv, int *n_operands) {
    parser p = {.syntax = syntax, .argc = argc, .argv = argv};
    poptContext context = NULL;
    int code = CLI_FAILED;

    swap_mark(argc, argv, "!#:+", '\1');
    if (join_pairs(&p) && build_table(&p))
        context = poptGetContext("turbospark", p.argc, (const char **)argv, p.table, 0);
    if (!context) {
        cli_fail("out of memory");
        goto cleanup;
    }
    code = split_line(&p, context);
    swap_mark(p.argc, argv, "\1#:+", '!');
    if (code < 0 && p.help) {
        cli_help(syntax);
        code = CLI_DONE;
    } else if (code < 0) {
        code = apply_line(&p, n_operands);
    }
cleanup:
    poptFreeContext(context);
    for (size_t i = 0; i < p.n_joined; i++)
        free(p.joined[i]);
    free(p.joined);
    free(p.line);
    free(p.table);
    free(p.by_value);
    return code;
}
