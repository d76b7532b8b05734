/* Fills a ts_error. Owns the wording rule: one line, lower case, no full stop. Depends on nothing. */
#ifndef TS_CORE_ERROR_H
#define TS_CORE_ERROR_H

#include <turbospark/turbospark.h>

#define TS_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* Each returns `code`, so that callers write `return ts_fail(err, ...)`. Newlines in the text become spaces.
 * An err that is NULL is fine. */
int ts_fail(ts_error *err, int code, const char *fmt, ...) TS_PRINTF(3, 4);
int ts_fail_at(ts_error *err, int code, int64_t position, const char *fmt, ...) TS_PRINTF(4, 5);
/* Appends ": " and the text of errno as it is on entry. */
int ts_fail_errno(ts_error *err, int code, const char *fmt, ...) TS_PRINTF(3, 4);
int ts_fail_nomem(ts_error *err, const char *what, size_t bytes);

/* Puts text before the message already there: "capture: " + message. */
void ts_error_prefix(ts_error *err, const char *fmt, ...) TS_PRINTF(2, 3);

/* Option structs (public header): size at least `minimum`, known up to `known`, unknown tail all zero. */
int ts_options_check(const void *opts, size_t known, const char *what, ts_error *err);

#endif
