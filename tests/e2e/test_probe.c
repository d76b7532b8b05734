/* The probe on a llama_context of its own: graph runs come in order with their tokens and positions, its rows are those of a
 * session, a callback that was there before is still asked, and the wrong order of calls is an error. */
#include "rows.h"
#include "tiny_each.h"

#include <llama.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS 50
#define UBATCH 16

/* What the runs of one decode gave. */
typedef struct seen {
    int32_t tokens[N_TOKENS], positions[N_TOKENS], sizes[N_TOKENS];
    int32_t n_tokens, n_runs, n_layer, n_embd;
    bool has_positions;
    float *rows;      /* [n_layer][n_embd], of the last token that had one in the block */
    float *first;     /* [N_TOKENS][n_embd], block 0 */
    int32_t n_last;   /* rows of the last block */
    int fail_at;      /* run that returns an error, -1 none */
    int n_failed;
} seen;

static void seen_init(seen *s) {
    memset(s, 0, sizeof(*s));
    s->n_layer = llama_model_n_layer(tiny_loaded());
    s->n_embd = llama_model_n_embd(tiny_loaded());
    s->rows = calloc((size_t)s->n_layer * (size_t)s->n_embd, sizeof(float));
    s->first = calloc((size_t)N_TOKENS * (size_t)s->n_embd, sizeof(float));
    s->fail_at = -1;
}

static void seen_free(seen *s) {
    free(s->rows);
    free(s->first);
}

static int on_run(const ts_run *run, void *user, ts_error *err) {
    seen *s = user;
    int32_t n = ts_run_n_tokens(run);
    if (s->n_runs == s->fail_at) {
        s->n_failed++;
        strcpy(err->message, "the consumer had enough");
        return TS_ERR_ARG;
    }
    assert_true(s->n_tokens + n <= N_TOKENS);
    memcpy(s->tokens + s->n_tokens, ts_run_tokens(run), (size_t)n * sizeof(int32_t));
    s->has_positions = ts_run_positions(run) != NULL;
    if (s->has_positions) memcpy(s->positions + s->n_tokens, ts_run_positions(run), (size_t)n * sizeof(int32_t));
    for (int32_t il = 0; il < s->n_layer; il++) {
        ts_rows r;
        int rc = ts_run_rows(run, TS_SITE_RESID, il, &r, err);
        if (rc != TS_OK) return rc;
        assert_int_equal(r.width, s->n_embd);
        for (int64_t i = 0; i < r.n_rows; i++) {
            assert_in_range(r.token_index[i], 0, n - 1);
            memcpy(s->rows + il * s->n_embd, r.data + i * r.width, (size_t)s->n_embd * sizeof(float));
        }
        if (il == 0) {
            assert_int_equal(r.n_rows, n);
            memcpy(s->first + s->n_tokens * s->n_embd, r.data, (size_t)(n * s->n_embd) * sizeof(float));
        }
        if (il == s->n_layer - 1) s->n_last += (int32_t)r.n_rows;
    }
    ts_rows none;
    assert_int_equal(ts_run_rows(run, TS_SITE_FFN, 0, &none, NULL), TS_ERR_UNSUPPORTED);
    s->sizes[s->n_runs++] = n;
    s->n_tokens += n;
    return TS_OK;
}

static struct llama_context_params context_params(uint32_t n_ubatch) {
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = 512;
    p.n_batch = 64;
    p.n_ubatch = n_ubatch;
    p.n_threads = p.n_threads_batch = 1;
    p.kv_unified = true;
    p.swa_full = false;
    return p;
}

static ts_probe *make_probe(seen *s, enum ts_tap_method tap) {
    ts_error err = {0};
    ts_probe *p;
    ts_probe_options o = TS_OPTIONS_INIT(ts_probe_options);
    o.on_run = on_run;
    o.user = s;
    o.tap = tap;
    e2e_ok(ts_probe_create(&o, &p, &err), &err);
    return p;
}

static int32_t token_at(int32_t i) { return (i * 53 + 11) % 160; }

