/* The promises, checked on whatever devices ggml finds: one line of JSON a check on standard output, exit 1 when one fails.
 * scripts/gpu-proof runs it; any machine will do, a GPU is what makes it worth while.
 *
 *   bench_gpu check MODEL GPU_LAYERS FOLDER      MODEL: a GGUF file or a shape of `bench --synthetic`; either after "f32:"
 *                                                with weights of that type; GPU_LAYERS: a number, half or all
 *   bench_gpu compare MODEL FOLDER               the devices against the processor, block by block, plain and steered
 *   bench_gpu vectors SHAPE FILE.gguf            random directions of that width and number of blocks
 *   bench_gpu corpus SHAPE N FILE.jsonl          N prompts of 8 to 40 token ids */
#include "gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "store/cvec.h"

enum { N_PREDICT = 24, N_CORPUS = 40, N_CORPUS_SLOW = 8 };
#define PACKED_LIMIT 5e-3  /* packed against exact, f32 weights: other kernels, f16 cache; of others the figure is shown */
#define EDITED_LIMIT 1e-5  /* a row edited on the device against the same row edited in f64 */

/* ---- what a generation gives */

/* An instrument that hashes every row of every headful pass. */
static int hash_pass(void *self, const ts_pass *pass, ts_error *err) {
    outcome *o = self;
    const ts_tap *tap = pass->run->tap;
    for (size_t i = 0; i < tap->n_slots; i++) {
        ts_rows rows;
        const ts_site *site = &tap->slots[i].site.pub;
        int rc = ts_run_rows(pass->run, site->kind, site->block, &rows, err);
        if (rc != TS_OK) return rc;
        o->rows = gpu_hash(o->rows, rows.data, (size_t)(rows.n_rows * rows.width) * sizeof(float));
    }
    return TS_OK;
}

static int hash_start(void *self, ts_session *s, ts_error *err) { return self && s ? TS_OK : ts_fail(err, TS_ERR_STATE, "nothing to hash for"); }

static unsigned hash_wants(void *self, enum ts_pass_kind kind) {
    (void)self;
    return kind == TS_PASS_HEADFUL ? ~0u : 0;
}

static void hash_free(void *self) { (void)self; }

static const ts_instrument_class hash_class = {.name = "rows", .sites = 1u << TS_SITE_RESID | 1u << TS_SITE_FFN | 1u << TS_SITE_FFN_SHEXP,
                                               .start = hash_start, .wants = hash_wants, .pass = hash_pass, .free = hash_free};

static void count_sites(const ts_session *s, outcome *o) {
    for (size_t i = 0; s->tap && i < s->tap->n_slots; i++)
        *(s->tap->slots[i].site.pub.how == TS_HOW_REDIRECTED ? &o->n_redirected : &o->n_asked) += 1;
}

static void run_arm(const proof *p, bool tapped, enum ts_tap_method tap, outcome *o) {
    ts_error err = {0};
    ts_session_options so = gpu_shared(p);
    *o = (outcome){.logits = 0xcbf29ce484222325u, .rows = 0xcbf29ce484222325u};
    so.tap = tap;
    ts_session *s = gpu_open_shared(&so);
    if (tapped) gpu_ok(ts_session_attach(s, &hash_class, o, false, &err), &err);
    gpu_generate(s, p->info.n_vocab, N_PROMPT, N_PREDICT, 0, o);
    count_sites(s, o);
    ts_session_close(s);
}

static void check_identity(proof *p) {
    outcome off, redirected, asked;
    char text[256];
    run_arm(p, false, TS_TAP_REDIRECT, &off);
    run_arm(p, true, TS_TAP_REDIRECT, &redirected);
    run_arm(p, true, TS_TAP_ASK, &asked);
    snprintf(text, sizeof(text), "\"passes\": %d, \"logits_off\": \"%016llx\", \"sites_redirected\": %d, \"sites_asked\": %d", N_PREDICT,
             (unsigned long long)off.logits, redirected.n_redirected, redirected.n_asked);
    gpu_say(p, "logits: redirected equals off", redirected.logits == off.logits, text);
    gpu_say(p, "logits: asked equals off", asked.logits == off.logits, "");
    gpu_say(p, "rows: redirected equals asked", redirected.rows == asked.rows, "");
    gpu_say(p, "sites: all redirected", redirected.n_asked == 0, text);
    free(off.last);
    free(redirected.last);
    free(asked.last);
}

