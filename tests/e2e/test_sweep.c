/* Sweeps on the real model. With f32 weights and four blocks: scale 0 is the unsteered model, a cell is what `run` writes
 * under the same steering, its figures are those of an independent calculation, cells side by side equal cells one by one, a
 * stopped or killed sweep ends with the same bytes. With its own weights: a direction moves the score both ways, by more than
 * random directions and directions from shuffled labels do. */
#include "real_f32.h"
#include "steered.h"

#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/cvec.h"

enum { N_BLOCKS = 4, WIDTH = 576 };

static struct llama_model *small;
static ts_session *model; /* the real one, its weights as they are; opened by the last test */

static ts_session_options small_session(void) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.model = small;
    so.n_threads = 1;
    return so;
}

static const char *write_text(const char *name, const char *text) {
    const char *path = e2e_path(name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    return path;
}

static const char *prompts(void) { return write_text("prompts.txt", "The sky is\nOnce upon a time, in a village\nOne\n"); }
static const char *direction(double length) { return steered_file("d.gguf", WIDTH, (ts_range){1, N_BLOCKS - 1}, 5, length); }

static int sweep(const ts_session_options *so, const ts_sweep_options *o, ts_sweep_result *r, ts_error *err) {
    ts_session *s = e2e_open(so);
    int rc = ts_sweep_run(s, o, r, err);
    ts_session_close(s);
    return rc;
}

static void must_sweep(const ts_sweep_options *o, ts_sweep_result *r) {
    ts_error err = {0};
    ts_session_options so = small_session();
    e2e_ok(sweep(&so, o, r, &err), &err);
}

/* The logits of every pass, with and without steering. */
typedef struct seen {
    double *logp; /* [n][n_vocab] log-probabilities */
    int32_t n, n_vocab;
} seen;

static void see(const float *logits, int32_t n_vocab, void *user) {
    seen *v = user;
    double sum = 0, most = -INFINITY;
    v->logp = realloc(v->logp, (size_t)(v->n + 1) * (size_t)n_vocab * sizeof(double));
    assert_non_null(v->logp);
    double *row = v->logp + (size_t)v->n++ * (size_t)n_vocab;
    v->n_vocab = n_vocab;
    for (int32_t i = 0; i < n_vocab; i++) most = fmax(most, (double)logits[i]);
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - most);
    for (int32_t i = 0; i < n_vocab; i++) row[i] = (double)logits[i] - most - log(sum);
}


/* One generation from the prompt, as `run` does it. */
static void run(const char *prompt, const ts_steering_options *steering, int32_t n_predict, ts_text_fn on_text, void *user, ts_logits_fn on_logits) {
    ts_error err = {0};
    int32_t *tokens;
    ts_session_options so = small_session();
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    so.n_ctx = 256;
    ts_session *s = e2e_open(&so);
    if (steering) e2e_ok(ts_session_attach_steering(s, steering, &err), &err);
    e2e_ok(ts_session_start(s, &err), &err);
    e2e_ok(ts_session_tokenize(s, prompt, strlen(prompt), 0, &tokens, &g.n_tokens, &err), &err);
    g.tokens = tokens;
    g.n_predict = n_predict;
    g.on_text = on_text;
    g.on_logits = on_logits;
    g.user = user;
    e2e_ok(ts_session_generate(s, &g, NULL, &err), &err);
    ts_free(tokens);
    ts_session_close(s);
}

static int32_t top(const double *logp, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logp[i] > logp[best]) best = i;
    return best;
}

static void close_to(double a, double b, double tolerance) {
    if (!(fabs(a - b) <= tolerance * (1 + fabs(b)))) fail_msg("%.12g is not %.12g", a, b);
}

static ts_sweep_options options(const double *scales, size_t n, const enum ts_steering_mode *modes, size_t n_modes) {
    ts_sweep_options o = TS_OPTIONS_INIT(ts_sweep_options);
    o.path = direction(3.0);
    o.input_path = prompts();
    o.scales = scales;
    o.n_scales = n;
    o.modes = modes;
    o.n_modes = n_modes;
    o.n_predict = 6;
    return o;
}

