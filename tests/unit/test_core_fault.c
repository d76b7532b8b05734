/* Each allocation and system call fails once: an error with a message, no leak, nothing
 * half-written under a final name. Needs a build with TS_FAULT_INJECTION; skipped otherwise. */
#include "test_core_tmp.h"

#ifndef TS_FAULT_INJECTION
int main(void) {
    return 77;
}
#else

#include <jansson.h>

#include "core/buf.h"
#include "core/fault.h"
#include "core/file.h"
#include "core/mem.h"
#include "store/fingerprint.h"
#include "store/prompts.h"

typedef int (*work_fn)(ts_error *err);

static int work_put(ts_error *err) {
    return ts_file_put("out", "new", 3, err);
}

static int work_append(ts_error *err) {
    ts_append *a;
    int rc;

    unlink("part");
    rc = ts_append_open("part", 0, &a, err);
    if (rc)
        return rc;
    rc = ts_append_write(a, "ne", 2, err);
    if (!rc)
        rc = ts_append_sync(a, err);
    if (!rc)
        rc = ts_append_write(a, "w", 1, err);
    if (rc) {
        ts_append_close(a, NULL);
        return rc;
    }
    return ts_append_commit(a, "out", err);
}

static int work_lock(ts_error *err) {
    ts_lock *lock;
    int rc = ts_lock_take("out", &lock, err);

    if (!rc)
        rc = ts_file_put("out", "new", 3, err);
    ts_lock_release(lock);
    return rc;
}

static int work_buffer(ts_error *err) {
    ts_buf b = {0};
    char *text;
    int rc;

    ts_buf_text(&b, "n");
    ts_buf_printf(&b, "%s", "ew");
    for (int i = 0; i < 500; i++)
        ts_buf_json_string(&b, "x", 1);
    text = ts_buf_take(&b);
    if (!text)
        return ts_fail_nomem(err, "text", 1);
    rc = ts_file_put("out", text, 3, err);
    ts_free(text);
    return rc;
}

static int work_prompts(ts_error *err) {
    const ts_prompt *prompt;
    ts_prompts *p;
    ts_prompt *m = NULL;
    char hex[33];
    bool got = true;
    int rc = ts_prompts_open("in.jsonl", NULL, &p, err);

    if (rc)
        return rc;
    while (!rc && got)
        rc = ts_prompts_next(p, &prompt, &got, err);
    ts_prompts_close(p);
    if (!rc)
        rc = ts_messages_read("m.json", &m, err);
    ts_messages_free(m);
    if (!rc)
        rc = ts_fingerprint_file("m.json", hex, NULL, err);
    return rc ? rc : ts_file_put("out", "new", 3, err);
}

static bool out_is(const char *text) {
    char bytes[8] = "";
    FILE *f = fopen("out", "rb");
    size_t n = f ? fread(bytes, 1, sizeof bytes - 1, f) : 0;

    if (f)
        fclose(f);
    return n == strlen(text) && memcmp(bytes, text, n) == 0;
}

static void every_call_fails_once(work_fn work) {
    ts_error err;
    long calls, failures = 0;
    int left;

    ts_fault_arm(0);
    assert_int_equal(work(&err), TS_OK);
    calls = ts_fault_count();
    assert_true(calls > 3);
    left = tmp_count();
    for (long i = 1; i <= calls; i++) {
        int rc;

        tmp_write("out", "old", 3);
        err.message[0] = '\0';
        ts_fault_arm(i);
        rc = work(&err);
        ts_fault_arm(0);
        unlink("part"); /* kept on purpose */
        assert_int_equal(tmp_count(), left);
        assert_true(out_is("old") || out_is("new"));
        if (rc == TS_OK) {
            assert_true(out_is("new"));
            continue;
        }
        failures++;
        assert_true(rc == TS_ERR_NOMEM || rc == TS_ERR_IO);
        assert_int_equal(err.code, rc);
        assert_true(strlen(err.message) > 10);
    }
    assert_int_equal(failures, calls);
}

static void file_put(void **state) {
    (void)state;
    every_call_fails_once(work_put);
}

static void append(void **state) {
    (void)state;
    every_call_fails_once(work_append);
}

static void lock(void **state) {
    (void)state;
    every_call_fails_once(work_lock);
}

static void buffer(void **state) {
    (void)state;
    every_call_fails_once(work_buffer);
}

static void prompts(void **state) {
    static const char lines[] = "{\"prompt\": \"a\", \"label\": 1}\n"
                                "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n"
                                "{\"token_ids\": [1, 2, 3]}\n";
    static const char array[] = "[{\"role\": \"user\", \"content\": \"hi\"}]";

    (void)state;
    tmp_write("in.jsonl", lines, sizeof lines - 1);
    tmp_write("m.json", array, sizeof array - 1);
    json_set_alloc_funcs(ts_malloc, ts_free);
    every_call_fails_once(work_prompts);
    json_set_alloc_funcs(malloc, free);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmp_setup, tmp_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(file_put), IN_FOLDER(append),  IN_FOLDER(lock),
        IN_FOLDER(buffer),   IN_FOLDER(prompts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
