/* The seed's promise on a real model: text, every logit and the snapshot's bytes are the same with the capture
 * off, redirected and asked for, in every setting; off installs no callback; -n does not move the snapshot. */
#include "e2e.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More than 64 tokens: several ubatches of 32. */
static const char prompt[] =
    "The lighthouse keeper climbed the spiral stairs every evening at dusk, carrying a lantern, a flask of tea and the "
    "old logbook in which his father had written down the names of every ship that passed the cape. On the night of "
    "the great storm he counted seventeen of them before the glass went dark, and in the morning, when the fishermen came "
    "up the path with their nets over their shoulders, he told them that";

enum arm { OFF, REDIRECT, ASK };

typedef struct setting {
    bool sampled;
    uint32_t n_ubatch;
    int32_t n_threads;
    enum ts_flash flash;
} setting;

typedef struct outcome {
    e2e_outcome text; /* and logits */
    char *snapshot;   /* the sidecar's bytes */
    size_t snapshot_bytes;
} outcome;

static ts_session *base;

static void run(const setting *c, enum arm arm, int32_t n_predict, outcome *o) {
    ts_error err = {0};
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.share = base;
    so.n_ctx = 512;
    so.n_ubatch = c->n_ubatch;
    so.n_threads = c->n_threads;
    so.flash_attn = c->flash;
    so.tap = arm == ASK ? TS_TAP_ASK : TS_TAP_REDIRECT;
    memset(o, 0, sizeof(*o));
    o->text.logits = E2E_HASH;
    ts_session *s = e2e_open(&so);
    if (arm != OFF) {
        ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
        ro.path = e2e_path("snap.json");
        e2e_ok(ts_session_attach_resid(s, &ro, &err), &err);
    }
    e2e_ok(ts_session_start(s, &err), &err);
    assert_int_equal(ts_session_has_callback(s), arm != OFF);
    e2e_generate(s, prompt, n_predict, c->sampled, &o->text);
    e2e_ok(ts_session_finish(s, &err), &err);
    if (arm != OFF) o->snapshot = e2e_slurp(e2e_path("snap.f32"), &o->snapshot_bytes);
    ts_session_close(s);
}

static void assert_same_snapshot(const outcome *a, const outcome *b) {
    assert_true(a->snapshot_bytes > 0);
    assert_int_equal(a->snapshot_bytes, b->snapshot_bytes);
    assert_memory_equal(a->snapshot, b->snapshot, a->snapshot_bytes);
}

/* Off, redirected and asked for over `n` tokens; leaves the redirected snapshot in *snap. */
static void check_setting(const setting *c, int32_t n, outcome *snap) {
    outcome off, asked;
    print_message("  %s, -ub %u, -t %d, -fa %s, -n %d\n", c->sampled ? "sampled" : "greedy", c->n_ubatch, c->n_threads,
                  c->flash == TS_FLASH_ON ? "on" : "off", n);
    run(c, OFF, n, &off);
    run(c, REDIRECT, n, snap);
    run(c, ASK, n, &asked);
    assert_int_equal(off.text.n_passes, n);
    e2e_assert_same(&off.text, &snap->text);
    e2e_assert_same(&off.text, &asked.text);
    assert_same_snapshot(snap, &asked);
    free(asked.snapshot);
}

/* Every setting with one token; 200 tokens in rows that hold every pair of the four factors' values. */
static void identity(bool sampled) {
    static const struct {
        bool sampled, large_ubatch, two_threads, flash;
    } covering[] = {{false, false, false, false}, {false, true, true, true}, {true, false, true, true},
                    {true, true, false, true},    {true, true, true, false}, {false, false, false, true}};
    for (int bits = 0; bits < 8; bits++) {
        setting c = {sampled, bits & 1 ? 512 : 32, bits & 2 ? 2 : 1, bits & 4 ? TS_FLASH_ON : TS_FLASH_OFF};
        outcome one, many;
        check_setting(&c, 1, &one);
        for (size_t i = 0; i < sizeof(covering) / sizeof(covering[0]); i++) {
            if (covering[i].sampled != sampled || covering[i].large_ubatch != (c.n_ubatch == 512) ||
                covering[i].two_threads != (c.n_threads == 2) || covering[i].flash != (c.flash == TS_FLASH_ON))
                continue;
            check_setting(&c, 200, &many);
            assert_same_snapshot(&one, &many);
            free(many.snapshot);
        }
        free(one.snapshot);
    }
}

static void test_greedy(void **state) {
    (void)state;
    identity(false);
}

static void test_sampled(void **state) {
    (void)state;
    identity(true);
}

/* Armed again by each generation: three prompts in one open give three snapshots, equal to three opens. */
static void test_rearm(void **state) {
    (void)state;
    ts_error err = {0};
    setting c = {false, 512, 2, TS_FLASH_AUTO};
    outcome once;
    e2e_outcome o = {.logits = E2E_HASH};
    run(&c, REDIRECT, 1, &once);
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.share = base;
    so.n_ctx = 512;
    ts_session *s = e2e_open(&so);
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    ro.path = e2e_path("three.json");
    e2e_ok(ts_session_attach_resid(s, &ro, &err), &err);
    for (int i = 0; i < 3; i++) e2e_generate(s, prompt, 3 * i + 1, false, &o);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    size_t n;
    char *rows = e2e_slurp(e2e_path("three.f32"), &n);
    assert_int_equal(n, 3 * once.snapshot_bytes);
    for (size_t i = 0; i < 3; i++) assert_memory_equal(rows + i * once.snapshot_bytes, once.snapshot, once.snapshot_bytes);
    free(rows);
    free(once.snapshot);
}

/* Nothing captured: nothing written, no error. */
static void test_nothing_captured(void **state) {
    (void)state;
    ts_error err = {0};
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.share = base;
    so.n_ctx = 256;
    ts_session *s = e2e_open(&so);
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    ro.path = e2e_path("none.json");
    e2e_ok(ts_session_attach_resid(s, &ro, &err), &err);
    e2e_ok(ts_session_start(s, &err), &err);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    assert_null(fopen(e2e_path("none.json"), "rb"));
    assert_null(fopen(e2e_path("none.f32"), "rb"));
    assert_null(fopen(e2e_path("none.meta"), "rb"));
}

static void test_speculation_predicate(void **state) {
    (void)state;
    ts_error err = {0};
    assert_false(ts_resid_allows_speculation(true, false, &err));
    assert_non_null(strstr(err.message, "headful"));
    assert_true(ts_resid_allows_speculation(true, true, NULL));
    assert_true(ts_resid_allows_speculation(false, false, NULL));
    assert_true(ts_resid_allows_speculation(false, true, NULL));
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),           cmocka_unit_test(test_sampled), cmocka_unit_test(test_rearm),
        cmocka_unit_test(test_nothing_captured), cmocka_unit_test(test_speculation_predicate),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ts_session_close(base);
    e2e_remove_tmp();
    return failed;
}
