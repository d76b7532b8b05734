/* Censuses for the end-to-end tests: made by ts_census_run, read back as plain JSON, checked to add up, compared. */
#ifndef TS_COUNTED_H
#define TS_COUNTED_H

#include "e2e.h"

#include <jansson.h>

/* A census' files as bytes: .json, .detail, .meta, .trace (NULL where there is none). */
enum { COUNTED_JSON, COUNTED_DETAIL, COUNTED_META, COUNTED_TRACE, COUNTED_FILES };
typedef struct counted_files {
    char *bytes[COUNTED_FILES];
    size_t n[COUNTED_FILES];
} counted_files;

/* `path` is PATH.json. */
void counted_slurp(const char *path, counted_files *out);
void counted_assert_same(const counted_files *a, const counted_files *b);
void counted_free(counted_files *f);

/* One census in a session of its own over `so`. Returns ts_census_run's code. */
int counted_run(const ts_session_options *so, const ts_census_options *co, ts_census_result *result, ts_error *err);
/* The same, which must succeed, to `name` in the temporary folder, replacing what is there. Returns its parsed .json,
 * checked by counted_check; the caller drops it. */
json_t *counted_make(const ts_session_options *so, ts_census_options co, const char *name, ts_census_result *result);

/* For each block: counts add up to passes x width, masses are as many as its width, hits at most pairs x K. And the
 * pass counts. */
void counted_check(const json_t *census, int64_t decode, int64_t prefill, int64_t pairs);
int64_t counted_int(const json_t *census, const char *key);
/* Width of a block, 0 where nothing was counted; its count in one bucket. */
size_t counted_width(const json_t *census, size_t block);
int64_t counted_bucket(const json_t *census, size_t block, size_t bucket);
/* The largest difference of a block's masses, Euclidean, relative to those of `b`. */
double counted_error(const json_t *a, const json_t *b);

#endif
