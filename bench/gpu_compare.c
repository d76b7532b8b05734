/* A device against the processor: the same prompts through both, plain and steered, a block's row each. */
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_COMPARED = 5 };
#define DEVICE_LIMIT 2e-3 /* of a row, f32 weights; of others the figure is shown */

/* What is compared: the defaults; an f32 cache and plain attention, so that what those two add shows; every block steered. */
typedef struct arm {
    const char *check;
    bool exact_cache, steered, gated;
    enum ts_steering_mode mode;
} arm;

static const arm arms[] = {
    {.check = "residuals: device against the processor"},
    {.check = "residuals: likewise, f32 cache, no flash attention", .exact_cache = true},
    {.check = "steering: add, by the adapter, device against the processor", .steered = true, .mode = TS_STEERING_ADD},
    {.check = "steering: add, edited, device against the processor", .steered = true, .gated = true, .mode = TS_STEERING_ADD},
    {.check = "steering: ablate, device against the processor", .steered = true, .mode = TS_STEERING_ABLATE},
    {.check = "steering: clamp, device against the processor", .steered = true, .mode = TS_STEERING_CLAMP},
    {.check = "steering: renorm, device against the processor", .steered = true, .mode = TS_STEERING_RENORM},
};
enum { N_ARMS = sizeof(arms) / sizeof(arms[0]) };

static void steer(ts_session *s, const proof *p, const arm *a) {
    char path[4096];
    ts_error err = {0};
    ts_steering_options st = TS_OPTIONS_INIT(ts_steering_options);
    gpu_path(p, "directions.gguf", path);
    st.path = path;
    st.mode = a->mode;
    st.scale = 0.5;
    st.target = a->mode == TS_STEERING_CLAMP ? 3 : 0;
    st.gate = a->gated ? 1e-20 : 0;
    gpu_ok(ts_session_attach_steering(s, &st, &err), &err);
}

/* The last row of every block for each of N_COMPARED prompts. */
static float *snapshot(const proof *p, const arm *a) {
    char path[4096];
    ts_error err = {0};
    outcome unused = {0};
    ts_session_options so = gpu_shared(p);
    if (a->exact_cache) so.type_k = so.type_v = "f32";
    so.flash_attn = a->exact_cache ? TS_FLASH_OFF : TS_FLASH_AUTO;
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    size_t n = (size_t)N_COMPARED * (size_t)p->info.n_layer * (size_t)p->info.n_embd;
    gpu_path(p, "snap.json", path);
    ts_session *s = gpu_open_shared(&so);
    if (a->steered) steer(s, p, a);
    ro.path = path;
    gpu_ok(ts_session_attach_resid(s, &ro, &err), &err);
    for (unsigned i = 0; i < N_COMPARED; i++) gpu_generate(s, p->info.n_vocab, 20 + 10 * (int32_t)i, 1, i, &unused);
    gpu_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    free(unused.last);
    return gpu_read_rows(p, "snap.f32", n);
}

/* The farthest that `a` has a block's row from `b`'s; by block into `out`, when not NULL. */
static double farthest(const proof *p, const float *a, const float *b, double *out) {
    size_t n = (size_t)p->info.n_embd, blocks = (size_t)p->info.n_layer;
    double worst = 0.0;
    for (size_t il = 0; il < blocks; il++) {
        double here = 0.0;
        for (size_t i = 0; i < N_COMPARED; i++) {
            double e = gpu_distance(a + (i * blocks + il) * n, b + (i * blocks + il) * n, n);
            here = e > here ? e : here;
        }
        if (out) out[il] = here;
        worst = here > worst ? here : worst;
    }
    return worst;
}

static void report(proof *p, const arm *a, const float *device, const float *processor, const float *plain) {
    char text[8192];
    double *by_block = malloc((size_t)p->info.n_layer * sizeof(*by_block));
    if (!by_block) exit(1);
    double worst = farthest(p, device, processor, by_block), moved = a->steered ? farthest(p, processor, plain, NULL) : 1.0;
    int at = snprintf(text, sizeof(text), "\"worst_by_block\": [");
    for (int32_t il = 0; il < p->info.n_layer && at < (int)sizeof(text) - 128; il++)
        at += snprintf(text + at, 64, "%s%.2e", il ? ", " : "", by_block[il]);
    at += snprintf(text + at, sizeof(text) - (size_t)at, "], \"worst\": %.3e", worst);
    if (a->steered) snprintf(text + at, sizeof(text) - (size_t)at, ", \"steered_from_plain\": %.3e", moved);
    bool f32 = strncmp(p->model, "f32:", 4) == 0;
    gpu_say(p, a->check, !f32 || (worst < DEVICE_LIMIT && moved > 10 * worst), text);
    free(by_block);
}

void gpu_compare(proof *p) {
    char path[4096];
    float *device[N_ARMS], *processor[N_ARMS];
    gpu_path(p, "directions.gguf", path);
    gpu_write_vectors(path, p->info.n_layer, p->info.n_embd);
    for (size_t i = 0; i < N_ARMS; i++) device[i] = snapshot(p, &arms[i]);
    ts_session_close(p->base);
    p->base = gpu_open(p, TS_GPU_LAYERS_NONE, "none");
    for (size_t i = 0; i < N_ARMS; i++) processor[i] = snapshot(p, &arms[i]);
    for (size_t i = 0; i < N_ARMS; i++) report(p, &arms[i], device[i], processor[i], processor[0]);
    for (size_t i = 0; i < N_ARMS; i++) {
        free(device[i]);
        free(processor[i]);
    }
}