/* ---- what a cell says */

static void test_scale_zero(void **state) {
    (void)state;
    ts_sweep_result r;
    const double zero = 0.0;
    const enum ts_steering_mode modes[] = {TS_STEERING_ABLATE, TS_STEERING_ADD, TS_STEERING_CLAMP, TS_STEERING_RENORM};
    ts_sweep_options o = options(&zero, 1, modes, 4);
    o.target = 2.5;
    o.n_random = 3;
    must_sweep(&o, &r);
    assert_int_equal(r.n_cells, 4); /* no control arms where nothing is edited */
    assert_int_equal(r.n_bands, 4);
    for (size_t i = 0; i < r.n_cells; i++) {
        const ts_sweep_cell *c = &r.cells[i];
        assert_int_equal(c->mode, modes[i]);
        assert_int_equal(c->n_blocks, N_BLOCKS - 1);
        assert_true(c->kl_max == 0.0 && c->kl_mean == 0.0 && c->no_effect);
        assert_true(c->c == c->c_unsteered);
        assert_int_equal(c->first_divergence, -1);
        close_to(c->perplexity, r.unsteered.perplexity, 1e-4);
        for (size_t p = 0; p < r.n_prompts; p++) assert_string_equal(c->texts[p], r.unsteered.texts[p]);
        assert_true(r.bands[i].no_effect && !r.bands[i].usable);
    }
    ts_sweep_free(&r);
}

