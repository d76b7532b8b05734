/* Prompt lists: text (one a line, "\n" "\t" "\\" escapes) or JSON Lines (prompt | messages | token_ids, optional
 * label). Streams; refuses NUL, invalid UTF-8, unreadable lines, naming line and column. */
#ifndef TS_STORE_PROMPTS_H
#define TS_STORE_PROMPTS_H

#include "core/error.h"

typedef struct ts_prompts ts_prompts;

typedef struct ts_prompt {
    int64_t line;              /* 1-based */
    char *text;                /* NULL when messages or token_ids */
    size_t text_length;
    ts_chat_message *messages; /* [n_messages] */
    size_t n_messages;
    int32_t *token_ids;        /* [n_token_ids] */
    size_t n_token_ids;
    char *label;               /* nullable */
} ts_prompt;

/* JSON Lines when the name ends in .jsonl or .json-lines, else text. `column` NULL = "prompt". "-" is not a
 * file. TS_ERR_IO, TS_ERR_FORMAT. */
int ts_prompts_open(const char *path, const char *column, ts_prompts **out, ts_error *err);
/* Next non-empty prompt; *got false at the end. The prompt's memory is valid until the next call. Empty are: an empty
 * line, a blank one in JSON Lines, and an empty prompt, messages or token_ids. A label that is a whole number is
 * given as its digits; keys with the value null count as absent. */
int ts_prompts_next(ts_prompts *p, const ts_prompt **out, bool *got, ts_error *err);
int64_t ts_prompts_skipped(const ts_prompts *p); /* empty lines so far */
int ts_prompts_rewind(ts_prompts *p, ts_error *err);
void ts_prompts_close(ts_prompts *p);

/* A JSON array of {"role","content"} as one file (run --messages-file); memory in *out freed by
 * ts_messages_free. TS_ERR_FORMAT with line and column, or the message's index. */
int ts_messages_read(const char *path, ts_prompt **out, ts_error *err);
void ts_messages_free(ts_prompt *messages);

#endif
