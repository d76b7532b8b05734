/* Two devices whose memory this process cannot touch, and no GPU: two servers of llama.cpp's RPC backend on this machine,
 * each a device with buffers of its own. The blocks are shared out between them, or between them and the processor: rows and
 * logits are the same bits off, redirected and asked, on both sides of each boundary; censuses are the same; all ways of
 * steering give what they give on the processor. Skipped where llama.cpp was built without that backend. */
#include "counted.h"
#include "rows.h"
#include "steered.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef TS_HAVE_RPC

int main(void) {
    puts("llama.cpp has no RPC backend here: skipped");
    return E2E_SKIP;
}

#else

#include <arpa/inet.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ggml-backend.h>
#include <ggml-rpc.h>

#include "host/session.h"

enum { SERVERS = 2, BLOCKS = 6, WIDTH = 128 };
#define ROUNDING 1e-5 /* relative L2; a server computes with one thread and unpacked weights */

static ts_session *base;      /* holds the model */
static int32_t on_devices;    /* layers, the output one of them */
static pid_t servers[SERVERS];

/* ---- servers */

static struct sockaddr_in local(uint16_t port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = port};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

/* A port that nobody listens on, in network order. */
static uint16_t free_port(void) {
    struct sockaddr_in at = local(0);
    socklen_t size = sizeof(at);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (s < 0 || bind(s, (struct sockaddr *)&at, size) != 0 || getsockname(s, (struct sockaddr *)&at, &size) != 0) exit(1);
    close(s);
    return at.sin_port;
}

static bool listens(uint16_t port) {
    struct sockaddr_in at = local(port);
    int s = socket(AF_INET, SOCK_STREAM, 0), rc = connect(s, (struct sockaddr *)&at, sizeof(at));
    close(s);
    return rc == 0;
}

static void serve(const char *endpoint) {
    ggml_backend_dev_t processor;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(1);
    processor = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_rpc_start_server(endpoint, NULL, 1, 1, &processor);
    _exit(1);
}

static bool start_server(size_t i) {
    char endpoint[32];
    uint16_t port = free_port();
    snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%u", ntohs(port));
    fflush(NULL);
    servers[i] = fork();
    if (servers[i] == 0) serve(endpoint);
    for (int wait = 0; servers[i] > 0 && !listens(port); wait++) {
        if (wait == 1000 || waitpid(servers[i], NULL, WNOHANG) != 0) return false;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    ggml_backend_reg_t reg = servers[i] > 0 ? ggml_backend_rpc_add_server(endpoint) : NULL;
    if (!reg || ggml_backend_reg_dev_count(reg) != 1) return false;
    ggml_backend_device_register(ggml_backend_reg_dev_get(reg, 0));
    return true;
}

static void stop_servers(void) {
    for (size_t i = 0; i < SERVERS; i++)
        if (servers[i] > 0) {
            kill(servers[i], SIGKILL);
            waitpid(servers[i], NULL, 0);
        }
}

/* ---- sessions */

static ts_session *open_base(int32_t n_gpu_layers) {
    ts_synthetic shape;
    ts_error err = {0};
    e2e_ok(ts_parse_synthetic("shape", "6,128,256,4,2", &shape, &err), &err);
    shape.f32 = true;
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.synthetic = &shape;
    so.n_gpu_layers = n_gpu_layers;
    so.device = n_gpu_layers == TS_GPU_LAYERS_NONE ? "none" : NULL;
    return e2e_open(&so);
}

/* f32 keys and values: an f16 cache rounds values that differ in their last bit apart. */
static ts_session_options over(ts_session *model, enum ts_tap_method tap) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.share = model;
    so.n_ctx = 256;
    so.n_ubatch = 16;
    so.n_threads = 1;
    so.type_k = so.type_v = "f32";
    so.flash_attn = TS_FLASH_OFF;
    so.tap = tap;
    return so;
}

static int open_devices(void **state) {
    (void)state;
    base = open_base(on_devices);
    return 0;
}

static int close_devices(void **state) {
    (void)state;
    ts_session_close(base);
    return 0;
}

/* ---- what must hold */

static void captured(ts_session *model, enum ts_tap_method tap, const char *name, steered *out, rows *r) {
    ts_session_options so = over(model, tap);
    steered_extra extra = {.capture = e2e_path(name), .n_predict = 12};
    steered_run(&so, NULL, 0, &extra, out);
    rows_read(extra.capture, r);
}

/* Every residual redirected, into one arena a device. */
static void test_arenas(void **state) {
    (void)state;
    ts_error err = {0};
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    ts_session_options so = over(base, TS_TAP_REDIRECT);
    ts_session *s = e2e_open(&so);
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    ro.path = e2e_path("arenas.json");
    e2e_ok(ts_session_attach_resid(s, &ro, &err), &err);
    g.tokens = steered_prompt();
    g.n_tokens = STEERED_PROMPT;
    e2e_ok(ts_session_generate(s, &g, NULL, &err), &err);
    for (size_t i = 0; i < s->tap->n_slots; i++) assert_int_equal(s->tap->slots[i].seen, TS_SLOT_REDIRECTED);
    size_t remote = 0;
    for (size_t i = 0; i < s->tap->arenas.n; i++) remote += !s->tap->arenas.list[i].host;
    assert_int_equal(remote, SERVERS);
    assert_int_equal(s->tap->arenas.n, on_devices > BLOCKS ? SERVERS : SERVERS + 1);
    ts_session_close(s);
}

