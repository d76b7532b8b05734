/* Random models of a given shape. Owns the list of a llama model's tensors and their seeded weights: a GGUF in memory that
 * llama.cpp loads like a file. Built through llama_model_init_from_user it would have every optional tensor of the
 * architecture, and so a longer graph than a real model has. Refuses shapes whose heads do not divide. */
#define _GNU_SOURCE
#include "host/synthetic.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/mem.h"
#include "ggml.h"
#include "gguf.h"
#include "host/engine.h"

#define N_CTX 8192
#define N_VOCAB 32000
#define BLOCK 32      /* values of a Q8_0 block */
#define PERIOD 32749  /* blocks until weights repeat: a prime, so that the rows of a matrix differ */
#define MAX_PATTERNS 8
#define MAX_LAYERS 512
#define MAX_EXPERTS 1024 /* both are llama.cpp's */

/* Blocks of one distribution, copied over and over. */
typedef struct pattern {
    enum ggml_type type;
    float mean, spread;
    char *bytes; /* [PERIOD] blocks of `block` bytes */
    size_t block;
} pattern;

typedef struct maker {
    const ts_synthetic *shape;
    struct gguf_context *gguf;
    struct ggml_context *tensors;
    pattern patterns[MAX_PATTERNS];
    size_t n_patterns;
    const volatile int *stop; /* nullable */
    ts_error *err;
} maker;

/* ---- shapes by name */

static const struct {
    const char *name;
    ts_synthetic shape;
} presets[] = {
    {"135M", {.n_layer = 30, .n_embd = 576, .n_ff = 1536, .n_head = 9, .n_head_kv = 3, .n_vocab = 49152}},
    {"3B", {.n_layer = 28, .n_embd = 3072, .n_ff = 8192, .n_head = 24, .n_head_kv = 8, .n_vocab = 128256}},
    {"8B", {.n_layer = 32, .n_embd = 4096, .n_ff = 14336, .n_head = 32, .n_head_kv = 8, .n_vocab = 128256}},
};

static int check_shape(const char *name, const ts_synthetic *s, ts_error *err) {
    if (s->n_layer < 1 || s->n_layer > MAX_LAYERS || s->n_embd < 1 || s->n_ff < 1 || s->n_head < 1 || s->n_head_kv < 1 || s->n_expert < 0)
        return ts_fail(err, TS_ERR_ARG, "%s: blocks (at most %d), widths and heads are numbers from 1", name, MAX_LAYERS);
    if (s->n_embd % (2 * s->n_head) != 0)
        return ts_fail(err, TS_ERR_ARG, "%s: a width of %d is no even number for each of %d heads", name, s->n_embd, s->n_head);
    if (s->n_head % s->n_head_kv != 0)
        return ts_fail(err, TS_ERR_ARG, "%s: %d heads do not share %d key-value heads evenly", name, s->n_head, s->n_head_kv);
    if (s->n_expert > MAX_EXPERTS) return ts_fail(err, TS_ERR_ARG, "%s: expected at most %d experts, got %d", name, MAX_EXPERTS, s->n_expert);
    if (s->n_expert ? s->n_expert_used < 1 || s->n_expert_used > s->n_expert : s->n_expert_used != 0)
        return ts_fail(err, TS_ERR_ARG, "%s: %d of %d experts cannot be used", name, s->n_expert_used, s->n_expert);
    return TS_OK;
}

static int no_shape(const char *name, const char *text, ts_error *err) {
    return ts_fail(err, TS_ERR_ARG, "%s: expected 135M, 3B, 8B or L,E,FF,H,HKV[,EXPERTS,USED], got '%s'", name, text);
}

