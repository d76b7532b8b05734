/* Names of files that a sudden end of the process must not leave: temporaries and locks. ts_unfinished_remove
 * (turbospark.h) removes them from a signal handler. */
#ifndef TS_CORE_SUDDEN_H
#define TS_CORE_SUDDEN_H

/* Lists a copy of `path`, which is about to be created and then locked; returns its slot, or -1 when the list is full or the
 * path too long: then the file is left to the next run, which removes it too (core/temporary.h). Until ts_sudden_made it is
 * removed only if nobody holds its lock: it may be another process's of that name. Thread-safe; slot -1 is fine. */
int ts_sudden_add(const char *path);
void ts_sudden_made(int slot); /* it is ours */
void ts_sudden_drop(int slot);

#endif
