/* A folder of its own for each test, gone afterwards. Owns nothing else. */
#ifndef TEST_CORE_TMP_H
#define TEST_CORE_TMP_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct tmp_folder {
    char path[256];
} tmp_folder;

static inline int tmp_setup(void **state) {
    tmp_folder *t = calloc(1, sizeof *t);
    const char *base = getenv("TMPDIR");

    assert_non_null(t);
    snprintf(t->path, sizeof t->path, "%.200s/turbospark-test-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(t->path));
    assert_int_equal(chdir(t->path), 0);
    *state = t;
    return 0;
}

/* Entries in the working folder: tests look for files that were left behind. */
static inline int tmp_count(void) {
    DIR *d = opendir(".");
    struct dirent *e;
    int n = 0;

    assert_non_null(d);
    while ((e = readdir(d)))
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static inline int tmp_teardown(void **state) {
    tmp_folder *t = *state;
    char command[512];

    assert_int_equal(chdir("/"), 0);
    snprintf(command, sizeof command, "rm -rf '%s'", t->path);
    assert_int_equal(system(command), 0);
    free(t);
    return 0;
}

/* Writes a file without the code under test. */
static inline void tmp_write(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void tmp_expect(const char *path, const char *text) {
    char bytes[4096];
    FILE *f = fopen(path, "rb");
    size_t n;

    assert_non_null(f);
    n = fread(bytes, 1, sizeof bytes - 1, f);
    bytes[n] = '\0';
    fclose(f);
    assert_string_equal(bytes, text);
}

#endif