/* Decodes tokens [from, to), only the last an output. */
static void decode(struct llama_context *ctx, int32_t from, int32_t to) {
    struct llama_batch b = llama_batch_init(N_TOKENS, 0, 1);
    for (int32_t i = from; i < to; i++) {
        int32_t k = b.n_tokens++;
        b.token[k] = token_at(i);
        b.pos[k] = i;
        b.n_seq_id[k] = 1;
        b.seq_id[k][0] = 0;
        b.logits[k] = i == to - 1;
    }
    assert_int_equal(llama_decode(ctx, b), 0);
    llama_batch_free(b);
}

static uint64_t logits_hash(struct llama_context *ctx) {
    size_t n = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(tiny_loaded()));
    return e2e_hash(E2E_HASH, llama_get_logits_ith(ctx, -1), n * sizeof(float));
}

/* One decode of all tokens under a probe; the logits' hash. */
static uint64_t probe_once(enum ts_tap_method tap, seen *s) {
    ts_error err = {0};
    seen_init(s);
    ts_probe *p = make_probe(s, tap);
    struct llama_context_params params = context_params(UBATCH);
    e2e_ok(ts_probe_prepare(p, &params, &err), &err);
    struct llama_context *ctx = llama_init_from_model(tiny_loaded(), params);
    assert_non_null(ctx);
    e2e_ok(ts_probe_attach(p, ctx, &err), &err);
    assert_int_equal(s->n_runs, 0); /* attaching shows nothing of its own decodes */
    decode(ctx, 0, N_TOKENS);
    e2e_ok(ts_probe_collect(p, &err), &err);
    uint64_t hash = logits_hash(ctx);
    llama_free(ctx);
    ts_probe_free(p);
    return hash;
}

static uint64_t plain_logits(void) {
    struct llama_context *ctx = llama_init_from_model(tiny_loaded(), context_params(UBATCH));
    decode(ctx, 0, N_TOKENS);
    uint64_t hash = logits_hash(ctx);
    llama_free(ctx);
    return hash;
}

static void test_runs_in_order(void **state) {
    (void)state;
    seen s;
    uint64_t hash = probe_once(TS_TAP_REDIRECT, &s);
    assert_int_equal(s.n_tokens, N_TOKENS);
    assert_int_equal(s.n_runs, (N_TOKENS + UBATCH - 1) / UBATCH);
    for (int32_t r = 0; r < s.n_runs; r++) assert_int_equal(s.sizes[r], r < s.n_runs - 1 ? UBATCH : N_TOKENS % UBATCH);
    assert_int_equal(s.has_positions, strcmp(tiny_arch(), "mamba") != 0);
    for (int32_t i = 0; i < N_TOKENS; i++) {
        assert_int_equal(s.tokens[i], token_at(i));
        if (s.has_positions) assert_int_equal(s.positions[i], i);
    }
    assert_true(s.n_last == 1 || s.n_last == N_TOKENS); /* trimmed to the one output, or after the blocks (qwen35) */
    assert_true(hash == plain_logits());
    seen_free(&s);
}

static void test_ask_equals_redirect(void **state) {
    (void)state;
    seen a, b;
    uint64_t asked = probe_once(TS_TAP_ASK, &a), redirected = probe_once(TS_TAP_REDIRECT, &b);
    assert_true(asked == redirected);
    assert_int_equal(a.n_runs, b.n_runs);
    assert_memory_equal(a.rows, b.rows, (size_t)a.n_layer * (size_t)a.n_embd * sizeof(float));
    assert_memory_equal(a.first, b.first, (size_t)N_TOKENS * (size_t)a.n_embd * sizeof(float));
    seen_free(&a);
    seen_free(&b);
}

