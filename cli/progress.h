/* The progress bar of commands that walk a corpus: share done, rate, time left, on stderr. */
#ifndef TS_CLI_PROGRESS_H
#define TS_CLI_PROGRESS_H

#include <turbospark/turbospark.h>

#include "options.h"

/* The row of an option table that wants a bar. */
#define CLI_PROGRESS_OPTION(wanted)                                                                \
    OPTION(NULL, "progress", NULL, CLI_FLAG, wanted, "draw progress also when stderr is no terminal")

typedef struct cli_progress {
    bool drawing;    /* the bar is wanted */
    bool drawn;      /* and stands on the line */
    double drawn_at; /* seconds */
} cli_progress;

/* [######......]  50 %   1234 tokens/s, 0:00:12 left */
void cli_progress_draw(cli_progress *bar, const ts_progress *p);
/* Ends the line, if a bar stands on it. */
void cli_progress_end(cli_progress *bar);
/* Says how many lines of a list were empty, if any. */
void cli_note_skipped(uint64_t n_lines);
/* "1.4 MiB" in `buf`. */
const char *cli_bytes_text(uint64_t bytes, char buf[32]);

#endif
