/* A chat as tokens. Owns the rule that what the template writes are control tokens and what a message says is text, also
 * where it spells a control token. Refuses what ts_session_chat refuses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/mem.h"
#include "host/session.h"

/* A mark stands in for a control token's text while the template is applied: templates move text, they do not look into
 * it. A private-use character on either side of the token's number; -1 is that character itself. */
#define MARK_EDGE "\xEF\xA3\xBF"

/* Tokens that llama.cpp makes of their text only when special text is asked for. Found once a model. */
static int find_specials(ts_model *m, ts_error *err) {
    int32_t n_vocab = llama_vocab_n_tokens(m->vocab);
    if (m->specials) return TS_OK;
    m->specials = ts_malloc(((size_t)n_vocab + 1) * sizeof(*m->specials));
    if (!m->specials) return ts_fail_nomem(err, "control tokens", (size_t)n_vocab * sizeof(*m->specials));
    for (int32_t t = 0; t < n_vocab; t++) {
        const char *text = llama_vocab_get_text(m->vocab, t);
        if ((llama_vocab_get_attr(m->vocab, t) & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) && text && *text)
            m->specials[m->n_specials++] = t;
    }
    return TS_OK;
}

/* The longest control token that `text` begins with, -1 = none. */
static int32_t special_at(const ts_model *m, const char *text, size_t *length) {
    int32_t best = -1;
    *length = 0;
    for (size_t i = 0; i < m->n_specials; i++) {
        const char *special = llama_vocab_get_text(m->vocab, m->specials[i]);
        if (special[0] != text[0]) continue;
        size_t n = strlen(special);
        if (n > *length && strncmp(text, special, n) == 0) {
            best = m->specials[i];
            *length = n;
        }
    }
    return best;
}

/* A copy with marks for control tokens; *n_marks grows. NULL on no memory. */
static char *mark(const ts_model *m, const char *text, size_t *n_marks) {
    ts_buf b = {0};
    while (*text) {
        size_t n;
        int32_t token = special_at(m, text, &n);
        if (token < 0 && strncmp(text, MARK_EDGE, sizeof(MARK_EDGE) - 1) == 0) n = sizeof(MARK_EDGE) - 1;
        if (n > 0) {
            ts_buf_printf(&b, MARK_EDGE "%d" MARK_EDGE, token);
            ++*n_marks;
        } else {
            n = 1;
            ts_buf_add(&b, text, 1);
        }
        text += n;
    }
    return b.failed || b.length ? ts_buf_take(&b) : ts_strdup("");
}

/* ---- pieces */

typedef struct ids {
    int32_t *tokens;
    size_t n;
} ids;

static int append(ids *all, const int32_t *tokens, size_t n, ts_error *err) {
    int32_t *grown = ts_realloc(all->tokens, all->n + n + 1, sizeof(*grown));
    if (!grown) return ts_fail_nomem(err, "tokens", (all->n + n + 1) * sizeof(*grown));
    all->tokens = grown;
    if (n) memcpy(grown + all->n, tokens, n * sizeof(*grown));
    all->n += n;
    return TS_OK;
}

static int append_text(const ts_session *s, ids *all, const char *text, size_t length, unsigned flags, ts_error *err) {
    int32_t *tokens = NULL;
    size_t n = 0;
    int rc = length ? ts_session_tokenize(s, text, length, flags | TS_TOKENIZE_NO_BOS, &tokens, &n, err) : TS_OK;
    if (rc == TS_OK) rc = append(all, tokens, n, err);
    free(tokens);
    return rc;
}

/* The mark `at` begins with: its token and end. False when it is no mark of ours. */
static bool read_mark(const ts_model *m, const char *at, int32_t *token, const char **end) {
    char *stop;
    long t = strtol(at + sizeof(MARK_EDGE) - 1, &stop, 10);
    if (stop == at + sizeof(MARK_EDGE) - 1 || t < -1 || t >= llama_vocab_n_tokens(m->vocab) || strncmp(stop, MARK_EDGE, sizeof(MARK_EDGE) - 1) != 0) return false;
    *token = (int32_t)t;
    *end = stop + sizeof(MARK_EDGE) - 1;
    return true;
}

