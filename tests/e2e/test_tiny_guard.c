/* The guard of every graph run: tokens and positions must be those sent, in that order, all of them and no more. Here the
 * tap is told that something else was sent: each time an error that says what, never rows; and the session goes on after. */
#include "host/session.h"
#include "tiny_each.h"

#include <llama.h>
#include <stdlib.h>
#include <string.h>

#define N 12

typedef struct sent {
    int32_t tokens[N], positions[N];
    size_t n;
} sent;

static int n_delivered;

static int on_run(const ts_run *run, void *user, ts_error *err) {
    (void)user;
    (void)err;
    n_delivered += ts_run_n_tokens(run);
    return TS_OK;
}

static ts_session *open_tapped(void) {
    ts_error err = {0};
    ts_session_options so = tiny_session(4);
    ts_session *s = e2e_open(&so);
    e2e_ok(ts_session_want(s, 1u << TS_SITE_RESID, NULL, &err), &err);
    e2e_ok(ts_session_start(s, &err), &err);
    return s;
}

static sent truth(void) {
    sent t = {.n = N};
    for (int32_t i = 0; i < N; i++) {
        t.tokens[i] = 3 + i * 5;
        t.positions[i] = i;
    }
    return t;
}

/* Decodes the truth in one call of three runs while the tap expects `claim`. */
static int decode_claiming(ts_session *s, const sent *claim, ts_error *err) {
    sent t = truth();
    struct llama_batch b = llama_batch_init(N, 0, 1);
    for (int32_t i = 0; i < N; i++) {
        b.token[i] = t.tokens[i];
        b.pos[i] = t.positions[i];
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = i == N - 1;
    }
    b.n_tokens = N;
    ts_expect expect = {.tokens = claim->tokens, .positions = claim->positions, .n = claim->n};
    ts_session_clear(s);
    n_delivered = 0;
    s->tap->on_run = on_run;
    s->tap->wanted = 1u << TS_SITE_RESID;
    s->tap->skip_head = false;
    ts_tap_begin(s->tap, &expect);
    int rc = ts_tap_end(s->tap, s->ctx, llama_decode(s->ctx, b), err);
    llama_batch_free(b);
    return rc;
}

static void refused(ts_session *s, const sent *claim, int delivered, const char *says) {
    ts_error err = {0};
    assert_int_equal(decode_claiming(s, claim, &err), TS_ERR_ENGINE);
    if (!strstr(err.message, says)) fail_msg("got: %s", err.message);
    assert_int_equal(n_delivered, delivered); /* the good runs before, none after */
    sent t = truth();
    e2e_ok(decode_claiming(s, &t, &err), &err);
    assert_int_equal(n_delivered, N);
}

static void test_wrong_token(void **state) {
    (void)state;
    ts_session *s = open_tapped();
    sent claim = truth();
    claim.tokens[5] = 99; /* in the second run */
    refused(s, &claim, 4, "the graph ran token 28 where token 99 was sent (number 5)");
    claim = truth();
    claim.tokens[0] = 99;
    refused(s, &claim, 0, "where token 99 was sent (number 0)");
    claim = truth();
    claim.tokens[N - 1] = 99;
    refused(s, &claim, 8, "(number 11)");
    ts_session_close(s);
}

/* Two tokens the other way round: the sum is right, the order is not. */
static void test_wrong_order(void **state) {
    (void)state;
    ts_session *s = open_tapped();
    sent claim = truth();
    claim.tokens[6] = truth().tokens[9];
    claim.tokens[9] = truth().tokens[6];
    refused(s, &claim, 4, "(number 6)");
    ts_session_close(s);
}

static void test_wrong_position(void **state) {
    (void)state;
    ts_session *s = open_tapped();
    sent claim = truth();
    claim.positions[7] = 8;
    if (strcmp(tiny_arch(), "mamba") == 0) { /* its graph has no positions: nothing to compare, and no false alarm */
        ts_error err = {0};
        e2e_ok(decode_claiming(s, &claim, &err), &err);
    } else {
        refused(s, &claim, 4, "the graph ran position 7 where position 8 was sent (number 7)");
    }
    ts_session_close(s);
}

static void test_wrong_count(void **state) {
    (void)state;
    ts_session *s = open_tapped();
    sent claim = truth();
    claim.n = N - 1;
    refused(s, &claim, 8, "more tokens than the 11 sent");
    claim.n = 8;
    refused(s, &claim, 8, "more tokens than the 8 sent");
    ts_error err = {0};
    sent longer = truth();
    ts_decode d = {.tokens = longer.tokens, .positions = longer.positions, .n = N, .on_run = on_run, .wanted = 1u << TS_SITE_RESID};
    ts_session_clear(s);
    e2e_ok(ts_session_decode(s, &d, &err), &err);
    ts_session_close(s);
}

/* A graph that ran less than was sent. */
static void test_too_few(void **state) {
    (void)state;
    ts_error err = {0};
    ts_session *s = open_tapped();
    sent t = truth();
    ts_expect expect = {.tokens = t.tokens, .positions = t.positions, .n = N};
    ts_session_clear(s);
    n_delivered = 0;
    s->tap->on_run = on_run;
    s->tap->wanted = 1u << TS_SITE_RESID;
    ts_tap_begin(s->tap, &expect);
    int decoded = llama_decode(s->ctx, llama_batch_get_one(t.tokens, 8));
    assert_int_equal(ts_tap_end(s->tap, s->ctx, decoded, &err), TS_ERR_ENGINE);
    assert_non_null(strstr(err.message, "the graph ran 8 of 12 tokens sent"));
    ts_session_close(s);
}

static int tests_of_arch(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_token), cmocka_unit_test(test_wrong_order), cmocka_unit_test(test_wrong_position),
        cmocka_unit_test(test_wrong_count), cmocka_unit_test(test_too_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Positions by ROPE, by a table, by M-RoPE (four a token), and none. */
int main(void) {
    static const char *const archs[] = {"llama", "gpt2", "qwen35", "mamba", NULL};
    return tiny_each(archs, tests_of_arch) ? 1 : 0;
}
