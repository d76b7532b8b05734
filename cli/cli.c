/* Owns the command line's process-wide state: verbosity, the stop flag, errors kept back, standard
 * output. Refuses to decide anything about a command's work. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "cli.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    const char *command; /* "" before one is known */
    bool quiet, verbose;
    int write_errno; /* of the first failed write to standard output */
    char kept[4096]; /* error lines, newline after each, shown at the end or with the failure */
    size_t kept_bytes;
} cli = {.command = ""};

static volatile int stop_flag;

static void print_prefix(void) {
    fprintf(stderr, "turbospark%s%s: ", *cli.command ? " " : "", cli.command);
}

static void on_signal(int number) {
    static volatile sig_atomic_t n_signals; /* the stop flag alone may stand for a failed write */

    (void)number;
    stop_flag = 1;
    if (n_signals) {
        ts_unfinished_remove();
        _exit(130);
    }
    n_signals = 1;
}

static void on_abort(const char *message) {
    print_prefix();
    fprintf(stderr, "%s\n", message);
    ts_unfinished_remove();
    _exit(CLI_FAILED);
}

/* An error line usually comes back inside the failure's message; it is kept until that is known. */
static void keep_line(const char *line) {
    size_t n = strlen(line), room = sizeof(cli.kept) - cli.kept_bytes;

    if (n + 2 > room)
        return;
    memcpy(cli.kept + cli.kept_bytes, line, n);
    cli.kept_bytes += n;
    cli.kept[cli.kept_bytes++] = '\n';
}

static void on_log(enum ts_log_level level, bool from_engine, const char *line, void *user) {
    (void)user;
    if (from_engine && cli.verbose) {
        if (level <= TS_LOG_INFO)
            fprintf(stderr, "llama.cpp: %s\n", line);
    } else if (level == TS_LOG_ERROR) {
        keep_line(line);
    } else if (from_engine) {
        return;
    } else if (level == TS_LOG_WARN ? !cli.quiet : cli.verbose && level == TS_LOG_INFO) {
        print_prefix();
        fprintf(stderr, "%s%s\n", level == TS_LOG_WARN ? "warning: " : "", line);
    }
}

void cli_begin(const char *command) {
    struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction ignore = {.sa_handler = SIG_IGN};

    cli.command = command;
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL); /* a file too large is an error of its write */
    ts_log_set(on_log, NULL);
    ts_abort_set(on_abort);
}

void cli_verbosity(bool quiet, bool verbose) {
    cli.quiet = quiet;
    cli.verbose = verbose && !quiet;
}

bool cli_verbose(void) {
    return cli.verbose;
}
volatile const int *cli_stop_flag(void) {
    return &stop_flag;
}

/* The line, or what follows its "function: ", stands in the message. */
static bool quoted_in(const char *line, const char *message) {
    const char *colon = strstr(line, ": ");

    return strstr(message, line) || (colon && strstr(message, colon + 2));
}

/* Shows the kept lines. When `message` quotes one of them, the others only tell the same failure
 * again. */
static void show_kept(const char *message) {
    bool told = false;

    for (int pass = 0; pass < 2; pass++) {
        char *line = cli.kept, *end;

        while (!told && (end = memchr(line, '\n', cli.kept_bytes - (size_t)(line - cli.kept)))) {
            *end = '\0';
            if (pass == 0)
                told = message && quoted_in(line, message);
            else
                fprintf(stderr, "turbospark: %s\n", line);
            *end = '\n';
            line = end + 1;
        }
    }
    cli.kept_bytes = 0;
}

static void print_line(const char *fmt, va_list args, const char *tail) {
    print_prefix();
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "%s\n", tail);
}

int cli_fail(const char *fmt, ...) {
    va_list args;

    va_start(args, fmt);
    print_line(fmt, args, "");
    va_end(args);
    return CLI_FAILED;
}

int cli_fail_error(const ts_error *err) {
    if (err->code == TS_ERR_INTERRUPTED && cli.write_errno) /* stopped for that; cli_end tells it */
        return CLI_FAILED;
    show_kept(err->message);
    return cli_fail("%s", err->message);
}

int cli_usage(const char *fmt, ...) {
    char tail[96];
    va_list args;

    snprintf(tail, sizeof(tail), "; try 'turbospark%s%s --help'", *cli.command ? " " : "",
             cli.command);
    va_start(args, fmt);
    print_line(fmt, args, tail);
    va_end(args);
    return CLI_USAGE;
}

void cli_note(const char *fmt, ...) {
    va_list args;

    if (cli.quiet)
        return;
    va_start(args, fmt);
    print_line(fmt, args, "");
    va_end(args);
}

