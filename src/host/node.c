/* Small questions about one graph node. Owns the name rules; refuses nothing, answers only. */
#include "host/node.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ts_node_is_copy(const struct ggml_tensor *t) {
    const char *first = strchr(t->name, '#');
    return first && strrchr(t->name, '#') != first;
}

void ts_node_name(const struct ggml_tensor *t, char out[GGML_MAX_NAME]) {
    const char *first = strchr(t->name, '#'), *last = strrchr(t->name, '#');
    if (!first || first == last)
        snprintf(out, GGML_MAX_NAME, "%s", t->name);
    else
        snprintf(out, GGML_MAX_NAME, "%.*s", (int)(last - first - 1), first + 1);
}

/* The number at `text`, with its end in *end; -1 when there is none or it is absurd. */
static int32_t read_block(const char *text, const char **end) {
    if (!isdigit((unsigned char)*text)) return -1;
    char *stop = NULL;
    long n = strtol(text, &stop, 10);
    *end = stop;
    return n >= 0 && n < 100000 ? (int32_t)n : -1;
}

int32_t ts_name_block(const char *name, const char *prefix) {
    size_t n = strlen(prefix);
    const char *end = NULL;
    if (strncmp(name, prefix, n) != 0) return -1;
    int32_t block = read_block(name + n, &end);
    return block >= 0 && *end == '\0' ? block : -1;
}

int32_t ts_node_weight_block(const struct ggml_tensor *t, const char *suffix) {
    char name[GGML_MAX_NAME];
    const char *end = NULL;
    if (!t) return -1;
    ts_node_name(t, name);
    if (strncmp(name, "blk.", 4) != 0) return -1;
    int32_t block = read_block(name + 4, &end);
    return block >= 0 && *end == '.' && strcmp(end + 1, suffix) == 0 ? block : -1;
}

bool ts_node_named(const struct ggml_tensor *t, const char *name) {
    char own[GGML_MAX_NAME];
    if (!t) return false;
    ts_node_name(t, own);
    return strcmp(own, name) == 0;
}

bool ts_node_name_stable(const char *name) {
    return *name && *name != ' ' && strncmp(name, "node_", 5) != 0 && strncmp(name, "leaf_", 5) != 0;
}

const char *ts_node_why_not(const struct ggml_tensor *t) {
    if (t->view_src) return "a view of another tensor";
    if (t->op == GGML_OP_NONE || (t->flags & GGML_TENSOR_FLAG_INPUT)) return "a graph input";
    if (!ggml_is_contiguous(t)) return "not contiguous";
    if (t->type != GGML_TYPE_F32 && t->type != GGML_TYPE_I32) return "neither f32 nor i32";
    if (!t->buffer) return "no buffer";
    if (t->extra) return "its backend keeps the address elsewhere";
    const char *buft = ggml_backend_buft_name(ggml_backend_buffer_get_type(t->buffer));
    if (strstr(buft, "Split") || strstr(buft, "Meta")) return "split over devices";
    return NULL;
}

int64_t ts_node_rows(const struct ggml_tensor *t) { return t->ne[1] * t->ne[2] * t->ne[3]; }
