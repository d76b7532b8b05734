/* Prompt files for one generation: raw text, or chat messages as JSON. Refuses NUL and invalid UTF-8. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "store/prompts.h"

#define MAX_TEXT_BYTES ((size_t)64 << 20)

int ts_text_file_read(const char *path, char **text, size_t *length, ts_error *err) {
    int rc = ts_file_get(path, MAX_TEXT_BYTES, text, length, err);
    if (rc != TS_OK) return rc;
    const char *nul = memchr(*text, '\0', *length);
    size_t valid = ts_utf8_valid(*text, *length);
    if (nul) rc = ts_fail_at(err, TS_ERR_FORMAT, nul - *text, "'%s' has a NUL byte at offset %td", path, nul - *text);
    else if (valid != *length) rc = ts_fail_at(err, TS_ERR_FORMAT, (int64_t)valid, "'%s' is not valid UTF-8 at offset %zu", path, valid);
    if (rc == TS_OK) return TS_OK;
    free(*text);
    *text = NULL;
    *length = 0;
    return rc;
}

/* Copies `from` to *at with its NUL, advances *at. */
static const char *put(char **at, const char *from) {
    size_t n = strlen(from) + 1;
    char *to = memcpy(*at, from, n);
    *at += n;
    return to;
}

int ts_chat_messages_read(const char *path, ts_chat_message **messages, size_t *n, ts_error *err) {
    ts_prompt *list = NULL;
    *messages = NULL;
    *n = 0;
    int rc = ts_messages_read(path, &list, err);
    if (rc != TS_OK) return rc;
    size_t bytes = list->n_messages * sizeof(**messages);
    for (size_t i = 0; i < list->n_messages; i++)
        bytes += strlen(list->messages[i].role) + strlen(list->messages[i].content) + 2;
    ts_chat_message *out = ts_malloc(bytes); /* the array, then its strings: one allocation */
    if (!out) rc = ts_fail_nomem(err, "messages", bytes);
    char *at = out ? (char *)(out + list->n_messages) : NULL;
    for (size_t i = 0; out && i < list->n_messages; i++)
        out[i] = (ts_chat_message){put(&at, list->messages[i].role), put(&at, list->messages[i].content)};
    *n = out ? list->n_messages : 0;
    *messages = out;
    ts_messages_free(list);
    return rc;
}
