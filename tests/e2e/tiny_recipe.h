/*
 * tiny_recipe.h: what a tiny model is made of, shared by the files that make them (tiny*.c only).
 */
#ifndef TINY_RECIPE_H
#define TINY_RECIPE_H

#include "tiny.h"

#include "gguf.h"

enum {
    BIAS = 1,   /* real files of the architecture have biases */
    MOE = 2,    /* has experts */
    SCALED = 4, /* the embedding is multiplied by sqrt(n_embd) in the graph */
    WIDE = 8,   /* also has tiny_wide_spec's keys: what any architecture asks for */
    WHOLE = 16  /* real files lack no tensor that llama.cpp makes */
};

typedef struct recipe recipe;

typedef struct maker {
    const recipe *r;
    tiny_opts o;
    struct gguf_context *meta;
    struct ggml_context *copies; /* kept tensors, when a file is to be written; else NULL */
    bool failed, too_large;
} maker;

struct recipe {
    const char *name;
    const char *arch;
    uint32_t n_layer;
    unsigned flags;
    void (*keys)(maker *m); /* what the architecture needs beyond the common keys */
    const char *spec;       /* and the same as text, see tiny_put_spec; NULL = nothing */
    tiny_opts size;         /* zero in any field: the common default */
};

/* The recipes of tiny_archs.c, ended by one without a name. */
extern const recipe tiny_archs[];
extern const char tiny_wide_spec[];

/*
 * Metadata from text: "key=value key=value ...", separated by white space. Keys get the
 * architecture's prefix unless they begin with "tokenizer." or "xielu.". A value is 3 (u32), 3.0 (f32), true, or
 * 'text'; [..] is an array, {..} one value a block from a repeating pattern, and L after either
 * makes it u64. @embd, @ff, @head, @h, @hk, @layer, @vocab stand for the model's sizes, and may be
 * followed by *N or /N. A later key replaces an earlier one, and "-key" takes it away.
 */
void tiny_put_spec(maker *m, const char *spec);

#endif
