/* Small values of a device's rows become zero where they are, as stats/zero.h does it on the host. */
#ifndef TS_HOST_DEVICE_ZERO_H
#define TS_HOST_DEVICE_ZERO_H

#include "core/error.h"
#include "host/arena.h"

struct ts_tap;
struct ts_slot;
struct ggml_gallocr;

/* The smallest of each row, or all below a threshold. */
typedef struct ts_edit_zero {
    bool by_share;
    double value; /* 0..1 of the row; or the threshold */
} ts_edit_zero;

/* Zeroes the rows of `t` by tap->edit.zero. *done false: the backend does not serve it. Of equal magnitudes any may go. */
int ts_device_zero_run(struct ts_tap *tap, const ts_arena *arena, struct ggml_gallocr *scratch, const struct ts_slot *slot,
                       const struct ggml_tensor *t, bool *done, ts_error *err);

#endif
