/* Runs the command (TS_CLI) in a process of its own, for tests that kill, stop or measure it. */
#ifndef TS_SPAWN_H
#define TS_SPAWN_H

#include "e2e.h"

#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

/* argv[0] is left for the command's path; ended by NULL. Its stderr goes to the file "stderr" of the temporary folder. */
pid_t spawn_cli(const char *argv[]);
/* Waits; the exit status, or minus the signal's number. */
int spawn_wait(pid_t pid, struct rusage *usage);
int spawn_run(const char *argv[]);
bool spawn_ended(pid_t pid);
/* What the last one wrote to stderr; caller frees. */
char *spawn_stderr(void);
void spawn_sleep(double seconds);

/* In a child, so that its memory is not ours: a tiny model as a file in the temporary folder. */
struct tiny_opts;
const char *spawn_tiny(const char *arch, const struct tiny_opts *opts);

/* n prompts of 3 to 11 token ids below 160 in a file; writes JSON Lines without holding them. */
const char *spawn_corpus(const char *name, size_t n);

#endif
