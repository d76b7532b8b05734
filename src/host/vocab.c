/* Guards the tokenizer. Owns the two holes a vocabulary may have that llama.cpp falls into: a token to put around texts that is not
 * named (an assertion), and a byte without a token in a SentencePiece vocabulary (an exception). Refuses texts that need either. */
#include "host/vocab.h"

#include <stdio.h>
#include <string.h>

static const char *name_of(const ts_model *m) { return m->n_shards ? m->shards[0] : m->architecture; }

static bool is_byte_token(const char *text, unsigned char *byte) {
    unsigned value;
    char end;
    if (text[0] && !text[1]) {
        *byte = (unsigned char)text[0];
        return true;
    }
    if (strlen(text) != 6 || sscanf(text, "<0x%2X%c", &value, &end) != 2 || end != '>') return false;
    *byte = (unsigned char)value;
    return true;
}

void ts_vocab_learn(ts_model *m) {
    int32_t n = llama_vocab_n_tokens(m->vocab);
    m->needs_bytes = llama_vocab_type(m->vocab) == LLAMA_VOCAB_TYPE_SPM;
    if (!m->needs_bytes) return;
    size_t found = 0;
    for (int32_t i = 0; i < n; i++) {
        unsigned char byte;
        if (!is_byte_token(llama_vocab_get_text(m->vocab, i), &byte) || m->has_byte[byte]) continue;
        m->has_byte[byte] = true;
        found++;
    }
    m->needs_bytes = found < sizeof(m->has_byte);
}

static bool has_token(const struct llama_vocab *vocab, const char *text, size_t n) {
    for (int32_t i = 0; i < llama_vocab_n_tokens(vocab); i++) {
        const char *token = llama_vocab_get_text(vocab, i);
        if (strncmp(token, text, n) == 0 && !token[n]) return true;
    }
    return false;
}

static int check_character(const ts_model *m, const char *text, size_t n, ts_error *err) {
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (m->has_byte[byte]) continue;
        if (has_token(m->vocab, text, n)) return TS_OK;
        return ts_fail(err, TS_ERR_MODEL, "model '%s' cannot tokenize '%.*s': its vocabulary has neither that character nor '<0x%02X>'",
                       name_of(m), (int)n, text, byte);
    }
    return TS_OK;
}

/* Spaces stand as U+2581 in such a vocabulary, and one may be put before the text. */
static int check_bytes(const ts_model *m, const char *text, size_t length, ts_error *err) {
    int rc = length ? check_character(m, "\xE2\x96\x81", 3, err) : TS_OK;
    for (size_t i = 0, n; rc == TS_OK && i < length; i += n) {
        unsigned char lead = (unsigned char)text[i];
        n = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        if (n > length - i) n = length - i;
        if (lead != ' ') rc = check_character(m, text + i, n, err);
    }
    return rc;
}

int ts_vocab_check_text(const ts_model *m, const char *text, size_t length, bool add, ts_error *err) {
    const struct llama_vocab *v = m->vocab;
    enum llama_vocab_type type = llama_vocab_type(v);
    const char *lacks = NULL;
    bool asserts = type == LLAMA_VOCAB_TYPE_SPM || type == LLAMA_VOCAB_TYPE_BPE || type == LLAMA_VOCAB_TYPE_UGM;
    bool wpm = type == LLAMA_VOCAB_TYPE_WPM;
    if (add && (wpm || (asserts && llama_vocab_get_add_bos(v))) && llama_vocab_bos(v) == LLAMA_TOKEN_NULL) lacks = "bos_token_id";
    if (add && asserts && llama_vocab_get_add_eos(v) && llama_vocab_eos(v) == LLAMA_TOKEN_NULL) lacks = "eos_token_id";
    if (add && wpm && llama_vocab_sep(v) == LLAMA_TOKEN_NULL) lacks = "seperator_token_id"; /* spelled so */
    if (lacks)
        return ts_fail(err, TS_ERR_MODEL, "model '%s' puts a token around texts that its vocabulary has not: no 'tokenizer.ggml.%s'",
                       name_of(m), lacks);
    return m->needs_bytes ? check_bytes(m, text, length, err) : TS_OK;
}
