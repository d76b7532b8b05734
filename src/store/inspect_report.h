/* The two faces of a report: aligned lines under 80 columns, or one JSON object with the same
 * facts. */
#ifndef TS_STORE_INSPECT_REPORT_H
#define TS_STORE_INSPECT_REPORT_H

#include <jansson.h>

#include "core/buf.h"

typedef struct ts_report {
    ts_buf b;
    bool json;
    bool begun; /* the JSON object has a member */
} ts_report;

/* Text: "<title> '<path>'"; JSON: members kind and path. */
void ts_report_begin(ts_report *r, const char *kind, const char *title, const char *path);
/* A member; in text a line with the key's underscores as spaces, control characters shown as '?'
 * and the end cut where 79 columns are full. */
void ts_report_text(ts_report *r, const char *key, const char *fmt, ...) TS_PRINTF(3, 4);
void ts_report_int(ts_report *r, const char *key, int64_t value);
/* JSON only: a member whose value is JSON already. */
void ts_report_value(ts_report *r, const char *key, const json_t *value);
/* Text only. */
void ts_report_line(ts_report *r, const char *fmt, ...) TS_PRINTF(2, 3);
/* A table: JSON "key": [ {..}, .. ]; in text its heading. Rows are added by the caller to r->b, in
 * JSON each after ts_report_row. */
void ts_report_table(ts_report *r, const char *key, const char *heading);
void ts_report_row(ts_report *r, bool first);
void ts_report_table_end(ts_report *r);
void ts_report_end(ts_report *r);

#endif
