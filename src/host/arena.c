/* Memory that redirected nodes write to. Refuses more buffer types than a graph can have. */
#include "host/arena.h"

#include <errno.h>
#include <string.h>

#include "core/fault.h"

static ts_arena *arena_for(ts_arenas *a, ggml_backend_buffer_type_t buft) {
    for (size_t i = 0; i < a->n; i++)
        if (a->list[i].buft == buft) return &a->list[i];
    if (a->n == TS_ARENA_MAX) return NULL;
    ts_arena *arena = &a->list[a->n++];
    *arena = (ts_arena){.buft = buft};
    return arena;
}

/* A tensor header as ggml lays out a contiguous one, for the backend's own size rule. */
static struct ggml_tensor contiguous(enum ggml_type type, int64_t ne0, int64_t ne1) {
    struct ggml_tensor t;
    memset(&t, 0, sizeof(t));
    t.type = type;
    t.ne[0] = ne0;
    t.ne[1] = ne1;
    t.ne[2] = t.ne[3] = 1;
    t.nb[0] = ggml_type_size(type);
    t.nb[1] = t.nb[0] * (size_t)ne0;
    t.nb[2] = t.nb[3] = t.nb[1] * (size_t)ne1;
    return t;
}

int ts_arenas_reserve(ts_arenas *a, ggml_backend_buffer_type_t buft, enum ggml_type type, int64_t ne0, int64_t ne1,
                      int64_t rows, size_t *index, size_t *offset, size_t *bytes, ts_error *err) {
    ts_arena *arena = arena_for(a, buft);
    if (!arena) return ts_fail(err, TS_ERR_UNSUPPORTED, "the graph uses more than %d buffer types", TS_ARENA_MAX);
    struct ggml_tensor t = contiguous(type, ne0, ne1 * rows);
    size_t align = ggml_backend_buft_get_alignment(buft);
    *bytes = ggml_backend_buft_get_alloc_size(buft, &t);
    *offset = (arena->bytes + align - 1) / align * align;
    *index = (size_t)(arena - a->list);
    arena->bytes = *offset + *bytes;
    return TS_OK;
}

static ggml_backend_t device_of(ggml_backend_buffer_type_t buft) {
    ggml_backend_dev_t dev = ggml_backend_buft_get_device(buft);
    return dev ? ggml_backend_dev_init(dev, NULL) : NULL;
}

/* One thread: what it computes is too small for more. */
static ggml_backend_t processor(void) {
    ggml_backend_t backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    ggml_backend_reg_t reg = backend ? ggml_backend_dev_backend_reg(ggml_backend_get_device(backend)) : NULL;
    union {
        void *address;
        void (*set)(ggml_backend_t, int);
    } threads = {reg ? ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads") : NULL};
    if (threads.address) threads.set(backend, 1);
    return backend;
}

int ts_arenas_allocate(ts_arenas *a, ts_error *err) {
    for (size_t i = 0; i < a->n; i++) {
        ts_arena *arena = &a->list[i];
        arena->buffer = ts_fault_hit(ENOMEM) ? NULL : ggml_backend_buft_alloc_buffer(arena->buft, arena->bytes);
        if (!arena->buffer)
            return ts_fail(err, TS_ERR_NOMEM, "cannot allocate %.1f MiB on %s for the tapped sites: a smaller -ub needs less",
                           (double)arena->bytes / 1048576.0, ggml_backend_buft_name(arena->buft));
        ggml_backend_buffer_set_usage(arena->buffer, GGML_BACKEND_BUFFER_USAGE_COMPUTE);
        arena->host = ggml_backend_buft_is_host(arena->buft) && !a->as_device;
        if (!arena->host) arena->backend = a->as_device ? processor() : device_of(arena->buft);
    }
    return TS_OK;
}

size_t ts_arenas_bytes(const ts_arenas *a) {
    size_t bytes = 0;
    for (size_t i = 0; i < a->n; i++) bytes += a->list[i].bytes;
    return bytes;
}

bool ts_arenas_own(const ts_arenas *a, ggml_backend_buffer_t buffer) {
    for (size_t i = 0; i < a->n; i++)
        if (buffer && a->list[i].buffer == buffer) return true;
    return false;
}

void ts_arenas_poison(ts_arenas *a) {
    for (size_t i = 0; i < a->n; i++)
        if (a->list[i].buffer) ggml_backend_buffer_clear(a->list[i].buffer, 0xFF);
}

bool ts_arena_serves(const ts_arena *arena, struct ggml_cgraph *graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++)
        if (!ggml_backend_supports_op(arena->backend, ggml_graph_node(graph, i))) return false;
    return true;
}

int ts_arena_compute(const ts_arena *arena, struct ggml_cgraph *graph, ts_error *err) {
    if (ggml_backend_graph_compute(arena->backend, graph) == GGML_STATUS_SUCCESS) return TS_OK;
    return ts_fail(err, TS_ERR_ENGINE, "an edit failed on %s", ggml_backend_name(arena->backend));
}

void ts_arenas_free(ts_arenas *a) {
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i].backend) ggml_backend_free(a->list[i].backend);
        if (a->list[i].buffer) ggml_backend_buffer_free(a->list[i].buffer);
    }
    memset(a, 0, sizeof(*a));
}
