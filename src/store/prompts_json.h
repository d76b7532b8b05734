/* One prompt out of one JSON text: what prompts.c asks for each line of a JSON Lines list. */
#ifndef TS_STORE_PROMPTS_JSON_H
#define TS_STORE_PROMPTS_JSON_H

#include <jansson.h>

#include "store/prompts.h"

typedef struct ts_json_prompt {
    ts_prompt prompt; /* strings belong to root, arrays are owned; first, so that ts_messages_free
                         finds the rest */
    json_t *root;
    char label[24]; /* of a label that is a number */
} ts_json_prompt;

/* The column names that cannot be the text's: they mean something else. */
bool ts_json_prompt_reserved(const char *column);
/* Fills *out (zeroed before) from an object; nothing set in it when it holds an empty prompt.
 * `line` counts in `path` and is the error's position. Clear it also after a failure. */
int ts_json_prompt_read(const char *path, int64_t line, const char *json, size_t n,
                        const char *column, ts_json_prompt *out, ts_error *err);
void ts_json_prompt_clear(ts_json_prompt *p);

/* Line and column of the first NUL or invalid UTF-8 byte: TS_ERR_FORMAT. Columns count characters
 * from 1. */
int ts_prompt_check_text(const char *path, int64_t line, const char *bytes, size_t n,
                         ts_error *err);

#endif