int ts_parse_synthetic(const char *name, const char *text, ts_synthetic *out, ts_error *err) {
    ts_synthetic s = {.n_vocab = N_VOCAB};
    int32_t *fields[] = {&s.n_layer, &s.n_embd, &s.n_ff, &s.n_head, &s.n_head_kv, &s.n_expert, &s.n_expert_used};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++)
        if (strcmp(text, presets[i].name) == 0) {
            *out = presets[i].shape;
            return TS_OK;
        }
    for (const char *at = text; at && n < 7; n++) {
        char number[16];
        int64_t value;
        const char *comma = strchr(at, ',');
        size_t length = comma ? (size_t)(comma - at) : strlen(at);
        if (length >= sizeof(number)) return no_shape(name, text, err);
        memcpy(number, at, length);
        number[length] = '\0';
        if (ts_parse_i64(name, number, 1, INT32_MAX / 4, &value, NULL) != TS_OK) return no_shape(name, text, err);
        *fields[n] = (int32_t)value;
        at = comma ? comma + 1 : NULL;
        if (n == 6 && comma) return no_shape(name, text, err);
    }
    if (n != 5 && n != 7) return no_shape(name, text, err);
    int rc = check_shape(name, &s, err);
    if (rc == TS_OK) *out = s;
    return rc;
}

/* ---- what is in it */

static void put_u32(maker *m, const char *key, int32_t value) {
    char full[64];
    snprintf(full, sizeof(full), "llama.%s", key);
    gguf_set_val_u32(m->gguf, full, (uint32_t)value);
}

static int put_tokens(maker *m, int32_t n) {
    char(*texts)[16] = ts_calloc((size_t)n, sizeof(*texts));
    const char **list = ts_calloc((size_t)n, sizeof(*list));
    float *scores = ts_calloc((size_t)n, sizeof(*scores));
    bool ok = texts && list && scores;
    for (int32_t i = 0; ok && i < n; i++) {
        snprintf(texts[i], sizeof(texts[i]), "tok_%d", i);
        list[i] = texts[i];
    }
    gguf_set_val_str(m->gguf, "tokenizer.ggml.model", "test"); /* needs no vocabulary of its own */
    if (ok) gguf_set_arr_str(m->gguf, "tokenizer.ggml.tokens", list, (size_t)n);
    if (ok) gguf_set_arr_data(m->gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, (size_t)n);
    free(texts);
    free(list);
    free(scores);
    return ok ? TS_OK : ts_fail_nomem(m->err, "tokens", (size_t)n * sizeof(*texts));
}

