/* Rows of device arenas on their way to the host. Owns the page-locked buffers and the plan of the copies. Refuses
 * nothing: a device without asynchronous copies or page-locked memory is only slower. */
#include "host/readback.h"

#include <string.h>

#include "host/tap.h"

/* Slots that lie at one distance from each other and hold equally many rows: one copy. */
typedef struct group {
    size_t first, n; /* slots */
    size_t stride, row, rows;
} group;

static bool wanted(const ts_tap *tap, const ts_slot *slot, size_t arena) {
    return slot->seen == TS_SLOT_REDIRECTED && slot->arena == arena && ((tap->wanted >> slot->site.pub.kind) & 1u);
}

static group group_at(const ts_tap *tap, size_t at, size_t arena) {
    const ts_slot *s = tap->slots, *first = &s[at];
    group g = {.first = at, .n = 1, .row = ggml_row_size(first->node.type, first->node.ne[0]), .rows = (size_t)ts_node_rows(&first->node)};
    for (size_t i = at + 1; i < tap->n_slots && wanted(tap, &s[i], arena); i++) {
        size_t step = s[i].at - s[i - 1].at;
        if (ggml_row_size(s[i].node.type, s[i].node.ne[0]) != g.row || (size_t)ts_node_rows(&s[i].node) != g.rows) break;
        if (g.n > 1 && step != g.stride) break;
        g.stride = step;
        g.n++;
    }
    return g;
}

/* Rows of the group that are read: those of the outputs where that is said and all tokens were computed. */
static bool picks(const ts_tap *tap, const group *g) {
    const struct ts_run *run = &tap->run;
    size_t per_token = (size_t)tap->slots[g->first].site.ne[1];
    return run->picking && per_token == 1 && g->rows == (size_t)run->n_tokens;
}

static size_t bytes_of(const ts_tap *tap, const group *g) {
    return g->n * g->row * (picks(tap, g) ? (size_t)tap->run.n_picked : g->rows);
}

static size_t bytes_of_arena(const ts_tap *tap, size_t arena) {
    size_t bytes = 0;
    for (size_t i = 0; i < tap->n_slots;) {
        if (!wanted(tap, &tap->slots[i], arena)) {
            i++;
            continue;
        }
        group g = group_at(tap, i, arena);
        bytes += bytes_of(tap, &g);
        i += g.n;
    }
    return bytes;
}

static void copy(ggml_backend_t backend, const struct ggml_tensor *whole, const group *g, size_t from, size_t size, char *to, size_t step) {
    if (g->stride == size && step == size) { /* without a gap */
        ggml_backend_tensor_get_async(backend, whole, to, from, size * g->n);
        return;
    }
    ggml_backend_tensor_get_2d_async(backend, whole, to, from, size, g->n, g->stride ? g->stride : size, step);
}

/* Runs of neighbouring tokens in one copy each. */
static void copy_picked(const ts_tap *tap, ggml_backend_t backend, const struct ggml_tensor *whole, const group *g, char *to) {
    const struct ts_run *run = &tap->run;
    size_t offset = tap->slots[g->first].at, step = g->row * (size_t)run->n_picked;
    for (int32_t i = 0, n; i < run->n_picked; i += n) {
        for (n = 1; i + n < run->n_picked && run->picked[i + n] == run->picked[i] + n; n++) continue;
        copy(backend, whole, g, offset + (size_t)run->picked[i] * g->row, g->row * (size_t)n, to + g->row * (size_t)i, step);
    }
}

static struct ggml_tensor whole_arena(const ts_arena *arena) {
    struct ggml_tensor t;
    memset(&t, 0, sizeof(t));
    t.type = GGML_TYPE_I8;
    t.ne[0] = (int64_t)arena->bytes;
    t.ne[1] = t.ne[2] = t.ne[3] = 1;
    t.nb[0] = 1;
    t.nb[1] = t.nb[2] = t.nb[3] = arena->bytes;
    t.buffer = arena->buffer;
    t.data = ggml_backend_buffer_get_base(arena->buffer);
    return t;
}

/* ---- page-locked memory */

