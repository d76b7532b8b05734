/* Owns the JSON forms of a prompt: {"prompt"}, {"messages"}, {"token_ids"}, and a bare array of
 * messages. Refuses a line with none or several of them, wrong types, NUL characters and duplicate
 * keys. */
#include "store/prompts_json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/mem.h"
#include "core/utf8.h"

enum { MESSAGES_MAX_BYTES = 256 << 20 };

static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

int ts_prompt_check_text(const char *path, int64_t line, const char *bytes, size_t n,
                         ts_error *err) {
    const char *nul = memchr(bytes, 0, n);
    size_t end = nul ? (size_t)(nul - bytes) : n, bad = ts_utf8_valid(bytes, end);
    long long column = 1;

    if (bad == n)
        return TS_OK;
    for (size_t i = 0; i < bad; i++)
        column += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    if (bad == end)
        return ts_fail_at(err, TS_ERR_FORMAT, line, "%s:%lld:%lld: expected text, got a NUL byte",
                          path, (long long)line, column);
    return ts_fail_at(err, TS_ERR_FORMAT, line, "%s:%lld:%lld: expected UTF-8, got byte 0x%02x",
                      path, (long long)line, column, (unsigned char)bytes[bad]);
}

static json_t *load(const char *path, int64_t line, const char *json, size_t n, ts_error *err) {
    json_error_t e;
    json_t *root;
    const char *why = e.text;
    enum json_error_code code;

    errno = 0;
    root = json_loadb(json, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (root)
        return root;
    code = json_error_code(&e);
    /* jansson calls some failed allocations an invalid token, but malloc leaves its mark */
    if (code == json_error_out_of_memory || errno == ENOMEM || !*e.text) {
        ts_fail_nomem(err, path, n);
        return NULL;
    }
    if (code == json_error_null_character || code == json_error_null_byte_in_key)
        why = "a NUL character (\\u0000) in a string";
    ts_fail_at(err, TS_ERR_FORMAT, line + e.line - 1, "%s:%lld:%d: %s", path,
               (long long)line + e.line - 1, e.column > 0 ? e.column : 1, why);
    return NULL;
}

static const char *string_of(const json_t *object, const char *key, const char *where,
                             ts_error *err) {
    const json_t *value = json_object_get(object, key);

    if (!json_is_string(value))
        ts_fail(err, TS_ERR_FORMAT, "%s: expected a string '%s', got %s", where, key,
                value ? type_name(value) : "none");
    return json_string_value(value);
}

static int read_message(const json_t *value, size_t index, ts_chat_message *out, ts_error *err) {
    char where[40];

    snprintf(where, sizeof where, "messages[%zu]", index);
    if (!json_is_object(value))
        return ts_fail(err, TS_ERR_FORMAT, "%s: expected an object, got %s", where,
                       type_name(value));
    out->role = string_of(value, "role", where, err);
    if (!out->role)
        return TS_ERR_FORMAT;
    if (!*out->role)
        return ts_fail(err, TS_ERR_FORMAT, "%s: expected a role, got ''", where);
    out->content = string_of(value, "content", where, err);
    return out->content ? TS_OK : TS_ERR_FORMAT;
}

static int read_messages(const json_t *array, ts_prompt *out, ts_error *err) {
    size_t n = json_array_size(array);
    int rc = TS_OK;

    if (!json_is_array(array))
        return ts_fail(err, TS_ERR_FORMAT, "expected an array of messages, got %s",
                       type_name(array));
    if (n == 0)
        return TS_OK;
    out->messages = ts_calloc(n, sizeof *out->messages);
    if (!out->messages)
        return ts_fail_nomem(err, "messages", n * sizeof *out->messages);
    out->n_messages = n;
    for (size_t i = 0; !rc && i < n; i++)
        rc = read_message(json_array_get(array, i), i, &out->messages[i], err);
    return rc;
}

static int read_token_ids(const json_t *array, ts_prompt *out, ts_error *err) {
    size_t n = json_array_size(array);

    if (!json_is_array(array))
        return ts_fail(err, TS_ERR_FORMAT, "expected an array 'token_ids', got %s",
                       type_name(array));
    if (n == 0)
        return TS_OK;
    out->token_ids = ts_calloc(n, sizeof *out->token_ids);
    if (!out->token_ids)
        return ts_fail_nomem(err, "token ids", n * sizeof *out->token_ids);
    out->n_token_ids = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(array, i);
        json_int_t id = json_integer_value(value);

        if (!json_is_integer(value))
            return ts_fail(err, TS_ERR_FORMAT, "token_ids[%zu]: expected a whole number, got %s", i,
                           type_name(value));
        if (id < 0 || id > INT32_MAX)
            return ts_fail(err, TS_ERR_FORMAT,
                           "token_ids[%zu]: expected a token id from 0, got %lld", i,
                           (long long)id);
        out->token_ids[i] = (int32_t)id;
    }
    return TS_OK;
}

static int read_text(const json_t *value, const char *column, ts_prompt *out, ts_error *err) {
    if (!json_is_string(value))
        return ts_fail(err, TS_ERR_FORMAT, "expected a string '%s', got %s", column,
                       type_name(value));
    if (json_string_length(value) == 0)
        return TS_OK;
    out->text = (char *)(uintptr_t)json_string_value(value);
    out->text_length = json_string_length(value);
    return TS_OK;
}

