/* What the GPU checks are made of: prompt lists, directions, weights made f32. Refuses nothing; what cannot be written
 * ends the program. */
#include "gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml.h>
#include <gguf.h>

#include "store/cvec.h"

static void die(const ts_error *err) {
    fprintf(stderr, "bench_gpu: %s\n", err->message);
    exit(1);
}

void gpu_ok(int rc, const ts_error *err) {
    if (rc != TS_OK) die(err);
}

/* |a - b| / |b|; huge where that is no number. */
double gpu_distance(const float *a, const float *b, size_t n) {
    double d = 0.0, size = 0.0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    double e = sqrt(d / size);
    return isfinite(e) ? e : 1e9;
}

void gpu_write_corpus(const char *path, int32_t n, int32_t n_vocab) {
    FILE *f = fopen(path, "w");
    if (!f) exit(1);
    for (int32_t i = 0; i < n; i++) {
        fprintf(f, "{\"token_ids\": [");
        for (int32_t k = 0; k < 8 + i * 7 % 33; k++) fprintf(f, "%s%d", k ? ", " : "", (int)((3 + 7919 * (int64_t)(i + 1) * (k + 3)) % n_vocab));
        fprintf(f, "]}\n");
    }
    if (fclose(f) != 0) exit(1);
}

void gpu_write_vectors(const char *path, int32_t n_layer, int32_t width) {
    ts_error err = {0};
    int32_t *block = calloc((size_t)n_layer, sizeof(*block));
    float *d = malloc((size_t)n_layer * (size_t)width * sizeof(*d));
    uint64_t state = 88172645463325252u;
    if (!block || !d) exit(1);
    for (int32_t il = 1; il < n_layer; il++) {
        block[il - 1] = il;
        for (int32_t i = 0; i < width; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            d[(size_t)(il - 1) * (size_t)width + (size_t)i] = (float)(state >> 40) / (1 << 24) - 0.5f;
        }
    }
    ts_cvec_spec spec = {.width = width, .n = n_layer - 1, .block = block, .d = d};
    gpu_ok(ts_cvec_write(path, &spec, NULL, &err), &err);
    free(block);
    free(d);
}

/* The same model with every weight as f32: what a processor and a device make of quantised ones differs by how they cut
 * activations to 8 bits, not by what they compute. */
void gpu_write_f32(const char *from, const char *to) {
    struct ggml_context *file = NULL, *out;
    struct gguf_context *all = gguf_init_from_file(from, (struct gguf_init_params){.ctx = &file}), *made = gguf_init_empty();
    size_t bytes = 0;
    if (!all) {
        fprintf(stderr, "bench_gpu: cannot read '%s'\n", from);
        exit(1);
    }
    int64_t n = gguf_get_n_tensors(all);
    for (int64_t i = 0; i < n; i++) {
        const struct ggml_tensor *t = ggml_get_tensor(file, gguf_get_tensor_name(all, i));
        bytes += (size_t)ggml_nelements(t) * sizeof(float) + 2 * ggml_tensor_overhead() + 64;
    }
    gguf_set_kv(made, all);
    out = ggml_init((struct ggml_init_params){.mem_size = bytes});
    for (int64_t i = 0; out && i < n; i++) {
        const struct ggml_tensor *t = ggml_get_tensor(file, gguf_get_tensor_name(all, i));
        struct ggml_tensor *c = ggml_new_tensor(out, GGML_TYPE_F32, ggml_n_dims(t), t->ne);
        ggml_set_name(c, t->name);
        if (t->type == GGML_TYPE_F32) memcpy(c->data, t->data, ggml_nbytes(t));
        else ggml_get_type_traits(t->type)->to_float(t->data, c->data, ggml_nelements(t));
        gguf_add_tensor(made, c);
    }
    if (!out || !gguf_write_to_file(made, to, false)) {
        fprintf(stderr, "bench_gpu: cannot write '%s'\n", to);
        exit(1);
    }
    gguf_free(all);
    gguf_free(made);
    ggml_free(file);
    ggml_free(out);
}
