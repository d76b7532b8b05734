/* Tells files apart by their first bytes, JSON by its keys. Refuses to guess: what fits nothing is unknown. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "store/inspect_sniff.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "store/meta_stream.h"

enum { HEAD = 256, ENOUGH = 1 << 20 };

const char *ts_sort_name(enum ts_file_sort sort) {
    switch (sort) {
    case TS_SORT_PAIR:
        return "the header of a residual capture";
    case TS_SORT_META:
        return "the meta data of a result";
    case TS_SORT_PARTIAL:
        return "the state of an unfinished capture";
    case TS_SORT_CENSUS:
        return "an FFN census";
    case TS_SORT_DETAIL:
        return "the detail of an FFN census (give its .json)";
    case TS_SORT_EXPERTS:
        return "the expert census beside an FFN census (give its .json)";
    case TS_SORT_TRACE:
        return "the trace of an FFN census";
    case TS_SORT_ROUTER:
        return "a routing census";
    case TS_SORT_ROUTER_CSV:
        return "a list of layers and experts";
    case TS_SORT_LOGITS:
        return "a logits dump";
    case TS_SORT_REPORT:
        return "a report, made by --json";
    case TS_SORT_SWEEP:
        return "the state of an unfinished sweep (go on with --resume)";
    case TS_SORT_JSON:
        return "JSON of another kind";
    case TS_SORT_SAFETENSORS:
        return "a safetensors file";
    case TS_SORT_GGUF:
        return "a GGUF file";
    default:
        return "of an unknown kind";
    }
}

/* A length below 4 GiB has zero bytes, which no JSON text has. */
static bool is_safetensors(const char *head, size_t n) {
    static const char zeros[4];
    return n > 8 && memcmp(head + 4, zeros, 4) == 0 && head[8] == '{';
}

/* "layer,expert", or a first line of numbers: what is wrong with them its reader says, by line. */
static bool is_router_csv(const char *text) {
    bool header = strncmp(text, "layer,expert", 12) == 0;
    size_t a = strspn(text, "0123456789"), n = header ? 12 : a + strspn(text + a, "0123456789,;.-+ \t");
    return (header || (a > 0 && text[a] == ',')) && (text[n] == '\0' || strchr(",\r\n", text[n]));
}

/* ---- JSON: told by the keys of the outermost object, in any order and with any white space */

enum {
    K_PARTIAL, K_TRACE, K_N_LAYERS, K_INTER, K_OVERLAP, K_N_EXPERTS, K_TOP_K, K_VOCAB, K_TOKENS, K_VERSION, K_KIND, K_LAYERS, K_HIDDEN,
    K_LAYOUT, K_PLAN, K_CELLS, N_KEYS
};
static const char *const keys[N_KEYS] = {"turbospark_partial", "turbospark_trace", "num_layers", "inter", "overlap_ks", "num_experts",
                                         "top_k", "vocab_size", "token_ids", "format_version", "kind", "layers", "hidden", "layout",
                                         "plan", "cells"};

typedef struct walk {
    FILE *file;
    uint64_t bytes;
    unsigned seen; /* bits, by key */
    char kind[32];
} walk;

static int get(walk *w) {
    int c = getc(w->file);
    w->bytes += c != EOF;
    return c;
}

static int get_dark(walk *w) {
    int c;
    do c = get(w);
    while (c == ' ' || c == '\t' || c == '\r' || c == '\n');
    return c;
}

/* Behind an opening quote: the text as far as it fits, escapes as they are. False where the file ends or holds a NUL. */
static bool get_text(walk *w, char *text, size_t size) {
    size_t n = 0;
    int c;
    while ((c = get(w)) != '"') {
        if (c == '\\' && n + 1 < size) {
            text[n++] = '\\';
            c = get(w);
        } else if (c == '\\') {
            c = get(w);
        }
        if (c == EOF || c == '\0')
            return false;
        if (n + 1 < size)
            text[n++] = (char)c;
    }
    text[n] = '\0';
    return true;
}

/* Over a value up to what follows it, ',' or '}', which is returned; EOF where there is none. */
static int skip_value(walk *w, int c) {
    int depth = 0;
    char ignored[2];
    for (; c != EOF && c != '\0'; c = get(w)) {
        if (depth == 0 && (c == ',' || c == '}'))
            return c;
        if (c == '"' && !get_text(w, ignored, sizeof ignored))
            return EOF;
        depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    }
    return EOF;
}

