/* test_archs: prints the table of architectures.
 *
 *   test_archs                  all of them
 *   test_archs --check FILE     and fails when FILE holds another table
 *   test_archs --update FILE    and writes it there
 *   test_archs RECIPE...        these tiny models only; ARCH_VERBOSE=1 lists their sites, ARCH_GPU_LAYERS=N offloads
 *
 * Fails when a comparison does not hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch_table.h"

static bool wanted(const arch_row *row, char **names, int n_names) {
    for (int i = 0; i < n_names; i++)
        if (row->recipe && strcmp(row->recipe, names[i]) == 0) return true;
    return n_names == 0;
}

static void *need(void *p) {
    if (p) return p;
    fputs("test_archs: out of memory\n", stderr);
    exit(2);
}

static char *slurp(FILE *f) {
    long n = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    char *text = need(calloc(1, n > 0 ? (size_t)n + 1 : 1));
    rewind(f);
    if (n > 0 && fread(text, 1, (size_t)n, f) != (size_t)n) text[0] = '\0';
    return text;
}

/* 0 when `path` holds `text`, else says where it begins to differ. */
static int compare(const char *path, const char *text) {
    FILE *f = fopen(path, "r");
    char *old = f ? slurp(f) : need(calloc(1, 1));
    const char *a = old, *b = text;
    int line = 1;
    if (f) fclose(f);
    for (; *a && *a == *b; a++, b++) line += *a == '\n';
    int differs = *a != *b;
    if (differs) fprintf(stderr, "test_archs: '%s' differs from the table above from line %d on; make test-archs UPDATE=1 writes it\n", path, line);
    free(old);
    return differs;
}

static int update(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    if (f && fputs(text, f) >= 0 && fclose(f) == 0) return 0;
    perror(path);
    return 1;
}

static size_t plan(arch_entry *entries, arch_job *jobs, char **names, int n_names, size_t *n_jobs) {
    size_t n = 0;
    for (const arch_row *row = arch_list; row->arch; row++) {
        if (!wanted(row, names, n_names)) continue;
        arch_entry *e = &entries[n++];
        *e = (arch_entry){.row = row};
        if (!row->recipe) continue;
        e->memory = &jobs[(*n_jobs)++];
        e->file = &jobs[(*n_jobs)++];
        *e->memory = (arch_job){.recipe = row->recipe};
        *e->file = (arch_job){.recipe = row->recipe, .as_file = true};
    }
    return n;
}

int main(int argc, char **argv) {
    const char *mode = argc == 3 && argv[1][0] == '-' ? argv[1] : "", *path = *mode ? argv[2] : NULL;
    size_t n_rows = 0, n_jobs = 0;
    arch_counts counts;
    while (arch_list[n_rows].arch) n_rows++;
    arch_entry *entries = need(calloc(n_rows, sizeof(*entries)));
    arch_job *jobs = need(calloc(2 * n_rows, sizeof(*jobs)));
    setenv("GGML_NO_BACKTRACE", "1", 1);
    size_t n = plan(entries, jobs, *mode ? NULL : argv + 1, *mode ? 0 : argc - 1, &n_jobs);
    arch_run(jobs, n_jobs);

    FILE *table = need(tmpfile());
    arch_table_print(table, entries, n, &counts);
    char *text = slurp(table);
    fclose(table);
    fputs(text, stdout);
    fflush(stdout);
    int failed = counts.wrong > 0;
    if (failed) fprintf(stderr, "test_archs: a comparison did not hold for %d models, see their notes\n", counts.wrong);
    if (strcmp(mode, "--check") == 0) failed |= compare(path, text);
    if (strcmp(mode, "--update") == 0) failed |= update(path, text);
    free(text);
    free(entries);
    free(jobs);
    return failed;
}
