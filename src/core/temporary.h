/* Files and folders on their way to a result: `<target>.tmp-<pid>-<n>`, locked while they are written. So one that can be
 * locked was left by a process that ended: it is nobody's, in whatever container its process was. */
#ifndef TS_CORE_TEMPORARY_H
#define TS_CORE_TEMPORARY_H

#include "core/error.h"

typedef struct ts_temporary {
    char *name; /* owned; NULL = none */
    int fd;     /* holds the lock */
    int slot;   /* in core/sudden.h */
} ts_temporary;

/* Creates one that nobody else has, open for writing. Messages name `path`, what the user asked for. */
int ts_temporary_create(ts_temporary *t, const char *path, const char *target, ts_error *err);
/* Likewise a folder; a sudden end leaves it to the next sweep. */
int ts_temporary_folder(ts_temporary *t, const char *path, ts_error *err);
/* Forgets the name; `remove`: the file too, a folder only when it is empty. Does not close fd. */
void ts_temporary_end(ts_temporary *t, bool remove);
/* Removes what ended processes left of a result at `path`: temporaries of its files, of those beside it and of those it
 * writes while it runs. Never one that is being written, a partial file, or another name. */
void ts_temporary_sweep(const char *path);

#endif
