/* Reports on unfinished captures. Refuses a damaged state, and rows shorter than it says are
 * durable. */
#include "store/inspect_internal.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/mem.h"
#include "store/meta_json.h"

#define STATE_END ".state"

/* The file beside the state whose name replaces ".state" by `suffix` holds at least `expected`
 * bytes. */
static int check_part(const char *state, const char *suffix, int64_t expected, ts_error *err) {
    size_t n = strlen(state) - (sizeof STATE_END - 1), m = strlen(suffix) + 1;
    uint64_t size;
    int fd;
    char *path = ts_malloc(n + m);
    if (path == NULL)
        return ts_fail_nomem(err, "a path", n + m);
    memcpy(path, state, n);
    memcpy(path + n, suffix, m);
    int rc = ts_file_open_read(path, &fd, &size, err);
    if (rc == TS_OK) {
        close(fd);
        if (size < (uint64_t)expected)
            rc = ts_fail(err, TS_ERR_FORMAT,
                         "'%s': expected at least %" PRId64 " bytes, found %" PRIu64, path,
                         expected, size);
    }
    ts_free(path);
    return rc;
}

static int check_files(const char *path, const json_t *v, bool *finishing, ts_error *err) {
    int64_t row_bytes, gen_bytes, final_bytes;
    size_t n = strlen(path), end = sizeof STATE_END - 1;
    int rc = ts_json_int(v, "row_bytes", 0, INT64_MAX, &row_bytes, err);
    if (rc == TS_OK)
        rc = ts_json_int(v, "gen_bytes", 0, INT64_MAX, &gen_bytes, err);
    if (rc == TS_OK)
        rc = ts_json_int(v, "finishing", 0, INT64_MAX, &final_bytes, err);
    if (rc < 0) {
        ts_error_prefix(err, "'%s': ", path);
        return rc;
    }
    *finishing = final_bytes > 0;
    if (*finishing || n <= end || strcmp(path + n - end, STATE_END) != 0)
        return TS_OK; /* its rows may bear their final name already, or the state was moved */
    rc = check_part(path, "", row_bytes, err);
    return rc == TS_OK ? check_part(path, ".gen", gen_bytes, err) : rc;
}

int ts_inspect_partial(const char *path, ts_report *r, ts_error *err) {
    static const char *const counts[] = {"layers",       "hidden",  "rows",
                                         "prompts_done", "batches", "tokens"};
    json_t *v;
    bool finishing = false;
    int rc = ts_json_file(path, &v, err);
    if (rc < 0)
        return rc;
    rc = check_files(path, v, &finishing, err);
    if (rc == TS_OK) {
        const char *format = json_string_value(json_object_get(v, "format"));
        const char *plan = json_string_value(json_object_get(v, "plan"));
        ts_report_begin(r, "partial", "unfinished capture", path);
        ts_report_text(r, "format", "%s", format ? format : "?");
        ts_report_text(r, "plan", "%s", plan ? plan : "?");
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            ts_report_int(r, counts[i], json_integer_value(json_object_get(v, counts[i])));
        ts_report_text(r, "stage", "%s", finishing ? "its result was being written" : "capturing");
        ts_report_line(r, "  the same command with --resume goes on from here");
        ts_report_end(r);
    }
    json_decref(v);
    return rc;
}
