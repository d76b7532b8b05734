/* The graphs that edit rows on a device, alone: against the host's arithmetic on rows that are each edited in
 * their own way, in both forms; rows that are not finite stay the same bits; zeroing is the host's to the bit. */
#include "rows.h"
#include "steered.h"

#include <llama.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-alloc.h"
#include "host/session.h"
#include "instrument/steering.h"
#include "stats/zero.h"

enum { WIDTH = 128 };

/* The device that TS_EDIT_DEVICE names, else the processor with one thread: what it computes is small, and tests share their
 * cores. */
static ggml_backend_t device(void) {
    const char *name = getenv("TS_EDIT_DEVICE");
    ggml_backend_t backend = name ? ggml_backend_init_by_name(name, NULL) : ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    assert_non_null(backend);
    if (name) return backend;
    union {
        void *address;
        void (*set)(ggml_backend_t, int);
    } threads = {ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(ggml_backend_get_device(backend)), "ggml_backend_set_n_threads")};
    assert_non_null(threads.address);
    threads.set(backend, 1);
    return backend;
}

static void run_graph(ggml_backend_t backend, const ts_edit_step *s, bool brief, float *values, int64_t width, int64_t n) {
    ts_error err = {0};
    ts_edit_graph g;
    ts_edit_plan plan;
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 1 << 16, .no_alloc = true});
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, width, n);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    ggml_backend_tensor_set(x, values, 0, ggml_nbytes(x));
    e2e_ok(ts_edit_plan_init(&plan, n, &err), &err);
    for (int64_t r = 0; r < n; r++) ts_edit_plan_add(&plan, (int32_t)r, s, 1);
    ts_edit_plan_end(&plan, n);
    e2e_ok(ts_edit_graph_build(&g, x, &plan, brief, NULL, 0, 0, &err), &err);
    assert_true(ts_arena_serves(&(ts_arena){.backend = backend}, g.graph));
    g.buffer = ggml_backend_alloc_ctx_tensors(g.ctx, backend);
    ts_edit_graph_fill(&g);
    assert_int_equal(ggml_backend_graph_compute(backend, g.graph), GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get(x, values, 0, ggml_nbytes(x));
    ts_edit_graph_free(&g);
    ts_edit_plan_free(&plan);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

/* The same bits, but for what a device makes of a NaN's. */
static void assert_same_values(const float *a, const float *b, int n) {
    for (int k = 0; k < n; k++) assert_true(memcmp(&a[k], &b[k], sizeof(float)) == 0 || (isnan(a[k]) && isnan(b[k])));
}

/* Rows that are not finite, zero rows and rows that are nothing but the direction stay the same bits. */
static void test_spared_rows(void **state) {
    (void)state;
    enum { ROWS = 5 };
    float u[WIDTH], x[ROWS * WIDTH], kept[ROWS * WIDTH];
    ggml_backend_t backend = device();
    steered_direction(u, WIDTH, 0, 1, 1.0);
    for (int k = 0; k < WIDTH; k++) {
        x[k] = x[WIDTH + k] = (float)k - 50.0f;
        x[2 * WIDTH + k] = 0.0f;
        x[3 * WIDTH + k] = 7.0f * u[k];
        x[4 * WIDTH + k] = (float)(k % 7) - 2.0f;
    }
    x[5] = NAN;
    x[WIDTH + 9] = INFINITY;
    memcpy(kept, x, sizeof(x));
    ts_edit_step s = {.u = u, .v = u, .b = -1.0f, .restore = true};
    for (int at = 0; at < 4; at++) run_graph(backend, &s, true, x + at * WIDTH, WIDTH, 1); /* alone */
    assert_same_values(x, kept, 4 * WIDTH);
    run_graph(backend, &s, false, x, WIDTH, ROWS); /* and together with one that is edited */
    assert_same_values(x, kept, 4 * WIDTH);
    assert_memory_not_equal(x + 4 * WIDTH, kept + 4 * WIDTH, WIDTH * sizeof(float));
    s.restore = false;
    run_graph(backend, &s, false, x, WIDTH, 2);
    for (int brief = 0; brief < 2; brief++)
        for (int gate = 0; gate < 2; gate++)
            for (int at = 0; at < 2; at++) {
                s.gate = gate ? 0.5f : 0.0f;
                run_graph(backend, &s, brief, x + at * WIDTH, WIDTH, 1);
            }
    assert_same_values(x, kept, 2 * WIDTH);
    ggml_backend_free(backend);
}

/* ---- rows that are each edited in their own way, against the host's arithmetic */

static void fill(float *x, int64_t n, unsigned seed) {
    for (int64_t r = 0; r < n; r++) {
        steered_direction(x + r * WIDTH, WIDTH, (int32_t)r, seed, 1.0 + (double)(r % 5));
        x[r * WIDTH + 11] = -0.0f; /* a row that only gives its c keeps the sign */
        if (r % 11 == 3) x[r * WIDTH + 7] = NAN;
        if (r % 11 == 8) x[r * WIDTH + 90] = -INFINITY;
    }
}

static bool finite_row(const float *x) {
    for (int k = 0; k < WIDTH; k++)
        if (!isfinite(x[k])) return false;
    return true;
}

/* But for the sign of a zero, too. */
static void assert_equal_values(const float *a, const float *b) {
    for (int k = 0; k < WIDTH; k++) assert_true(a[k] == b[k] || (isnan(a[k]) && isnan(b[k])));
}

/* What row r gets: nothing, or up to three rules. */
static size_t rules_of(int64_t r, ts_steer_rule *rules) {
    static const ts_steer_rule all[] = {
        {.mode = TS_STEER_ABLATE, .scale = 1},           {.mode = TS_STEER_ADD, .scale = -0.7},
        {.mode = TS_STEER_CLAMP, .scale = 0.4, .target = 3}, {.mode = TS_STEER_RENORM, .scale = 0.5},
        {.mode = TS_STEER_ABLATE, .scale = 1, .gate = 0.1},  {.mode = TS_STEER_CLAMP, .scale = 1, .target = 2, .gate = 0.1},
        {.mode = TS_STEER_ADD, .scale = 0},
    };
    size_t n = (size_t)(r % 4);
    for (size_t i = 0; i < n; i++) rules[i] = all[((size_t)r + 3 * i) % 7];
    return n;
}

static void edit_on(ggml_backend_t backend, const ts_edit_plan *plan, bool brief, float *values, int64_t n, float *c) {
    ts_error err = {0};
    ts_edit_graph g;
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 1 << 16, .no_alloc = true});
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, WIDTH, n);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    ggml_backend_tensor_set(x, values, 0, ggml_nbytes(x));
    e2e_ok(ts_edit_graph_build(&g, x, plan, brief, NULL, 0, 0, &err), &err);
    assert_true(ts_edit_graph_fits(&g, x, plan));
    g.buffer = ggml_backend_alloc_ctx_tensors(g.ctx, backend);
    ts_edit_graph_fill(&g);
    assert_int_equal(ggml_backend_graph_compute(backend, g.graph), GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get(x, values, 0, ggml_nbytes(x));
    for (int64_t r = 0; r < plan->n_rows; r++)
        for (size_t i = 0; i < plan->count[r]; i++) {
            float *to = &c[plan->row[r] * TS_EDIT_STEPS + (int64_t)i];
            ggml_backend_tensor_get(g.c[i].tensor, to, (g.c[i].first + (size_t)r) * sizeof(float), sizeof(float));
            *to *= g.c[i].scale;
        }
    plan->steps[0].b += 0.5f; /* another scale, another graph */
    assert_false(ts_edit_graph_fits(&g, x, plan));
    ts_edit_graph_free(&g);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

/* Rows 0 .. n of which `pick` are taken, from the row `from`. */
static void check_mixed(ggml_backend_t backend, int64_t n, int64_t from, bool brief) {
    ts_steer_axis axes[3];
    ts_error err = {0};
    ts_edit_plan plan;
    float *x = calloc((size_t)n * WIDTH, sizeof(*x)), *want = calloc((size_t)n * WIDTH, sizeof(*x)), d[WIDTH];
    float *c = calloc((size_t)n * TS_EDIT_STEPS, sizeof(*c));
    double *c_want = calloc((size_t)n * TS_EDIT_STEPS, sizeof(*c_want));
    for (int a = 0; a < 3; a++) {
        steered_direction(d, WIDTH, a, 77, 2.0);
        e2e_ok(ts_steer_axis_init(&axes[a], d, WIDTH, &err), &err);
    }
    fill(x, n, 5);
    memcpy(want, x, (size_t)n * WIDTH * sizeof(*x));
    e2e_ok(ts_edit_plan_init(&plan, n, &err), &err);
    for (int turn = 0; turn < 2; turn++)
        for (int64_t r = 0; r < n; r++) {
            ts_steer_rule rules[TS_EDIT_STEPS];
            ts_edit_step steps[TS_EDIT_STEPS];
            bool changes = false;
            size_t m = rules_of(r + from, rules);
            for (size_t i = 0; i < m; i++) {
                const ts_steer_axis *axis = &axes[(r + (int64_t)i) % 3];
                assert_true(ts_steering_step(axis, &rules[i], &steps[i]));
                changes = changes || ts_edit_step_changes(&steps[i]);
                if (turn == 0) ts_steer_row(axis, &rules[i], want + r * WIDTH, &c_want[r * TS_EDIT_STEPS + (int64_t)i]);
            }
            if (m > 0 && changes == (turn == 0)) ts_edit_plan_add(&plan, (int32_t)r, steps, m);
        }
    ts_edit_plan_end(&plan, n);
    if (plan.n_rows > 0) edit_on(backend, &plan, brief, x, n, c);
    for (int64_t r = 0; r < n; r++) {
        const float *a = x + r * WIDTH, *b = want + r * WIDTH;
        ts_steer_rule rules[TS_EDIT_STEPS];
        size_t m = rules_of(r + from, rules);
        bool changes = false;
        for (size_t i = 0; i < m; i++) changes = changes || rules[i].scale != 0;
        if (!changes) assert_memory_equal(a, b, WIDTH * sizeof(float));
        else if (!finite_row(b)) assert_equal_values(a, b);
        else assert_true(rows_error(a, b, WIDTH) < 1e-6);
        for (size_t i = 0; i < m; i++) {
            double got = (double)c[r * TS_EDIT_STEPS + (int64_t)i], exact = c_want[r * TS_EDIT_STEPS + (int64_t)i];
            if (finite_row(b)) assert_true(fabs(got - exact) < 1e-5);
            else assert_false(fabs(got) < TS_EDIT_C_MAX);
        }
    }
    for (int a = 0; a < 3; a++) ts_steer_axis_free(&axes[a]);
    ts_edit_plan_free(&plan);
    free(x);
    free(want);
    free(c);
    free(c_want);
}

static void test_mixed_rows(void **state) {
    (void)state;
    ggml_backend_t backend = device();
    for (int64_t from = 0; from < 90; from++)
        for (int brief = 0; brief < 2; brief++) check_mixed(backend, 1, from, brief); /* alone: every rule, with and without the short form */
    check_mixed(backend, 2, 4, true);
    check_mixed(backend, 7, 0, true);
    check_mixed(backend, 100, 0, true);
    ggml_backend_free(backend);
}

/* ---- graphs that are kept */

enum { MANY = 80 }; /* half of them are edited: more than a graph is kept for */

typedef struct keeping {
    ts_steer_axis axis;
    ts_steer_rule rule;
    int32_t n_taken;
    double c; /* the last one */
} keeping;

static bool keep_steps(const struct ts_run *run, int32_t block, int32_t token, ts_edit_step *steps, size_t *n, void *user) {
    keeping *k = user;
    (void)run;
    (void)block;
    if (token % 2) return true; /* odd tokens are left alone */
    *n = 1;
    return ts_steering_step(&k->axis, &k->rule, steps);
}

static int keep_c(const struct ts_run *run, const ts_site *site, int32_t token, size_t step, float c, void *user, ts_error *err) {
    keeping *k = user;
    (void)run;
    (void)site;
    (void)err;
    assert_true(step == 0 && token % 2 == 0);
    k->n_taken++;
    k->c = (double)c;
    return TS_OK;
}

/* One run of n tokens. Returns the graph it ran, NULL where none is kept. */
static const void *run_kept(ts_tap *tap, keeping *k, ts_slot *slot, int32_t n) {
    static int32_t identity[MANY];
    ts_error err = {0};
    bool done = false;
    static float x[MANY * WIDTH], want[MANY * WIDTH];
    double c = 0;
    ts_arena *arena = &tap->arenas.list[0];
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 1 << 16, .no_alloc = true});
    struct ggml_tensor *t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, WIDTH, n);
    t->buffer = arena->buffer;
    t->data = ggml_backend_buffer_get_base(arena->buffer);
    for (int32_t i = 0; i < n; i++) identity[i] = i;
    tap->run.n_tokens = n;
    tap->run.identity = identity;
    fill(x, n, 21);
    for (int64_t i = 0; i < n * WIDTH; i++) x[i] = isfinite(x[i]) ? x[i] : 1.0f;
    memcpy(want, x, sizeof(want));
    for (int32_t r = 0; r < n; r += 2) ts_steer_row(&k->axis, &k->rule, want + r * WIDTH, &c);
    ggml_backend_tensor_set(t, x, 0, ggml_nbytes(t));
    slot->seen = TS_SLOT_REDIRECTED;
    k->n_taken = 0;
    e2e_ok(ts_device_edit_run(tap, slot, t, &done, &err), &err);
    assert_true(done);
    e2e_ok(ts_device_edit_close(tap, &err), &err);
    assert_int_equal(k->n_taken, (n + 1) / 2);
    assert_true(fabs(k->c - c) < 1e-5);
    ggml_backend_tensor_get(t, x, 0, ggml_nbytes(t));
    for (int32_t r = 0; r < n; r++) {
        if (r % 2 || k->rule.scale == 0) assert_memory_equal(x + r * WIDTH, want + r * WIDTH, WIDTH * sizeof(float));
        else assert_true(rows_error(x + r * WIDTH, want + r * WIDTH, WIDTH) < 1e-6);
    }
    ggml_free(ctx);
    return tap->edits[0].cached[slot - tap->slots].ctx;
}

