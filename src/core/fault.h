/* The one gate for what can fail from outside: allocations (counted in mem.c) and the system calls
 * that make a file. Compiled with TS_FAULT_INJECTION, the call whose number is TS_FAULT_AT
 * (environment, from 1) fails once; without it there is no counter and no hook. Refuses to retry
 * anything but EINTR. */
#ifndef TS_CORE_FAULT_H
#define TS_CORE_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef TS_FAULT_INJECTION
/* Counts one call; true, with errno = error_number, when it is the one that has to fail.
 * Thread-safe. */
bool ts_fault_hit(int error_number);
/* Starts counting anew; call number `at` fails, 0 = none. Overrules the environment. */
void ts_fault_arm(long at);
long ts_fault_count(void); /* calls since ts_fault_arm or the start */
/* From now on only calls that are no allocations are counted, until it is called with false. */
void ts_fault_files_only(bool only);
#else
static inline bool ts_fault_hit(int error_number) {
    (void)error_number;
    return false;
}
#endif

/* As the calls they are named after: -1 and errno on failure. */
int ts_sys_open(const char *path, int flags, mode_t mode); /* adds O_CLOEXEC */
ssize_t ts_sys_read(int fd, void *bytes, size_t n);
ssize_t ts_sys_pwrite(int fd, const void *bytes, size_t n, uint64_t offset);
int ts_sys_fsync(int fd);
int ts_sys_ftruncate(int fd, uint64_t length);
int ts_sys_rename(const char *from, const char *to);

#endif
