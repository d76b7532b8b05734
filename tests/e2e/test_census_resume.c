/* A census that is killed at random moments, or stopped, goes on with --resume to the same bytes: prompts and text, with
 * and without a trace. Children do all the work: the parent never touches llama.cpp, so that forking it is safe. */
#include "counted.h"
#include "tiny.h"

#include <llama.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define N_KILLS 5
#define MAX_TRIES 12

typedef struct job {
    bool text, trace, resume, overwrite;
    uint64_t stop_after; /* progress reports until the stop flag is raised; 0 = never */
    long alarm_us;       /* a signal raises it then; 0 = never */
} job;

static volatile int stop;

static void raise_stop(int signal) {
    (void)signal;
    stop = 1;
}

static uint64_t n_reports;

static void on_progress(const ts_progress *p, void *user) {
    (void)p;
    const job *j = user;
    if (j->stop_after && ++n_reports == j->stop_after) stop = 1;
}

/* ---- in a child */

static struct llama_model *quiet_model(void) {
    const char *why = "";
    setenv("GGML_NO_BACKTRACE", "1", 1);
    ts_device_count();
    struct llama_model *model = tiny_model("deepseek", NULL, &why);
    if (!model) fprintf(stderr, "%s\n", why);
    return model;
}

static void set_alarm(long us) {
    struct itimerval t = {.it_value = {us / 1000000, us % 1000000}};
    signal(SIGALRM, raise_stop);
    setitimer(ITIMER_REAL, &t, NULL);
}

/* 0 done, 3 stopped, else failed. */
static int census(const job *j) {
    ts_error err = {0};
    ts_census_result r;
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    ts_census_options co = TS_OPTIONS_INIT(ts_census_options);
    so.model = quiet_model();
    so.n_threads = 1;
    so.n_ctx = 128;
    so.stop = &stop;
    co.text = j->text;
    co.input_path = e2e_path(j->text ? "text.txt" : "prompts.txt");
    co.output_path = e2e_path("out.json");
    co.n_predict = j->text ? 0 : 20;
    co.parallel = j->text ? 0 : 2;
    co.ignore_eos = !j->text;
    co.trace = j->trace;
    co.resume = j->resume;
    co.overwrite = j->overwrite;
    co.on_progress = on_progress;
    co.user = (void *)j;
    if (!so.model) return 1;
    if (j->alarm_us) set_alarm(j->alarm_us);
    int rc = counted_run(&so, &co, &r, &err);
    if (rc != TS_OK && rc != TS_ERR_INTERRUPTED) fprintf(stderr, "%s\n", err.message);
    llama_model_free(so.model);
    return rc == TS_OK ? 0 : rc == TS_ERR_INTERRUPTED ? 3 : 1;
}

/* ---- in the parent */

