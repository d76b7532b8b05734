/* jansson with our error wording, for every JSON file this room reads. A message names the key,
 * what was expected and what was found; the caller puts the file's name in front. Refuses duplicate
 * keys. */
#ifndef TS_STORE_META_JSON_H
#define TS_STORE_META_JSON_H

#include <jansson.h>

#include "core/error.h"

/* The longest JSON text that is read whole; jansson needs up to twenty times as much memory. */
#define TS_JSON_MAX_BYTES ((size_t)32 << 20)

/* `text` is one JSON object. TS_ERR_FORMAT with line and column, `position` the byte offset. */
int ts_json_parse(const char *text, size_t n, json_t **out, ts_error *err);
/* A whole file, at most TS_JSON_MAX_BYTES; the message starts with the path. */
int ts_json_file(const char *path, json_t **out, ts_error *err);

/* An integer member within [min, max]. */
int ts_json_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out,
                ts_error *err);
/* A string member; valid as long as `object`. */
int ts_json_text(const json_t *object, const char *key, const char **out, ts_error *err);
/* An array member of exactly `n` elements. */
int ts_json_array(const json_t *object, const char *key, size_t n, json_t **out, ts_error *err);
/* Element `i` of an array as an integer within [min, max]. */
int ts_json_element(const json_t *array, const char *key, size_t i, int64_t min, int64_t max,
                    int64_t *out, ts_error *err);

#endif
