/* For targets whose reader wants paths: files in a folder of the process's own, which is the working directory from the
 * first call on and goes away with the process; and an input cut into several files. */
#ifndef TS_FUZZ_FILE_H
#define TS_FUZZ_FILE_H

#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <turbospark/turbospark.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline char *fuzz_folder(void) {
    static char path[64];

    return path;
}

static inline void fuzz_remove_folder(void) {
    DIR *d = opendir(fuzz_folder());

    for (const struct dirent *e; d && (e = readdir(d));)
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(fuzz_folder());
}

static inline void fuzz_enter(void) {
    char *path = fuzz_folder();

    if (*path)
        return;
    strcpy(path, access("/dev/shm", W_OK) == 0 ? "/dev/shm/ts-fuzz-XXXXXX" : "/tmp/ts-fuzz-XXXXXX");
    if (!mkdtemp(path) || chdir(path) != 0)
        abort();
    atexit(fuzz_remove_folder);
}

/* The whole file, or no file where there is nothing to put into it. */
static inline void fuzz_put(const char *name, const uint8_t *data, size_t size) {
    int fd;

    fuzz_enter();
    unlink(name);
    if (size == 0)
        return;
    fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    close(fd);
}

/* An input of n files: three bytes of length, little-endian, for each but the last, then the files in order. What is cut
 * short is a shorter file. */
static inline void fuzz_put_all(const char *const *names, size_t n, const uint8_t *data, size_t size) {
    size_t head = 3 * (n - 1), at = head;

    for (size_t i = 0; i < n; i++) {
        const uint8_t *l = data + 3 * i;
        size_t left = size > at ? size - at : 0, want = left;

        if (i + 1 < n && head <= size)
            want = (size_t)l[0] | (size_t)l[1] << 8 | (size_t)l[2] << 16;
        if (want > left)
            want = left;
        fuzz_put(names[i], data + (left ? at : 0), want);
        at += want;
    }
}

/* A reader either succeeds or says why, in one line. */
static inline void fuzz_expect(int rc, const ts_error *err) {
    if (rc == TS_OK)
        return;
    if (rc != err->code || !err->message[0] || strchr(err->message, '\n'))
        abort();
}

#endif
