/* Tells a finished result of a plan from a partial or foreign one, by the plan hash its meta data records. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/mem.h"
#include "store/meta.h"
#include "store/resid_out.h"

int ts_resid_out_keep_unfinished(const ts_resid_spec *spec, ts_error *err) {
    char *state = ts_path_append(spec->path, ".part.state"), quoted[80];
    int rc = TS_OK;
    if (!state) return ts_fail_nomem(err, "a path", strlen(spec->path));
    snprintf(quoted, sizeof(quoted), "\"%s\"", spec->plan_hash);
    if (ts_file_exists(state) && !ts_meta_says(state, quoted))
        rc = ts_fail(err, TS_ERR_ARG, "'%s' is left of an unfinished capture: finish that with 'capture --resume', or remove it", state);
    free(state);
    return rc;
}

bool ts_resid_out_complete(const ts_resid_spec *spec) {
    bool pair = spec->format == TS_CAPTURE_F32;
    char *head = pair ? ts_path_with_extension(spec->path, "meta") : ts_strdup(spec->path), *state = ts_path_append(spec->path, ".part.state");
    bool complete = head && state && ts_file_exists(spec->path) && !ts_file_exists(state) && ts_meta_complete(head, spec->plan_hash);
    free(head);
    free(state);
    return complete;
}
