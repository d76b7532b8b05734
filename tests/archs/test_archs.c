/* The table of architectures: every one in a child process, two at a time. */
#include "arch_check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "e2e/tiny_recipe.h"

int main(int argc, char **argv) {
    setenv("GGML_NO_BACKTRACE", "1", 1);
    for (int i = 1; i < argc; i++) {
        int fd[2];
        if (pipe(fd)) return 1;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            arch_result r = {0};
            alarm(60);
            arch_check(argv[i], &r);
            if (write(fd[1], &r, sizeof r) < 0) _exit(3);
            _exit(0);
        }
        close(fd[1]);
        arch_result r = {0};
        ssize_t n = read(fd[0], &r, sizeof r);
        close(fd[0]);
        int st;
        waitpid(pid, &st, 0);
        printf("%-18s %s%s%s", argv[i], n == sizeof r ? "" : "DIED ", r.built ? "B" : "-", r.opened ? "O" : "-");
        printf("%s ", r.same ? "=" : "!");
        for (int k = 0; k < ARCH_KINDS; k++) printf(" %d/%d/%d", r.cells[k].n_redirected, r.cells[k].n_asked, r.cells[k].n_refused);
        printf(" of %d | %s%s\n", r.n_layer, r.note, WIFSIGNALED(st) ? strsignal(WTERMSIG(st)) : "");
        fflush(stdout);
    }
    return 0;
}
