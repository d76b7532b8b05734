/* Tells files apart by their first bytes. Refuses to guess: what fits nothing is unknown. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "store/inspect_sniff.h"

#include <string.h>
#include <unistd.h>

#include "core/fault.h"
#include "core/file.h"

enum { HEAD = 4096 };

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

static bool has_key(const char *text, const char *key) {
    const char *at = strstr(text, key);
    if (at == NULL)
        return false;
    at += strlen(key);
    at += strspn(at, " \t\r\n");
    return *at == ':';
}

/* "layer,expert", or two numbers and the end of a line. */
static bool is_router_csv(const char *text) {
    if (strncmp(text, "layer,expert", 12) == 0)
        return text[12] == '\n' || text[12] == '\r' || text[12] == '\0';
    size_t a = strspn(text, "0123456789");
    if (a == 0 || text[a] != ',')
        return false;
    size_t b = strspn(text + a + 1, "0123456789");
    const char *end = text + a + 1 + b;
    return b > 0 && (*end == '\n' || *end == '\r' || *end == '\0');
}

static enum ts_file_sort sort_json(const char *text) {
    if (has_key(text, "\"turbospark_partial\""))
        return TS_SORT_PARTIAL;
    if (has_key(text, "\"turbospark_trace\""))
        return TS_SORT_TRACE;
    if (has_key(text, "\"num_layers\"") && has_key(text, "\"inter\"") && has_key(text, "\"overlap_ks\""))
        return TS_SORT_CENSUS;
    if (has_key(text, "\"num_layers\"") && has_key(text, "\"num_experts\"") && has_key(text, "\"top_k\""))
        return TS_SORT_ROUTER;
    if (has_key(text, "\"vocab_size\"") && has_key(text, "\"token_ids\""))
        return TS_SORT_LOGITS;
    if (strstr(text, "\"ffn-detail\""))
        return TS_SORT_DETAIL;
    if (strstr(text, "\"kind\":\"experts\""))
        return TS_SORT_EXPERTS;
    if (has_key(text, "\"format_version\"") && has_key(text, "\"kind\""))
        return TS_SORT_META;
    if (has_key(text, "\"layers\"") && has_key(text, "\"hidden\"") && has_key(text, "\"layout\""))
        return TS_SORT_PAIR;
    return TS_SORT_JSON;
}

static int read_head(const char *path, char head[HEAD + 1], size_t *n, ts_error *err) {
    uint64_t size;
    ssize_t got;
    int fd;
    int rc = ts_file_open_read(path, &fd, &size, err);
    if (rc < 0)
        return rc;
    for (*n = 0; *n < HEAD && (got = ts_sys_read(fd, head + *n, HEAD - *n)) != 0; *n += (size_t)got)
        if (got < 0) {
            rc = ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", path);
            break;
        }
    close(fd);
    head[*n] = '\0';
    return rc;
}

int ts_sniff(const char *path, enum ts_file_sort *out, ts_error *err) {
    char head[HEAD + 1];
    size_t n;
    *out = TS_SORT_UNKNOWN;
    int rc = read_head(path, head, &n, err);
    if (rc < 0)
        return rc;
    if (n >= 4 && memcmp(head, "GGUF", 4) == 0)
        *out = TS_SORT_GGUF;
    else if (is_safetensors(head, n))
        *out = TS_SORT_SAFETENSORS;
    else if (head[strspn(head, " \t\r\n")] == '{')
        *out = sort_json(head);
    else if (is_router_csv(head))
        *out = TS_SORT_ROUTER_CSV;
    return TS_OK;
}