static bool all(const walk *w, unsigned bits) {
    return (w->seen & bits) == bits;
}

#define KEY(k) (1u << (k))

/* What only one kind of file has. */
static enum ts_file_sort sort_keys(const walk *w) {
    if (all(w, KEY(K_PARTIAL)))
        return TS_SORT_PARTIAL;
    if (all(w, KEY(K_TRACE)))
        return TS_SORT_TRACE;
    if (all(w, KEY(K_N_LAYERS) | KEY(K_INTER) | KEY(K_OVERLAP)))
        return TS_SORT_CENSUS;
    if (all(w, KEY(K_N_LAYERS) | KEY(K_N_EXPERTS) | KEY(K_TOP_K)))
        return TS_SORT_ROUTER;
    if (all(w, KEY(K_VOCAB) | KEY(K_TOKENS)))
        return TS_SORT_LOGITS;
    if (all(w, KEY(K_LAYERS) | KEY(K_HIDDEN) | KEY(K_LAYOUT)))
        return TS_SORT_PAIR;
    return TS_SORT_JSON;
}

static enum ts_file_sort sort_kind(const walk *w) {
    static const struct {
        const char *kind;
        enum ts_file_sort sort;
    } kinds[] = {{"ffn-detail", TS_SORT_DETAIL}, {"experts", TS_SORT_EXPERTS}, {"resid", TS_SORT_META},
                 {"ffn", TS_SORT_META},          {"router", TS_SORT_META},     {"logits", TS_SORT_META}};
    if (!all(w, KEY(K_VERSION) | KEY(K_KIND)))
        return all(w, KEY(K_PLAN) | KEY(K_CELLS)) && !(w->seen & KEY(K_KIND)) ? TS_SORT_SWEEP : TS_SORT_JSON;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(w->kind, kinds[i].kind) == 0)
            return kinds[i].sort;
    return TS_SORT_REPORT;
}

static void read_member(walk *w, int *next) {
    char key[32];
    int c, k = 0;
    *next = EOF;
    if (!get_text(w, key, sizeof key) || get_dark(w) != ':')
        return;
    while (k < N_KEYS && strcmp(key, keys[k]) != 0)
        k++;
    if (k < N_KEYS)
        w->seen |= KEY(k);
    c = get_dark(w);
    if (k == K_KIND && c == '"') {
        if (!get_text(w, w->kind, sizeof w->kind))
            return;
        c = get_dark(w);
    }
    *next = skip_value(w, c);
}

/* Ends as soon as the kind is certain. A .meta may be long: its own keys come first. */
static enum ts_file_sort sort_json(FILE *file) {
    walk w = {.file = file};
    enum ts_file_sort sort = TS_SORT_JSON;
    int next = get_dark(&w) == '{' ? ',' : EOF;
    while (next == ',' && sort == TS_SORT_JSON && !(w.bytes > ENOUGH && sort_kind(&w) != TS_SORT_JSON)) {
        int c = get_dark(&w);
        while (c != '"' && c != EOF && c != '\0') /* a damaged file keeps its kind, and its reader says where */
            c = get(&w);
        if (c != '"')
            break;
        read_member(&w, &next);
        sort = sort_keys(&w);
    }
    return sort == TS_SORT_JSON ? sort_kind(&w) : sort;
}

static enum ts_file_sort sort_text(FILE *file, const char *head, size_t n) {
    size_t mark = n >= 3 && memcmp(head, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0; /* of a spreadsheet */
    if (is_router_csv(head + mark))
        return TS_SORT_ROUTER_CSV;
    if (head[strspn(head, " \t\r\n")] != '{')
        return TS_SORT_UNKNOWN;
    rewind(file);
    return sort_json(file);
}

int ts_sniff(const char *path, enum ts_file_sort *out, ts_error *err) {
    char head[HEAD + 1];
    FILE *file;
    *out = TS_SORT_UNKNOWN;
    int rc = ts_stream_open(path, &file, NULL, err);
    if (rc < 0)
        return rc;
    size_t n = fread(head, 1, HEAD, file);
    head[n] = '\0';
    if (n >= 4 && memcmp(head, "GGUF", 4) == 0)
        *out = TS_SORT_GGUF;
    else if (is_safetensors(head, n))
        *out = TS_SORT_SAFETENSORS;
    else
        *out = sort_text(file, head, n);
    if (ferror(file))
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", path);
    fclose(file);
    return rc;
}
