/* Replays a corpus through a fuzz target without libFuzzer, so that the ordinary test run keeps what the
 * fuzzer once found. Owns the walk over files and folders named as arguments; refuses an empty corpus. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return -1;
    }
    int rc = -1;
    uint8_t *data = NULL;
    if (fseek(f, 0, SEEK_END) != 0)
        goto cleanup;
    long size = ftell(f);
    if (size < 0 || fseek(f, 0, SEEK_SET) != 0)
        goto cleanup;
    /* Exactly as large as the input, so that a sanitizer sees a read past it. */
    data = malloc(size ? (size_t)size : 1);
    if (!data || fread(data, 1, (size_t)size, f) != (size_t)size)
        goto cleanup;
    LLVMFuzzerTestOneInput(data, (size_t)size);
    rc = 0;
cleanup:
    if (rc != 0)
        perror(path);
    free(data);
    fclose(f);
    return rc;
}

/* Returns the number of files replayed, negative on failure. */
static int replay_folder(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) {
        perror(path);
        return -1;
    }
    int n = 0;
    for (struct dirent *entry; n >= 0 && (entry = readdir(dir));) {
        char file[4096];
        if (entry->d_name[0] == '.')
            continue;
        int length = snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (length < 0 || (size_t)length >= sizeof file || replay_file(file) != 0)
            n = -1;
        else
            n++;
    }
    closedir(dir);
    return n;
}

int main(int argc, char **argv) {
    int total = 0;
    for (int i = 1; i < argc; i++) {
        int n = replay_folder(argv[i]);
        if (n < 0)
            return 1;
        total += n;
    }
    printf("%d inputs replayed\n", total);
    return total > 0 ? 0 : 1;
}
