/* A corpus as token sequences: reads the prompt list twice, once to count and fingerprint, once to run. Used by
 * every command that walks a corpus. */
#ifndef TS_INSTRUMENT_CORPUS_H
#define TS_INSTRUMENT_CORPUS_H

#include "host/session.h"
#include "store/prompts.h"

typedef struct ts_corpus_options {
    const char *path, *column, *chat_template;
    bool chat, special;
} ts_corpus_options;

typedef struct ts_corpus_entry {
    int64_t index, line;   /* 0-based prompt number, 1-based line */
    int32_t *tokens;       /* [n], valid until the next call */
    size_t n;
    const char *label;     /* nullable, likewise */
} ts_corpus_entry;

/* What the first reading found. */
typedef struct ts_corpus_summary {
    uint64_t n_prompts, n_tokens, n_skipped;
    size_t longest;
    int64_t longest_line;
    char fingerprint[33]; /* of every prompt's token ids and label, in order */
} ts_corpus_summary;

typedef struct ts_corpus ts_corpus;

/* The session need not be started. TS_ERR_FORMAT names the line. */
int ts_corpus_open(const ts_session *s, const ts_corpus_options *o, ts_corpus **out, ts_error *err);
/* Next prompt, *got false at the end. An empty token sequence is an error. */
int ts_corpus_next(ts_corpus *c, ts_corpus_entry *out, bool *got, ts_error *err);
int ts_corpus_rewind(ts_corpus *c, ts_error *err);
/* Reads all of it through `visit` (nullable) and rewinds. TS_ERR_FORMAT when there is no prompt. */
int ts_corpus_scan(ts_corpus *c, int (*visit)(const ts_corpus_entry *e, void *user, ts_error *err), void *user,
                   ts_corpus_summary *out, ts_error *err);
void ts_corpus_close(ts_corpus *c);

#endif
