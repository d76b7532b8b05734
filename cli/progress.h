/* The progress bar of commands that walk a corpus: share done, rate, time left, on stderr. */
#ifndef TS_CLI_PROGRESS_H
#define TS_CLI_PROGRESS_H

#include <turbospark/turbospark.h>

typedef struct cli_progress {
    bool drawing;    /* the bar is wanted */
    bool drawn;      /* and stands on the line */
    double drawn_at; /* seconds */
} cli_progress;

/* [######......]  50 %   1234 tokens/s, 0:00:12 left */
void cli_progress_draw(cli_progress *bar, const ts_progress *p);
/* Ends the line, if a bar stands on it. */
void cli_progress_end(cli_progress *bar);
/* "1.4 MiB" in `buf`. */
const char *cli_bytes_text(uint64_t bytes, char buf[32]);

#endif