/* One prompt, one token: perplexity, KL and scores from two runs' logits, c from the rule itself. */
static void test_figures(void **state) {
    (void)state;
    ts_sweep_result r;
    const double scale = 0.37;
    const enum ts_steering_mode modes[] = {TS_STEERING_ADD, TS_STEERING_ABLATE, TS_STEERING_CLAMP};
    const ts_range band = {2, 2};
    const char *positive = " blue sky", *negative = " red";
    ts_sweep_options o = options(&scale, 1, modes, 3);
    o.input_path = write_text("one.txt", "The sky is\n");
    o.path = direction(40.0);
    o.bands = &band;
    o.n_bands = o.n_positive = o.n_negative = 1;
    o.positive = &positive;
    o.negative = &negative;
    o.target = 2.5;
    o.n_predict = 1;
    must_sweep(&o, &r);
    assert_int_equal(r.n_cells, 3);
    seen off = {0};
    run("The sky is", NULL, 1, NULL, &off, see);
    int32_t *blue, *red;
    size_t n;
    ts_session_options so = small_session();
    ts_session *s = e2e_open(&so);
    assert_int_equal(ts_session_tokenize(s, positive, 9, TS_TOKENIZE_NO_BOS, &blue, &n, NULL), TS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(ts_session_tokenize(s, negative, 4, TS_TOKENIZE_NO_BOS, &red, &n, NULL), TS_OK);
    assert_int_equal(n, 1);
    ts_session_close(s);
    for (size_t i = 0; i < 3; i++) {
        const ts_sweep_cell *c = &r.cells[i];
        seen on = {0}, then = {0};
        ts_steering_options steering = steered_by(o.path, modes[i], scale);
        steering.blocks = &band;
        if (modes[i] == TS_STEERING_CLAMP) steering.target = 2.5;
        run("The sky is", &steering, 1, NULL, &on, see);
        run("The sky is blue", &steering, 1, NULL, &then, see);
        double kl = 0;
        for (int32_t t = 0; t < off.n_vocab; t++) kl += exp(off.logp[t]) * (off.logp[t] - on.logp[t]);
        close_to(c->kl_max, kl, 1e-3);
        assert_true(kl > 1e-4 && !c->no_effect);
        close_to(c->perplexity, exp(-off.logp[top(on.logp, on.n_vocab)]), 1e-3);
        double both = (on.logp[blue[0]] + then.logp[blue[1]]) / 2;
        close_to(c->score_positive, both, 1e-3);
        close_to(c->score, both - on.logp[red[0]], 1e-3);
        double want = modes[i] == TS_STEERING_ADD      ? c->c_unsteered + scale * 40.0
                      : modes[i] == TS_STEERING_ABLATE ? (1 - scale) * c->c_unsteered
                                                       : c->c_unsteered + scale * (2.5 - c->c_unsteered);
        close_to(c->c, want, 1e-4);
        free(on.logp);
        free(then.logp);
    }
    free(off.logp);
    ts_free(blue);
    ts_free(red);
    ts_sweep_free(&r);
}

typedef struct text {
    char bytes[1024];
    size_t n;
} text;

static void gather(const char *bytes, size_t n, void *user) {
    text *t = user;
    assert_true(t->n + n < sizeof(t->bytes));
    memcpy(t->bytes + t->n, bytes, n);
    t->n += n;
}

/* Alone in its batch a cell writes what a run under the same steering writes. */
static void test_texts_of_run(void **state) {
    (void)state;
    ts_sweep_result r;
    const double scales[] = {-1, 1};
    const enum ts_steering_mode mode = TS_STEERING_RENORM;
    ts_sweep_options o = options(scales, 2, &mode, 1);
    o.input_path = write_text("one.txt", "The sky is\n");
    o.path = direction(40.0);
    o.parallel = 1;
    must_sweep(&o, &r);
    for (size_t i = 0; i < 2; i++) {
        text t = {{0}, 0};
        ts_steering_options steering = steered_by(o.path, mode, scales[i]);
        run("The sky is", &steering, o.n_predict, gather, &t, NULL);
        assert_string_equal(r.cells[i].texts[0], t.bytes);
    }
    assert_string_not_equal(r.cells[0].texts[0], r.cells[1].texts[0]);
    assert_string_not_equal(r.cells[0].texts[0], r.unsteered.texts[0]);
    assert_int_equal(r.cells[0].n_diverged, 1);
    ts_sweep_free(&r);
}

static void test_parallel(void **state) {
    (void)state;
    ts_sweep_result one, many;
    const double scale = -0.37;
    const ts_range bands[] = {{0, -1}, {2, 3}};
    const enum ts_steering_mode modes[] = {TS_STEERING_ABLATE, TS_STEERING_ADD, TS_STEERING_CLAMP, TS_STEERING_RENORM};
    const char *positive = " blue sky"; /* two tokens */
    ts_sweep_options o = options(&scale, 1, modes, 4);
    o.path = direction(20.0);
    o.bands = bands;
    o.n_bands = 2;
    o.target = -4;
    o.n_random = 1;
    o.positive = &positive;
    o.n_positive = 1;
    o.n_predict = 4;
    o.anchor_path = write_text("anchor.txt", "The old ferry left the harbour a little after seven, with eleven passengers and a crate of hens.");
    o.parallel = 1;
    must_sweep(&o, &one);
    o.parallel = 5; /* 48 jobs: batches that begin and end inside cells, and a last one that is not full */
    must_sweep(&o, &many);
    assert_int_equal(one.n_cells, 4 * 2 * 2);
    assert_int_equal(many.n_cells, one.n_cells);
    close_to(many.anchor, one.anchor, 1e-3);
    assert_true(one.anchor_given && one.limit == one.anchor);
    for (size_t i = 0; i < one.n_cells; i++) {
        const ts_sweep_cell *a = &one.cells[i], *b = &many.cells[i];
        assert_int_equal(a->arm, (int)(i % 2));
        assert_int_equal(a->first_divergence, b->first_divergence);
        for (size_t p = 0; p < one.n_prompts; p++) assert_string_equal(a->texts[p], b->texts[p]);
        close_to(b->perplexity, a->perplexity, 2e-3);
        close_to(b->kl_max, a->kl_max, 2e-3);
        close_to(b->c - b->c_unsteered, a->c - a->c_unsteered, 2e-3);
        close_to(b->score, a->score, 2e-3);
    }
    ts_sweep_free(&one);
    ts_sweep_free(&many);
}

/* ---- going on */

typedef struct stopper {
    volatile int stop;
    uint64_t after; /* cells */
} stopper;

static void maybe_stop(const ts_progress *p, void *user) {
    stopper *s = user;
    if (p->prompts_done >= s->after) s->stop = 1;
}

/* What the sweep wrote; every arm of a test writes under one name. */
static char *result_of(const ts_sweep_options *o) {
    size_t n;
    return e2e_slurp(o->output_path, &n);
}

static void test_resume(void **state) {
    (void)state;
    ts_sweep_result r;
    ts_error err = {0};
    const double scales[] = {-1, 0.5, 1};
    const enum ts_steering_mode modes[] = {TS_STEERING_ABLATE, TS_STEERING_ADD};
    char output[1024], part[1100];
    ts_sweep_options o = options(scales, 3, modes, 2);
    snprintf(output, sizeof(output), "%s", e2e_path("out.json"));
    snprintf(part, sizeof(part), "%s.part.jsonl", output);
    o.output_path = output;
    o.parallel = 4; /* of 3 prompts: no batch begins where a cell does, but the first and the fourth */
    must_sweep(&o, &r);
    ts_sweep_free(&r);
    assert_int_not_equal(access(part, F_OK), 0);
    char *whole = result_of(&o);
    assert_int_equal(unlink(output), 0);
    stopper st = {0, 2};
    ts_session_options so = small_session();
    so.stop = &st.stop;
    o.on_progress = maybe_stop;
    o.user = &st;
    assert_int_equal(sweep(&so, &o, &r, &err), TS_ERR_INTERRUPTED);
    assert_non_null(strstr(err.message, "interrupted after 2 of 6 cells"));
    assert_null(r.cells);
    assert_int_not_equal(access(output, F_OK), 0);
    FILE *f = fopen(part, "a"); /* killed while it wrote a line */
    assert_non_null(f);
    fputs("{\"mode\": \"ablate\", \"band\"", f);
    assert_int_equal(fclose(f), 0);
    o.on_progress = NULL;
    o.resume = true;
    must_sweep(&o, &r);
    assert_int_equal(r.n_resumed, 2);
    ts_sweep_free(&r);
    char *resumed = result_of(&o);
    assert_string_equal(whole, resumed);
    free(resumed);
    must_sweep(&o, &r); /* nothing is left to do */
    assert_true(r.complete);
    ts_sweep_free(&r);
    resumed = result_of(&o);
    assert_string_equal(whole, resumed);
    free(whole);
    free(resumed);
    assert_int_not_equal(access(part, F_OK), 0);
    o.n_predict++;
    assert_int_equal(sweep(&so, &o, &r, &err), TS_ERR_ARG);
    assert_non_null(strstr(err.message, "exists already"));
    o.n_predict--;
    assert_int_equal(unlink(output), 0);
}

static void test_resume_of_another(void **state) {
    (void)state;
    ts_sweep_result r;
    ts_error err = {0};
    const double scales[] = {-1, 1};
    char output[1024];
    stopper st = {0, 1};
    ts_session_options so = small_session();
    ts_sweep_options o = options(scales, 2, (enum ts_steering_mode[]){TS_STEERING_ADD}, 1);
    snprintf(output, sizeof(output), "%s", e2e_path("other.json"));
    o.output_path = output;
    o.parallel = 3;
    o.on_progress = maybe_stop;
    o.user = &st;
    so.stop = &st.stop;
    assert_int_equal(sweep(&so, &o, &r, &err), TS_ERR_INTERRUPTED);
    st.stop = 0;
    o.resume = true;
    o.on_progress = NULL;
    o.n_predict++;
    assert_int_equal(sweep(&so, &o, &r, &err), TS_ERR_STATE);
    assert_non_null(strstr(err.message, "another sweep"));
}

/* ---- wrong input */

static void refused(const ts_sweep_options *o, int code, const char *part) {
    ts_sweep_result r;
    ts_error err = {0};
    ts_session_options so = small_session();
    int rc = sweep(&so, o, &r, &err);
    if (rc != code || !strstr(err.message, part)) fail_msg("%d: %s", rc, err.message);
    assert_null(r.cells);
}

static void test_refusals(void **state) {
    (void)state;
    const double scales[] = {1, NAN};
    const ts_range beyond = {0, N_BLOCKS}, nothing = {0, 0};
    const enum ts_steering_mode add = TS_STEERING_ADD, odd = (enum ts_steering_mode)9;
    const ts_sweep_options good = options(scales, 1, &add, 1);
    const char *none = "";
    ts_sweep_options o = good;
    o.n_scales = 0;
    refused(&o, TS_ERR_ARG, "a sweep with no cell");
    o.n_scales = 2;
    refused(&o, TS_ERR_ARG, "expected finite numbers, got nan");
    o = good;
    o.bands = &beyond;
    o.n_bands = 1;
    refused(&o, TS_ERR_ARG, "--bands 0:4: the model has blocks 0:3");
    o.bands = &nothing;
    refused(&o, TS_ERR_ARG, "a band with no cell: ");
    o = good;
    o.modes = &odd;
    refused(&o, TS_ERR_ARG, "unknown steering mode 9");
    o = good;
    o.n_modes = 0;
    refused(&o, TS_ERR_ARG, "declares no mode");
    o = good;
    o.target = 1;
    refused(&o, TS_ERR_ARG, "a target is for the mode clamp");
    o = good;
    o.positive = &none;
    o.n_positive = 1;
    refused(&o, TS_ERR_ARG, "has no token");
    o = good;
    o.anchor_path = write_text("short.txt", "a");
    refused(&o, TS_ERR_ARG, "a human text needs at least two");
    o = good;
    o.output_path = o.path;
    o.overwrite = true;
    refused(&o, TS_ERR_ARG, "is one of the inputs");
    o.output_path = write_text("there.json", "{}");
    o.overwrite = false;
    refused(&o, TS_ERR_ARG, "exists already");
    o = good;
    o.path = steered_file("wide.gguf", WIDTH + 1, (ts_range){1, 2}, 1, 1.0);
    refused(&o, TS_ERR_MODEL, "577");
}

/* ---- the effect */

static const char *example(const char *name, char buf[4096]) {
    const char *dir = getenv("TS_SOURCE_DIR");
    snprintf(buf, 4096, "%s/examples/%s", dir ? dir : ".", name);
    return buf;
}

/* Labels shuffled: of the pairs, every second one is swapped. */
static void shuffle_labels(const char *const from[2], const char *const to[2], int odd) {
    FILE *in[2], *out[2];
    char line[512];
    for (int i = 0; i < 2; i++) {
        in[i] = fopen(from[i], "r");
        out[i] = fopen(to[i], "w");
        assert_true(in[i] && out[i]);
    }
    for (int n = 0; fgets(line, sizeof(line), in[0]); n++) {
        int swap = (n >> odd) & 1;
        fputs(line, out[swap]);
        assert_non_null(fgets(line, sizeof(line), in[1]));
        fputs(line, out[1 - swap]);
    }
    for (int i = 0; i < 2; i++) {
        fclose(in[i]);
        assert_int_equal(fclose(out[i]), 0);
    }
}

/* Extracts; then gives each direction the length it has in `like`, unless that is NULL. */
static void extract(const char *a, const char *b, const char *output, const char *like) {
    ts_error err = {0};
    ts_cvec *c, *l;
    ts_extract_options o = TS_OPTIONS_INIT(ts_extract_options);
    o.positive = &a;
    o.negative = &b;
    o.n_positive = o.n_negative = 1;
    o.output_path = output;
    e2e_ok(ts_extract_run(model, &o, NULL, &err), &err);
    if (!like) return;
    e2e_ok(ts_cvec_read(output, &c, &err), &err);
    e2e_ok(ts_cvec_read(like, &l, &err), &err);
    for (int32_t i = 0; i < c->n; i++) {
        double have = 0, want = 0;
        for (int32_t k = i * c->width; k < (i + 1) * c->width; k++) {
            have += (double)c->d[k] * (double)c->d[k];
            want += (double)l->d[k] * (double)l->d[k];
        }
        for (int32_t k = i * c->width; k < (i + 1) * c->width; k++) c->d[k] = (float)((double)c->d[k] * sqrt(want / have));
    }
    ts_cvec_spec spec = {.width = c->width, .n = c->n, .block = c->block, .d = c->d, .mode = "add"};
    e2e_ok(ts_cvec_write(output, &spec, NULL, &err), &err);
    ts_cvec_free(c);
    ts_cvec_free(l);
}

/* Scores at -s, 0, s on prompts outside the sets; also of control arms. */
static void score(const char *path, int32_t n_random, ts_sweep_result *r) {
    ts_error err = {0};
    char held_out[4096];
    const double scales[] = {-0.25, 0, 0.25};
    const ts_range band = {10, 19};
    const char *positive[] = {" happy", " wonderful", " glad"}, *negative[] = {" sad", " terrible", " angry"};
    ts_sweep_options o = TS_OPTIONS_INIT(ts_sweep_options);
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.share = model;
    o.path = path;
    o.input_path = example("held_out.txt", held_out);
    o.scales = scales;
    o.n_scales = 3;
    o.bands = &band;
    o.n_bands = 1;
    o.positive = positive;
    o.negative = negative;
    o.n_positive = o.n_negative = 3;
    o.n_predict = 2;
    o.n_random = n_random;
    e2e_ok(sweep(&so, &o, r, &err), &err);
}

static void test_effect(void **state) {
    (void)state;
    enum { ARMS = 4 };
    ts_sweep_result r, shuffled;
    char positive[4096], negative[4096], real[1024], path[1024], lists[2][1024];
    const char *const from[2] = {example("positive.txt", positive), example("negative.txt", negative)};
    const char *const to[2] = {lists[0], lists[1]};
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    if (!e2e_model_path() || access(from[0], R_OK) != 0) skip();
    so.model_path = e2e_model_path();
    model = e2e_open(&so);
    snprintf(real, sizeof(real), "%s", e2e_path("mood.gguf"));
    extract(from[0], from[1], real, NULL);
    score(real, ARMS, &r);
    assert_int_equal(r.n_cells, 1 + 2 * (1 + ARMS));
    const ts_sweep_cell *down = &r.cells[0], *zero = &r.cells[1 + ARMS], *up = &r.cells[2 + ARMS];
    double fall = down->score - zero->score, rise = up->score - zero->score;
    print_message("  score %.3f, unsteered %.3f, %.3f; random %.3f (%.3f), %.3f (%.3f)\n", down->score, zero->score, up->score,
                  down->random_mean, down->random_sd, up->random_mean, up->random_sd);
    assert_true(fall < 0 && rise > 0);
    assert_true(down->score < down->random_mean - 3 * down->random_sd && up->score > up->random_mean + 3 * up->random_sd);
    for (size_t i = 0; i < r.n_cells; i++)
        if (r.cells[i].arm > 0) assert_true(fabs(r.cells[i].score - zero->score) < fmin(-fall, rise));
    for (int odd = 0; odd < 2; odd++) {
        for (int i = 0; i < 2; i++) snprintf(lists[i], sizeof(lists[i]), "%s", e2e_path(i ? "b.txt" : "a.txt"));
        snprintf(path, sizeof(path), "%s", e2e_path(odd ? "shuffled1.gguf" : "shuffled0.gguf"));
        shuffle_labels(from, to, odd);
        extract(to[0], to[1], path, real);
        score(path, 0, &shuffled);
        print_message("  shuffled: %.3f, %.3f\n", shuffled.cells[0].score, shuffled.cells[2].score);
        for (size_t i = 0; i < 3; i += 2) assert_true(fabs(shuffled.cells[i].score - zero->score) < fmin(-fall, rise));
        ts_sweep_free(&shuffled);
    }
    ts_sweep_free(&r);
    ts_session_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scale_zero),   cmocka_unit_test(test_figures),          cmocka_unit_test(test_texts_of_run), cmocka_unit_test(test_parallel),
        cmocka_unit_test(test_resume),       cmocka_unit_test(test_resume_of_another), cmocka_unit_test(test_refusals),    cmocka_unit_test(test_effect),
    };
    if (!e2e_model_path()) {
        print_message("no TS_MODEL: skipped\n");
        return E2E_SKIP;
    }
    small = real_f32_model(e2e_model_path(), N_BLOCKS);
    if (!small) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    llama_model_free(small);
    e2e_remove_tmp();
    return failed;
}
