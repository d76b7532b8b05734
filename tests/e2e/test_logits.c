/* logits and kld with the model: every row is the one that its window gives, rows are written once, a dump against
 * itself is exactly 0, f16 keeps what the man page says, and what goes wrong leaves nothing behind. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "e2e.h"
#include "host/session.h"
#include "store/logits_dump.h"

static ts_session *base;

static const char text[] =
    "The lighthouse at the end of the harbour was built of grey stone, and for more than a century its keeper climbed "
    "the narrow stairs every evening to trim the wick and polish the lenses. When the railway came, the fishing boats "
    "began to carry their catch to the city overnight, and the town changed.";

enum { W = 16, S = 6, UBATCH = 7 };

static void put_text(const char *name, const char *what) {
    FILE *f = fopen(e2e_path(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(what, 1, strlen(what), f), strlen(what));
    assert_int_equal(fclose(f), 0);
}

static void remove_dump(const char *name) {
    static const char *const files[] = {"meta.json", "logits.f16", "logits.f32"};
    char path[1100];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", e2e_path(name), files[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(e2e_path(name)), 0); /* nothing else was in it */
}

static void assert_says(const ts_error *err, const char *part) {
    if (!strstr(err->message, part)) fail_msg("'%s' does not say '%s'", err->message, part);
}

static bool exists(const char *name) { return access(e2e_path(name), F_OK) == 0; }

static ts_session *open_session(volatile const int *stop) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.share = base;
    so.n_threads = 1;
    so.n_ubatch = UBATCH;
    so.flash_attn = TS_FLASH_OFF; /* its CPU kernel rounds by batch shape */
    so.stop = stop;
    return e2e_open(&so);
}

static ts_logits_options options(const char *output, uint32_t window, uint32_t stride) {
    ts_logits_options o = TS_OPTIONS_INIT(ts_logits_options);
    o.input_path = e2e_path("text.txt");
    o.output_path = e2e_path(output);
    o.window = window;
    o.stride = stride;
    o.f32 = true;
    return o;
}

static ts_logits_result dump(const ts_logits_options *o) {
    ts_logits_result r;
    ts_error err = {0};
    ts_session *s = open_session(NULL);
    e2e_ok(ts_logits_run(s, o, &r, &err), &err);
    ts_session_close(s);
    return r;
}

static void refused(const ts_logits_options *o, int code, const char *part) {
    ts_logits_result r;
    ts_error err = {0};
    ts_session *s = open_session(NULL);
    assert_int_equal(ts_logits_run(s, o, &r, &err), code);
    assert_says(&err, part);
    ts_session_close(s);
}

static ts_logits_dump *open_dump(const char *name) {
    ts_logits_dump *d = NULL;
    ts_error err = {0};
    e2e_ok(ts_logits_open(e2e_path(name), true, &d, &err), &err);
    return d;
}

static ts_kld_result kld(const char *a, const char *b, const char *floor) {
    ts_kld_options o = TS_OPTIONS_INIT(ts_kld_options);
    ts_kld_result r;
    ts_error err = {0};
    o.a = e2e_path(a);
    o.b = e2e_path(b);
    o.floor = floor ? e2e_path(floor) : NULL;
    e2e_ok(ts_kld_run(&o, &r, &err), &err);
    return r;
}

static void kld_refused(const char *a, const char *b, int code, const char *part) {
    ts_kld_options o = TS_OPTIONS_INIT(ts_kld_options);
    ts_kld_result r;
    ts_error err = {0};
    o.a = e2e_path(a);
    o.b = e2e_path(b);
    assert_int_equal(ts_kld_run(&o, &r, &err), code);
    assert_says(&err, part);
}

/* A started session whose batches hold what is to be compared in one piece. */
static ts_session *reference(const ts_session *model) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    ts_error err = {0};
    so.share = model;
    so.n_threads = 1;
    so.n_ctx = so.n_ubatch = 128;
    so.flash_attn = TS_FLASH_OFF;
    ts_session *s = e2e_open(&so);
    e2e_ok(ts_session_start(s, &err), &err);
    return s;
}

