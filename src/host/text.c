/* Text in and out of a model: tokens, pieces, chat templates. Refuses NUL and invalid UTF-8, and never falls
 * back to a template the model did not name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "host/session.h"
#include "host/vocab.h"

static int check_text(const char *text, size_t length, ts_error *err) {
    const char *nul = memchr(text, '\0', length);
    if (nul) return ts_fail_at(err, TS_ERR_FORMAT, nul - text, "the prompt has a NUL byte at offset %td", nul - text);
    size_t valid = ts_utf8_valid(text, length);
    if (valid != length) return ts_fail_at(err, TS_ERR_FORMAT, (int64_t)valid, "the prompt is not valid UTF-8 at offset %zu", valid);
    if (length > INT32_MAX / 2) return ts_fail(err, TS_ERR_ARG, "the prompt has %zu bytes: too long", length);
    return TS_OK;
}

/* Template and tokenizer both wrote a BOS: drop ours from a rendered chat, keep and say so elsewhere. */
static void check_double_bos(ts_session *s, unsigned flags, int32_t *tokens, size_t *n) {
    llama_token bos = llama_vocab_bos(s->model->vocab);
    if (bos == LLAMA_TOKEN_NULL || *n < 2 || tokens[0] != bos || tokens[1] != bos) return;
    bool drop = (flags & TS_TOKENIZE_SPECIAL) && s->chat_template[0];
    if (!s->warned_bos)
        ts_log(TS_LOG_WARN, "the prompt begins with two BOS tokens (%d)%s", bos,
               drop ? ": the template wrote one, the second is dropped" : ": text and tokenizer both add one");
    s->warned_bos = true;
    if (drop) memmove(tokens, tokens + 1, --*n * sizeof(*tokens));
}

int ts_session_tokenize(const ts_session *s, const char *text, size_t length, unsigned flags, int32_t **tokens, size_t *n,
                        ts_error *err) {
    *tokens = NULL;
    *n = 0;
    int rc = check_text(text, length, err);
    if (rc != TS_OK) return rc;
    bool add = !(flags & TS_TOKENIZE_NO_BOS), special = flags & TS_TOKENIZE_SPECIAL;
    rc = ts_vocab_check_text(s->model, text, length, add, err);
    if (rc != TS_OK) return rc;
    int32_t room = (int32_t)length + 8;
    for (int attempt = 0; attempt < 2; attempt++) {
        int32_t *grown = ts_realloc(*tokens, (size_t)room, sizeof(**tokens));
        if (!grown) {
            rc = ts_fail_nomem(err, "tokens", (size_t)room * sizeof(**tokens));
            break;
        }
        *tokens = grown;
        int32_t got = llama_tokenize(s->model->vocab, text, (int32_t)length, *tokens, room, add, special);
        if (got >= 0) {
            *n = (size_t)got;
            check_double_bos((ts_session *)s, flags, *tokens, n);
            return TS_OK;
        }
        if (got == INT32_MIN) break;
        room = -got;
    }
    free(*tokens);
    *tokens = NULL;
    return rc != TS_OK ? rc : ts_fail(err, TS_ERR_ENGINE, "llama.cpp cannot tokenize the prompt of %zu bytes", length);
}

int ts_session_piece(const ts_session *s, int32_t token, char *buf, size_t size, ts_error *err) {
    if (token < 0 || token >= llama_vocab_n_tokens(s->model->vocab))
        return ts_fail(err, TS_ERR_ARG, "token %d: the vocabulary has %d", token, llama_vocab_n_tokens(s->model->vocab));
    int32_t n = llama_token_to_piece(s->model->vocab, token, buf, size > INT32_MAX ? INT32_MAX : (int32_t)size, 0, true);
    if (n < 0 || (size_t)n >= size) return ts_fail(err, TS_ERR_ARG, "token %d: its text needs more than %zu bytes", token, size);
    buf[n] = '\0';
    return n;
}

static const char *template_text(const ts_session *s, const char *name, ts_error *err) {
    if (name) {
        const char *known[128];
        int32_t n = llama_chat_builtin_templates(known, sizeof(known) / sizeof(known[0]));
        for (int32_t i = 0; i < n && i < 128; i++)
            if (strcmp(known[i], name) == 0) return known[i];
        ts_fail(err, TS_ERR_ARG, "llama.cpp has no built-in chat template '%s'", name);
        return NULL;
    }
    const char *own = llama_model_chat_template(s->model->llama, NULL);
    if (!own) ts_fail(err, TS_ERR_UNSUPPORTED, "the model has no chat template: name one of llama.cpp's with --chat-template");
    return own;
}

/* The first line of a template, for messages and meta data. */
static void template_label(const char *name, const char *text, char *out, size_t size) {
    if (name) {
        snprintf(out, size, "%s", name);
        return;
    }
    snprintf(out, size, "model: %.60s", text);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    out[ts_utf8_complete(out, strlen(out))] = '\0';
}

int ts_session_chat(const ts_session *s, const ts_chat_message *messages, size_t n, const char *template_name, char **text,
                    ts_error *err) {
    *text = NULL;
    ts_error local = {0};
    if (!err) err = &local;
    if (n == 0) return ts_fail(err, TS_ERR_ARG, "the chat has no message");
    const char *tmpl = template_text(s, template_name, err);
    if (!tmpl) return err->code;
    char label[128];
    template_label(template_name, tmpl, label, sizeof(label));
    struct llama_chat_message *chat = ts_calloc(n, sizeof(*chat));
    if (!chat) return ts_fail_nomem(err, "chat", n * sizeof(*chat));
    for (size_t i = 0; i < n; i++) chat[i] = (struct llama_chat_message){messages[i].role, messages[i].content};
    int rc = TS_OK;
    int32_t need = llama_chat_apply_template(tmpl, chat, n, true, NULL, 0);
    if (need < 0)
        rc = ts_fail(err, TS_ERR_UNSUPPORTED,
                     "llama.cpp does not recognise this chat template ('%s'): name a built-in one with --chat-template, or give "
                     "token_ids", label);
    if (rc == TS_OK && !(*text = ts_malloc((size_t)need + 1))) rc = ts_fail_nomem(err, "chat text", (size_t)need);
    if (rc == TS_OK) {
        llama_chat_apply_template(tmpl, chat, n, true, *text, need + 1);
        (*text)[need] = '\0';
        memcpy(((ts_session *)s)->chat_template, label, sizeof(label));
    }
    free(chat);
    return rc;
}
