/* A pull reader for the census' JSON: constant memory for files of any size, and the first fault,
 * with its byte, sticks: after it every call returns nothing and the caller may go on to the end.
 */
#ifndef TS_STORE_CENSUS_SCAN_H
#define TS_STORE_CENSUS_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"

#define TS_SCAN_MAX_COUNT (UINT64_C(1) << 60)
#define TS_SCAN_MAX_AMOUNT 1e60

typedef struct ts_scan ts_scan;

/* `path` and `err` must outlive the scan. The calling thread has the C locale until it is closed.
 */
int ts_scan_open(const char *path, ts_scan **out, ts_error *err);
/* Frees; returns the first fault's code, or TS_OK. NULL is fine. */
int ts_scan_close(ts_scan *s);
bool ts_scan_failed(const ts_scan *s);
/* Notes a fault of the caller's finding at the present place; returns false. */
bool ts_scan_fail(ts_scan *s, const char *fmt, ...) TS_PRINTF(2, 3);

/* Consumes '{' or '['. */
bool ts_scan_enter(ts_scan *s, char open);
/* In an array: is there another element? Where not, its end is consumed. */
bool ts_scan_more(ts_scan *s);
/* In an object: the next member's key; false at its end, which is consumed. */
bool ts_scan_key(ts_scan *s, char *key, size_t size);
/* In an object: the number of the next member among `names` [n <= 32], others passed over; its bit is set in *seen. -1 at the end,
 * which is consumed, and after a fault; a name that comes again is one. */
int ts_scan_member(ts_scan *s, const char *const *names, int n, unsigned *seen);
/* A whole number from 0 to TS_SCAN_MAX_COUNT; 0 after a fault. */
uint64_t ts_scan_count(ts_scan *s, uint64_t max);
/* A number from 0 to TS_SCAN_MAX_AMOUNT; 0 after a fault. */
double ts_scan_amount(ts_scan *s);
/* A string of less than `size` bytes. */
bool ts_scan_text(ts_scan *s, char *text, size_t size);
/* Consumes null, if that is next. */
bool ts_scan_null(ts_scan *s);
void ts_scan_skip(ts_scan *s); /* any value */
void ts_scan_end(ts_scan *s);  /* nothing but white space may follow */

#endif