/* The logits after tokens[begin..last], computed in one go by a context of its own; largest difference to `row`. */
static double difference(ts_session *s, const int32_t *tokens, size_t begin, size_t last, int32_t bos, const float *row) {
    int32_t at[128], positions[128];
    int8_t output[128] = {0};
    size_t n = last - begin + 1;
    double most = 0;
    ts_error err = {0};
    for (size_t i = 0; i < n; i++) {
        at[i] = i == 0 && bos >= 0 ? bos : tokens[begin + i];
        positions[i] = (int32_t)i;
    }
    output[n - 1] = 1;
    ts_decode d = {.tokens = at, .positions = positions, .output = output, .n = n};
    ts_session_clear(s);
    e2e_ok(ts_session_decode(s, &d, &err), &err);
    const float *logits = llama_get_logits_ith(s->ctx, (int32_t)n - 1);
    for (int32_t i = 0; i < llama_vocab_n_tokens(s->model->vocab); i++) most = fmax(most, fabs((double)logits[i] - (double)row[i]));
    return most;
}

/* Rows on both sides of the first seams, the last, and some between, against the window that each must come from (near)
 * and, at seams, the one before (far). */
static void check_rows(const ts_session *model, const char *name, int32_t bos) {
    ts_logits_dump *d = open_dump(name);
    float *row = malloc((size_t)d->vocab_size * sizeof(float));
    ts_session *s = reference(model);
    ts_error err = {0};
    assert_non_null(row);
    for (int64_t i = 0; i < d->rows; i++) {
        int64_t k = i < W ? 0 : (i - W) / S + 1;
        bool seam = i == W || i == W - 1 || i == W + S || i == W + S - 1 || i == d->rows - 1;
        if (!seam && i % 11 != 0) continue;
        e2e_ok(ts_logits_read(d, i, row, &err), &err);
        assert_true(difference(s, d->token_ids, (size_t)(k * S), (size_t)i, k ? bos : -1, row) < 0.02);
        if (k && seam) assert_true(difference(s, d->token_ids, (size_t)(k * S - S), (size_t)i, k > 1 ? bos : -1, row) > 0.1);
    }
    ts_session_close(s);
    ts_logits_close(d);
    free(row);
}

static void test_windows(void **state) {
    (void)state;
    int32_t *tokens;
    size_t n;
    ts_error err = {0};
    ts_logits_options o = options("windows", W, S);
    ts_logits_result r = dump(&o);
    e2e_ok(ts_session_tokenize(base, text, strlen(text), 0, &tokens, &n, &err), &err);
    ts_logits_dump *d = open_dump("windows");
    assert_int_equal(d->rows, n - 1);
    assert_memory_equal(d->token_ids, tokens, n * sizeof(*tokens));
    assert_int_equal(d->first_scored_position, W - S);
    assert_int_equal(d->prompt_len, 0);
    assert_int_equal(d->dtype, TS_LOGITS_F32);
    assert_int_equal(r.n_rows, n - 1);
    assert_int_equal(r.n_windows, 1 + (n - 1 - W + S - 1) / S);
    assert_int_equal(r.n_bytes, (n - 1) * (size_t)d->vocab_size * sizeof(float));
    assert_true(n > 3 * W); /* or the test says little */
    ts_logits_close(d);
    ts_free(tokens);
    check_rows(base, "windows", -1);
    remove_dump("windows");
}

/* One window for all: no matter how it is cut into batches; the first scored row is the first. */
static void test_whole(void **state) {
    (void)state;
    ts_logits_options o = options("whole", 0, 0);
    ts_logits_result r = dump(&o);
    assert_int_equal(r.n_windows, 1);
    assert_int_equal(r.first_scored_position, 0);
    ts_logits_dump *d = open_dump("whole");
    float *row = malloc((size_t)d->vocab_size * sizeof(float));
    ts_session *s = reference(base);
    ts_error err = {0};
    for (int64_t i = 0; i < d->rows; i += 16) {
        e2e_ok(ts_logits_read(d, i, row, &err), &err);
        assert_true(difference(s, d->token_ids, 0, (size_t)i, -1, row) < 0.02);
    }
    ts_session_close(s);
    ts_logits_close(d);
    free(row);
    remove_dump("whole");
}

/* A copy of the model that says that texts begin with BOS. */
static bool model_with_bos(const char *path) {
    static const char key[] = "tokenizer.ggml.add_bos_token";
    const size_t length = sizeof(key) - 1;
    size_t n;
    char *bytes = e2e_slurp(e2e_model_path(), &n), *at = NULL;
    for (size_t i = 0; !at && i + length + 5 < n && i < ((size_t)32 << 20); i++)
        if (memcmp(bytes + i, key, length) == 0) at = bytes + i + length;
    bool found = at && at[0] == 7 && (at[4] == 0 || at[4] == 1); /* a bool */
    if (found) {
        at[4] = 1;
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(bytes, 1, n, f), n);
        assert_int_equal(fclose(f), 0);
    }
    free(bytes);
    return found;
}