/* ---- corpus */

/* On the processor a large shape takes its time. */
static bool slow(const proof *p) { return p->layers && strcmp(p->layers, "0") == 0; }

static float *capture(const proof *p, const char *input, bool exact, enum ts_tap_method tap, ts_capture_shape *shape) {
    char path[4096];
    ts_error err = {0};
    ts_session_options so = gpu_shared(p);
    ts_capture_options co = TS_OPTIONS_INIT(ts_capture_options);
    ts_capture_file *file = NULL;
    gpu_path(p, "rows.json", path);
    so.tap = tap;
    so.n_ubatch = 512;
    ts_session *s = gpu_open_shared(&so);
    co.input_path = input;
    co.output_path = path;
    co.exact = exact;
    co.overwrite = true;
    gpu_ok(ts_capture_run(s, &co, NULL, &err), &err);
    ts_session_close(s);
    gpu_ok(ts_capture_open(path, &file, shape, &err), &err);
    size_t n = (size_t)shape->n_layers * (size_t)shape->n_hidden;
    float *rows = malloc((size_t)shape->n_snapshots * n * sizeof(float));
    if (!rows) exit(1);
    for (int64_t i = 0; i < shape->n_snapshots; i++) gpu_ok(ts_capture_read(file, i, rows + (size_t)i * n, &err), &err);
    ts_capture_close(file);
    return rows;
}

static void check_corpus(proof *p) {
    char input[4096], text[128];
    ts_capture_shape shape;
    gpu_path(p, "prompts.jsonl", input);
    gpu_write_corpus(input, slow(p) ? N_CORPUS_SLOW : N_CORPUS, p->info.n_vocab);
    float *packed = capture(p, input, false, TS_TAP_REDIRECT, &shape), *asked = capture(p, input, false, TS_TAP_ASK, &shape);
    float *exact = capture(p, input, true, TS_TAP_REDIRECT, &shape);
    size_t width = (size_t)shape.n_hidden, rows = (size_t)shape.n_snapshots * (size_t)shape.n_layers;
    double worst = 0.0;
    for (size_t i = 0; i < rows; i++) {
        double e = gpu_distance(packed + i * width, exact + i * width, width);
        worst = e > worst ? e : worst;
    }
    snprintf(text, sizeof(text), "\"worst_relative\": %.3e, \"rows\": %zu", worst, rows);
    bool f32 = strncmp(p->model, "f32:", 4) == 0;
    gpu_say(p, f32 ? "corpus: packed agrees with exact" : "corpus: packed against exact, activations cut to 8 bits", !f32 || worst < PACKED_LIMIT, text);
    gpu_say(p, "corpus: packed redirected equals packed asked", memcmp(packed, asked, rows * width * sizeof(float)) == 0, "");
    free(packed);
    free(asked);
    free(exact);
}

/* ---- census */

static json_t *census(const proof *p, enum ts_tap_method tap, const char *name) {
    char path[4096];
    ts_error err = {0};
    outcome unused = {0};
    ts_session_options so = gpu_shared(p);
    ts_ffn_hist_options fo = TS_OPTIONS_INIT(ts_ffn_hist_options);
    gpu_path(p, name, path);
    so.tap = tap;
    ts_session *s = gpu_open_shared(&so);
    fo.path = path;
    unlink(path);
    gpu_ok(ts_session_attach_ffn(s, &fo, &err), &err);
    gpu_generate(s, p->info.n_vocab, N_PROMPT, 2 * N_PREDICT, 0, &unused);
    gpu_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    free(unused.last);
    json_t *v = json_load_file(path, 0, NULL);
    if (!v) exit(1);
    return v;
}

/* Every activation of every pass is in one bucket. */
static bool adds_up(const json_t *c, int64_t passes) {
    const json_t *counts = json_object_get(c, "hist_count"), *mass = json_object_get(c, "mass"), *block;
    bool good = json_integer_value(json_object_get(c, "decode_passes")) == passes;
    size_t il, b;
    json_array_foreach(counts, il, block) {
        const json_t *count;
        int64_t sum = 0;
        json_array_foreach(block, b, count) sum += json_integer_value(count);
        good = good && sum == passes * (int64_t)json_array_size(json_array_get(mass, il));
    }
    return good;
}

