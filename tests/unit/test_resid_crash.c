/* The capture writer under violence: neither a kill before any of its system calls nor a full disk
 * changes the bytes of the resumed result. The calls are watched by standing in for the C
 * library's. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "unit/test_resid_corpus.h"

/* ---------------------------------------------------------------- the watched calls */

static struct {
    long count, kill_at; /* SIGKILL before call number kill_at, from 1 */
    long full_at;        /* from write number full_at on the disk is full */
    long writes;
} watch;

static void watched(void) {
    if (++watch.count == watch.kill_at)
        kill(getpid(), SIGKILL);
}

int rename(const char *from, const char *to) {
    watched();
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

int unlink(const char *path) {
    watched();
    return unlinkat(AT_FDCWD, path, 0);
}

int fsync(int fd) {
    watched();
    (void)fd; /* a kill loses nothing that was written: syncing would only make the test slow */
    return 0;
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset) {
    watched();
    if (watch.full_at && ++watch.writes >= watch.full_at) {
        errno = ENOSPC;
        return -1;
    }
    if (lseek(fd, offset, SEEK_SET) < 0)
        return -1;
    return write(fd, bytes, n);
}
/* A header must never stand beside data that is not its own: opening it checks sizes and hash. */
static void check_invariant(const char *folder, bool pair) {
    char path[NAME];
    struct stat st;
    ts_capture_file *f;
    ts_error err = {0};
    if (stat(result_in(path, folder, pair), &st) != 0)
        return;
    if (ts_capture_open(path, &f, NULL, &err) != TS_OK)
        fail_msg("after a kill: %s", err.message);
    ts_capture_close(f);
}

/* ---------------------------------------------------------------- tests */

/* A process that captures and is killed before call `at`; whether it came to its end. */
static bool survives(const char *path, bool overwrite, long at) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        watch.count = 0;
        watch.kill_at = at;
        _exit(capture(path, overwrite, NULL) == TS_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status);
}

/* Kill before call 1, 2, 3, ...: each resumed result equals the uninterrupted one. Not 0, `second`
 * is the call before which the resuming process is killed as well. With `overwrite` another result
 * stands there before. */
static void kill_everywhere(bool pair, bool overwrite, long second) {
    char path[NAME];
    ts_error err = {0};
    empty_folder("rc_a");
    assert_int_equal(capture(result_in(path, "rc_a", pair), false, &err), TS_OK);
    bool ended = false;
    for (long at = 1; !ended; at++) {
        empty_folder("rc_b");
        result_in(path, "rc_b", pair);
        if (overwrite) {
            n_prompts = PROMPTS - 2;
            assert_int_equal(capture(path, false, &err), TS_OK);
            n_prompts = PROMPTS;
        }
        ended = survives(path, overwrite, at);
        check_invariant("rc_b", pair);
        if (second) {
            survives(path, overwrite, second);
            check_invariant("rc_b", pair);
        }
        bool finished = exists("rc_b", pair ? "x.json" : "x.safetensors") &&
                        !exists("rc_b", pair ? "x.json.part.state" : "x.safetensors.part.state");
        int rc = capture(path, overwrite, &err);
        if (finished && !overwrite) {
            assert_int_equal(rc, TS_ERR_ARG); /* nothing to resume: the result is there */
            unlink(pair ? "rc_b/x.json.part.gen" : "rc_b/x.safetensors.part.gen");
            unlink(pair ? "rc_b/x.json.lock" : "rc_b/x.safetensors.lock");
        } else if (rc != TS_OK) {
            fail_msg("resume after call %ld: %s", at, err.message);
        }
        same_result("rc_a", "rc_b", pair);
        assert_in_range(at, 1, 400);
        assert_true(!ended || at > 30); /* the calls were watched */
    }
}

static void kill_pair(void **state) {
    (void)state;
    kill_everywhere(true, false, 0);
    kill_everywhere(true, true, 0);
    for (long second = 1; second <= 5; second++)
        kill_everywhere(true, second % 2, second);
}

static void kill_safetensors(void **state) {
    (void)state;
    kill_everywhere(false, false, 0);
    kill_everywhere(false, true, 0);
    for (long second = 1; second <= 2; second++)
        kill_everywhere(false, second % 2, second);
}

static void disk_full(bool pair) {
    char path[NAME];
    ts_error err;
    bool full = true;
    for (long at = 1; full; at++) {
        empty_folder("rc_b");
        result_in(path, "rc_b", pair);
        watch.full_at = at;
        watch.writes = 0;
        err = (ts_error){0};
        int rc = capture(path, false, &err);
        watch.full_at = 0;
        full = rc != TS_OK;
        if (full) {
            assert_int_equal(rc, TS_ERR_IO);
            assert_non_null(strstr(err.message, "No space left"));
            assert_non_null(strstr(err.message, "rc_b/x."));
            check_invariant("rc_b", pair);
            if (capture(path, false, &err) != TS_OK)
                fail_msg("%s", err.message);
        }
        same_result("rc_a", "rc_b", pair);
    }
}

static void full_disk(void **state) {
    char path[NAME];
    (void)state;
    for (int pair = 0; pair < 2; pair++) {
        empty_folder("rc_a");
        assert_int_equal(capture(result_in(path, "rc_a", pair), false, NULL), TS_OK);
        disk_full(pair);
    }
}

static int clean(void **state) {
    (void)state;
    empty_folder("rc_a");
    empty_folder("rc_b");
    rmdir("rc_a");
    rmdir("rc_b");
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_disk),
        cmocka_unit_test(kill_pair),
        cmocka_unit_test(kill_safetensors),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