static void test_bos(void **state) {
    (void)state;
    ts_logits_result r;
    ts_error err = {0};
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    if (!model_with_bos(e2e_path("bos.gguf"))) skip();
    so.model_path = e2e_path("bos.gguf");
    so.n_threads = 1;
    so.n_ubatch = UBATCH;
    so.flash_attn = TS_FLASH_OFF;
    ts_session *s = e2e_open(&so);
    ts_logits_options o = options("bos", W, W);
    assert_int_equal(ts_logits_run(s, &o, &r, &err), TS_ERR_ARG);
    assert_non_null(strstr(err.message, "every window begins with BOS"));
    o.stride = S;
    e2e_ok(ts_logits_run(s, &o, &r, &err), &err);
    ts_logits_dump *d = open_dump("bos");
    int32_t bos = llama_vocab_bos(s->model->vocab);
    assert_int_equal(d->token_ids[0], bos);
    assert_int_not_equal(d->token_ids[S], bos);
    ts_logits_close(d);
    check_rows(s, "bos", bos);
    ts_session_close(s);
    remove_dump("bos");
}

static void assert_zero(const ts_kld_stats *s) {
    assert_true(s->mean == 0 && s->median == 0 && s->p99 == 0 && s->max == 0);
}

static void test_kld(void **state) {
    (void)state;
    ts_logits_options o = options("a", 0, 0);
    ts_logits_result whole = dump(&o);
    o = options("half", 0, 0);
    o.f32 = false;
    dump(&o);
    ts_kld_result r = kld("a", "a", "half");
    assert_zero(&r.pair.forward);
    assert_zero(&r.pair.backward);
    assert_true(r.pair.agreement == 1 && r.pair.identical && r.pair.parted_row == -1);
    assert_true(r.pair.perplexity[0] == r.pair.perplexity[1] && r.pair.perplexity[0] > 2 && r.pair.perplexity[0] < 200);
    /* the floor that turbospark-kld(1) states, with room for another CPU's rounding */
    assert_true(r.has_floor && !r.floor.identical);
    assert_true(r.floor.forward.mean > 0 && r.floor.forward.mean < 2e-5 && r.floor.forward.max < 2e-4);
    assert_true(r.floor.backward.mean > 0 && r.floor.backward.mean < 2e-5 && r.floor.backward.max < 2e-4);
    assert_true(fabs(log(r.floor.perplexity[0] / r.floor.perplexity[1])) < 1e-3);
    assert_true(kld("half", "half", NULL).pair.forward.max == 0);
    /* a window of all and no overlap is the same work */
    o = options("again", (uint32_t)whole.n_rows, (uint32_t)whole.n_rows);
    dump(&o);
    assert_true(kld("a", "again", NULL).pair.identical);
    remove_dump("again");
    remove_dump("half");
    remove_dump("a");
}

/* With every block tapped, as under steering, the rows are the same to the bit. */
static void test_tapped(void **state) {
    (void)state;
    ts_logits_options o = options("off", W, S), p = options("on", W, S);
    ts_logits_result r;
    ts_error err = {0};
    dump(&o);
    ts_session *s = open_session(NULL);
    e2e_ok(ts_session_want(s, 1u << TS_SITE_RESID, NULL, &err), &err);
    e2e_ok(ts_logits_run(s, &p, &r, &err), &err);
    assert_true(ts_session_has_callback(s));
    ts_session_close(s);
    assert_true(kld("off", "on", NULL).pair.identical);
    remove_dump("off");
    remove_dump("on");
}

/* Less context costs: both ways round the same numbers, swapped. */
static void test_kld_differs(void **state) {
    (void)state;
    ts_logits_options o = options("a", 0, 0), p = options("b", W, W);
    dump(&o);
    ts_logits_result r = dump(&p);
    assert_int_equal(r.first_scored_position, 0);
    ts_kld_result ab = kld("a", "b", NULL), ba = kld("b", "a", NULL);
    assert_true(ab.pair.forward.mean > 0.05 && ab.pair.forward.max > ab.pair.forward.p99 && ab.pair.forward.p99 > ab.pair.forward.median);
    assert_memory_equal(&ab.pair.forward, &ba.pair.backward, sizeof(ab.pair.forward));
    assert_memory_equal(&ab.pair.backward, &ba.pair.forward, sizeof(ab.pair.forward));
    assert_true(ab.pair.perplexity[0] == ba.pair.perplexity[1] && ab.pair.perplexity[1] > ab.pair.perplexity[0]);
    assert_true(ab.pair.agreement < 1 && ab.pair.agreement == ba.pair.agreement);
    assert_true(ab.pair.parted_row >= W); /* the first window is the same */
    assert_int_not_equal(ab.pair.parted_top[0], ab.pair.parted_top[1]);
    assert_int_equal(ab.pair.parted_top[0], ba.pair.parted_top[1]);
    p = options("c", W, S); /* other rows are scored */
    dump(&p);
    kld_refused("a", "c", TS_ERR_ARG, "what is scored");
    remove_dump("a");
    remove_dump("b");
    remove_dump("c");
}