static char *room(ggml_backend_buffer_t *buffer, ggml_backend_t backend, size_t bytes) {
    if (*buffer && ggml_backend_buffer_get_size(*buffer) >= bytes) return ggml_backend_buffer_get_base(*buffer);
    ggml_backend_buffer_type_t buft = ggml_backend_dev_host_buffer_type(ggml_backend_get_device(backend));
    if (*buffer) ggml_backend_buffer_free(*buffer);
    if (bytes > TS_READBACK_SMALL) bytes += bytes / 2; /* locking pages is slow: not for every new size */
    *buffer = ggml_backend_buft_alloc_buffer(buft ? buft : ggml_backend_cpu_buffer_type(), bytes);
    return *buffer ? ggml_backend_buffer_get_base(*buffer) : NULL;
}

/* All that one token's run can leave in an arena; 0 when that is too much to keep many of. */
static size_t entry_bytes(const ts_tap *tap, size_t arena) {
    size_t bytes = 0;
    for (size_t i = 0; i < tap->n_slots; i++)
        if (tap->slots[i].bytes && tap->slots[i].arena == arena) bytes += tap->slots[i].one_bytes;
    return bytes <= TS_READBACK_SMALL ? bytes : 0;
}

static bool in_ring(const ts_tap *tap, size_t arena, size_t bytes) {
    return tap->run.n_tokens == 1 && bytes <= tap->readbacks[arena].entry;
}

static char *take_room(ts_tap *tap, size_t arena, size_t bytes) {
    ts_readback *r = &tap->readbacks[arena];
    ggml_backend_t backend = tap->arenas.list[arena].backend;
    if (!r->entry) r->entry = entry_bytes(tap, arena);
    if (!in_ring(tap, arena, bytes)) return room(&r->large[r->next_large++ % 2], backend, bytes);
    char *base = room(&r->ring, backend, r->entry * TS_READBACK_RING); /* asked for at one size only: rows in it stay */
    return base ? base + r->next++ % TS_READBACK_RING * r->entry : NULL;
}

int32_t ts_readback_stay(const struct ts_tap *tap) {
    for (size_t i = 0; i < tap->n_slots; i++) {
        const ts_slot *slot = &tap->slots[i];
        if (slot->seen == TS_SLOT_UNSEEN || !((tap->wanted >> slot->site.pub.kind) & 1u)) continue;
        if (!slot->read_back || !in_ring(tap, slot->arena, bytes_of_arena(tap, slot->arena))) return 0;
    }
    return TS_READBACK_RING - 1;
}

/* ---- a run */

static void mark(ts_tap *tap, const group *g, char *to) {
    size_t each = bytes_of(tap, g) / g->n;
    for (size_t i = 0; i < g->n; i++) {
        ts_slot *slot = &tap->slots[g->first + i];
        slot->rows = to + i * each;
        slot->picked = picks(tap, g);
        slot->read_back = slot->staged_valid = true;
    }
}

static int read_arena(ts_tap *tap, size_t index, ts_error *err) {
    ts_arena *arena = &tap->arenas.list[index];
    struct ggml_tensor whole = whole_arena(arena);
    size_t bytes = bytes_of_arena(tap, index);
    char *to = bytes ? take_room(tap, index, bytes) : NULL;
    if (bytes && !to) return ts_fail_nomem(err, "rows read back", bytes);
    for (size_t i = 0; bytes && i < tap->n_slots;) {
        if (!wanted(tap, &tap->slots[i], index)) {
            i++;
            continue;
        }
        group g = group_at(tap, i, index);
        if (picks(tap, &g)) copy_picked(tap, arena->backend, &whole, &g, to);
        else copy(arena->backend, &whole, &g, tap->slots[i].at, g.row * g.rows, to, g.row * g.rows);
        mark(tap, &g, to);
        to += bytes_of(tap, &g);
        i += g.n;
    }
    return TS_OK;
}

int ts_readback_run(struct ts_tap *tap, ts_error *err) {
    int rc = TS_OK;
    for (size_t i = 0; rc == TS_OK && i < tap->arenas.n; i++)
        if (tap->arenas.list[i].backend && !tap->arenas.list[i].host) rc = read_arena(tap, i, err);
    for (size_t i = 0; i < tap->arenas.n; i++)
        if (tap->arenas.list[i].backend) ggml_backend_synchronize(tap->arenas.list[i].backend);
    return rc;
}

void ts_readback_free(ts_readback *r) {
    if (r->ring) ggml_backend_buffer_free(r->ring);
    for (size_t i = 0; i < 2; i++)
        if (r->large[i]) ggml_backend_buffer_free(r->large[i]);
    memset(r, 0, sizeof(*r));
}
