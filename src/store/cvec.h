/* Control vectors as llama.cpp's users exchange them: a GGUF file of architecture "controlvector".
 *
 * Keys: general.architecture, controlvector.model_hint (str), controlvector.layer_count (i32:
 * directions in the file; read as i32 or u32), and ours: turbospark.layer_base (i32 1),
 * .extraction, .mode, .hook, .model_hash (str). Tensors: `direction.N`, F32, one-dimensional, N >=
 * 1, which is added to the output of 0-based block N; with turbospark.layer_base = 0 to that of
 * block N - 1. So with base 1, which is what is written, block 0 has no name.
 *
 * Owns: both ways. Refuses, by name: models and other architectures, direction.0, widths that
 * differ, types other than F32, shapes that are not a row, values that are not finite, directions
 * that are zero, two of one block, keys of another type than theirs, keys twice, other
 * interventions (glp.mode, dspark.*), modes and hooks that are not ours. Every size is checked
 * against the file's before memory is taken. llama.cpp's own reader is not used: see
 * inspect_gguf_index.c. */
#ifndef TS_STORE_CVEC_H
#define TS_STORE_CVEC_H

#include "core/error.h"

typedef struct ts_cvec {
    int32_t width;
    int32_t n;      /* directions */
    int32_t *block; /* [n] 0-based, ascending */
    float *d;       /* [n][width] */
    int32_t layer_base;
    int64_t layer_count; /* as declared, -1 = not */
    char *model_hint;    /* these NULL where not declared */
    char *extraction;
    char *mode; /* "ablate", "add", "clamp" or "renorm" */
    char *hook;
    char *model_hash;
} ts_cvec;

/* *out is freed by ts_cvec_free. TS_ERR_IO, TS_ERR_FORMAT, TS_ERR_NOMEM; the message names the
 * file. */
int ts_cvec_read(const char *path, ts_cvec **out, ts_error *err);
void ts_cvec_free(ts_cvec *c);

/* The direction of a block, [width], or NULL. */
const float *ts_cvec_find(const ts_cvec *c, int32_t block);

/* What a file is to be used with. */
typedef struct ts_cvec_model {
    int32_t width, n_blocks;
    const char *architecture; /* "llama" */
    const char *hash;         /* as ts_cvec_spec.model_hash; NULL or "" = not known */
} ts_cvec_model;

/* TS_ERR_MODEL: another width, a block the model has not, another model's hash. *hint_differs (may
 * be NULL): the file names a model hint that is not the architecture; others write the Hugging Face
 * type there, so it is worth a warning only. */
int ts_cvec_check_model(const ts_cvec *c, const char *path, const ts_cvec_model *model,
                        bool *hint_differs, ts_error *err);

typedef struct ts_cvec_spec {
    int32_t width, n;     /* layers given */
    const int32_t *block; /* [n] ascending; NULL = 0, 1, .. */
    const float *d;       /* [n][width] */
    const char *model_hint, *extraction, *mode, *hook,
        *model_hash; /* NULL = left out; hook: TS_RESID_HOOK */
} ts_cvec_spec;

/* Writes the file by rename, nothing normalised. Block 0 is left out; *dropped (may be NULL) says
 * so, and the caller tells the user. TS_ERR_ARG: nothing but block 0, a direction that is zero or
 * not finite, blocks not ascending, an unknown mode. TS_ERR_IO. */
int ts_cvec_write(const char *path, const ts_cvec_spec *spec, bool *dropped, ts_error *err);

/* The file's bytes, for tests; caller frees. */
int ts_cvec_render(const ts_cvec_spec *spec, char **bytes, size_t *n, bool *dropped, ts_error *err);

#endif