/* ---- dumps made by hand */

static void make_dump(const char *name, int32_t n_vocab, const int32_t *tokens, size_t n, const float *rows, int64_t first) {
    ts_logits_out *out;
    ts_error err = {0};
    ts_logits_spec spec = {.folder = e2e_path(name), .dtype = TS_LOGITS_F32, .vocab_size = n_vocab, .token_ids = tokens, .n_tokens = n,
                           .first_scored_position = first};
    e2e_ok(ts_logits_out_open(&spec, &out, &err), &err);
    for (size_t i = 0; i + 1 < n; i++) e2e_ok(ts_logits_out_add(out, rows + i * (size_t)n_vocab, &err), &err);
    e2e_ok(ts_logits_out_finish(out, NULL, &err), &err);
}

static void test_infinite(void **state) {
    (void)state;
    const int32_t tokens[] = {0, 1, 2};
    const float p[] = {0, -INFINITY, 1, /**/ 0, 0, 0}, q[] = {0, 3, 1, /**/ -INFINITY, 0, 1};
    ts_error err = {0};
    ts_kld_options o = TS_OPTIONS_INIT(ts_kld_options);
    ts_kld_result r;
    make_dump("p", 3, tokens, 3, p, 0);
    make_dump("q", 3, tokens, 3, q, 0);
    o.a = e2e_path("p");
    o.b = e2e_path("q");
    o.json_path = e2e_path("kld.json");
    e2e_ok(ts_kld_run(&o, &r, &err), &err);
    /* row 0: on {0, 2} both say (0, 1): nothing; row 1: on {1, 2}, (0, 0) against (0, 1) */
    double up = exp(1) / (1 + exp(1)), down = 1 / (1 + exp(1));
    double forward = 0.5 * log(0.5 / down) + 0.5 * log(0.5 / up), backward = down * log(down / 0.5) + up * log(up / 0.5);
    assert_true(fabs(r.pair.forward.mean - forward / 2) < 1e-12 && fabs(r.pair.backward.mean - backward / 2) < 1e-12);
    assert_true(fabs(r.pair.forward.max - forward) < 1e-12);
    assert_int_equal(r.pair.n_outside, 2);
    assert_true(isinf(r.pair.perplexity[0]) && isfinite(r.pair.perplexity[1])); /* p rules out token 1 of the text */
    assert_int_equal(r.pair.parted_row, 0);
    assert_int_equal(r.pair.parted_top[0], 2);
    assert_int_equal(r.pair.parted_top[1], 1);
    assert_int_equal(r.pair.parted_token, 1);
    size_t n;
    char *json = e2e_slurp(e2e_path("kld.json"), &n);
    assert_non_null(strstr(json, "\"perplexity\": {\"a\": null, \"b\": "));
    assert_null(strstr(json, "nan"));
    assert_null(strstr(json, "inf"));
    free(json);
    r = kld("p", "p", NULL);
    assert_zero(&r.pair.forward);
    assert_zero(&r.pair.backward);
    assert_int_equal(r.pair.n_outside, 0);
    remove_dump("p");
    remove_dump("q");
}

static void test_not_comparable(void **state) {
    (void)state;
    const int32_t tokens[] = {0, 1, 2}, other[] = {0, 2, 2};
    const float rows[8] = {0};
    make_dump("p", 3, tokens, 3, rows, 0);
    make_dump("q", 4, tokens, 3, rows, 0);
    make_dump("r", 3, other, 3, rows, 0);
    make_dump("s", 3, tokens, 2, rows, 0);
    make_dump("t", 3, tokens, 3, rows, 2);
    kld_refused("p", "q", TS_ERR_ARG, "vocabulary");
    kld_refused("p", "r", TS_ERR_ARG, "token 1 is 1 in");
    kld_refused("p", "s", TS_ERR_ARG, "length");
    kld_refused("t", "t", TS_ERR_ARG, "nothing to compare");
    kld_refused("p", "nowhere", TS_ERR_IO, "nowhere");
    assert_int_equal(truncate(e2e_path("r/logits.f32"), 20), 0);
    kld_refused("p", "r", TS_ERR_FORMAT, "has 20 bytes");
    for (const char *name = "pqrst"; *name; name++) remove_dump((char[]){*name, '\0'});
}

