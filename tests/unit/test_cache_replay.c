/* The cache replay against caches that are simulated one capacity at a time, from their definitions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <turbospark/turbospark.h>

#include "stats/cache_replay.h"

enum { MAX_WIDTH = 96, MAX_PASSES = 900 };

typedef struct trace {
    uint32_t width, n_passes;
    uint32_t n[MAX_PASSES], ids[MAX_PASSES][MAX_WIDTH];
} trace;

static uint32_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* Draws with a taste for low neurons and for those of the pass before, so that the policies differ. */
static void make_trace(trace *t, uint32_t width, uint32_t n_passes, uint64_t seed) {
    t->width = width;
    t->n_passes = n_passes;
    for (uint32_t p = 0; p < n_passes; p++) {
        bool used[MAX_WIDTH] = {false};
        uint32_t want = next_random(&seed) % (width / 3 + 2);

        t->n[p] = 0;
        for (uint32_t i = 0; i < want; i++) {
            uint32_t id = next_random(&seed) % width;

            if (next_random(&seed) % 2)
                id = id * id / width;
            if (p && t->n[p - 1] && next_random(&seed) % 3 == 0)
                id = t->ids[p - 1][next_random(&seed) % t->n[p - 1]];
            if (!used[id])
                t->ids[p][t->n[p]++] = id;
            used[id] = true;
        }
    }
}

static uint32_t next_use(const trace *t, uint32_t pass, uint32_t id) {
    for (uint32_t p = pass + 1; p < t->n_passes; p++)
        for (uint32_t i = 0; i < t->n[p]; i++)
            if (t->ids[p][i] == id)
                return p;
    return UINT32_MAX;
}

/* What a policy knows of a neuron. */
typedef struct neuron {
    uint32_t uses, last, next, rank;
    bool held, used;
} neuron;

/* Is a kept rather than b? `rank`, the order the policy had them in before, settles ties. */
static bool rather(enum ts_cache_policy policy, const neuron *a, const neuron *b) {
    if (policy == TS_CACHE_BELADY && a->next != b->next)
        return a->next < b->next;
    if (policy == TS_CACHE_LFU && a->uses != b->uses)
        return a->uses > b->uses;
    if (policy != TS_CACHE_BELADY && a->last != b->last)
        return a->last > b->last;
    return a->rank < b->rank;
}

static uint64_t simulate(const trace *t, enum ts_cache_policy policy, uint32_t capacity) {
    neuron all[MAX_WIDTH] = {{0}};
    uint64_t hits = 0;
    uint32_t fresh = 0;

    for (uint32_t i = 0; i < t->width; i++)
        all[i].rank = UINT32_MAX;
    for (uint32_t p = 0; p < t->n_passes; p++) {
        uint32_t order[MAX_WIDTH], n = 0;

        for (uint32_t i = 0; i < t->width; i++)
            all[i].used = false;
        for (uint32_t i = 0; i < t->n[p]; i++) {
            neuron *a = &all[t->ids[p][i]];

            hits += a->held;
            a->used = true;
            a->uses++;
            a->last = p + 1;
            a->next = next_use(t, p, t->ids[p][i]);
            if (a->rank == UINT32_MAX)
                a->rank = MAX_WIDTH + fresh++;
        }
        /* keep the best of those held and those used: an insertion sort, then the first ones */
        for (uint32_t i = 0; i < t->width; i++) {
            uint32_t at = n;

            if (all[i].rank == UINT32_MAX)
                continue;
            while (at > 0 && rather(policy, &all[i], &all[order[at - 1]])) {
                order[at] = order[at - 1];
                at--;
            }
            order[at] = i;
            n++;
        }
        for (uint32_t i = 0, kept = 0; i < n; i++) {
            neuron *a = &all[order[i]];

            a->rank = i;
            a->held = (a->held || a->used) && kept < capacity;
            kept += a->held;
        }
    }
    return hits;
}

static void check_trace(const trace *t) {
    uint32_t capacity[TS_CACHE_MAX_CAPACITIES];
    ts_cache_replay *r = NULL;
    const ts_cache_counts *c;
    uint64_t references = 0;

    for (uint32_t i = 0; i < TS_CACHE_MAX_CAPACITIES; i++)
        capacity[i] = (t->width * (i + 1) + TS_CACHE_MAX_CAPACITIES - 1) / TS_CACHE_MAX_CAPACITIES;
    assert_int_equal(ts_cache_replay_create(t->width, capacity, TS_CACHE_MAX_CAPACITIES, &r), 0);
    for (uint32_t p = 0; p < t->n_passes; p++) {
        assert_int_equal(ts_cache_replay_pass(r, t->ids[p], t->n[p]), 0);
        references += t->n[p];
    }
    c = ts_cache_replay_counts(r);
    assert_true(c->references == references && c->passes == t->n_passes);
    for (int i = 0; i < TS_CACHE_MAX_CAPACITIES; i++) {
        for (int p = 0; p < TS_CACHE_POLICIES; p++)
            assert_int_equal(c->hits[p][i], simulate(t, (enum ts_cache_policy)p, capacity[i]));
        assert_true(c->hits[TS_CACHE_BELADY][i] >= c->hits[TS_CACHE_LRU][i]);
        assert_true(c->hits[TS_CACHE_BELADY][i] >= c->hits[TS_CACHE_LFU][i]);
    }
    for (int p = 0; p < TS_CACHE_POLICIES; p++) /* the control arm: everything fits */
        assert_int_equal(c->hits[p][TS_CACHE_MAX_CAPACITIES - 1], references - c->compulsory);
    ts_cache_replay_free(r);
}