/* The same rows and rule run the same graph; another scale, mode or number of rows is seen; many rows leave it alone. */
static void test_kept_graph(void **state) {
    (void)state;
    ts_error err = {0};
    float d[WIDTH];
    keeping k = {.rule = {.mode = TS_STEER_ABLATE, .scale = 1}};
    ts_slot slots[3] = {0};
    ts_tap tap = {.slots = slots, .n_slots = 3, .edit = {.steps = keep_steps, .taken = keep_c, .user = &k}};
    ts_arena *arena = &tap.arenas.list[0];
    arena->backend = device();
    arena->buft = ggml_backend_get_default_buffer_type(arena->backend);
    arena->buffer = ggml_backend_buft_alloc_buffer(arena->buft, MANY * WIDTH * sizeof(float));
    tap.arenas.n = 1;
    steered_direction(d, WIDTH, 0, 3, 2.0);
    e2e_ok(ts_steer_axis_init(&k.axis, d, WIDTH, &err), &err);
    static const int32_t n_rows[] = {1, 2, 5, 9};
    for (size_t i = 0; i < sizeof(n_rows) / sizeof(n_rows[0]); i++) {
        const void *graph = run_kept(&tap, &k, &slots[1], n_rows[i]);
        for (int again = 0; again < 3; again++) assert_ptr_equal(run_kept(&tap, &k, &slots[1], n_rows[i]), graph);
        assert_ptr_equal(run_kept(&tap, &k, &slots[1], MANY), graph);
        for (int mode = 0; mode < TS_STEER_MODE_COUNT; mode++)
            for (int scale = 0; scale < 4; scale++) { /* its result is checked in there */
                k.rule = (ts_steer_rule){.mode = (enum ts_steer_mode)mode, .scale = 0.5 * scale};
                run_kept(&tap, &k, &slots[1], n_rows[i]);
            }
        k.rule = (ts_steer_rule){.mode = TS_STEER_ABLATE, .scale = 1, .gate = 0.2};
        run_kept(&tap, &k, &slots[2], 1);
    }
    ts_steer_axis_free(&k.axis);
    ts_device_edit_free(&tap.edits[0]);
    ts_arenas_free(&tap.arenas);
}

