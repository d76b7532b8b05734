/* Runs the command in a process of its own. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* wait4 */
#endif
#include "spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tiny.h"

pid_t spawn_cli(const char *argv[]) {
    argv[0] = getenv("TS_CLI");
    const char *log = e2e_path("stderr");
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || dup2(fd, 2) < 0) _exit(126);
    execv(argv[0], (char *const *)(void *)argv);
    _exit(127);
}

int spawn_wait(pid_t pid, struct rusage *usage) {
    int status = 0;
    assert_int_equal(wait4(pid, &status, 0, usage), pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int spawn_run(const char *argv[]) { return spawn_wait(spawn_cli(argv), NULL); }

/* Without reaping it. */
bool spawn_ended(pid_t pid) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

char *spawn_stderr(void) {
    size_t n;
    return e2e_slurp(e2e_path("stderr"), &n);
}

void spawn_sleep(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) != 0) continue;
}

const char *spawn_tiny(const char *arch, const struct tiny_opts *opts) {
    const char *path = e2e_path("model.gguf");
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        ts_device_count(); /* starts the library, which silences llama.cpp */
        _exit(tiny_save(arch, opts, path, NULL) ? 0 : 1);
    }
    assert_true(pid > 0);
    assert_int_equal(spawn_wait(pid, NULL), 0);
    return path;
}

const char *spawn_corpus(const char *name, size_t n) {
    const char *path = e2e_path(name);
    FILE *f = fopen(path, "w");
    uint32_t state = 7;
    assert_non_null(f);
    for (size_t i = 0; i < n; i++) {
        fputs("{\"token_ids\": [", f);
        state = state * 1664525u + 1013904223u;
        for (uint32_t k = 0, length = 3 + (state >> 8) % 9; k < length; k++) {
            state = state * 1664525u + 1013904223u;
            fprintf(f, "%s%u", k ? ", " : "", (state >> 8) % 160);
        }
        fprintf(f, "], \"label\": \"%zu\"}\n", i % 2);
    }
    assert_int_equal(fclose(f), 0);
    return path;
}
