/* Steered generations for the end-to-end tests: control vectors to steer by, what one generation gave, and the same
 * vectors through llama.cpp's adapter without any of our code. */
#ifndef TS_STEERED_H
#define TS_STEERED_H

#include "tiny_each.h"

#include <jansson.h>

enum { STEERED_PASSES = 3, STEERED_PROMPT = 9 };

/* The prompt of every generation: STEERED_PROMPT seeded token ids. */
const int32_t *steered_prompt(void);

/* One random direction of this length for each block first..last, the same for the same seed and block. */
void steered_direction(float *d, int32_t width, int32_t block, unsigned seed, double length);
/* Written as NAME in the temporary folder, whose path is returned. */
const char *steered_file(const char *name, int32_t width, ts_range blocks, unsigned seed, double length);

/* Options with what they nearly always are: the path, a mode and a scale. */
ts_steering_options steered_by(const char *path, enum ts_steering_mode mode, double scale);

typedef struct steered {
    float *logits; /* [n_passes][n_vocab] */
    int32_t n_vocab, n_passes;
    char *summary; /* "" without steering */
    bool callback;
} steered;

typedef struct steered_extra {
    const char *trace, *capture; /* paths, nullable */
    int32_t n_predict;           /* 0 = STEERED_PASSES */
} steered_extra;

/* Attaches, generates greedily, finishes. Fails the test on an error. */
void steered_run(const ts_session_options *so, const ts_steering_options *files, size_t n, const steered_extra *extra, steered *out);
/* The same passes in a bare context; `added` is [n_layer][width] for llama_set_adapter_cvec, or NULL. */
void steered_stock(const ts_session_options *so, const float *added, steered *out);
void steered_free(steered *s);

/* |a - b| / |b| over the logits of all passes. Fails unless they have the same shape. */
double steered_error(const steered *a, const steered *b);
void steered_assert_same(const steered *a, const steered *b); /* to the bit */

/* The trace as an array of objects. */
json_t *steered_trace(const char *path);

#endif
