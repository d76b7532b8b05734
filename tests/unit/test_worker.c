/* The worker: jobs in order, one at a time, each seen whole by whoever waited; a failure is told once and to the next
 * caller; without a thread jobs run at once; freeing waits. */
#include "core/worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* No atomics: whoever reads it waited for the job, and a race is what the thread sanitizer would see. */
typedef struct log {
    int n, jobs[1000];
    bool slow;
} log_of_jobs;

typedef struct job {
    log_of_jobs *log;
    int number, rc;
} job;

static int work(void *user, ts_error *err) {
    job *j = user;
    if (j->log->slow) nanosleep(&(struct timespec){0, 3000000}, NULL);
    j->log->jobs[j->log->n++] = j->number;
    return j->rc ? ts_fail(err, j->rc, "job %d", j->number) : TS_OK;
}

static ts_worker *create(bool threaded) {
    ts_worker *w;
    ts_error err = {0};
    assert_int_equal(ts_worker_create(threaded, &w, &err), TS_OK);
    assert_non_null(w);
    return w;
}

static void order(bool threaded) {
    static log_of_jobs log;
    ts_error err = {0};
    ts_worker *w = create(threaded);
    memset(&log, 0, sizeof(log));
    job j = {.log = &log};
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(ts_worker_wait(w, &err), TS_OK); /* the job's memory is ours again */
        assert_int_equal(log.n, i);
        j.number = i;
        assert_int_equal(ts_worker_submit(w, work, &j, &err), TS_OK);
    }
    assert_int_equal(ts_worker_wait(w, &err), TS_OK);
    assert_int_equal(log.n, 1000);
    for (int i = 0; i < 1000; i++) assert_int_equal(log.jobs[i], i);
    ts_worker_free(w);
}

static void test_order(void **state) {
    (void)state;
    order(true);
    order(false);
}

static void test_failure(void **state) {
    (void)state;
    log_of_jobs log = {.slow = true};
    job bad = {&log, 1, TS_ERR_STATE}, good = {&log, 2, TS_OK};
    ts_error err = {0};
    ts_worker *w = create(true);
    if (!ts_worker_threaded(w)) {
        ts_worker_free(w);
        skip();
    }
    assert_int_equal(ts_worker_submit(w, work, &bad, &err), TS_OK);
    assert_int_equal(ts_worker_submit(w, work, &good, &err), TS_ERR_STATE); /* which then does not run */
    assert_string_equal(err.message, "job 1");
    assert_int_equal(ts_worker_wait(w, &err), TS_OK); /* told once */
    assert_int_equal(log.n, 1);
    assert_int_equal(ts_worker_submit(w, work, &good, &err), TS_OK);
    assert_int_equal(ts_worker_wait(w, &err), TS_OK);
    assert_int_equal(ts_worker_submit(w, work, &bad, NULL), TS_OK);
    assert_int_equal(ts_worker_wait(w, NULL), TS_ERR_STATE);
    assert_int_equal(ts_worker_wait(w, NULL), TS_OK);
    assert_int_equal(log.n, 3);
    ts_worker_free(w);
}

static void test_without_thread(void **state) {
    (void)state;
    log_of_jobs log = {0};
    job bad = {&log, 1, TS_ERR_IO}, good = {&log, 2, TS_OK};
    ts_error err = {0};
    ts_worker *w = create(false);
    assert_false(ts_worker_threaded(w));
    assert_int_equal(ts_worker_submit(w, work, &bad, &err), TS_ERR_IO);
    assert_string_equal(err.message, "job 1");
    assert_int_equal(ts_worker_submit(w, work, &good, &err), TS_OK);
    assert_int_equal(log.n, 2);
    assert_int_equal(ts_worker_wait(w, &err), TS_OK);
    ts_worker_free(w);
}

static void test_free_waits(void **state) {
    (void)state;
    log_of_jobs log = {.slow = true};
    job j = {&log, 1, TS_OK};
    for (int i = 0; i < 20; i++) {
        ts_worker *w = create(true);
        log.n = 0;
        assert_int_equal(ts_worker_submit(w, work, &j, NULL), TS_OK);
        ts_worker_free(w);
        assert_int_equal(log.n, 1);
        ts_worker_free(create(true)); /* one that never had a job */
    }
    ts_worker_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_failure),
        cmocka_unit_test(test_without_thread),
        cmocka_unit_test(test_free_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
