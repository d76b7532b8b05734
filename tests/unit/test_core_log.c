/* The log receiver: joined engine lines, bounded length, threads. */
#include "test_core_tmp.h"

#include <pthread.h>

#include "core/log.h"
#include "core/utf8.h"

typedef struct seen {
    pthread_mutex_t lock;
    int lines, bad;
    enum ts_log_level level;
    bool from_engine;
    char last[8192];
} seen;

static void receive(enum ts_log_level level, bool from_engine, const char *line, void *user) {
    seen *s = user;

    pthread_mutex_lock(&s->lock);
    s->lines++;
    s->level = level;
    s->from_engine = from_engine;
    s->bad += strchr(line, '\n') != NULL;
    snprintf(s->last, sizeof s->last, "%s", line);
    pthread_mutex_unlock(&s->lock);
}

static int start(void **state) {
    seen *s = calloc(1, sizeof *s);

    assert_non_null(s);
    pthread_mutex_init(&s->lock, NULL);
    ts_log_set(receive, s);
    *state = s;
    return 0;
}

static int stop(void **state) {
    ts_log_set(NULL, NULL);
    free(*state);
    return 0;
}

static void own_lines(void **state) {
    seen *s = *state;
    char longish[6000];

    ts_log(TS_LOG_WARN, "block %d\nhas %s", 3, "rows");
    assert_string_equal(s->last, "block 3 has rows");
    assert_int_equal(s->level, TS_LOG_WARN);
    assert_false(s->from_engine);
    memset(longish, 'x', sizeof longish);
    longish[sizeof longish - 1] = '\0';
    ts_log(TS_LOG_INFO, "%s", longish);
    assert_int_equal(strlen(s->last), 4095);
    ts_log_set(NULL, NULL);
    ts_log(TS_LOG_INFO, "nobody");
    ts_log_engine(TS_LOG_INFO, "nobody\n");
    assert_int_equal(s->lines, 2);
}

static void engine_pieces(void **state) {
    seen *s = *state;

    ts_log_engine(TS_LOG_WARN, "load");
    ts_log_engine(TS_LOG_INFO, ".");
    ts_log_engine(TS_LOG_INFO, "");
    assert_int_equal(s->lines, 0);
    ts_log_engine(TS_LOG_INFO, ".\nnext line\nrest");
    assert_int_equal(s->lines, 2);
    assert_string_equal(s->last, "next line");
    ts_log_engine(TS_LOG_ERROR, " of it\n");
    assert_string_equal(s->last, "rest of it");
    assert_int_equal(s->level, TS_LOG_INFO);
    assert_true(s->from_engine);
    ts_log_engine(TS_LOG_ERROR, "\n\n");
    assert_int_equal(s->lines, 3);
    ts_log_engine(TS_LOG_ERROR, "lost when the receiver changes");
    ts_log_set(receive, s);
    ts_log_engine(TS_LOG_ERROR, "fresh\n");
    assert_string_equal(s->last, "fresh");
    assert_int_equal(s->level, TS_LOG_ERROR);
}

static void engine_line_without_end(void **state) {
    seen *s = *state;

    for (int i = 0; i < 100000; i++)
        ts_log_engine(TS_LOG_INFO, "\xc3\xa9.");
    ts_log_engine(TS_LOG_INFO, "\n");
    assert_int_equal(s->lines, 1);
    assert_true(strlen(s->last) > 4000 && strlen(s->last) < 4096);
    assert_string_equal(s->last + strlen(s->last) - 3, "...");
    assert_int_equal(ts_utf8_valid(s->last, strlen(s->last)), strlen(s->last));
    ts_log_engine(TS_LOG_INFO, "short\n");
    assert_string_equal(s->last, "short");
}

static void log_from_receiver(enum ts_log_level level, bool from_engine, const char *line,
                              void *user) {
    (void)level;
    (void)line;
    ts_log_set(receive, user);
    if (from_engine)
        ts_log(TS_LOG_INFO, "seen");
}

static void receiver_may_log(void **state) {
    seen *s = *state;

    ts_log_set(log_from_receiver, s);
    ts_log_engine(TS_LOG_INFO, "x\n");
    assert_string_equal(s->last, "seen");
}

static void *many_lines(void *unused) {
    for (int i = 0; i < 2000; i++) {
        ts_log_engine(TS_LOG_INFO, "one whole line\n");
        ts_log(TS_LOG_INFO, "ours %d", i);
    }
    return unused;
}

static void threads(void **state) {
    seen *s = *state;
    pthread_t t[4];

    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, many_lines, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(s->lines, 16000);
    assert_int_equal(s->bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(own_lines, start, stop),
        cmocka_unit_test_setup_teardown(engine_pieces, start, stop),
        cmocka_unit_test_setup_teardown(engine_line_without_end, start, stop),
        cmocka_unit_test_setup_teardown(receiver_may_log, start, stop),
        cmocka_unit_test_setup_teardown(threads, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
