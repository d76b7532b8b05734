/*
 * tiny_spec.c: metadata from text (see tiny_recipe.h). Owns the little language; a text that is none
 * of it ends the program, as only our own tables hold such texts.
 */
#include "tiny_recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALUES = 512 };

static void bad(const char *what, const char *at) {
    fprintf(stderr, "tiny_spec: %s at '%.40s'\n", what, at);
    exit(2);
}

static uint32_t size_named(const maker *m, const char **at) {
    const struct {
        const char *name;
        uint32_t value;
    } sizes[] = {
        {"embd", m->o.n_embd}, {"ff", m->o.n_ff},       {"head", m->o.n_embd / m->o.n_head}, {"hk", m->o.n_head_kv},
        {"h", m->o.n_head},    {"layer", m->o.n_layer}, {"vocab", m->o.n_vocab},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const size_t n = strlen(sizes[i].name);
        if (strncmp(*at, sizes[i].name, n) == 0) {
            *at += n;
            return sizes[i].value;
        }
    }
    bad("no size of that name", *at);
    return 0;
}

/* One number: *real says whether it is an f32. */
static double number(const maker *m, const char **at, bool *real) {
    char *end = NULL;
    double v;
    if (**at == '@') {
        const char *p = *at + 1;
        uint32_t n = size_named(m, &p);
        if (*p == '*' || *p == '/') {
            const uint32_t by = (uint32_t)strtoul(p + 1, &end, 10);
            n = *p == '*' ? n * by : n / by;
            p = end;
        }
        *at = p;
        return n;
    }
    v = strtod(*at, &end);
    if (end == *at)
        bad("no number", *at);
    for (const char *p = *at; p < end; p++)
        *real = *real || *p == '.' || *p == 'e';
    *at = end;
    return v;
}

static size_t numbers(const maker *m, const char **at, char close, double *v, bool *real) {
    size_t n = 0;
    for (++*at; **at != close; *at += **at == ',') {
        if (n == MAX_VALUES || **at == '\0')
            bad("no end of the array", *at);
        v[n++] = number(m, at, real);
    }
    ++*at;
    return n;
}

static void put_array(maker *m, const char *key, const char **at) {
    double v[MAX_VALUES];
    float f32[MAX_VALUES];
    uint32_t u32[MAX_VALUES];
    uint64_t u64[MAX_VALUES];
    bool real = false, block = **at == '{';
    const size_t n = numbers(m, at, block ? '}' : ']', v, &real), total = block ? m->o.n_layer : n;
    for (size_t i = 0; i < total && i < MAX_VALUES; i++) {
        f32[i] = (float)v[i % n];
        u32[i] = (uint32_t)v[i % n];
        u64[i] = (uint64_t)v[i % n];
    }
    const bool wide = **at == 'L';
    *at += wide;
    gguf_set_arr_data(m->meta, key, real ? GGUF_TYPE_FLOAT32 : wide ? GGUF_TYPE_UINT64 : GGUF_TYPE_UINT32,
                      real ? (void *)f32 : wide ? (void *)u64 : (void *)u32, total);
}

static void put_text(maker *m, const char *key, const char **at) {
    char text[64];
    const char *end = strchr(*at + 1, '\'');
    if (!end)
        bad("no end of the text", *at);
    snprintf(text, sizeof text, "%.*s", (int)(end - *at - 1), *at + 1);
    gguf_set_val_str(m->meta, key, text);
    *at = end + 1;
}

static void put_value(maker *m, const char *key, const char **at) {
    bool real = false;
    if (**at == '[' || **at == '{') {
        put_array(m, key, at);
    } else if (**at == '\'') {
        put_text(m, key, at);
    } else if (strncmp(*at, "true", 4) == 0 || strncmp(*at, "false", 5) == 0) {
        gguf_set_val_bool(m->meta, key, **at == 't');
        *at += **at == 't' ? 4 : 5;
    } else {
        const double v = number(m, at, &real);
        if (real)
            gguf_set_val_f32(m->meta, key, (float)v);
        else
            gguf_set_val_u32(m->meta, key, (uint32_t)v);
    }
}

static bool is_global(const char *key) {
    return strncmp(key, "tokenizer.", 10) == 0 || strncmp(key, "xielu.", 6) == 0;
}

void tiny_put_spec(maker *m, const char *spec) {
    char key[128];
    for (const char *at = spec; *(at += strspn(at, " \n")) != '\0';) {
        const bool drop = *at == '-';
        at += drop;
        const size_t n = strcspn(at, "= \n");
        snprintf(key, sizeof key, "%s%s%.*s", is_global(at) ? "" : m->r->arch,
                 is_global(at) ? "" : ".", (int)n, at);
        at += n;
        if (drop) {
            gguf_remove_key(m->meta, key);
            continue;
        }
        if (*at++ != '=')
            bad("no value", at - 1);
        put_value(m, key, &at);
        if (*at && !strchr(" \n", *at))
            bad("something after a value", at);
    }
}
