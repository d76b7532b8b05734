/* Where a result is to be put: the real file behind a name, and its folder. For core's own writers.
 */
#ifndef TS_CORE_TARGET_H
#define TS_CORE_TARGET_H

#include <sys/stat.h>

#include "core/error.h"

/* The path a rename has to replace: links followed to the file they name. TS_ERR_IO as
 * ts_file_check_target. The caller frees *out. */
int ts_target_resolve(const char *path, char **out, ts_error *err);
/* Makes a new name in the folder of `path` durable. File systems that cannot do so are let pass. */
int ts_target_sync_folder(const char *path, ts_error *err);
/* What the i-th file of a result at PATH adds to PATH or, `*beside`, to PATH without its extension; "" for the first, NULL past
 * the last. */
const char *ts_result_suffix(size_t i, bool *beside);
const char *ts_file_kind(const struct stat *st); /* "a folder", "a FIFO", ... */

#endif
