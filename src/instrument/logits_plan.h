/* How a text is cut into windows for its logits, and which rows each window writes.
 *
 * With W the window, S the stride and m the tokens that are run (all but the last), window k holds the tokens
 * [k S, min(k S + W, m)) and writes the rows from k S + W - S on (window 0: all of its rows). Every row is written once,
 * and row i >= W - S has at least W - S + 1 tokens of its window up to its own. */
#ifndef TS_INSTRUMENT_LOGITS_PLAN_H
#define TS_INSTRUMENT_LOGITS_PLAN_H

#include "core/error.h"

typedef struct ts_logits_plan {
    size_t n_run; /* tokens that are run: rows */
    size_t window, stride, n_windows;
    size_t first_scored; /* row */
    uint64_t n_decoded;  /* tokens of all windows */
} ts_logits_plan;

typedef struct ts_logits_window {
    size_t begin, end, write; /* tokens [begin, end), rows [write, end) */
} ts_logits_window;

/* `window` 0 = limit; `stride` 0 = as in ts_logits_options. bos: windows after the first begin with BOS in place of
 * their first token. TS_ERR_ARG names text, option, expected and got. */
int ts_logits_plan_make(const char *path, size_t n_tokens, size_t limit, size_t window, size_t stride, bool bos,
                        ts_logits_plan *out, ts_error *err);
ts_logits_window ts_logits_plan_window(const ts_logits_plan *p, size_t k); /* k < n_windows */

#endif
