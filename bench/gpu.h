/* What the GPU checks share. */
#ifndef TS_BENCH_GPU_H
#define TS_BENCH_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <turbospark/turbospark.h>

#include "host/session.h"

typedef struct proof {
    const char *model, *layers, *folder, *file; /* file: NULL for a shape */
    char label[128]; /* without the folder of a file */
    ts_synthetic shape;
    ts_session *base; /* holds the model */
    ts_model_info info;
    int failed;
} proof;

enum { N_PROMPT = 70 }; /* tokens of a prompt, at most */

/* What a generation gives. */
typedef struct outcome {
    uint64_t logits, rows; /* hashes, of every pass and block */
    float *last;           /* [n_vocab] logits of the last pass */
    size_t n_vocab;
    int32_t n_redirected, n_asked;
} outcome;

/* gpu_make.c */

/* Ends the program with the error's line. */
void gpu_ok(int rc, const ts_error *err);
/* |a - b| / |b|; huge where that is no number. */
double gpu_distance(const float *a, const float *b, size_t n);
void gpu_write_corpus(const char *path, int32_t n, int32_t n_vocab);
/* A random direction for each block but the first. */
void gpu_write_vectors(const char *path, int32_t n_layer, int32_t width);
/* The same model with every weight as f32. */
void gpu_write_f32(const char *from, const char *to);

/* gpu_run.c */

/* One line. `figures` is what else there is to say, as members of the object, or "". */
void gpu_say(proof *p, const char *check, bool good, const char *figures);
void gpu_path(const proof *p, const char *name, char out[4096]);
uint64_t gpu_hash(uint64_t h, const void *bytes, size_t n);
ts_session *gpu_open(const proof *p, int32_t gpu_layers, const char *device);
ts_session_options gpu_shared(const proof *p);
ts_session *gpu_open_shared(const ts_session_options *so);
void gpu_generate(ts_session *s, int32_t n_vocab, int32_t n_prompt, int32_t n_predict, unsigned seed, outcome *o);
/* `n` floats of a file in the folder; freed by free(). */
float *gpu_read_rows(const proof *p, const char *name, size_t n);

/* gpu_compare.c */

void gpu_compare(proof *p);

#endif