static void test_identity(void **state) {
    (void)state;
    steered off, redirected, asked;
    rows a, b;
    ts_session_options so = over(base, TS_TAP_REDIRECT);
    steered_run(&so, NULL, 0, &(steered_extra){.n_predict = 12}, &off);
    captured(base, TS_TAP_REDIRECT, "redirected.json", &redirected, &a);
    captured(base, TS_TAP_ASK, "asked.json", &asked, &b);
    steered_assert_same(&off, &redirected);
    steered_assert_same(&off, &asked);
    rows_assert_same(&a, &b);
    rows_free(&a);
    rows_free(&b);
    steered_free(&off);
    steered_free(&redirected);
    steered_free(&asked);
}

static void corpus(ts_session *model, enum ts_tap_method tap, const char *input, const char *name, rows *out) {
    ts_error err = {0};
    ts_session_options so = over(model, tap);
    ts_capture_options co = TS_OPTIONS_INIT(ts_capture_options);
    co.input_path = input;
    co.output_path = e2e_path(name);
    co.positions = (ts_positions){.kind = TS_POSITIONS_ALL};
    co.overwrite = true;
    e2e_ok(rows_capture(&so, &co, NULL, &err), &err);
    rows_read(co.output_path, out);
}

/* Packed prompts, every token's row; and what the processor makes of them. */
static void test_corpus(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 2, 30, 16, 5, 47, 3};
    json_t *prompts = prompts_ids(lengths, sizeof(lengths) / sizeof(lengths[0]), 160, 7);
    char *input = strdup(prompts_write(prompts, "prompts.jsonl"));
    rows a, b, c;
    ts_session *processor = open_base(TS_GPU_LAYERS_NONE);
    corpus(base, TS_TAP_REDIRECT, input, "a.json", &a);
    corpus(base, TS_TAP_ASK, input, "b.json", &b);
    corpus(processor, TS_TAP_REDIRECT, input, "c.json", &c);
    rows_assert_same(&a, &b);
    double worst = rows_worst(&a, &c);
    print_message("  %d layers on devices: rows %.1e from the processor's\n", on_devices, worst);
    assert_true(worst < ROUNDING);
    ts_session_close(processor);
    rows_free(&a);
    rows_free(&b);
    rows_free(&c);
    free(input);
    json_decref(prompts);
}

static json_t *count(enum ts_tap_method tap, const char *name) {
    ts_error err = {0};
    ts_session_options so = over(base, tap);
    ts_session *s = e2e_open(&so);
    ts_ffn_hist_options fo = TS_OPTIONS_INIT(ts_ffn_hist_options);
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    fo.path = e2e_path(name);
    e2e_ok(ts_session_attach_ffn(s, &fo, &err), &err);
    g.tokens = steered_prompt();
    g.n_tokens = STEERED_PROMPT;
    g.n_predict = 40;
    g.ignore_eos = true;
    e2e_ok(ts_session_generate(s, &g, NULL, &err), &err);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    json_t *v = json_load_file(fo.path, 0, NULL);
    assert_non_null(v);
    return v;
}

static void test_census(void **state) {
    (void)state;
    json_t *redirected = count(TS_TAP_REDIRECT, "census.json"), *asked = count(TS_TAP_ASK, "census2.json");
    assert_true(json_equal(redirected, asked));
    for (size_t il = 0; il < BLOCKS; il++) assert_true(counted_width(redirected, il) > 0);
    json_decref(redirected);
    json_decref(asked);
}

/* By the adapter, which has no gate, and as edits. */
static void test_steering(void **state) {
    (void)state;
    static const double gates[] = {0, 1e-30};
    ts_session *processor = open_base(TS_GPU_LAYERS_NONE);
    const char *path = steered_file("all.gguf", WIDTH, (ts_range){1, BLOCKS - 1}, 3, 6.0);
    ts_session_options so = over(base, TS_TAP_REDIRECT), there = over(processor, TS_TAP_REDIRECT);
    steered plain, a, b;
    steered_run(&there, NULL, 0, NULL, &plain);
    for (enum ts_steering_mode mode = TS_STEERING_ABLATE; mode <= TS_STEERING_RENORM; mode++)
        for (size_t i = 0; i < 2; i++) {
            ts_steering_options o = steered_by(path, mode, 0.4);
            o.target = mode == TS_STEERING_CLAMP ? 4 : 0;
            o.gate = gates[i];
            steered_run(&so, &o, 1, NULL, &a);
            steered_run(&there, &o, 1, NULL, &b);
            double error = steered_error(&a, &b), apart = steered_error(&b, &plain);
            print_message("  %s, gate %g: logits %.1e from the processor's, steered %.1e\n", ts_steering_mode_name(mode), o.gate, error, apart);
            assert_true(error < ROUNDING);
            assert_true(apart > 100 * ROUNDING);
            steered_free(&a);
            steered_free(&b);
        }
    steered_free(&plain);
    ts_session_close(processor);
}

static int check_devices(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arenas), cmocka_unit_test(test_identity), cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_census), cmocka_unit_test(test_steering),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}

int main(void) {
    static const int32_t layers[] = {BLOCKS + 1, 5};
    int failed = 0;
    for (size_t i = 0; i < SERVERS; i++)
        if (!start_server(i)) {
            fprintf(stderr, "no server of the RPC backend came up\n");
            stop_servers();
            return 1;
        }
    for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++) {
        on_devices = layers[i];
        failed += check_devices();
    }
    stop_servers();
    e2e_remove_tmp();
    return failed;
}

#endif
