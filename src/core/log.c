/* Owns the process-wide log receiver and the joining of the engine's line pieces. Refuses to print
 * by itself, and lines without end: what exceeds LINE_SIZE is cut. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/locale_c.h"
#include "core/utf8.h"

enum { LINE_SIZE = 4096 };

/* Guarded by `lock`; the receiver is called outside it, so that it may log or set another one. */
static struct {
    pthread_mutex_t lock;
    ts_log_fn fn;
    void *user;
    enum ts_log_level level; /* of the pending line's first piece */
    bool cut;                /* the pending line lost its end */
    size_t length;
    char line[LINE_SIZE];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

void ts_log_set(ts_log_fn fn, void *user) {
    pthread_mutex_lock(&state.lock);
    state.fn = fn;
    state.user = user;
    state.length = 0;
    state.cut = false;
    pthread_mutex_unlock(&state.lock);
}

void ts_log(enum ts_log_level level, const char *fmt, ...) {
    char line[LINE_SIZE];
    ts_locale_c l;
    ts_log_fn fn;
    void *user;
    va_list args;

    pthread_mutex_lock(&state.lock);
    fn = state.fn;
    user = state.user;
    pthread_mutex_unlock(&state.lock);
    if (!fn)
        return;
    l = ts_locale_c_enter();
    va_start(args, fmt);
    if (vsnprintf(line, sizeof line, fmt, args) < 0)
        line[0] = '\0';
    va_end(args);
    ts_locale_c_leave(l);
    for (char *c = line; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    fn(level, false, line, user);
}

/* Appends n bytes of the piece, as many as fit before the dots that mark a cut. Locked. */
static void join(const char *piece, size_t n) {
    size_t room = sizeof state.line - 4 - state.length;

    if (n > room) {
        state.cut = true;
        n = room;
    }
    memcpy(state.line + state.length, piece, n);
    state.length += n;
}

/* Moves the pending line to `line`, NUL-terminated. Locked. */
static void take_line(char line[LINE_SIZE]) {
    if (state.cut)
        state.length = ts_utf8_complete(state.line, state.length);
    memcpy(line, state.line, state.length);
    snprintf(line + state.length, LINE_SIZE - state.length, "%s", state.cut ? "..." : "");
    state.length = 0;
    state.cut = false;
}

void ts_log_engine(enum ts_log_level level, const char *piece) {
    char line[LINE_SIZE];

    while (*piece) {
        size_t n = strcspn(piece, "\n");
        bool whole = piece[n] == '\n';
        enum ts_log_level line_level;
        ts_log_fn fn;
        void *user;

        line[0] = '\0';
        pthread_mutex_lock(&state.lock);
        if (state.length == 0)
            state.level = level;
        join(piece, n);
        line_level = state.level;
        fn = state.fn;
        user = state.user;
        if (whole)
            take_line(line);
        pthread_mutex_unlock(&state.lock);
        if (whole && fn && line[0])
            fn(line_level, true, line, user);
        piece += n + whole;
    }
}
