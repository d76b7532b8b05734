/* The writer's parts (resid_out.h): the running capture, its state file, its generations file. Only
 * resid_*.c include this. */
#ifndef TS_STORE_RESID_INTERNAL_H
#define TS_STORE_RESID_INTERNAL_H

#include <stdio.h>

#include "core/buf.h"
#include "core/file.h"
#include "store/meta.h"
#include "store/resid_out.h"

/* Rows go to disk as they lie in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "float32 rows are written little-endian");

/* All of OUT's paths, owned. `data` is OUT itself in the safetensors format, where `meta` is NULL.
 */
typedef struct ts_resid_paths {
    char *out, *data, *meta;
    char *part, *gen, *state;
} ts_resid_paths;

/* What the state file holds, but for the plan and the shape. */
typedef struct ts_resid_state {
    ts_resid_done done;
    uint64_t rows;            /* snapshots */
    uint64_t row_bytes;       /* length of OUT.part, header space included */
    uint64_t gen_bytes;       /* length of OUT.part.gen */
    uint64_t prompts, tokens; /* prompts listed with their tokens, and those tokens */
    bool labels;              /* at least one prompt has one */
    uint64_t finishing;  /* length of the finished data file about to be renamed, 0 = not yet */
    float *max_abs;      /* [n_layers], over finite values */
    uint64_t *nonfinite; /* [n_layers] */
} ts_resid_state;

struct ts_resid_out {
    ts_resid_paths paths;
    enum ts_capture_format format;
    int32_t n_layers, n_hidden;
    int32_t *layer_ids; /* [n_layers] */
    char *plan;
    uint64_t reserve; /* bytes in front of the rows for the safetensors header; 0 for a pair */
    ts_lock *lock, *data_lock; /* two headers may name one .f32 */
    ts_append *rows, *gen;
    ts_resid_state now;
    ts_buf saved; /* the state of the last checkpoint, without its end */
    ts_buf line;  /* one generation, reused */
    bool kept;    /* there is a state file to resume from */
    bool broken;  /* a row was written in part: only the last checkpoint is good */
};

/* resid_paths.c */
int ts_resid_paths_init(ts_resid_paths *p, const ts_resid_spec *spec, ts_error *err);
void ts_resid_paths_free(ts_resid_paths *p);
/* TS_ERR_ARG naming the first file of a result that is there already. */
int ts_resid_paths_vacant(const ts_resid_paths *p, ts_error *err);
/* Whether rows of an unfinished run stand there; and TS_ERR_ARG naming what is left of one. */
bool ts_resid_paths_partial(const ts_resid_paths *p);
int ts_resid_paths_unfinished(const ts_resid_paths *p, ts_error *err);
/* A process killed between the renames left the finished data under its final name: gives it back
 * its partial one, after what names it is gone. `finishing` is the length its state told. */
int ts_resid_paths_recover(const ts_resid_paths *p, uint64_t finishing, bool *recovered,
                           ts_error *err);
/* Removes OUT.part.*, state first: without it the others mean nothing. */
void ts_resid_paths_remove_partial(const ts_resid_paths *p);

/* resid_state.c */
int ts_resid_state_init(ts_resid_state *s, int32_t n_layers, ts_error *err);
void ts_resid_state_free(ts_resid_state *s);
/* Reads OUT.part.state into o->now. *found false when there is none. TS_ERR_STATE for another plan.
 */
int ts_resid_state_load(ts_resid_out *o, bool *found, ts_error *err);
/* Makes o->now what o->saved says. */
int ts_resid_state_note(ts_resid_out *o, ts_error *err);
/* Writes o->saved with `finishing`, by rename. */
int ts_resid_state_put(ts_resid_out *o, uint64_t finishing, ts_error *err);

/* resid_gen.c: the lines of OUT.part.gen, which are the elements of the .meta's `generations`. */
typedef struct ts_resid_gen {
    FILE *file;
    char *line; /* without its end */
    size_t length, capacity;
    int64_t prompt_index;
    int32_t position, token;
    const char *tokens; /* "1, 2]}" in `line`, NULL when this snapshot lists none */
} ts_resid_gen;

void ts_resid_gen_render(ts_buf *b, const ts_resid_row *row);
int ts_resid_gen_open(const char *path, ts_resid_gen *g, ts_error *err);
/* *got false at the end. TS_ERR_FORMAT for a line this writer did not make. */
int ts_resid_gen_next(ts_resid_gen *g, bool *got, ts_error *err);
/* The next of g->tokens; false after the last. */
bool ts_resid_gen_token(const char **at, int32_t *token);
void ts_resid_gen_close(ts_resid_gen *g);
void ts_resid_add_int(ts_buf *b, int64_t value);

/* resid_pair.c, resid_st.c: all of a result but the removal of OUT.part.*; the rows are synced. */
int ts_resid_finish_pair(ts_resid_out *o, const ts_meta_resid *facts, ts_error *err);
int ts_resid_finish_st(ts_resid_out *o, const ts_meta_resid *facts, ts_error *err);

#endif
