/* Temporaries: which of them go, and when, after their process ended in any way. */
#include "test_core_tmp.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/file.h"
#include "core/sudden.h"
#include "core/temporary.h"

static bool there(const char *path) {
    struct stat st;

    return lstat(path, &st) == 0;
}

static void touch(const char *path) { tmp_write(path, "x", 1); }

/* Only names of exactly that form, of files of that result. */
static void names(void **state) {
    static const char *const gone[] = {"out.json.tmp-1-0", "out.json.tmp-999999-123", "out.meta.tmp-7-0", "out.f32.tmp-7-1",
                                       "out.detail.tmp-7-0", "out.trace.tmp-7-0", "out.experts.tmp-7-0", "out.json.part.census.tmp-7-0",
                                       "out.json.part.state.tmp-7-0", "out.json.part.router.tmp-7-0"};
    static const char *const kept[] = {"out.json", "out.json.part", "out.json.part.state", "out.json.part.jsonl", "out.json.lock",
                                       "out.json.tmp-", "out.json.tmp-1", "out.json.tmp-1-", "out.json.tmp--1", "out.json.tmp-1-0x",
                                       "out.json.tmp-a-0", "out.json.tmp-1-0.json", "out.json.tmp_1-0", "out.jsonl.tmp-1-0", "xout.json.tmp-1-0",
                                       "out.tmp-1-0", "out.other.tmp-1-0", "out.json.part.other.tmp-1-0", ".tmp-1-0", "other.meta.tmp-1-0"};
    ts_error err;

    (void)state;
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        touch(gone[i]);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        touch(kept[i]);
    assert_int_equal(mkfifo("out.json.tmp-2-0", 0666), 0);
    assert_int_equal(symlink("out.json.part", "out.json.tmp-3-0"), 0);
    assert_int_equal(ts_file_check_target("./out.json", &err), TS_OK);
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        if (there(gone[i]))
            fail_msg("'%s' was left", gone[i]);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (!there(kept[i]))
            fail_msg("'%s' was removed", kept[i]);
    assert_true(there("out.json.tmp-2-0") && there("out.json.tmp-3-0"));
}

static void long_and_linked(void **state) {
    char name[256], temporary[256];
    ts_error err;

    (void)state;
    memset(name, 'n', 240);
    strcpy(name + 240, ".json");
    snprintf(temporary, sizeof temporary, "%.200s.tmp-5-0", name);
    touch(temporary);
    ts_temporary_sweep(name);
    assert_int_equal(tmp_count(), 0);
    assert_int_equal(mkdir("d", 0777), 0);
    touch("d/real.json");
    touch("d/real.json.tmp-5-0");
    touch("link.meta.tmp-5-0");
    assert_int_equal(symlink("d/real.json", "link.json"), 0);
    assert_int_equal(ts_file_check_target("link.json", &err), TS_OK);
    assert_false(there("d/real.json.tmp-5-0") || there("link.meta.tmp-5-0"));
    ts_temporary_sweep("");
    ts_temporary_sweep("none/x");
    ts_temporary_sweep("d/");
}

/* One that is written stays, whoever looks, and whatever process number its name has. */
static void living(void **state) {
    ts_file *f;
    ts_error err;
    pid_t child;
    int status;

    (void)state;
    assert_int_equal(ts_file_create("out.json", &f, &err), TS_OK);
    assert_int_equal(tmp_count(), 1);
    ts_temporary_sweep("out.json");
    assert_int_equal(tmp_count(), 1);
    child = fork();
    if (child == 0) {
        ts_temporary_sweep("out.json");
        _exit(tmp_count() == 1 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(ts_file_write(f, "whole", 5, &err), TS_OK);
    assert_int_equal(ts_file_commit(f, &err), TS_OK);
    tmp_expect("out.json", "whole");
    ts_temporary_sweep("out.json");
    assert_int_equal(tmp_count(), 1);
}

static void killed(void **state) {
    pid_t child;
    int status;

    (void)state;
    child = fork();
    if (child == 0) {
        ts_temporary folder;
        ts_file *f, *g;

        if (ts_file_create("out.json", &f, NULL) || ts_file_create("out.meta", &g, NULL) || ts_temporary_folder(&folder, "out.json", NULL))
            _exit(1);
        char path[300];
        snprintf(path, sizeof path, "%s/0.safetensors", folder.name);
        touch(path);
        ts_temporary_sweep("out.json");
        if (tmp_count() != 3 || !there(path))
            _exit(1);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(tmp_count(), 3);
    ts_temporary_sweep("other.json");
    assert_int_equal(tmp_count(), 3);
    ts_temporary_sweep("out.json");
    assert_int_equal(tmp_count(), 0);
}

/* Writers and sweepers of one name: what was committed is always whole, and nothing stays. */
static void *sweeper(void *stop) {
    while (!*(volatile bool *)stop)
        ts_temporary_sweep("out.json");
    return NULL;
}

static void races(void **state) {
    volatile bool stop = false;
    pthread_t thread;
    ts_error err;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, sweeper, (void *)&stop), 0);
    for (int i = 0; i < 2000; i++) {
        ts_file *f;

        assert_int_equal(ts_file_create("out.json", &f, &err), TS_OK);
        assert_int_equal(ts_file_write(f, "whole", 5, &err), TS_OK);
        assert_int_equal(ts_file_commit(f, &err), TS_OK);
    }
    stop = true;
    pthread_join(thread, NULL);
    tmp_expect("out.json", "whole");
    assert_int_equal(tmp_count(), 1);
}

static void leave(int number) {
    (void)number;
    ts_unfinished_remove();
    _exit(7);
}

/* From a handler: what is being written goes at once, what another process or an earlier file made stays. */
static void from_a_handler(void **state) {
    ts_file *ours;
    ts_error err;
    pid_t child;
    int status;

    (void)state;
    assert_int_equal(ts_file_create("parent.json", &ours, &err), TS_OK);
    assert_int_equal(ts_file_put("done.json", "done", 4, &err), TS_OK);
    child = fork();
    if (child == 0) {
        ts_file *f, *g;
        ts_append *part;
        ts_lock *lock;

        signal(SIGTERM, leave);
        if (ts_lock_take("out.json", &lock, NULL) || ts_file_create("out.json", &f, NULL) || ts_file_create("out.meta", &g, NULL) ||
            ts_append_open("out.json.part", 0, &part, NULL))
            _exit(1);
        ts_file_discard(g);
        raise(SIGTERM);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    assert_true(there("done.json") && there("out.json.part"));
    assert_int_equal(tmp_count(), 3);
    assert_int_equal(ts_file_commit(ours, &err), TS_OK);
}

/* More files than the list holds: the rest is left to the next sweep. */
static void full_list(void **state) {
    enum { N = 80 };
    ts_file *files[N];
    char name[32];
    ts_error err;

    (void)state;
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "%d.json", i);
        assert_int_equal(ts_file_create(name, &files[i], &err), TS_OK);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(ts_file_commit(files[i], &err), TS_OK);
    assert_int_equal(tmp_count(), N);
    for (int i = 0; i < 1000; i++) {
        int slot = ts_sudden_add("x");

        assert_true(slot >= 0);
        ts_sudden_drop(slot);
    }
    ts_sudden_drop(-1);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmp_setup, tmp_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(names), IN_FOLDER(long_and_linked), IN_FOLDER(living),         IN_FOLDER(killed),
        IN_FOLDER(races), IN_FOLDER(from_a_handler),  IN_FOLDER(full_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