static int append_marked(const ts_session *s, ids *all, const char *text, ts_error *err) {
    int rc = TS_OK;
    for (const char *at, *end; rc == TS_OK; text = end) {
        int32_t token = -1;
        for (at = strstr(text, MARK_EDGE); at && !read_mark(s->model, at, &token, &end); at = strstr(at + 1, MARK_EDGE)) continue;
        if (!at) return append_text(s, all, text, strlen(text), TS_TOKENIZE_SPECIAL, err);
        const char *special = token < 0 ? MARK_EDGE : llama_vocab_get_text(s->model->vocab, token);
        rc = append_text(s, all, text, (size_t)(at - text), TS_TOKENIZE_SPECIAL, err);
        if (rc == TS_OK) rc = append_text(s, all, special, strlen(special), 0, err);
    }
    return rc;
}

/* BOS and EOS as the tokenizer would add them; a BOS that the template wrote is not doubled. */
static int tokenize_marked(const ts_session *s, const char *text, int32_t **tokens, size_t *n, ts_error *err) {
    const struct llama_vocab *vocab = s->model->vocab;
    llama_token bos = llama_vocab_bos(vocab), eos = llama_vocab_eos(vocab);
    ids all = {0};
    int rc = llama_vocab_get_add_bos(vocab) && bos >= 0 ? append(&all, &bos, 1, err) : TS_OK;
    if (rc == TS_OK) rc = append_marked(s, &all, text, err);
    if (rc == TS_OK && llama_vocab_get_add_eos(vocab) && eos >= 0) rc = append(&all, &eos, 1, err);
    if (rc == TS_OK && all.n > 1 && bos >= 0 && all.tokens[0] == bos && all.tokens[1] == bos)
        memmove(all.tokens, all.tokens + 1, --all.n * sizeof(*all.tokens));
    if (rc != TS_OK) {
        free(all.tokens);
        return rc;
    }
    *tokens = all.tokens;
    *n = all.n;
    return TS_OK;
}

/* ---- messages */

static void free_marked(ts_chat_message *marked, size_t n) {
    for (size_t i = 0; marked && i < n; i++) {
        free((char *)marked[i].role);
        free((char *)marked[i].content);
    }
    free(marked);
}

static int mark_all(const ts_session *s, const ts_chat_message *messages, size_t n, ts_chat_message **out, size_t *n_marks, ts_error *err) {
    ts_chat_message *marked = ts_calloc(n, sizeof(*marked));
    bool failed = !marked;
    for (size_t i = 0; i < n && !failed; i++) {
        marked[i].role = mark(s->model, messages[i].role, n_marks);
        marked[i].content = mark(s->model, messages[i].content, n_marks);
        failed = !marked[i].role || !marked[i].content;
    }
    if (failed) {
        free_marked(marked, n);
        return ts_fail_nomem(err, "chat", n * sizeof(*marked));
    }
    *out = marked;
    return TS_OK;
}

int ts_session_chat_tokenize(const ts_session *s, const ts_chat_message *messages, size_t n, const char *template_name, unsigned flags,
                             int32_t **tokens, size_t *n_tokens, ts_error *err) {
    ts_chat_message *marked = NULL;
    size_t n_marks = 0;
    char *text = NULL;
    *tokens = NULL;
    *n_tokens = 0;
    int rc = TS_OK;
    if (!(flags & TS_TOKENIZE_SPECIAL)) {
        rc = find_specials(s->model, err);
        if (rc == TS_OK) rc = mark_all(s, messages, n, &marked, &n_marks, err);
    }
    if (rc == TS_OK) rc = ts_session_chat(s, n_marks ? marked : messages, n, template_name, &text, err);
    if (rc == TS_OK && n_marks) rc = tokenize_marked(s, text, tokens, n_tokens, err);
    if (rc == TS_OK && !n_marks) rc = ts_session_tokenize(s, text, strlen(text), flags | TS_TOKENIZE_SPECIAL, tokens, n_tokens, err);
    free_marked(marked, n);
    free(text);
    return rc;
}