static int read_label(const json_t *value, ts_json_prompt *out, ts_error *err) {
    if (!value || json_is_null(value))
        return TS_OK;
    if (json_is_integer(value)) {
        snprintf(out->label, sizeof out->label, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        out->prompt.label = out->label;
        return TS_OK;
    }
    if (!json_is_string(value))
        return ts_fail(err, TS_ERR_FORMAT, "expected a string 'label', got %s", type_name(value));
    out->prompt.label = (char *)(uintptr_t)json_string_value(value);
    return TS_OK;
}

/* A key whose value is null is as good as absent: exported tables fill unused columns so. */
static json_t *get(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

static int read_object(const char *column, ts_json_prompt *out, ts_error *err) {
    const json_t *text, *messages, *token_ids;
    int n, rc;

    if (!json_is_object(out->root))
        return ts_fail(err, TS_ERR_FORMAT, "expected an object, got %s", type_name(out->root));
    text = get(out->root, column);
    messages = get(out->root, "messages");
    token_ids = get(out->root, "token_ids");
    n = !!text + !!messages + !!token_ids;
    if (n != 1)
        return ts_fail(err, TS_ERR_FORMAT,
                       "expected one of '%s', 'messages' and 'token_ids', got %s", column,
                       n ? "several" : "none");
    if (text)
        rc = read_text(text, column, &out->prompt, err);
    else if (messages)
        rc = read_messages(messages, &out->prompt, err);
    else
        rc = read_token_ids(token_ids, &out->prompt, err);
    return rc ? rc : read_label(json_object_get(out->root, "label"), out, err);
}

/* Names the place of an error that jansson did not find. */
static int at(const char *path, int64_t line, int rc, ts_error *err) {
    if (rc != TS_ERR_FORMAT)
        return rc;
    ts_error_prefix(err, "%s:%lld: ", path, (long long)line);
    if (err)
        err->position = line;
    return rc;
}

/* The code of a failed load, which only the error knows. */
static int load_failed(const ts_error *e, ts_error *err) {
    if (err)
        *err = *e;
    return e->code;
}

bool ts_json_prompt_reserved(const char *column) {
    return strcmp(column, "messages") == 0 || strcmp(column, "token_ids") == 0;
}

int ts_json_prompt_read(const char *path, int64_t line, const char *json, size_t n,
                        const char *column, ts_json_prompt *out, ts_error *err) {
    ts_error e;

    *out = (ts_json_prompt){.prompt.line = line};
    out->root = load(path, line, json, n, &e);
    if (!out->root)
        return load_failed(&e, err);
    return at(path, line, read_object(column, out, err), err);
}

void ts_json_prompt_clear(ts_json_prompt *p) {
    ts_free(p->prompt.messages);
    ts_free(p->prompt.token_ids);
    json_decref(p->root);
    *p = (ts_json_prompt){0};
}

/* NUL and UTF-8 of a whole file, with the line they are in. */
static int check_lines(const char *path, const char *bytes, size_t n, ts_error *err) {
    int64_t line = 1;

    for (size_t i = 0; i < n; line++) {
        const char *nl = memchr(bytes + i, '\n', n - i);
        size_t length = nl ? (size_t)(nl - bytes) - i : n - i;
        int rc = ts_prompt_check_text(path, line, bytes + i, length, err);

        if (rc)
            return rc;
        i += length + 1;
    }
    return TS_OK;
}

static int read_array(const char *path, const char *bytes, size_t n, ts_json_prompt *out,
                      ts_error *err) {
    ts_error e;
    int rc = check_lines(path, bytes, n, err);

    if (rc)
        return rc;
    out->root = load(path, 1, bytes, n, &e);
    if (!out->root)
        return load_failed(&e, err);
    rc = read_messages(out->root, &out->prompt, err);
    if (!rc && out->prompt.n_messages == 0)
        rc = ts_fail(err, TS_ERR_FORMAT, "expected at least one message, got an empty array");
    if (rc == TS_ERR_FORMAT)
        ts_error_prefix(err, "%s: ", path);
    return rc;
}

int ts_messages_read(const char *path, ts_prompt **out, ts_error *err) {
    ts_json_prompt *p = NULL;
    char *bytes;
    size_t n, bom;
    int rc;

    *out = NULL;
    rc = ts_file_get(path, MESSAGES_MAX_BYTES, &bytes, &n, err);
    if (rc)
        return rc;
    bom = n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    p = ts_calloc(1, sizeof *p);
    rc = p ? read_array(path, bytes + bom, n - bom, p, err)
           : ts_fail_nomem(err, "messages", sizeof *p);
    ts_free(bytes);
    if (rc) {
        ts_messages_free(p ? &p->prompt : NULL);
        return rc;
    }
    p->prompt.line = 1;
    *out = &p->prompt;
    return TS_OK;
}

void ts_messages_free(ts_prompt *messages) {
    ts_json_prompt *p = (ts_json_prompt *)messages;

    if (!p)
        return;
    ts_json_prompt_clear(p);
    ts_free(p);
}
