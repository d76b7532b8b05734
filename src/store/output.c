/* Reports that replace an earlier one unasked. Refuses to replace a result of another kind, or what is no JSON. */
#include <sys/stat.h>

#include "core/file.h"
#include "store/inspect_sniff.h"
#include "turbospark/turbospark.h"

static int keep_results(const char *path, ts_error *err) {
    enum ts_file_sort sort;
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        return TS_OK;
    int rc = ts_sniff(path, &sort, err);
    if (rc != TS_OK || sort == TS_SORT_UNKNOWN || sort == TS_SORT_JSON || sort == TS_SORT_REPORT)
        return rc;
    return ts_fail(err, TS_ERR_ARG, "'%s' exists and is %s: it is not replaced", path, ts_sort_name(sort));
}

TS_API int ts_output_check(const char *path, ts_error *err) {
    int rc = path ? ts_file_check_target(path, err) : ts_fail(err, TS_ERR_ARG, "an output path is needed");
    if (rc == TS_OK)
        rc = ts_file_keep_other(path, err);
    return rc == TS_OK ? keep_results(path, err) : rc;
}

TS_API int ts_output_write(const char *path, const void *bytes, size_t length, ts_error *err) {
    int rc = ts_output_check(path, err);
    return rc == TS_OK ? ts_file_put(path, bytes, length, err) : rc;
}
