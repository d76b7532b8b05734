/* Rows of device arenas on their way to the host: page-locked memory, one strided copy for blocks that lie alike, only
 * what the decode said it will read. */
#ifndef TS_HOST_READBACK_H
#define TS_HOST_READBACK_H

#include "core/error.h"
#include "ggml-backend.h"

struct ts_tap;

#define TS_READBACK_RING 40               /* runs of one token whose rows are kept side by side */
#define TS_READBACK_SMALL ((size_t)4 << 20) /* bytes of such a run at most */

/* Page-locked memory of one device. */
typedef struct ts_readback {
    ggml_backend_buffer_t ring, large[2]; /* taken in turn: runs of one token, others */
    size_t entry, next, next_large;       /* entry: bytes of one run in the ring */
} ts_readback;

/* Copies what the run at hand wrote of the wanted kinds from every device arena, and waits. Slots whose rows came are
 * marked staged; the others are left to be read one by one. */
int ts_readback_run(struct ts_tap *tap, ts_error *err);
/* Through how many later runs the rows of the one at hand stay where they are; 0 in memory the next run overwrites. */
int32_t ts_readback_stay(const struct ts_tap *tap);
void ts_readback_free(ts_readback *r);

#endif
