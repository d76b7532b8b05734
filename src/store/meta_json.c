/* Owns the wording of JSON errors. Refuses duplicate keys, numbers out of range and wrong types. */
#include "store/meta_json.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/file.h"

static const char *json_kind(const json_t *v) {
    if (v == NULL)
        return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

int ts_json_parse(const char *text, size_t n, json_t **out, ts_error *err) {
    json_error_t e;
    json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    *out = NULL;
    if (v == NULL) {
        /* jansson quotes the text it stumbled on: no control characters of a hostile file get out
         */
        for (char *c = e.text; *c; c++)
            if ((unsigned char)*c < 0x20 || *c == 0x7f)
                *c = '?';
        return ts_fail_at(err, TS_ERR_FORMAT, e.position, "not valid JSON: line %d column %d: %s",
                          e.line, e.column, e.text);
    }
    if (!json_is_object(v)) {
        int rc = ts_fail(err, TS_ERR_FORMAT, "expected a JSON object, got %s", json_kind(v));
        json_decref(v);
        return rc;
    }
    *out = v;
    return TS_OK;
}

int ts_json_file(const char *path, json_t **out, ts_error *err) {
    char *text = NULL;
    size_t n = 0;
    *out = NULL;
    int rc = ts_file_get(path, TS_JSON_MAX_BYTES, &text, &n, err);
    if (rc < 0)
        return rc;
    rc = ts_json_parse(text, n, out, err);
    if (rc < 0)
        ts_error_prefix(err, "'%s': ", path);
    ts_free(text);
    return rc;
}

static int int_in_range(const json_t *v, int64_t min, int64_t max, int64_t *out, ts_error *err) {
    if (!json_is_integer(v))
        return ts_fail(err, TS_ERR_FORMAT, "expected an integer, got %s", json_kind(v));
    int64_t n = json_integer_value(v);
    if (n != min && min == max)
        return ts_fail(err, TS_ERR_FORMAT, "expected %" PRId64 ", got %" PRId64, min, n);
    if (n < min || n > max)
        return ts_fail(err, TS_ERR_FORMAT, "expected %" PRId64 " to %" PRId64 ", got %" PRId64, min,
                       max, n);
    *out = n;
    return TS_OK;
}

int ts_json_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out,
                ts_error *err) {
    int rc = int_in_range(json_object_get(object, key), min, max, out, err);
    if (rc < 0)
        ts_error_prefix(err, "'%s': ", key);
    return rc;
}

int ts_json_text(const json_t *object, const char *key, const char **out, ts_error *err) {
    const json_t *v = json_object_get(object, key);
    if (!json_is_string(v))
        return ts_fail(err, TS_ERR_FORMAT, "'%s': expected a string, got %s", key, json_kind(v));
    *out = json_string_value(v);
    return TS_OK;
}

int ts_json_array(const json_t *object, const char *key, size_t n, json_t **out, ts_error *err) {
    json_t *v = json_object_get(object, key);
    if (!json_is_array(v))
        return ts_fail(err, TS_ERR_FORMAT, "'%s': expected an array, got %s", key, json_kind(v));
    if (json_array_size(v) != n)
        return ts_fail(err, TS_ERR_FORMAT, "'%s': expected %zu elements, got %zu", key, n,
                       json_array_size(v));
    *out = v;
    return TS_OK;
}

int ts_json_element(const json_t *array, const char *key, size_t i, int64_t min, int64_t max,
                    int64_t *out, ts_error *err) {
    int rc = int_in_range(json_array_get(array, i), min, max, out, err);
    if (rc < 0)
        ts_error_prefix(err, "'%s' element %zu: ", key, i);
    return rc;
}