static void check_census(proof *p) {
    json_t *redirected = census(p, TS_TAP_REDIRECT, "census.json"), *asked = census(p, TS_TAP_ASK, "asked.json");
    gpu_say(p, "census: every activation counted once", adds_up(redirected, 2 * N_PREDICT), "");
    gpu_say(p, "census: redirected equals asked", json_equal(redirected, asked), "");
    json_decref(redirected);
    json_decref(asked);
}

/* ---- steering */

/* The snapshot of one generation, [n_layer][n_embd], steered by `st` or not. */
static float *steered_rows(const proof *p, const ts_steering_options *st) {
    char path[4096];
    ts_error err = {0};
    outcome unused = {0};
    ts_session_options so = gpu_shared(p);
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    size_t n = (size_t)p->info.n_layer * (size_t)p->info.n_embd;
    gpu_path(p, "row.json", path);
    ts_session *s = gpu_open_shared(&so);
    if (st) gpu_ok(ts_session_attach_steering(s, st, &err), &err);
    ro.path = path;
    gpu_ok(ts_session_attach_resid(s, &ro, &err), &err);
    gpu_generate(s, p->info.n_vocab, N_PROMPT, 1, 0, &unused);
    gpu_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    free(unused.last);
    return gpu_read_rows(p, "row.f32", n);
}

/* What the mode's equation makes of x, in f64. */
static void expect(const float *x, const float *d, const ts_steering_options *o, size_t n, float *out) {
    double length = 0.0, c = 0.0, before = 0.0, after = 0.0;
    for (size_t i = 0; i < n; i++) length += (double)d[i] * (double)d[i];
    length = sqrt(length);
    for (size_t i = 0; i < n; i++) c += (double)x[i] * (double)d[i] / length;
    double f = o->mode == TS_STEERING_ADD     ? o->scale * length
               : o->mode == TS_STEERING_CLAMP ? o->scale * (o->target - c)
                                              : -o->scale * c;
    for (size_t i = 0; i < n; i++) {
        double y = (double)x[i] + f * (double)d[i] / length;
        before += (double)x[i] * (double)x[i];
        after += y * y;
        out[i] = (float)y;
    }
    for (size_t i = 0; i < n && o->mode == TS_STEERING_RENORM; i++) out[i] = (float)((double)out[i] * sqrt(before / after));
}

/* One block steered: what comes before it is the same bits, so its row shows the edit alone. Gated, so that add does not go
 * through llama.cpp's adapter. */
static void check_mode(proof *p, const char *path, int32_t block, const float *plain, const float *d, enum ts_steering_mode mode, bool gated) {
    char name[96], text[128];
    size_t n = (size_t)p->info.n_embd;
    ts_range only = {block, block};
    ts_steering_options st = TS_OPTIONS_INIT(ts_steering_options);
    float *want = malloc(n * sizeof(*want));
    if (!want) exit(1);
    st.path = path;
    st.mode = mode;
    st.scale = 0.5;
    st.target = mode == TS_STEERING_CLAMP ? 3 : 0;
    st.gate = gated ? 1e-20 : 0;
    st.blocks = &only;
    float *rows = steered_rows(p, &st);
    expect(plain + (size_t)block * n, d, &st, n, want);
    double error = gpu_distance(rows + (size_t)block * n, want, n), apart = gpu_distance(want, plain + (size_t)block * n, n);
    bool same = memcmp(rows, plain, (size_t)block * n * sizeof(*rows)) == 0;
    snprintf(name, sizeof(name), "steering: %s%s gives the row its equation says", ts_steering_mode_name(mode),
             mode == TS_STEERING_ADD ? (gated ? ", edited," : ", by the adapter,") : "");
    snprintf(text, sizeof(text), "\"block\": %d, \"relative\": %.3e, \"steered_from_plain\": %.3e", block, error, apart);
    gpu_say(p, name, error < EDITED_LIMIT && same && apart > 10 * error, text);
    free(rows);
    free(want);
}