/* ---- zeroing */

static int n_counted;
static int64_t zeros_counted;

static int on_zeroed(const ts_site *site, int64_t n_values, int64_t n_zero, void *user, ts_error *err) {
    (void)site;
    (void)user;
    (void)err;
    n_counted += (int)n_values;
    zeros_counted += n_zero;
    return TS_OK;
}

/* Rows with zeros of both signs and values that are not finite: what ts_zero_smallest and ts_zero_below leave, bit for bit. */
static void test_zeroed_rows(void **state) {
    (void)state;
    enum { N = 7 };
    static const ts_edit_zero ways[] = {{true, 0}, {true, 0.3}, {true, 0.99}, {true, 1}, {false, 0}, {false, 0.15}, {false, 1e30}};
    ggml_backend_t backend = device();
    ggml_backend_buffer_type_t buft = ggml_backend_get_default_buffer_type(backend);
    ts_arena arena = {.buft = buft, .backend = backend};
    ggml_gallocr_t scratch = ggml_gallocr_new(buft);
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        float x[N * WIDTH], want[N * WIDTH];
        uint32_t keys[WIDTH];
        int64_t n_zero = 0;
        bool done = false;
        ts_error err = {0};
        ts_slot slot = {0};
        ts_tap tap = {.edit = {.zero = &ways[w], .zeroed = on_zeroed}};
        fill(x, N, 9);
        for (int k = 0; k < 9; k++) x[3 * k] = k % 2 ? 0.0f : -0.0f;
        memcpy(want, x, sizeof(x));
        for (int r = 0; r < N; r++) {
            if (ways[w].by_share) ts_zero_smallest(want + r * WIDTH, WIDTH, ways[w].value, keys);
            else ts_zero_below(want + r * WIDTH, WIDTH, ways[w].value);
        }
        for (int k = 0; k < N * WIDTH; k++) n_zero += want[k] == 0.0f;
        struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 1 << 16, .no_alloc = true});
        struct ggml_tensor *t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, WIDTH, N);
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
        ggml_backend_tensor_set(t, x, 0, sizeof(x));
        n_counted = 0;
        zeros_counted = 0;
        e2e_ok(ts_device_zero_run(&tap, &arena, scratch, &slot, t, &done, &err), &err);
        assert_true(done);
        ggml_backend_tensor_get(t, x, 0, sizeof(x));
        assert_int_equal(n_counted, N * WIDTH);
        assert_int_equal(zeros_counted, n_zero);
        for (int r = 0; r < N; r++) assert_equal_values(x + r * WIDTH, want + r * WIDTH);
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
    }
    ggml_gallocr_free(scratch);
    ggml_backend_free(backend);
}

int main(void) {
    ts_device_count(); /* loads what there is */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spared_rows),
        cmocka_unit_test(test_mixed_rows),
        cmocka_unit_test(test_kept_graph),
        cmocka_unit_test(test_zeroed_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
