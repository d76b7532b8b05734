/* One table of options per command gives its parsing and its --help. Values are parsed whole by the
 * library. */
#ifndef TS_CLI_OPTIONS_H
#define TS_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include <turbospark/turbospark.h>

enum cli_kind {
    CLI_FLAG,      /* bool */
    CLI_TEXT,      /* const char *, into argv */
    CLI_LIST,      /* cli_list: every use of the option adds one */
    CLI_I32,       /* int32_t within min..max */
    CLI_U32,       /* uint32_t within min..max */
    CLI_FLOAT,     /* float within min..max */
    CLI_CHOICE,    /* int, index into `choices` */
    CLI_RANGE,     /* ts_range */
    CLI_POSITIONS, /* ts_positions */
    CLI_CALL,      /* `call` parses it into `target`, in the order of the line */
    CLI_LAYERS,    /* int32_t as in ts_session_options.n_gpu_layers */
};

typedef struct cli_list {
    const char **items; /* room for argc, into argv */
    size_t n;
} cli_list;

typedef struct cli_option {
    const char *dash;  /* spelling after a single dash: "n", "ngl"; NULL = none */
    const char *name;  /* spelling after two dashes */
    const char *value; /* what --help calls the value; NULL for a flag */
    const char *help;  /* "{}" stands for the default */
    enum cli_kind kind;
    void *target; /* holds the default before parsing */
    double min, max;
    const char *const *choices; /* NULL-terminated */
    bool *given;                /* nullable: set when the option was used */
    bool pair;                  /* two words A N are taken as A:N */
    int (*call)(void *target, const char *label, const char *text, ts_error *err);
} cli_option;

/* One row of a table; what follows the help are designated initializers: .min = 1, .max = 512 */
#define OPTION(dash_, name_, value_, kind_, target_, ...)                                          \
    {                                                                                              \
        .dash = dash_, .name = name_, .value = value_, .kind = kind_, .target = target_,           \
        .help = __VA_ARGS__                                                                        \
    }

typedef struct cli_group {
    const char *title;
    const cli_option *options;
    size_t n;
} cli_group;

#define CLI_GROUP(title, table)                                                                    \
    { title, table, sizeof(table) / sizeof((table)[0]) }

typedef struct cli_syntax {
    const char *usage; /* after "turbospark " */
    const char *about;
    const cli_group *groups;
    size_t n_groups;
    bool operands; /* takes operands */
} cli_syntax;

/* Fills the targets in the order of argv (the last of a repeated option wins). Returns -1 to go on,
 * else the exit code: --help was printed, or the line was wrong. Operands are moved to argv[1]..
 * and counted. */
int cli_parse(const cli_syntax *syntax, int argc, char **argv, int *n_operands);
/* Prints the help text on standard output. */
void cli_help(const cli_syntax *syntax);

/* ---------------------------------------------------------------- options that every model command
 * has */

typedef struct cli_common {
    const char *model, *device, *type_k, *type_v;
    int32_t n_gpu_layers, n_threads;
    uint32_t n_ctx, n_batch, n_ubatch;
    int flash_attn, tap;
    bool quiet, verbose;
    const ts_synthetic *synthetic; /* in place of a model file; set by the command that offers it */
} cli_common;

enum { CLI_COMMON_MODEL = 11, CLI_COMMON_OUTPUT = 2 };

/* Of the commands that draw at random. 2^32 - 1 would ask llama.cpp for a random seed. */
#define CLI_SEED_MAX 4294967294.0

typedef struct cli_common_table {
    cli_option model[CLI_COMMON_MODEL];
    cli_option output[CLI_COMMON_OUTPUT];
} cli_common_table;

void cli_common_options(cli_common *c, cli_common_table *table);
/* Applies -q and -v; checks that there is a model. Returns -1 to go on, else the exit code. */
int cli_common_check(const cli_common *c);
void cli_session_options(const cli_common *c, ts_session_options *out);

#endif