static void check_steering(proof *p) {
    char path[4096];
    ts_error err = {0};
    ts_cvec *v = NULL;
    int32_t blocks[] = {p->info.n_layer / 2, 1, p->info.n_layer - 1};
    gpu_path(p, "directions.gguf", path);
    gpu_write_vectors(path, p->info.n_layer, p->info.n_embd);
    gpu_ok(ts_cvec_read(path, &v, &err), &err);
    float *plain = steered_rows(p, NULL);
    for (size_t i = 0; i < (slow(p) ? 1 : sizeof(blocks) / sizeof(blocks[0])); i++) {
        const float *d = ts_cvec_find(v, blocks[i]);
        check_mode(p, path, blocks[i], plain, d, TS_STEERING_ABLATE, false);
        check_mode(p, path, blocks[i], plain, d, TS_STEERING_CLAMP, true);
        check_mode(p, path, blocks[i], plain, d, TS_STEERING_RENORM, false);
        check_mode(p, path, blocks[i], plain, d, TS_STEERING_ADD, true);
        check_mode(p, path, blocks[i], plain, d, TS_STEERING_ADD, false);
    }
    ts_cvec_free(v);
    free(plain);
}

/* ---- the command */

/* "f32:SHAPE" and "f32:FILE" have weights of that type: nothing is cut to 8 bits. */
static void read_model(proof *p) {
    static char path[4096];
    ts_error err = {0};
    bool f32 = strncmp(p->model, "f32:", 4) == 0;
    const char *name = p->model + (f32 ? 4 : 0);
    if (access(name, R_OK) == 0) {
        p->file = name;
        gpu_path(p, "f32.gguf", path);
        if (f32) gpu_write_f32(name, path);
        if (f32) p->file = path;
        return;
    }
    gpu_ok(ts_parse_synthetic("MODEL", name, &p->shape, &err), &err);
    p->shape.f32 = f32;
    p->info.n_layer = p->shape.n_layer;
}

static int32_t layers_of(const char *text, const ts_model_info *info) {
    if (strcmp(text, "all") == 0) return info->n_layer + 1;
    int32_t n = strcmp(text, "half") == 0 ? info->n_layer / 2 : atoi(text);
    return n > 0 ? n : TS_GPU_LAYERS_NONE;
}

/* How many blocks there are decides what half of them is. */
static void open_proof(proof *p) {
    ts_error err = {0};
    const char *slash = strrchr(p->model, '/');
    snprintf(p->label, sizeof(p->label), "%s%s", slash && strncmp(p->model, "f32:", 4) == 0 ? "f32:" : "", slash ? slash + 1 : p->model);
    read_model(p);
    if (p->file) {
        ts_session *s = gpu_open(p, TS_GPU_LAYERS_NONE, NULL);
        gpu_ok(ts_session_model_info(s, &p->info, &err), &err);
        ts_session_close(s);
    }
    p->base = gpu_open(p, layers_of(p->layers ? p->layers : "all", &p->info), NULL);
    gpu_ok(ts_session_model_info(p->base, &p->info, &err), &err);
}

static int usage(void) {
    fprintf(stderr, "usage: bench_gpu check MODEL GPU_LAYERS FOLDER | compare MODEL FOLDER | vectors SHAPE FILE | corpus SHAPE N FILE\n");
    return 2;
}

static int make(const char *what, int argc, char **argv) {
    ts_error err = {0};
    ts_synthetic shape;
    gpu_ok(ts_parse_synthetic("SHAPE", argv[2], &shape, &err), &err);
    if (strcmp(what, "vectors") == 0) gpu_write_vectors(argv[3], shape.n_layer, shape.n_embd);
    else if (argc == 5) gpu_write_corpus(argv[4], atoi(argv[3]), shape.n_vocab);
    else return usage();
    return 0;
}

int main(int argc, char **argv) {
    proof p = {0};
    if (argc < 4) return usage();
    p.model = argv[2];
    if (strcmp(argv[1], "check") == 0 && argc == 5) {
        p.layers = argv[3];
        p.folder = argv[4];
        open_proof(&p);
        check_identity(&p);
        check_corpus(&p);
        if (!p.shape.n_expert) check_census(&p);
        check_steering(&p);
    } else if (strcmp(argv[1], "compare") == 0 && argc == 4) {
        p.folder = argv[3];
        open_proof(&p);
        gpu_compare(&p);
    } else {
        return strcmp(argv[1], "vectors") == 0 || strcmp(argv[1], "corpus") == 0 ? make(argv[1], argc, argv) : usage();
    }
    ts_session_close(p.base);
    return p.failed ? 1 : 0;
}
