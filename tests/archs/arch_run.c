/* Child processes. Owns their pipes, and what can be said of one that died; refuses nothing. */
#include "arch_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AT_ONCE = 2, SECONDS = 180 };

typedef struct child {
    pid_t pid; /* 0 = free */
    int pipe;
    FILE *log;
    arch_job *job;
} child;

static _Noreturn void be_child(const arch_job *job, int out, FILE *log) {
    arch_result r = {0};
    if (!getenv("ARCH_VERBOSE")) dup2(fileno(log), STDERR_FILENO);
    alarm(SECONDS);
    arch_check(job->recipe, job->as_file, &r);
    exit(write(out, &r, sizeof(r)) == (ssize_t)sizeof(r) ? 0 : 1); /* not _exit: a sanitizer looks for leaks then */
}

static void start(child *c, arch_job *job) {
    int ends[2];
    c->log = tmpfile();
    if (!c->log || pipe(ends) != 0) {
        perror("test_archs");
        exit(2);
    }
    fflush(NULL);
    c->job = job;
    c->pid = fork();
    if (c->pid < 0) {
        perror("test_archs");
        exit(2);
    }
    if (c->pid == 0) {
        close(ends[0]);
        be_child(job, ends[1], c->log);
    }
    close(ends[1]);
    c->pipe = ends[0];
}

/* ".../ggml/src/ggml.c:2636: GGML_ASSERT(x) failed" without the folder, which is of the machine that built it. */
static void last_assert(FILE *log, char *out, size_t size) {
    char line[1024];
    rewind(log);
    while (fgets(line, sizeof(line), log)) {
        char *what = strstr(line, "GGML_ASSERT");
        if (!what) what = strstr(line, "Assertion");
        line[strcspn(line, "\n")] = '\0';
        if (what) snprintf(out, size, "llama.cpp aborts: %s", what);
    }
}

static void finish(child *c, int status) {
    arch_result r;
    bool came = read(c->pipe, &r, sizeof(r)) == (ssize_t)sizeof(r);
    if (came) c->job->result = r;
    char *note = c->job->result.note;
    size_t size = sizeof(c->job->result.note);
    if (!came && WIFSIGNALED(status)) {
        snprintf(note, size, "llama.cpp ends with signal %d", WTERMSIG(status));
        last_assert(c->log, note, size);
    } else if (!came || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        c->job->result.done = false;
        snprintf(note, size, "the child ended with status %d", status);
    }
    close(c->pipe);
    fclose(c->log);
    c->pid = 0;
}

static void wait_for_one(child *children) {
    int status = 0;
    pid_t pid = waitpid(-1, &status, 0);
    for (int i = 0; i < AT_ONCE; i++)
        if (pid > 0 && children[i].pid == pid) finish(&children[i], status);
}

void arch_run(arch_job *jobs, size_t n) {
    child children[AT_ONCE] = {0};
    size_t started = 0;
    bool running = true;
    while (running) {
        for (int i = 0; i < AT_ONCE; i++)
            if (!children[i].pid && started < n) start(&children[i], &jobs[started++]);
        running = false;
        for (int i = 0; i < AT_ONCE; i++) running = running || children[i].pid;
        if (running) wait_for_one(children);
    }
}
