/* What every command shares: messages, exit codes, the stop flag, standard output. The command line
 * is the one place with process-wide state, since signals, llama.cpp's log and its abort hook are
 * process-wide. */
#ifndef TS_CLI_H
#define TS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <turbospark/turbospark.h>

#define CLI_PRINTF(f, a) __attribute__((format(printf, f, a)))

enum cli_exit { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* Names the command in later messages and takes over signals, log lines and aborts. */
void cli_begin(const char *command);
void cli_verbosity(bool quiet, bool verbose);
bool cli_verbose(void);

/* `turbospark run: <text>` on stderr, one line. Returns CLI_FAILED. */
int cli_fail(const char *fmt, ...) CLI_PRINTF(1, 2);
/* The same for a library failure, after engine lines that its message does not quote. */
int cli_fail_error(const ts_error *err);
/* The same with "; try 'turbospark run --help'". Returns CLI_USAGE. */
int cli_usage(const char *fmt, ...) CLI_PRINTF(1, 2);
/* A line about what was done, silent with -q. */
void cli_note(const char *fmt, ...) CLI_PRINTF(1, 2);

/* Raised by SIGINT and SIGTERM; a second signal leaves at once with 130. */
volatile const int *cli_stop_flag(void);

/* Writes to standard output, and raises the stop flag when nobody reads it any more. */
void cli_out(const char *bytes, size_t length);
/* Flushes standard output and shows errors kept back; a failed write turns CLI_DONE into
 * CLI_FAILED. */
int cli_end(int code);

/* Progress is drawn on stderr when that is a terminal, or when asked for, and never with -q. */
bool cli_wants_progress(bool asked);

/* Refuses to write over a file the command reads: `what` names its role ("model"). NULL paths are
 * fine. Returns -1 to go on, else CLI_FAILED. */
int cli_keep_input(const char *output, const char *what, const char *input);
/* The same for a result that writes further files: beside it (.f32, .meta, .detail, .trace) and while it runs (.part...). */
int cli_keep_beside(const char *output, const char *what, const char *input);
/* Refuses two outputs that would share a file; `alone`: b is one file with none beside it. NULL paths are fine. Returns
 * -1 to go on, else CLI_USAGE. */
int cli_keep_apart(const char *name_a, const char *a, const char *name_b, const char *b, bool alone);

/* Can a JSON report be written there, before anything is computed? NULL is fine. Returns -1 to go on, else
 * CLI_FAILED. */
int cli_check_json(const char *path);

/* A report made in memory and written whole. */
typedef struct cli_text {
    FILE *file;
    char *bytes;
    size_t length;
} cli_text;
bool cli_text_open(cli_text *text);
/* Frees it; an exit code. */
int cli_text_save(cli_text *text, const char *path);

/* "" for 1, else "s". */
const char *cli_plural(uint64_t n);

/* `text` as a JSON string with its quotes. */
void cli_json_string(FILE *out, const char *text);

int cmd_run(int argc, char **argv);
int cmd_nodes(int argc, char **argv);
int cmd_capture(int argc, char **argv);
int cmd_census(int argc, char **argv);
int cmd_router(int argc, char **argv);
int cmd_analyze(int argc, char **argv);
int cmd_merge(int argc, char **argv);
int cmd_extract(int argc, char **argv);
int cmd_sweep(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_kld(int argc, char **argv);

#endif
