/* Shared by the end-to-end tests. */
#include "e2e.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *e2e_model_path(void) {
    const char *path = getenv("TS_MODEL");
    return path && access(path, R_OK) == 0 ? path : NULL;
}

void e2e_check(int rc, const ts_error *err, const char *file, int line) {
    if (rc == TS_OK) return;
    print_error("%s:%d: %d: %s\n", file, line, rc, err->message);
    _fail(file, line);
}

ts_session *e2e_open(const ts_session_options *opts) {
    ts_session *s = NULL;
    ts_error err = {0};
    e2e_ok(ts_session_open(opts, &s, &err), &err);
    return s;
}

static char *tmp_dir(void) {
    static char dir[512];
    return dir;
}

const char *e2e_tmp(void) {
    if (tmp_dir()[0]) return tmp_dir();
    const char *base = getenv("TMPDIR");
    snprintf(tmp_dir(), 512, "%s/ts-e2e-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(tmp_dir()));
    return tmp_dir();
}

const char *e2e_path(const char *name) {
    static char paths[8][1024];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, 1024, "%s/%s", e2e_tmp(), name);
    return path;
}

char *e2e_slurp(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) print_error("cannot open %s\n", path);
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *bytes = malloc((size_t)size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)size, f), (size_t)size);
    bytes[size] = '\0';
    fclose(f);
    *n = (size_t)size;
    return bytes;
}

void e2e_remove_tmp(void) {
    DIR *d = tmp_dir()[0] ? opendir(tmp_dir()) : NULL;
    if (!d) return;
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        if (e->d_name[0] != '.') unlink(e2e_path(e->d_name));
    closedir(d);
    rmdir(tmp_dir());
    tmp_dir()[0] = '\0';
}

uint64_t e2e_hash(uint64_t h, const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}
