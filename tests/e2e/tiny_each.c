/* Runs tests once for each tiny architecture, in child processes. */
#include "tiny_each.h"

#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    const char *arch;
    struct llama_model *model;
} current;

const char *tiny_arch(void) { return current.arch; }
struct llama_model *tiny_loaded(void) { return current.model; }

ts_session_options tiny_session(uint32_t n_ubatch) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.model = current.model;
    so.n_ctx = 512;
    so.n_ubatch = n_ubatch;
    so.n_threads = 1; /* models this small only wait for a second one */
    return so;
}

static void silent(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int run_child(const char *arch, int (*run)(void)) {
    const char *why = NULL;
    current.arch = arch;
    setenv("GGML_NO_BACKTRACE", "1", 1);
    ts_device_count(); /* loads the backends as a session would */
    llama_log_set(silent, NULL); /* which puts llama.cpp's log into ours */
    current.model = tiny_model(arch, NULL, &why);
    if (!current.model) {
        fprintf(stderr, "%s: %s\n", arch, why);
        return 1;
    }
    int failed = run();
    llama_model_free(current.model);
    e2e_remove_tmp();
    return failed ? 1 : 0;
}

int tiny_each(const char *const *archs, int (*run)(void)) {
    int failed = 0;
    for (; *archs; archs++) {
        int status = 0;
        fprintf(stderr, "---- %s\n", *archs);
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            exit(run_child(*archs, run)); /* not _exit: a sanitizer looks for leaks then */
        }
        bool good = pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!good) fprintf(stderr, "---- %s: failed (status %d)\n", *archs, status);
        failed += !good;
    }
    return failed;
}
