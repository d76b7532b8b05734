/* Owns file name arithmetic (file.h). Refuses to touch the disk, but for ts_file_same and ts_file_exists. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include "core/file.h"

#include <string.h>
#include <sys/stat.h>

#include "core/mem.h"

/* The last dot of a name, or NULL where Rust's Path sees no extension: no dot, a leading one only,
 * "..". */
static const char *last_dot(const char *name, size_t length) {
    if (length == 2 && name[0] == '.' && name[1] == '.')
        return NULL;
    while (length > 1)
        if (name[--length] == '.')
            return name + length;
    return NULL;
}

char *ts_path_with_extension(const char *path, const char *extension) {
    size_t end = strlen(path), start, n = strlen(extension);
    const char *dot;
    char *out;

    while (end > 0 && path[end - 1] == '/')
        end--;
    for (start = end; start > 0 && path[start - 1] != '/';)
        start--;
    if (end == start || (end - start <= 2 && strncmp(path + start, "..", end - start) == 0))
        return ts_strdup(path); /* no file name to give an extension to */
    dot = last_dot(path + start, end - start);
    if (dot)
        end = (size_t)(dot - path);
    out = ts_malloc(end + 1 + n + 1);
    if (!out)
        return NULL;
    memcpy(out, path, end);
    if (n)
        out[end++] = '.';
    memcpy(out + end, extension, n + 1);
    return out;
}

char *ts_path_append(const char *path, const char *suffix) {
    size_t n = strlen(path), m = strlen(suffix) + 1;
    char *out = ts_malloc(n + m);

    if (!out)
        return NULL;
    memcpy(out, path, n);
    memcpy(out + n, suffix, m);
    return out;
}

size_t ts_path_stem_length(const char *base) {
    const char *dot = last_dot(base, strlen(base));

    return dot ? (size_t)(dot - base) : strlen(base);
}

const char *ts_path_base(const char *path) {
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

bool ts_path_has_extension(const char *path, const char *extension) {
    const char *base = ts_path_base(path), *dot = last_dot(base, strlen(base));

    return dot && strcmp(dot + 1, extension) == 0;
}

bool ts_file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool ts_file_same(const char *a, const char *b) {
    struct stat sa, sb;

    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev &&
           sa.st_ino == sb.st_ino;
}
