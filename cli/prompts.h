/* How the prompts of a file are read: the options that every command walking such a file has. Where the file comes from is
 * the command's own. */
#ifndef TS_CLI_PROMPTS_H
#define TS_CLI_PROMPTS_H

#include <stdbool.h>

#include "options.h"

typedef struct cli_prompts {
    const char *column; /* NULL = not given, the library's default */
    const char *chat_template;
    bool chat, special;
} cli_prompts;

/* Rows of an option table. */
#define CLI_PROMPT_OPTIONS(p)                                                                                          \
    OPTION(NULL, "column", "NAME", CLI_TEXT, &(p)->column, "JSON Lines: the field that holds the text (default: prompt)"), \
        OPTION(NULL, "chat", NULL, CLI_FLAG, &(p)->chat,                                                               \
               "wrap each plain prompt as one user message in the model's chat template"),                             \
        OPTION(NULL, "chat-template", "NAME", CLI_TEXT, &(p)->chat_template,                                           \
               "use this template of llama.cpp's instead of the model's"),                                             \
        OPTION(NULL, "special", NULL, CLI_FLAG, &(p)->special,                                                         \
               "text such as <|im_start|> in prompts and messages is the control token")

/* The same fields of a library's options struct. */
#define CLI_PROMPTS_INTO(p, o)                                                                                         \
    ((o)->column = (p)->column, (o)->chat_template = (p)->chat_template, (o)->chat = (p)->chat, (o)->special = (p)->special)

#endif
