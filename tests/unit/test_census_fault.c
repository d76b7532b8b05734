/* Each allocation and system call of the census' files fails once: an error with a message, no
 * leak, no temporary left, and what stands under a final name is whole. Needs a build with
 * TS_FAULT_INJECTION; skipped otherwise. */
#include "test_census_make.h"

#ifndef TS_FAULT_INJECTION
int main(void) {
    return 77;
}
#else

#include "core/fault.h"
#include "instrument/ffn_checkpoint.h"
#include "store/trace.h"

static const uint32_t widths[] = {40, 0, 24}, ks[] = {4, 0, 20};
static ts_ffn_stats *counted; /* made once, before anything fails */

typedef int (*work_fn)(ts_error *err);

static int work_write(ts_error *err) {
    ts_shard shard;
    ts_provenance p = make_provenance(&shard);
    ts_census c;
    int rc = ts_ffn_to_census(counted, counted, &c, err);
    if (rc == TS_OK) {
        rc = ts_census_write(&c, "out.json", &p, "[]", false, true, err);
        ts_census_free(&c);
    }
    return rc;
}

static int work_read(ts_error *err) {
    ts_census c;
    char *key;
    int rc = ts_census_read("in.json", &c, &key, err);
    if (rc == TS_OK)
        ts_census_free(&c);
    ts_free(key);
    return rc;
}

static int work_add(ts_error *err) {
    ts_census a, b;
    int rc = ts_census_read("in.json", &a, NULL, err);
    if (rc < 0)
        return rc;
    rc = ts_census_read("in.json", &b, NULL, err);
    if (rc == TS_OK) {
        rc = ts_census_add(&a, &b, err);
        assert_int_equal(a.decode_passes, rc == TS_OK ? 2 * b.decode_passes : b.decode_passes);
        ts_census_free(&b);
    }
    ts_census_free(&a);
    return rc;
}

static int work_checkpoint(ts_error *err) {
    ts_ffn_progress at = {0};
    return ts_ffn_checkpoint_write("out.state", "plan", counted, NULL, NULL, &at, err);
}

static int work_resume(ts_error *err) {
    static const ts_ffn_options one = {.n_slots = 1, .n_workers = 1};
    ts_ffn_stats *s;
    ts_ffn_progress at;
    bool found;
    if (ts_ffn_stats_create(&s, widths, 3, &one) != 0)
        return ts_fail_nomem(err, "an accumulator", sizeof one);
    int rc = ts_ffn_checkpoint_read("in.state", "plan", s, NULL, NULL, &at, &found, err);
    assert_int_equal(found, rc == TS_OK);
    ts_ffn_stats_free(s);
    return rc;
}

static int work_trace(ts_error *err) {
    const ts_trace_spec spec = {3, widths, ks, "hash"};
    uint8_t level[40];
    ts_trace_at at;
    ts_trace_writer *w;
    memset(level, 1, sizeof level);
    level[0] = level[3] = 0;
    unlink("part");
    int rc = ts_trace_open("part", &spec, NULL, &w, err);
    if (rc < 0)
        return rc;
    rc = ts_trace_begin(w, 0, true, err);
    if (rc == TS_OK)
        rc = ts_trace_block(w, 0, level, 0, err);
    if (rc == TS_OK)
        rc = ts_trace_block(w, 2, level, 0, err);
    if (rc == TS_OK)
        rc = ts_trace_end(w, err);
    if (rc == TS_OK)
        rc = ts_trace_sync(w, &at, err);
    if (rc == TS_OK)
        return ts_trace_finish(w, "out.trace", err);
    ts_trace_close(w, NULL);
    return rc;
}

static int work_replay(ts_error *err) {
    ts_trace_reader *r;
    ts_trace_pass p;
    bool got = true;
    int rc = ts_trace_read("in.trace", &r, err);
    while (rc == TS_OK && got)
        rc = ts_trace_next(r, &p, &got, err);
    ts_trace_read_close(r);
    return rc;
}

static void no_temporaries(void) {
    DIR *d = opendir(".");
    const struct dirent *e;
    assert_non_null(d);
    while ((e = readdir(d)))
        if (strstr(e->d_name, ".tmp-"))
            fail_msg("'%s' was left", e->d_name);
    closedir(d);
}

/* The old one, the new one, or none; never a mixture. */
static void whole_or_none(void) {
    ts_census c;
    ts_error err = {0};
    if (access("out.json", F_OK) != 0)
        return;
    make_ok(ts_census_read("out.json", &c, NULL, &err), &err);
    ts_census_free(&c);
}

static void each_fault(work_fn work) {
    ts_error err = {0};
    make_ok(work(&err), &err);
    for (long at = 1;; at++) {
        err = (ts_error){0};
        ts_fault_arm(at);
        int rc = work(&err);
        long calls = ts_fault_count();
        ts_fault_arm(0);
        no_temporaries();
        whole_or_none();
        if (calls < at) {
            make_ok(rc, &err);
            return;
        }
        if (rc < 0)
            assert_true(err.message[0] != '\0');
    }
}

static void faults(void **state) {
    (void)state;
    static const work_fn works[] = {work_write, work_checkpoint, work_trace};
    static const work_fn readers[] = {work_read, work_add, work_resume, work_replay};
    static const char *const renames[][2] = {{"out.trace", "in.trace"}, {"out.state", "in.state"}};
    ts_shard shard;
    ts_provenance p = make_provenance(&shard);
    ts_census c;
    uint64_t seed = 5;
    ts_error err = {0};
    counted = make_stats(widths, 3);
    make_generation(counted, NULL, 3, &seed);
    for (size_t i = 0; i < sizeof works / sizeof *works; i++)
        each_fault(works[i]);
    for (size_t i = 0; i < sizeof renames / sizeof *renames; i++)
        assert_int_equal(rename(renames[i][0], renames[i][1]), 0);
    make_census(counted, NULL, &c);
    make_ok(ts_census_write(&c, "in.json", &p, "[]", false, true, &err), &err);
    ts_census_free(&c);
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        each_fault(readers[i]);
    ts_ffn_stats_free(counted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(faults, tmp_setup, tmp_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