/* ---- what goes wrong */

static void test_refusals(void **state) {
    (void)state;
    ts_logits_options o = options("none", 0, 0);
    put_text("one.txt", "a");
    o.input_path = e2e_path("one.txt");
    refused(&o, TS_ERR_ARG, "too short: expected at least 2 tokens, got 1");
    o.window = 8;
    o.stride = 2;
    put_text("few.txt", "one two three four five six");
    o.input_path = e2e_path("few.txt");
    refused(&o, TS_ERR_ARG, "expected at least 8 tokens, got 6");
    o.input_path = e2e_path("text.txt");
    o.stride = 9;
    refused(&o, TS_ERR_ARG, "--stride: expected 1 to 8");
    o.window = 1000000;
    o.stride = 0;
    refused(&o, TS_ERR_ARG, "--window: expected 1 to");
    o.window = W;
    o.input_path = e2e_path("absent.txt");
    refused(&o, TS_ERR_IO, "absent.txt");
    o.input_path = e2e_path("text.txt");
    o.output_path = e2e_path("absent/none");
    refused(&o, TS_ERR_IO, "absent/none");
    o.output_path = e2e_path("text.txt");
    refused(&o, TS_ERR_IO, "expected a folder");
    assert_false(exists("none"));
}

typedef struct stopper {
    volatile int flag;
    int after;
} stopper;

static void raise_flag(const ts_progress *p, void *user) {
    stopper *s = user;
    assert_true(p->tokens_done <= p->tokens_total);
    if (s->after-- == 0) s->flag = 1;
}

static void interrupted(const char *name, bool overwrite) {
    stopper stop = {0, 2};
    ts_logits_options o = options(name, W, S);
    ts_logits_result r;
    ts_error err = {0};
    ts_session *s = open_session(&stop.flag);
    o.on_progress = raise_flag;
    o.user = &stop;
    o.overwrite = overwrite;
    assert_int_equal(ts_logits_run(s, &o, &r, &err), TS_ERR_INTERRUPTED);
    ts_session_close(s);
}

static uint64_t hash_file(const char *name) {
    size_t n;
    char *bytes = e2e_slurp(e2e_path(name), &n);
    uint64_t h = e2e_hash(E2E_HASH, bytes, n);
    free(bytes);
    return h;
}

static void test_interrupted(void **state) {
    (void)state;
    interrupted("stopped", false); /* the rows so far are a dump of the first tokens */
    ts_logits_dump *part = open_dump("stopped");
    assert_true(part->partial && part->rows > 0);
    ts_logits_close(part);
    remove_dump("stopped");
    ts_logits_options o = options("kept", 0, 0);
    o.f32 = false;
    dump(&o);
    uint64_t data = hash_file("kept/logits.f16"), meta = hash_file("kept/meta.json");
    refused(&o, TS_ERR_ARG, "holds a dump already");
    interrupted("kept", true);
    assert_true(hash_file("kept/logits.f16") == data && hash_file("kept/meta.json") == meta);
    assert_false(exists("kept/logits.f32"));
    o = options("kept", W, S);
    o.overwrite = true;
    dump(&o);
    assert_false(exists("kept/logits.f16"));
    ts_logits_close(open_dump("kept"));
    remove_dump("kept"); /* no temporary was left */
}

int main(void) {
    if (!e2e_model_path()) return E2E_SKIP;
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.model_path = e2e_model_path();
    ts_error err = {0};
    if (ts_session_open(&so, &base, &err) != TS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    put_text("text.txt", text);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows), cmocka_unit_test(test_whole), cmocka_unit_test(test_bos),
        cmocka_unit_test(test_kld), cmocka_unit_test(test_kld_differs), cmocka_unit_test(test_infinite),
        cmocka_unit_test(test_not_comparable), cmocka_unit_test(test_refusals), cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_tapped),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ts_session_close(base);
    e2e_remove_tmp();
    return failed;
}