/* Decoded as a session does, in chunks and the last token alone, the rows are the session's, to the bit. */
static void test_equals_session(void **state) {
    (void)state;
    ts_error err = {0};
    rows r;
    seen s;
    int32_t tokens[N_TOKENS];
    for (int32_t i = 0; i < N_TOKENS; i++) tokens[i] = token_at(i);
    ts_session_options so = tiny_session(UBATCH);
    ts_session *session = e2e_open(&so);
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    ro.path = e2e_path("session.json");
    e2e_ok(ts_session_attach_resid(session, &ro, &err), &err);
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    g.tokens = tokens;
    g.n_tokens = N_TOKENS;
    e2e_ok(ts_session_generate(session, &g, NULL, &err), &err);
    e2e_ok(ts_session_finish(session, &err), &err);
    ts_session_close(session);
    rows_read(ro.path, &r);

    seen_init(&s);
    ts_probe *p = make_probe(&s, TS_TAP_REDIRECT);
    struct llama_context_params params = context_params(UBATCH);
    e2e_ok(ts_probe_prepare(p, &params, &err), &err);
    struct llama_context *ctx = llama_init_from_model(tiny_loaded(), params);
    e2e_ok(ts_probe_attach(p, ctx, &err), &err);
    for (int32_t at = 0; at < N_TOKENS - 1; at += UBATCH) {
        decode(ctx, at, at + UBATCH < N_TOKENS - 1 ? at + UBATCH : N_TOKENS - 1);
        e2e_ok(ts_probe_collect(p, &err), &err);
    }
    decode(ctx, N_TOKENS - 1, N_TOKENS);
    e2e_ok(ts_probe_collect(p, &err), &err);
    assert_memory_equal(s.rows, rows_at(&r, 0, 0), (size_t)s.n_layer * (size_t)s.n_embd * sizeof(float));
    llama_free(ctx);
    ts_probe_free(p);
    seen_free(&s);
    rows_free(&r);
}

/* ---- a callback that was there before */

typedef struct other {
    int n_asked, n_got;
    uint64_t hash; /* of the node it asks for */
} other;

static bool other_callback(struct ggml_tensor *t, bool ask, void *user) {
    other *o = user;
    bool mine = strcmp(t->name, "l_out-0") == 0 || strcmp(t->name, "ffn_residual-0") == 0;
    if (ask) {
        o->n_asked++;
        return mine;
    }
    assert_true(mine);
    o->n_got++;
    float value[8];
    ggml_backend_tensor_get(t, value, 0, sizeof(value));
    o->hash = e2e_hash(o->hash, value, sizeof(value));
    return true;
}

static uint64_t chained(bool with_probe, other *o, seen *s) {
    ts_error err = {0};
    seen_init(s);
    struct llama_context_params params = context_params(UBATCH);
    params.cb_eval = other_callback;
    params.cb_eval_user_data = o;
    ts_probe *p = NULL;
    if (with_probe) {
        p = make_probe(s, TS_TAP_REDIRECT);
        e2e_ok(ts_probe_prepare(p, &params, &err), &err);
    }
    struct llama_context *ctx = llama_init_from_model(tiny_loaded(), params);
    if (with_probe) e2e_ok(ts_probe_attach(p, ctx, &err), &err);
    *o = (other){.hash = E2E_HASH};
    decode(ctx, 0, N_TOKENS);
    if (with_probe) e2e_ok(ts_probe_collect(p, &err), &err);
    uint64_t hash = logits_hash(ctx);
    llama_free(ctx);
    ts_probe_free(p);
    return hash;
}

static void test_chain(void **state) {
    (void)state;
    other alone = {0}, beside = {0};
    seen none, s;
    uint64_t a = chained(false, &alone, &none), b = chained(true, &beside, &s);
    assert_true(a == b);
    assert_true(alone.n_got > 0);
    assert_int_equal(alone.n_asked, beside.n_asked);
    assert_int_equal(alone.n_got, beside.n_got);
    assert_true(alone.hash == beside.hash); /* it reads the rows from where they were redirected to */
    assert_int_equal(s.n_tokens, N_TOKENS);
    seen_free(&none);
    seen_free(&s);
}

/* ---- errors */

