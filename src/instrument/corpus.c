/* A corpus as token sequences. Owns turning each prompt into ids; refuses prompts without tokens and ids
 * outside the vocabulary, naming file and line. */
#include "instrument/corpus.h"

#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/mem.h"
#include "store/fingerprint.h"

struct ts_corpus {
    const ts_session *session;
    ts_corpus_options o; /* strings borrowed from the caller, who outlives us */
    ts_prompts *prompts;
    int32_t *tokens;
    int64_t next;
    bool scanning, chatted; /* some prompt went through the template */
    ts_corpus_summary seen;  /* of the first reading; n_prompts 0 = none yet */
    char fingerprint[33];    /* of this reading so far */
    ts_buf scratch;
};

int ts_corpus_open(const ts_session *s, const ts_corpus_options *o, ts_corpus **out, ts_error *err) {
    *out = NULL;
    ts_corpus *c = ts_calloc(1, sizeof(*c));
    if (!c) return ts_fail_nomem(err, "corpus", sizeof(*c));
    c->session = s;
    c->o = *o;
    int rc = ts_prompts_open(o->path, o->column, &c->prompts, err);
    if (rc != TS_OK) {
        free(c);
        return rc;
    }
    *out = c;
    return TS_OK;
}

void ts_corpus_close(ts_corpus *c) {
    if (!c) return;
    ts_prompts_close(c->prompts);
    ts_buf_free(&c->scratch);
    free(c->tokens);
    free(c);
}

int ts_corpus_rewind(ts_corpus *c, ts_error *err) {
    c->next = 0;
    memset(c->fingerprint, '0', 32);
    return ts_prompts_rewind(c->prompts, err);
}

static int tokenize_chat(ts_corpus *c, const ts_chat_message *messages, size_t n_messages, size_t *n, ts_error *err) {
    c->chatted = true;
    return ts_session_chat_tokenize(c->session, messages, n_messages, c->o.chat_template, c->o.special ? TS_TOKENIZE_SPECIAL : 0,
                                    &c->tokens, n, err);
}

static int copy_ids(ts_corpus *c, const ts_prompt *p, size_t *n, ts_error *err) {
    int32_t n_vocab = llama_vocab_n_tokens(c->session->model->vocab);
    for (size_t i = 0; i < p->n_token_ids; i++)
        if (p->token_ids[i] < 0 || p->token_ids[i] >= n_vocab)
            return ts_fail(err, TS_ERR_FORMAT, "token id %d: the vocabulary has %d", p->token_ids[i], n_vocab);
    c->tokens = ts_malloc(p->n_token_ids * sizeof(*c->tokens));
    if (!c->tokens) return ts_fail_nomem(err, "token ids", p->n_token_ids * sizeof(*c->tokens));
    if (p->n_token_ids) memcpy(c->tokens, p->token_ids, p->n_token_ids * sizeof(*c->tokens));
    *n = p->n_token_ids;
    return TS_OK;
}

static int tokenize(ts_corpus *c, const ts_prompt *p, size_t *n, ts_error *err) {
    *n = 0;
    free(c->tokens);
    c->tokens = NULL;
    if (p->messages) return tokenize_chat(c, p->messages, p->n_messages, n, err);
    if (p->token_ids) return copy_ids(c, p, n, err);
    if (c->o.chat) return tokenize_chat(c, &(ts_chat_message){"user", p->text}, 1, n, err);
    return ts_session_tokenize(c->session, p->text, p->text_length, c->o.special ? TS_TOKENIZE_SPECIAL : 0, &c->tokens, n, err);
}

/* The chain h(i) = xxh3(h(i-1), label, ids): order and boundaries count. */
static int extend(char fingerprint[33], const ts_corpus_entry *e, ts_buf *scratch, ts_error *err) {
    scratch->length = 0;
    ts_buf_add(scratch, fingerprint, 32);
    ts_buf_printf(scratch, "%s|%zu|", e->label ? e->label : "", e->n);
    ts_buf_add(scratch, e->tokens, e->n * sizeof(*e->tokens));
    if (scratch->failed) return ts_fail_nomem(err, "fingerprint", e->n * sizeof(*e->tokens));
    ts_fingerprint_bytes(scratch->data, scratch->length, fingerprint);
    return TS_OK;
}

