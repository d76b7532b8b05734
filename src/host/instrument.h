/* What the host offers to instruments: a small vtable. An instrument says which sites it wants, sees the
 * passes of each generation, and writes at the end. The host knows no instrument by name. */
#ifndef TS_HOST_INSTRUMENT_H
#define TS_HOST_INSTRUMENT_H

#include "core/error.h"

enum ts_pass_kind {
    TS_PASS_PREFILL = 0, /* prompt tokens without output */
    TS_PASS_HEADFUL,     /* the last prompt token, then each generated one */
};

/* One generation as an instrument sees it. */
typedef struct ts_generation {
    const int32_t *tokens; /* the prompt, [n_tokens] */
    size_t n_tokens;
    int32_t prompt_index;
    const char *label;
} ts_generation;

/* One graph run within a pass. */
typedef struct ts_pass {
    const ts_run *run;
    enum ts_pass_kind kind;
    int32_t headful_index; /* 0 for the last prompt token, 1.. for decoded ones; -1 in prefill */
    const ts_generation *generation;
} ts_pass;

typedef struct ts_instrument_class {
    const char *name; /* as warnings and errors call it: "resid-capture" */
    unsigned sites;   /* 1u << TS_SITE_*: what it wants tapped */
    /* The site table is known, trust is earned: refuse here what the model cannot serve. */
    int (*start)(void *self, ts_session *s, ts_error *err);
    int (*begin)(void *self, const ts_generation *g, ts_error *err);
    /* Which of its sites this pass will read: others are neither copied nor asked for. */
    unsigned (*wants)(void *self, enum ts_pass_kind kind);
    int (*pass)(void *self, const ts_pass *pass, ts_error *err);
    int (*finish)(void *self, ts_session *s, ts_error *err); /* write the result; called once */
    void (*free)(void *self);
} ts_instrument_class;

/* Hands `self` to the session (freed with it). `gate`: asked for by environment, so that a refusal is one
 * warning and the generation goes on. Before the session is started, else TS_ERR_STATE (self is freed). */
int ts_session_attach(ts_session *s, const ts_instrument_class *class, void *self, bool gate, ts_error *err);

#endif