static void test_wrong_order(void **state) {
    (void)state;
    ts_error err = {0};
    seen s;
    seen_init(&s);
    ts_probe *p = make_probe(&s, TS_TAP_REDIRECT);
    struct llama_context_params params = context_params(UBATCH);
    struct llama_context *strange = llama_init_from_model(tiny_loaded(), params);
    assert_int_equal(ts_probe_collect(p, &err), TS_ERR_STATE);
    assert_int_equal(ts_probe_attach(p, strange, &err), TS_ERR_STATE);
    assert_non_null(strstr(err.message, "ts_probe_prepare"));
    e2e_ok(ts_probe_prepare(p, &params, &err), &err);
    assert_int_equal(ts_probe_prepare(p, &params, &err), TS_ERR_STATE);
    assert_int_equal(ts_probe_attach(p, strange, &err), TS_ERR_STATE); /* made without the prepared parameters */
    assert_non_null(strstr(err.message, "prepare"));
    llama_free(strange);
    struct llama_context *ctx = llama_init_from_model(tiny_loaded(), params);
    assert_int_equal(ts_probe_collect(p, &err), TS_ERR_STATE);
    decode(ctx, 0, 3); /* not attached yet: nothing is shown, nothing breaks */
    assert_int_equal(s.n_runs, 0);
    e2e_ok(ts_probe_attach(p, ctx, &err), &err);
    assert_int_equal(ts_probe_attach(p, ctx, &err), TS_ERR_STATE);
    decode(ctx, 0, N_TOKENS);
    e2e_ok(ts_probe_collect(p, &err), &err);
    e2e_ok(ts_probe_collect(p, &err), &err); /* nothing new: nothing is delivered twice */
    assert_int_equal(s.n_tokens, N_TOKENS);
    llama_free(ctx);
    ts_probe_free(p);
    ts_probe_free(NULL);
    seen_free(&s);
}

/* An error of the consumer is latched: later runs of that decode are not shown, collect tells it once. */
static void test_latched(void **state) {
    (void)state;
    ts_error err = {0};
    seen s;
    seen_init(&s);
    ts_probe *p = make_probe(&s, TS_TAP_REDIRECT);
    struct llama_context_params params = context_params(UBATCH);
    e2e_ok(ts_probe_prepare(p, &params, &err), &err);
    struct llama_context *ctx = llama_init_from_model(tiny_loaded(), params);
    e2e_ok(ts_probe_attach(p, ctx, &err), &err);
    s.fail_at = 1;
    decode(ctx, 0, N_TOKENS);
    assert_int_equal(ts_probe_collect(p, &err), TS_ERR_ARG);
    assert_string_equal(err.message, "the consumer had enough");
    assert_int_equal(s.n_runs, 1);
    assert_int_equal(s.n_failed, 1);
    uint64_t hash = logits_hash(ctx); /* the decode itself went on */
    assert_true(hash == plain_logits());
    s.fail_at = -1;
    s.n_tokens = 0;
    llama_memory_clear(llama_get_memory(ctx), true);
    decode(ctx, 0, N_TOKENS);
    e2e_ok(ts_probe_collect(p, &err), &err);
    assert_int_equal(s.n_tokens, N_TOKENS);
    llama_free(ctx);
    ts_probe_free(p);
    seen_free(&s);
}

static void test_options(void **state) {
    (void)state;
    ts_error err = {0};
    ts_probe *p;
    ts_probe_options o = TS_OPTIONS_INIT(ts_probe_options);
    assert_int_equal(ts_probe_create(&o, &p, &err), TS_ERR_ARG);
    assert_null(p);
    o.on_run = on_run;
    o.sites = 1u << TS_SITE_KIND_COUNT;
    assert_int_equal(ts_probe_create(&o, &p, &err), TS_ERR_ARG);
    seen s;
    seen_init(&s);
    ts_range blocks = {0, 999};
    o.sites = 0;
    o.blocks = &blocks;
    o.user = &s;
    e2e_ok(ts_probe_create(&o, &p, &err), &err);
    struct llama_context_params params = context_params(UBATCH);
    e2e_ok(ts_probe_prepare(p, &params, &err), &err);
    struct llama_context *ctx = llama_init_from_model(tiny_loaded(), params);
    assert_int_equal(ts_probe_attach(p, ctx, &err), TS_ERR_ARG);
    assert_non_null(strstr(err.message, "0:999"));
    llama_free(ctx);
    ts_probe_free(p);
    seen_free(&s);
}

static int tests_of_arch(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_in_order), cmocka_unit_test(test_ask_equals_redirect), cmocka_unit_test(test_equals_session),
        cmocka_unit_test(test_chain),         cmocka_unit_test(test_wrong_order),         cmocka_unit_test(test_latched),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
    static const char *const archs[] = {"llama", "gemma3", "gpt2", "qwen35", "mamba", "plamo2", NULL};
    return tiny_each(archs, tests_of_arch) ? 1 : 0;
}