/* The second reading must be of the same prompts: what was planned would not fit others. At the end all of them must
 * have come. */
static int check_same(const ts_corpus *c, const ts_corpus_entry *e, ts_error *err) {
    const ts_corpus_summary *seen = &c->seen;
    if (c->scanning || seen->n_prompts == 0) return TS_OK;
    if (e && ((uint64_t)e->index >= seen->n_prompts || e->n > seen->longest))
        return ts_fail(err, TS_ERR_STATE, "'%s' was changed while it was read: it had %llu prompts of at most %zu tokens, now line %lld has %zu",
                       c->o.path, (unsigned long long)seen->n_prompts, seen->longest, (long long)e->line, e->n);
    if (!e && strcmp(c->fingerprint, seen->fingerprint) != 0)
        return ts_fail(err, TS_ERR_STATE, "'%s' was changed while it was read: its prompts had hash %s, now %s", c->o.path,
                       seen->fingerprint, c->fingerprint);
    return TS_OK;
}

static int read_entry(ts_corpus *c, const ts_prompt *p, ts_corpus_entry *out, ts_error *err) {
    int rc = tokenize(c, p, &out->n, err);
    out->tokens = c->tokens;
    if (rc == TS_OK && out->n == 0) rc = ts_fail(err, TS_ERR_FORMAT, "the prompt has no token");
    if (rc == TS_OK) rc = extend(c->fingerprint, out, &c->scratch, err);
    if (rc != TS_OK) ts_error_prefix(err, "%s:%lld: ", c->o.path, (long long)p->line);
    return rc;
}

int ts_corpus_next(ts_corpus *c, ts_corpus_entry *out, bool *got, ts_error *err) {
    const ts_prompt *p = NULL;
    int rc = ts_prompts_next(c->prompts, &p, got, err);
    if (rc != TS_OK) return rc;
    if (!*got) return check_same(c, NULL, err);
    *out = (ts_corpus_entry){.index = c->next++, .line = p->line, .label = p->label};
    rc = read_entry(c, p, out, err);
    return rc == TS_OK ? check_same(c, out, err) : rc;
}

int ts_corpus_scan(ts_corpus *c, int (*visit)(const ts_corpus_entry *e, void *user, ts_error *err), void *user,
                   ts_corpus_summary *out, ts_error *err) {
    bool got = true;
    memset(out, 0, sizeof(*out));
    c->scanning = true;
    int rc = ts_corpus_rewind(c, err);
    while (rc == TS_OK) {
        ts_corpus_entry e;
        rc = ts_corpus_next(c, &e, &got, err);
        if (rc != TS_OK || !got) break;
        out->n_prompts++;
        out->n_tokens += e.n;
        if (e.n > out->longest) {
            out->longest = e.n;
            out->longest_line = e.line;
        }
        if (visit) rc = visit(&e, user, err);
    }
    out->n_skipped = (uint64_t)ts_prompts_skipped(c->prompts);
    c->scanning = false;
    memcpy(out->fingerprint, c->fingerprint, sizeof(out->fingerprint));
    if (rc == TS_OK && out->n_prompts == 0) rc = ts_fail(err, TS_ERR_FORMAT, "'%s' holds no prompt", c->o.path);
    if (rc == TS_OK && c->o.chat_template && !c->chatted)
        rc = ts_fail(err, TS_ERR_ARG, "chat template '%s' is of no use: '%s' has no messages, and plain prompts are not wrapped (--chat)",
                     c->o.chat_template, c->o.path);
    c->seen = *out;
    return rc == TS_OK ? ts_corpus_rewind(c, err) : rc;
}
