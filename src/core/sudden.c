/* Owns the list of files that a sudden end must not leave (sudden.h). Process-wide, since a signal handler is given nothing
 * but a number. Refuses to remove what the parent of a fork made. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/sudden.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/error.h"

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_BOOL_LOCK_FREE == 2, "a signal handler may touch nothing else");

enum { N_SLOTS = 32 };
enum { FREE, BUSY, MAKING, LISTED }; /* a path is written and read only by who made its slot BUSY */

static struct {
    atomic_int state;
    pid_t owner;
    char path[PATH_MAX];
} slots[N_SLOTS];

static atomic_bool ending;

static bool change(int slot, int from, int to) {
    return atomic_compare_exchange_strong(&slots[slot].state, &from, to);
}

int ts_sudden_add(const char *path) {
    size_t n = strlen(path) + 1;

    for (int i = 0; n <= PATH_MAX && i < N_SLOTS; i++) {
        if (!change(i, FREE, BUSY))
            continue;
        memcpy(slots[i].path, path, n);
        slots[i].owner = getpid();
        atomic_store(&slots[i].state, MAKING);
        return i;
    }
    return -1;
}

void ts_sudden_made(int slot) {
    if (slot >= 0 && change(slot, MAKING, LISTED) && atomic_load(&ending) && change(slot, LISTED, BUSY))
        unlink(slots[slot].path); /* by a thread that still ran after the list was gone through */
}

void ts_sudden_drop(int slot) {
    if (slot >= 0 && !change(slot, LISTED, FREE))
        change(slot, MAKING, FREE);
}

static void unlink_unheld(const char *path) {
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlink(path);
    if (fd >= 0)
        close(fd);
}

TS_API void ts_unfinished_remove(void) {
    int saved = errno;

    atomic_store(&ending, true);
    for (int i = 0; i < N_SLOTS; i++)
        if (change(i, LISTED, BUSY) && slots[i].owner == getpid())
            unlink(slots[i].path);
        else if (change(i, MAKING, BUSY) && slots[i].owner == getpid())
            unlink_unheld(slots[i].path);
    errno = saved;
}
