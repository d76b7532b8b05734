/* The steering options, the same for every command that generates or scores. Each --steering FILE opens an entry; the
 * options after it are that entry's. */
#ifndef TS_CLI_STEERING_H
#define TS_CLI_STEERING_H

#include "options.h"

enum { CLI_STEERING_MAX = 16, CLI_STEERING_OPTIONS = 11 };

typedef struct cli_steering {
    ts_steering_options entries[CLI_STEERING_MAX];
    ts_range blocks[CLI_STEERING_MAX];
    char paths[CLI_STEERING_MAX][4096]; /* of those that came as FILE:S */
    bool is_control_vector[CLI_STEERING_MAX];
    int n;
    ts_range range; /* of all control vectors, the last one given */
    bool range_given;
    const char *trace;
} cli_steering;

void cli_steering_options(cli_steering *st, cli_option table[CLI_STEERING_OPTIONS]);
/* What needs no model: options that lack their file, a trace over a file that is read. -1 to go on, else the exit
 * code. */
int cli_steering_check(const cli_steering *st, const char *model);
/* Whether some entry steers only what follows the prompt. */
bool cli_steering_decodes(const cli_steering *st);
/* Attaches every entry to the session. -1 to go on, else the exit code. */
int cli_steering_attach(const cli_steering *st, ts_session *session);
/* The line of what is in force, after the session started. */
void cli_steering_note(const ts_session *session);

#endif