static void note_write_error(void) {
    if (!cli.write_errno)
        cli.write_errno = errno ? errno : EIO;
    stop_flag = 1;
}

void cli_out(const char *bytes, size_t length) {
    errno = 0;
    if (!cli.write_errno && (fwrite(bytes, 1, length, stdout) < length || fflush(stdout)))
        note_write_error();
}

int cli_end(int code) {
    errno = 0;
    if (fflush(stdout) || ferror(stdout))
        note_write_error();
    show_kept(NULL);
    if (!cli.write_errno)
        return code;
    cli_fail("cannot write standard output: %s", strerror(cli.write_errno));
    return code == CLI_DONE ? CLI_FAILED : code;
}

bool cli_wants_progress(bool asked) {
    return !cli.quiet && (asked || isatty(STDERR_FILENO));
}

int cli_keep_input(const char *output, const char *what, const char *input) {
    struct stat a, b;

    if (!output || !input || stat(output, &a) != 0 || stat(input, &b) != 0 ||
        a.st_ino != b.st_ino || a.st_dev != b.st_dev)
        return -1;
    return cli_fail("output '%s' is the %s", output, what);
}

/* File `i` of a result: itself, those beside it, those it writes while it runs. False past the last. */
static bool file_of_result(const char *output, size_t i, char *out, size_t size) {
    static const char *const beside[] = {".f32", ".meta", ".detail", ".trace", ".experts"};
    static const char *const part[] = {".part",       ".part.gen",    ".part.state",   ".part.census", ".part.trace",
                                       ".part.jsonl", ".part.router", ".lock"};
    const char *slash = strrchr(output, '/'), *base = slash ? slash + 1 : output, *dot = strrchr(base, '.');
    int stem = dot && dot != base ? (int)(dot - output) : (int)strlen(output);

    if (i == 0)
        snprintf(out, size, "%s", output);
    else if (i <= 5)
        snprintf(out, size, "%.*s%s", stem, output, beside[i - 1]);
    else if (i <= 13)
        snprintf(out, size, "%s%s", output, part[i - 6]);
    return i <= 13;
}

int cli_keep_beside(const char *output, const char *what, const char *input) {
    char path[4096];
    int code = -1;

    for (size_t i = 0; output && input && code < 0 && file_of_result(output, i, path, sizeof(path)); i++)
        code = cli_keep_input(path, what, input);
    return code;
}

/* The name without links, "." and "..", also of a file that is not there yet; as it is where its folder is not. */
static void spell_out(const char *path, char *out, size_t size) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char folder[4096], real[PATH_MAX];

    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(base - path) : 1, slash ? path : ".");
    if (realpath(path, real))
        snprintf(out, size, "%s", real);
    else if (realpath(folder, real))
        snprintf(out, size, "%s/%s", real, base);
    else
        snprintf(out, size, "%s", path);
}

static bool same_name(const char *a, const char *b) {
    char one[PATH_MAX + 4096], other[PATH_MAX + 4096];

    spell_out(a, one, sizeof(one));
    spell_out(b, other, sizeof(other));
    return strcmp(one, other) == 0;
}

int cli_keep_apart(const char *name_a, const char *a, const char *name_b, const char *b, bool alone) {
    char one[4096], other[4096];

    for (size_t i = 0; a && b && file_of_result(a, i, one, sizeof(one)); i++)
        for (size_t k = 0; (k == 0 || !alone) && file_of_result(b, k, other, sizeof(other)); k++)
            if (same_name(one, other))
                return cli_usage("%s and %s would both write '%s'", name_a, name_b, one);
    return -1;
}

int cli_check_json(const char *path) {
    ts_error err = {0};

    return path && ts_output_check(path, &err) != 0 ? cli_fail_error(&err) : -1;
}

bool cli_text_open(cli_text *text) {
    *text = (cli_text){0};
    text->file = open_memstream(&text->bytes, &text->length);
    return text->file != NULL;
}

int cli_text_save(cli_text *text, const char *path) {
    ts_error err = {0};
    bool whole = !ferror(text->file);
    int code = CLI_DONE;

    whole = fclose(text->file) == 0 && whole;
    if (!whole)
        code = cli_fail("cannot write '%s': out of memory", path);
    else if (ts_output_write(path, text->bytes, text->length, &err) != 0)
        code = cli_fail_error(&err);
    free(text->bytes);
    return code;
}

const char *cli_plural(uint64_t n) {
    return n == 1 ? "" : "s";
}

void cli_json_string(FILE *out, const char *text) {
    putc('"', out);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            fprintf(out, "\\%c", *p);
        else if (*p < 0x20)
            fprintf(out, "\\u%04x", *p);
        else
            putc(*p, out);
    }
    putc('"', out);
}