/* Starts a census; kills it after kill_ms when that is not 0. Returns the exit code, -1 for killed. */
static int in_child(const job *j, long kill_ms) {
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(census(j));
    if (kill_ms) {
        nanosleep(&(struct timespec){kill_ms / 1000, kill_ms % 1000 * 1000000}, NULL);
        kill(pid, SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) assert_true(kill_ms && WTERMSIG(status) == SIGKILL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void remove_outputs(void) {
    static const char *const names[] = {"out.json",       "out.detail",          "out.meta",
                                        "out.experts",
                                        "out.trace",      "out.json.part.trace", "out.json.part.census",
                                        "out.json.lock"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) unlink(e2e_path(names[i]));
}

static bool there(const char *name) { return access(e2e_path(name), F_OK) == 0; }

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The files of an uninterrupted census, and how long it took. */
typedef struct outcome {
    counted_files files;
    long ms;
} outcome;

static outcome outcomes[4];

/* Made once for each kind. */
static const outcome *whole(bool text, bool trace) {
    outcome *w = &outcomes[2 * text + trace];
    if (w->ms) return w;
    double begin = seconds();
    remove_outputs();
    assert_int_equal(in_child(&(job){.text = text, .trace = trace}, 0), 0);
    w->ms = 2 + (long)(1e3 * (seconds() - begin));
    counted_slurp(e2e_path("out.json"), &w->files);
    assert_int_equal(w->files.bytes[COUNTED_TRACE] != NULL, trace);
    assert_false(there("out.json.part.census"));
    assert_false(there("out.json.part.trace"));
    return w;
}

static void finish_and_compare(bool text, bool trace, const counted_files *wanted) {
    counted_files files;
    assert_int_equal(in_child(&(job){.text = text, .trace = trace, .resume = true}, 0), 0);
    counted_slurp(e2e_path("out.json"), &files);
    counted_assert_same(wanted, &files);
    assert_false(there("out.json.part.census"));
    assert_false(there("out.json.part.trace"));
    counted_free(&files);
}

static void killed(bool text, bool trace) {
    const outcome *w = whole(text, trace);
    int n_killed = 0;
    remove_outputs();
    for (int i = 0; i < MAX_TRIES && n_killed < N_KILLS; i++) {
        int code = in_child(&(job){.text = text, .trace = trace, .resume = i > 0}, 1 + (long)rand() % (w->ms * 2 / 3));
        bool quicker = code == 0 || (there("out.json") && !there("out.json.part.census")); /* all but its end was reached */
        n_killed += code == -1 && !quicker;
        if (quicker) remove_outputs(); /* once more from the start */
    }
    finish_and_compare(text, trace, &w->files);
    print_message("  %s%s: %ld ms, killed %d times\n", text ? "text" : "prompts", trace ? ", traced" : "", w->ms, n_killed);
    assert_true(n_killed > 0);
}

static void test_killed(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) killed(i & 2, i & 1);
}

/* Stopped between groups or windows (by progress), or within one (by a signal): what there is is marked partial. */
static void stopped(const job *first) {
    counted_files partial;
    const outcome *w = whole(first->text, first->trace);
    job j = *first;
    if (j.alarm_us) j.alarm_us = 1000 * w->ms / 2;
    remove_outputs();
    int code = in_child(&j, 0);
    if (j.stop_after) assert_int_equal(code, 3);
    if (code == 3 && there("out.json")) {
        json_error_t at;
        counted_slurp(e2e_path("out.json"), &partial);
        json_t *meta = json_loadb(partial.bytes[COUNTED_META], partial.n[COUNTED_META], 0, &at);
        assert_non_null(meta);
        assert_true(json_is_true(json_object_get(meta, "partial")));
        assert_true(counted_int(meta, "decode_passes") > 0);
        assert_null(partial.bytes[COUNTED_TRACE]);
        json_decref(meta);
        counted_free(&partial);
    }
    if (code == 3) {
        assert_int_equal(there("out.json.part.census"), there("out.json")); /* nothing counted: nothing to go on with */
        finish_and_compare(first->text, first->trace, &w->files);
    }
}

static void test_stopped(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        stopped(&(job){.text = i & 2, .trace = i & 1, .stop_after = 3});
        stopped(&(job){.text = i & 2, .trace = i & 1, .alarm_us = 1});
    }
}

/* A census neither throws away what an earlier one left nor takes it up with other options; told to, it starts over. */
static void test_not_mixed(void **state) {
    (void)state;
    counted_files files;
    const outcome *w = whole(false, false);
    remove_outputs();
    assert_int_equal(in_child(&(job){.trace = true, .stop_after = 2}, 0), 3);
    assert_int_equal(in_child(&(job){.trace = false, .resume = true}, 0), 1); /* another plan */
    assert_int_equal(in_child(&(job){.text = true, .trace = true, .resume = true}, 0), 1);
    assert_int_equal(in_child(&(job){.trace = false}, 0), 1); /* files exist */
    unlink(e2e_path("out.json"));
    unlink(e2e_path("out.detail"));
    unlink(e2e_path("out.meta"));
    unlink(e2e_path("out.experts"));
    assert_int_equal(in_child(&(job){.trace = true}, 0), 1); /* the unfinished one is not thrown away unasked */
    assert_true(there("out.json.part.census") && there("out.json.part.trace"));
    assert_int_equal(in_child(&(job){.overwrite = true}, 0), 0);
    counted_slurp(e2e_path("out.json"), &files);
    counted_assert_same(&w->files, &files);
    assert_false(there("out.json.part.census"));
    assert_false(there("out.json.part.trace"));
    counted_free(&files);
    assert_int_equal(in_child(&(job){.trace = true, .resume = true}, 0), 1); /* files of another exist */
    assert_int_equal(in_child(&(job){.trace = false, .resume = true}, 0), 0); /* it is complete: nothing to do */
    counted_slurp(e2e_path("out.json"), &files);
    counted_assert_same(&w->files, &files);
    assert_false(there("out.json.part.census"));
    counted_free(&files);
}

static int write_inputs(void **state) {
    (void)state;
    srand((unsigned)getpid());
    FILE *f = fopen(e2e_path("prompts.txt"), "w");
    for (int i = 0; i < 260; i++) {
        for (int k = 0; k < 2 + i % 7; k++) fprintf(f, "%05d", 7919 * (i + 1) * (k + 3) % 100000);
        fputc('\n', f);
    }
    if (fclose(f) != 0) return -1;
    f = fopen(e2e_path("text.txt"), "w");
    for (int k = 0; k < 20000; k++) fprintf(f, "%05d", (int)(104729LL * (k + 3) % 100000));
    return fclose(f);
}

static int clean(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) counted_free(&outcomes[i].files);
    e2e_remove_tmp();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_not_mixed),
    };
    return cmocka_run_group_tests(tests, write_inputs, clean);
}
