/* What every GPU check does: a line of its outcome, sessions of the model at hand, one generation. What fails there ends
 * the program. */
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One line. `figures` is what else there is to say, as members of the object, or "". */
void gpu_say(proof *p, const char *check, bool good, const char *figures) {
    printf("{\"check\": \"%s\", \"model\": \"%s\", \"gpu_layers\": \"%s\", \"ok\": %s%s%s}\n", check, p->label, p->layers ? p->layers : "all",
           good ? "true" : "false", *figures ? ", " : "", figures);
    fflush(stdout);
    p->failed += !good;
}

void gpu_path(const proof *p, const char *name, char out[4096]) { snprintf(out, 4096, "%s/%s", p->folder, name); }

uint64_t gpu_hash(uint64_t h, const void *bytes, size_t n) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i++) h = (h ^ at[i]) * 0x100000001b3u;
    return h;
}

/* ---- sessions */

ts_session *gpu_open(const proof *p, int32_t gpu_layers, const char *device) {
    ts_error err = {0};
    ts_session *s = NULL;
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.model_path = p->file;
    so.synthetic = p->file ? NULL : &p->shape;
    so.n_gpu_layers = gpu_layers;
    so.device = device;
    gpu_ok(ts_session_open(&so, &s, &err), &err);
    return s;
}

ts_session_options gpu_shared(const proof *p) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.share = p->base;
    so.n_ctx = 512;
    so.n_ubatch = 64; /* prompts longer than that run in several */
    so.n_threads = ts_engine_cores() >= 16 ? 8 : (ts_engine_cores() + 1) / 2; /* threads that wait for a core wait long */
    return so;
}

ts_session *gpu_open_shared(const ts_session_options *so) {
    ts_error err = {0};
    ts_session *s = NULL;
    gpu_ok(ts_session_open(so, &s, &err), &err);
    return s;
}

/* ---- one generation */

static void on_logits(const float *logits, int32_t n_vocab, void *user) {
    outcome *o = user;
    o->n_vocab = (size_t)n_vocab;
    o->logits = gpu_hash(o->logits, logits, o->n_vocab * sizeof(float));
    o->last = realloc(o->last, o->n_vocab * sizeof(float));
    if (o->last) memcpy(o->last, logits, o->n_vocab * sizeof(float));
}

void gpu_generate(ts_session *s, int32_t n_vocab, int32_t n_prompt, int32_t n_predict, unsigned seed, outcome *o) {
    ts_error err = {0};
    int32_t tokens[N_PROMPT];
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    for (int32_t i = 0; i < n_prompt; i++) tokens[i] = (int32_t)((100 + 37 * (int64_t)i * (int64_t)(seed + 1)) % n_vocab);
    g.tokens = tokens;
    g.n_tokens = (size_t)n_prompt;
    g.n_predict = n_predict;
    g.ignore_eos = true;
    g.on_logits = on_logits;
    g.user = o;
    gpu_ok(ts_session_generate(s, &g, NULL, &err), &err);
}

float *gpu_read_rows(const proof *p, const char *name, size_t n) {
    char path[4096];
    float *rows = malloc(n * sizeof(*rows));
    gpu_path(p, name, path);
    FILE *f = fopen(path, "rb");
    if (!rows || !f || fread(rows, sizeof(*rows), n, f) != n) exit(1);
    fclose(f);
    return rows;
}
