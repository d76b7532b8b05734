/* Memory that redirected nodes write to: one buffer per buffer type, one slot per wanted site, each big
 * enough for n_ubatch tokens. Addresses never change while the arena lives. */
#ifndef TS_HOST_ARENA_H
#define TS_HOST_ARENA_H

#include "core/error.h"
#include "ggml-backend.h"

#define TS_ARENA_MAX 16 /* buffer types of one graph */

typedef struct ts_arena {
    ggml_backend_buffer_type_t buft;
    ggml_backend_buffer_t buffer;
    size_t bytes;
    bool host;
    ggml_backend_t backend; /* ours, on the arena's device: copies and edits; NULL on the host or without one */
} ts_arena;

typedef struct ts_arenas {
    ts_arena list[TS_ARENA_MAX];
    size_t n;
    bool as_device; /* tests: host memory is read and edited as a device's, and an edit that a device could do never is on the host */
} ts_arenas;

/* Reserves room for a tensor shaped [ne0, ne1 * rows] of `type`; before ts_arenas_allocate. Gives the slot's
 * arena, offset and size. */
int ts_arenas_reserve(ts_arenas *a, ggml_backend_buffer_type_t buft, enum ggml_type type, int64_t ne0, int64_t ne1,
                      int64_t rows, size_t *index, size_t *offset, size_t *bytes, ts_error *err);
/* TS_ERR_NOMEM names the size and -ub. */
int ts_arenas_allocate(ts_arenas *a, ts_error *err);
size_t ts_arenas_bytes(const ts_arenas *a);
bool ts_arenas_own(const ts_arenas *a, ggml_backend_buffer_t buffer);
/* Fills everything with the NaN pattern 0xFFFFFFFF: a slot no kernel wrote shows. */
void ts_arenas_poison(ts_arenas *a);
/* Whether the arena's own backend computes all of a graph. */
bool ts_arena_serves(const ts_arena *arena, struct ggml_cgraph *graph);
/* Computes it there, and waits. */
int ts_arena_compute(const ts_arena *arena, struct ggml_cgraph *graph, ts_error *err);
void ts_arenas_free(ts_arenas *a);

#endif
