/* Steering: directions applied at the residual site. One object a session, any number of files in it. */
#ifndef TS_INSTRUMENT_STEERING_H
#define TS_INSTRUMENT_STEERING_H

#include "host/session.h"
#include "stats/steer.h"
#include "store/cvec.h"

/* One file with its rule. */
typedef struct ts_steering_file {
    char *name;          /* base name, for messages and the trace */
    ts_cvec *vectors;
    ts_steer_axis *axes; /* [n_layer]; n 0 where the file has no direction or the block is out of range */
    ts_steer_rule rule;
    enum ts_steering_from from;
    int32_t n_blocks;    /* steered */
    bool by_adapter;     /* llama.cpp's adapter adds it, the edit does not */
} ts_steering_file;

/* Reads, checks against the session's model, and prepares one file. Freed by ts_steering_file_free, also after a
 * failure. */
int ts_steering_file_open(ts_steering_file *f, const ts_session *s, const ts_steering_options *o, ts_error *err);
void ts_steering_file_free(ts_steering_file *f, int32_t n_layer);
/* "ablate at scale 1 on 29 of 30 blocks ('dir.gguf')" into `out`. */
void ts_steering_file_describe(const ts_steering_file *f, int32_t n_layer, char *out, size_t size);

/* What ts_steer_row does, as a device does it. False where a number of it does not fit f32: then the host must. */
bool ts_steering_step(const ts_steer_axis *axis, const ts_steer_rule *rule, ts_edit_step *step);

#endif
