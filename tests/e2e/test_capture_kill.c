/* A corpus capture killed at random moments: after every kill no header names a short or missing sidecar, and resuming
 * ends with the bytes of an uninterrupted capture, in both formats. */
#include "spawn.h"
#include "tiny.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define N_KILLS 10

static const char *model, *corpus;
static char model_path[1024], corpus_path[1024];

/* The files of a result, by the end that replaces `.json`. */
typedef struct format {
    const char *extension, *files[3];
} format;

static const format pair = {".json", {".json", ".f32", ".meta"}}, single = {".safetensors", {".safetensors", NULL, NULL}};

static const char *file(const char *stem, const char *extension) {
    char name[128];
    snprintf(name, sizeof(name), "%s%s", stem, extension);
    return e2e_path(name);
}

static const char *partial(const format *f, const char *what) {
    char extension[64];
    snprintf(extension, sizeof(extension), "%s%s", f->extension, what);
    return file("again", extension);
}

static pid_t start(const char *out, bool resume) {
    const char *argv[] = {"", "capture", "-m", model, "-i", corpus, "-o", out, "-t", "1", "-ub", "64", "-q", resume ? "--resume" : NULL, NULL};
    return spawn_cli(argv);
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

/* A result under its final name must be whole: sizes and hash. */
static void check_result(const format *f) {
    ts_error err = {0};
    ts_capture_file *c;
    ts_capture_shape shape;
    const char *out = file("again", f->extension);
    if (!exists(out)) return;
    e2e_ok(ts_capture_open(out, &c, &shape, &err), &err);
    ts_capture_close(c);
}

/* A result names its data file: gives the second of them the first one's name. */
static void rename_inside(char *bytes, size_t n) {
    for (size_t i = 0; i + 6 <= n; i++)
        if (memcmp(bytes + i, "again.", 6) == 0) memcpy(bytes + i, "whole.", 6);
}

static void check_same(const format *f) {
    for (size_t i = 0; i < 3 && f->files[i]; i++) {
        size_t n, m;
        char *a = e2e_slurp(file("whole", f->files[i]), &n), *b = e2e_slurp(file("again", f->files[i]), &m);
        rename_inside(b, m);
        assert_int_equal(n, m);
        assert_memory_equal(a, b, n);
        free(a);
        free(b);
    }
}

/* A capture that came to its end leaves nothing else. (Killed after it wrote its result, it may leave the partial file that
 * it was about to remove.) */
static void check_tidy(const format *f) {
    assert_false(exists(partial(f, ".part")));
    assert_false(exists(partial(f, ".part.gen")));
    assert_false(exists(partial(f, ".part.state")));
}

static void remove_result(const format *f) {
    for (size_t i = 0; i < 3 && f->files[i]; i++) unlink(file("again", f->files[i]));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Kills between `from` and `to` seconds; counts those that hit a running process. */
static void kill_and_resume(const format *f, double from, double to) {
    int n_hit = 0, n_state = 0, tries = 0;
    remove_result(f);
    while (n_hit < N_KILLS && tries++ < 4 * N_KILLS) {
        pid_t pid = start(file("again", f->extension), true);
        spawn_sleep(from + (to - from) * (double)(rand() % 1000) / 1000.0);
        bool hit = !spawn_ended(pid);
        kill(pid, SIGKILL);
        int status = spawn_wait(pid, NULL);
        assert_true(status == 0 || status == -SIGKILL);
        n_hit += hit;
        check_result(f);
        n_state += exists(partial(f, ".part.state"));
        if (status != 0) continue;
        check_same(f); /* it came to its end before the kill */
        check_tidy(f);
        remove_result(f);
    }
    print_message("  %s: %d kills, %d of them left a state to resume from\n", f->extension, n_hit, n_state);
    assert_int_equal(n_hit, N_KILLS);
    const char *out = file("again", f->extension);
    if (!exists(out) || exists(partial(f, ".part.state"))) {
        assert_int_equal(spawn_wait(start(out, true), NULL), 0);
        check_tidy(f);
    }
    check_result(f);
    check_same(f);
}

static double whole(const format *f) {
    double begin = now();
    for (size_t i = 0; i < 3 && f->files[i]; i++) unlink(file("whole", f->files[i]));
    assert_int_equal(spawn_wait(start(file("whole", f->extension), false), NULL), 0);
    return now() - begin;
}

static void use_corpus(size_t n) {
    snprintf(corpus_path, sizeof(corpus_path), "%s", spawn_corpus("corpus.jsonl", n));
    corpus = corpus_path;
}

static void test_kill(void **state) {
    (void)state;
    use_corpus(2500);
    kill_and_resume(&pair, 0.05, 1.2 + 0.3 * whole(&pair)); /* a checkpoint a second; a busy machine is slower to come to it */
}

static void test_kill_safetensors(void **state) {
    (void)state;
    use_corpus(2500);
    kill_and_resume(&single, 0.05, 1.2 + 0.3 * whole(&single));
}

/* Short captures killed about their end, where files get their names. */
static void test_kill_near_end(void **state) {
    (void)state;
    const format *formats[] = {&pair, &single};
    use_corpus(300);
    for (size_t i = 0; i < 2; i++) {
        double seconds = whole(formats[i]);
        kill_and_resume(formats[i], 0.5 * seconds, 1.05 * seconds);
    }
}

int main(void) {
    if (!getenv("TS_CLI")) return E2E_SKIP;
    tiny_opts o = {.n_layer = 8, .n_embd = 256, .n_ff = 512};
    srand((unsigned)time(NULL));
    snprintf(model_path, sizeof(model_path), "%s", spawn_tiny("llama", &o));
    model = model_path;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_kill_safetensors),
        cmocka_unit_test(test_kill_near_end),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    e2e_remove_tmp();
    return failed;
}