static void test_random_traces(void **state) {
    static trace t;

    (void)state;
    for (uint32_t width = 1; width <= 24; width++)
        for (uint64_t seed = 1; seed <= 6; seed++) {
            make_trace(&t, width, 70, seed * 977 + width);
            check_trace(&t);
        }
    make_trace(&t, MAX_WIDTH, 300, 5);
    check_trace(&t);
}

/* Passes far beyond the timeline's length, so that it is renumbered many times. */
static void test_long_trace(void **state) {
    static trace t;

    (void)state;
    for (uint32_t width = 1; width < 12; width += 2) {
        make_trace(&t, width, MAX_PASSES, width);
        check_trace(&t);
    }
}

/* No policy with the same choice does better: all of them, on traces small enough to try each. */
static uint32_t best_hits(const trace *t, uint32_t pass, uint32_t held, uint32_t capacity) {
    uint32_t used = 0, best = 0, hits;

    if (pass == t->n_passes)
        return 0;
    for (uint32_t i = 0; i < t->n[pass]; i++)
        used |= 1u << t->ids[pass][i];
    hits = (uint32_t)__builtin_popcount(used & held);
    for (uint32_t keep = 0; keep < 1u << t->width; keep++)
        if ((keep & ~(held | used)) == 0 && (uint32_t)__builtin_popcount(keep) <= capacity) {
            uint32_t later = best_hits(t, pass + 1, keep, capacity);

            best = later > best ? later : best;
        }
    return hits + best;
}

static void test_optimum(void **state) {
    static trace t;

    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        make_trace(&t, 5, 6, seed);
        for (uint32_t capacity = 1; capacity <= 3; capacity++) {
            ts_cache_replay *r = NULL;

            assert_int_equal(ts_cache_replay_create(t.width, &capacity, 1, &r), 0);
            for (uint32_t p = 0; p < t.n_passes; p++)
                assert_int_equal(ts_cache_replay_pass(r, t.ids[p], t.n[p]), 0);
            assert_int_equal(ts_cache_replay_counts(r)->hits[TS_CACHE_BELADY][0],
                             best_hits(&t, 0, 0, capacity));
            ts_cache_replay_free(r);
        }
    }
}

static void test_by_hand(void **state) {
    const uint32_t capacity[] = {1, 2};
    const uint32_t passes[][2] = {{0, 1}, {2, 3}, {0, 1}, {0, 2}};
    ts_cache_replay *r = NULL;
    const ts_cache_counts *c;

    (void)state;
    assert_int_equal(ts_cache_replay_create(4, capacity, 2, &r), 0);
    for (int p = 0; p < 4; p++)
        assert_int_equal(ts_cache_replay_pass(r, passes[p], 2), 0);
    c = ts_cache_replay_counts(r);
    assert_int_equal(c->compulsory, 4);
    assert_int_equal(c->references, 8);
    assert_int_equal(c->hits[TS_CACHE_LRU][0], 1);    /* 0 in the last pass */
    assert_int_equal(c->hits[TS_CACHE_LRU][1], 1);    /* {2, 3} drives out {0, 1} */
    assert_int_equal(c->hits[TS_CACHE_LFU][1], 1);
    assert_int_equal(c->hits[TS_CACHE_BELADY][0], 2); /* 0 all along */
    assert_int_equal(c->hits[TS_CACHE_BELADY][1], 3); /* 0 and 1, then 0 */
    ts_cache_replay_free(r);
}

static void test_refused(void **state) {
    const uint32_t good[] = {2, 4}, zero[] = {0}, wide[] = {5}, falling[] = {3, 2};
    const uint32_t twice[] = {1, 3, 1}, beyond[] = {0, 4}, ids[] = {1, 3};
    ts_cache_replay *r = NULL;

    (void)state;
    assert_int_equal(ts_cache_replay_create(4, zero, 1, &r), TS_ERR_ARG);
    assert_int_equal(ts_cache_replay_create(4, wide, 1, &r), TS_ERR_ARG);
    assert_int_equal(ts_cache_replay_create(4, falling, 2, &r), TS_ERR_ARG);
    assert_int_equal(ts_cache_replay_create(4, good, 0, &r), TS_ERR_ARG);
    assert_null(r);
    assert_int_equal(ts_cache_replay_create(4, good, 2, &r), 0);
    assert_int_equal(ts_cache_replay_pass(r, twice, 3), TS_ERR_ARG);
    assert_int_equal(ts_cache_replay_pass(r, beyond, 2), TS_ERR_ARG);
    assert_int_equal(ts_cache_replay_counts(r)->passes, 0);
    assert_int_equal(ts_cache_replay_pass(r, ids, 2), 0);
    assert_int_equal(ts_cache_replay_pass(r, ids, 0), 0);
    assert_int_equal(ts_cache_replay_pass(r, ids, 2), 0);
    assert_int_equal(ts_cache_replay_counts(r)->hits[TS_CACHE_LRU][0], 2);
    ts_cache_replay_free(r);
    ts_cache_replay_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand), cmocka_unit_test(test_random_traces),
        cmocka_unit_test(test_long_trace), cmocka_unit_test(test_optimum),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