static int put_keys(maker *m) {
    const ts_synthetic *s = m->shape;
    char name[64];
    snprintf(name, sizeof(name), "synthetic %d,%d,%d,%d,%d", s->n_layer, s->n_embd, s->n_ff, s->n_head, s->n_head_kv);
    gguf_set_val_str(m->gguf, "general.architecture", "llama");
    gguf_set_val_str(m->gguf, "general.name", name);
    put_u32(m, "vocab_size", s->n_vocab);
    put_u32(m, "context_length", N_CTX);
    put_u32(m, "embedding_length", s->n_embd);
    put_u32(m, "block_count", s->n_layer);
    put_u32(m, "feed_forward_length", s->n_ff);
    put_u32(m, "attention.head_count", s->n_head);
    put_u32(m, "attention.head_count_kv", s->n_head_kv);
    gguf_set_val_f32(m->gguf, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (s->n_expert) {
        put_u32(m, "expert_count", s->n_expert);
        put_u32(m, "expert_used_count", s->n_expert_used);
    }
    return put_tokens(m, s->n_vocab);
}

static void put_tensor(maker *m, enum ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2, const char *name) {
    bool whole = ne0 % BLOCK == 0;
    struct ggml_tensor *t = ggml_new_tensor_3d(m->tensors, whole && !m->shape->f32 ? type : GGML_TYPE_F32, ne0, ne1, ne2);
    ggml_set_name(t, name);
    gguf_add_tensor(m->gguf, t);
}

static void put_block(maker *m, int32_t il, enum ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2, const char *suffix) {
    char name[GGML_MAX_NAME];
    snprintf(name, sizeof(name), "blk.%d.%s.weight", il, suffix);
    put_tensor(m, type, ne0, ne1, ne2, name);
}

static void put_tensors(maker *m) {
    const ts_synthetic *s = m->shape;
    int64_t e = s->n_embd, ff = s->n_ff, kv = e / s->n_head * s->n_head_kv, x = s->n_expert;
    enum ggml_type q = GGML_TYPE_Q8_0, f = GGML_TYPE_F32;
    put_tensor(m, q, e, s->n_vocab, 1, "token_embd.weight");
    put_tensor(m, f, e, 1, 1, "output_norm.weight");
    put_tensor(m, q, e, s->n_vocab, 1, "output.weight");
    for (int32_t il = 0; il < s->n_layer; il++) {
        put_block(m, il, f, e, 1, 1, "attn_norm");
        put_block(m, il, q, e, e, 1, "attn_q");
        put_block(m, il, q, e, kv, 1, "attn_k");
        put_block(m, il, q, e, kv, 1, "attn_v");
        put_block(m, il, q, e, e, 1, "attn_output");
        put_block(m, il, f, e, 1, 1, "ffn_norm");
        if (x) put_block(m, il, f, e, x, 1, "ffn_gate_inp");
        put_block(m, il, q, e, ff, x ? x : 1, x ? "ffn_gate_exps" : "ffn_gate");
        put_block(m, il, q, e, ff, x ? x : 1, x ? "ffn_up_exps" : "ffn_up");
        put_block(m, il, q, ff, e, x ? x : 1, x ? "ffn_down_exps" : "ffn_down");
    }
}

/* ---- weights */

static uint64_t mix(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Mean 0, variance 1: a sum of four uniforms, so that no math library decides a bit. */
static float noise(uint64_t *state) {
    uint64_t r = mix(state), sum = (r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48);
    return ((float)sum / 65536.0f - 2.0f) * 1.7320508f;
}

static int make_pattern(maker *m, pattern *p, enum ggml_type type, float mean, float spread) {
    uint64_t state = m->shape->seed;
    float *x = ts_malloc(sizeof(*x) * PERIOD * BLOCK);
    *p = (pattern){.type = type, .mean = mean, .spread = spread, .block = ggml_row_size(type, BLOCK)};
    p->bytes = ts_malloc(p->block * PERIOD);
    for (size_t i = 0; x && i < PERIOD * BLOCK; i++) x[i] = mean + spread * noise(&state);
    if (x && p->bytes && type == GGML_TYPE_F32) memcpy(p->bytes, x, p->block * PERIOD);
    if (x && p->bytes && type != GGML_TYPE_F32) ggml_quantize_chunk(type, x, p->bytes, 0, PERIOD, BLOCK, NULL);
    free(x);
    return x && p->bytes ? TS_OK : ts_fail_nomem(m->err, "weights", sizeof(*x) * PERIOD * BLOCK);
}

static int find_pattern(maker *m, const struct ggml_tensor *t, const pattern **out) {
    bool norm = t->ne[1] == 1, embedding = strncmp(t->name, "token_embd", 10) == 0;
    float mean = norm ? 1.0f : 0.0f, spread = norm ? 0.1f : embedding ? 1.0f : 1.0f / sqrtf((float)t->ne[0]);
    size_t i = 0;
    while (i < m->n_patterns && (m->patterns[i].type != t->type || m->patterns[i].mean != mean || m->patterns[i].spread != spread)) i++;
    int rc = i < m->n_patterns ? TS_OK : make_pattern(m, &m->patterns[m->n_patterns++], t->type, mean, spread);
    *out = &m->patterns[i];
    return rc;
}

/* Every tensor begins at another place of its pattern. */
static void fill(char *out, size_t n, const pattern *p, const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    size_t period = p->block * PERIOD, at;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    for (at = (size_t)(h % PERIOD) * p->block; n > 0; at = 0) {
        size_t part = n < period - at ? n : period - at;
        memcpy(out, p->bytes + at, part);
        out += part;
        n -= part;
    }
}

static int fill_all(maker *m, char *data) {
    int rc = TS_OK;
    for (int64_t i = 0; rc == TS_OK && i < gguf_get_n_tensors(m->gguf); i++) {
        const struct ggml_tensor *t = ggml_get_tensor(m->tensors, gguf_get_tensor_name(m->gguf, i));
        const pattern *p = NULL;
        rc = find_pattern(m, t, &p);
        if (rc == TS_OK && m->stop && *m->stop) rc = ts_fail(m->err, TS_ERR_INTERRUPTED, "interrupted while the model was made");
        if (rc == TS_OK) fill(data + gguf_get_tensor_offset(m->gguf, i), ggml_nbytes(t), p, t->name);
    }
    return rc;
}

/* ---- as a file in memory */

static size_t data_bytes(const maker *m) {
    int64_t last = gguf_get_n_tensors(m->gguf) - 1;
    size_t align = gguf_get_alignment(m->gguf), size = gguf_get_tensor_offset(m->gguf, last) + gguf_get_tensor_size(m->gguf, last);
    return (size + align - 1) / align * align;
}

static int write_file(maker *m, int fd) {
    size_t head = gguf_get_meta_size(m->gguf), size = head + data_bytes(m);
    double there = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if ((double)size > there)
        return ts_fail(m->err, TS_ERR_NOMEM, "a synthetic model of %.1f MiB does not fit the %.1f MiB of this machine", (double)size / 1048576.0,
                       there / 1048576.0);
    char *bytes = ftruncate(fd, (off_t)size) == 0 ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (bytes == MAP_FAILED)
        return ts_fail(m->err, TS_ERR_NOMEM, "cannot make a synthetic model of %.1f MiB: %s", (double)size / 1048576.0, strerror(errno));
    gguf_get_meta_data(m->gguf, bytes);
    int rc = fill_all(m, bytes + head);
    munmap(bytes, size);
    return rc;
}

static int load(maker *m, struct llama_model_params params, struct llama_model **out) {
    int fd = memfd_create("turbospark-synthetic", MFD_CLOEXEC);
    FILE *file = fd >= 0 ? fdopen(fd, "w+b") : tmpfile();
    if (!file) {
        if (fd >= 0) close(fd);
        return ts_fail(m->err, TS_ERR_NOMEM, "cannot make a file in memory: %s", strerror(errno));
    }
    int rc = write_file(m, fileno(file));
    params.load_mode = LLAMA_LOAD_MODE_NONE; /* a mapping would keep what went to a device */
    ts_engine_error_reset();
    if (rc == TS_OK) *out = llama_model_load_from_file_ptr(file, params);
    fclose(file);
    if (rc == TS_OK && !*out && m->stop && *m->stop)
        rc = ts_fail(m->err, TS_ERR_INTERRUPTED, "interrupted while the model was loaded");
    if (rc == TS_OK && !*out)
        rc = ts_fail(m->err, TS_ERR_MODEL, "llama.cpp cannot load the synthetic model: %s",
                     *ts_engine_error() ? ts_engine_error() : "no reason given");
    return rc;
}

int ts_synthetic_load(const ts_synthetic *shape, struct llama_model_params params, const volatile int *stop, struct llama_model **out,
                      ts_error *err) {
    ts_synthetic s = *shape;
    maker m = {.shape = &s, .stop = stop, .err = err};
    if (s.n_vocab <= 0) s.n_vocab = N_VOCAB;
    *out = NULL;
    int rc = check_shape("synthetic model", &s, err);
    if (rc != TS_OK) return rc;
    m.gguf = gguf_init_empty();
    m.tensors = ggml_init((struct ggml_init_params){.mem_size = ggml_tensor_overhead() * (size_t)(8 + 12 * s.n_layer), .no_alloc = true});
    if (!m.gguf || !m.tensors) rc = ts_fail_nomem(err, "synthetic model", 0);
    if (rc == TS_OK) rc = put_keys(&m);
    if (rc == TS_OK) {
        put_tensors(&m);
        rc = load(&m, params, out);
    }
    for (size_t i = 0; i < m.n_patterns; i++) free(m.patterns[i].bytes);
    ggml_free(m.tensors);
    gguf_free(m.gguf);
    return rc;
}
