/* A set of snapshots out of any number of capture files. Owns which rows of each file count and where they stand in the
 * set; keeps few files open, however many there are. Refuses files that are no captures, saying what they are. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "instrument/extract.h"
#include "store/safetensors.h"

enum { KEEP_OPEN = 64 }; /* files of a set; those after them are opened for each row */

/* vLLM's extraction writes a file a prompt, one row a token, the last of which is the prompt's snapshot. It has token_ids
 * beside hidden_states, and neither our positions nor our provenance. */
static int is_one_prompt(const char *path, const ts_capture_file *f, bool *yes, ts_error *err) {
    ts_st_index index;
    int rc;

    *yes = false;
    if (f->format != TS_CAPTURE_SAFETENSORS || f->meta || f->positions)
        return TS_OK;
    rc = ts_st_read_index(path, &index, err);
    if (rc == TS_OK)
        *yes = ts_st_find(&index, "token_ids") != NULL;
    ts_st_index_free(&index);
    return rc;
}

static void close_data(ts_capture_file *f) {
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

static int grow(ts_extract_set *set, ts_error *err) {
    size_t room = set->room ? 2 * set->room : 16;
    ts_extract_source *grown = set->n_sources < set->room ? set->sources : ts_realloc(set->sources, room, sizeof *grown);

    if (!grown)
        return ts_fail_nomem(err, "captures", room * sizeof *grown);
    if (set->n_sources == set->room)
        set->room = room;
    set->sources = grown;
    return TS_OK;
}

int ts_extract_set_add(ts_extract_set *set, const char *path, const char *capture, ts_extract_facts *facts,
                       const ts_extract_options *o, ts_error *err) {
    ts_extract_source *s;
    bool one_prompt = false;
    int rc = grow(set, err);

    if (rc != TS_OK)
        return rc;
    s = &set->sources[set->n_sources];
    *s = (ts_extract_source){.path = ts_strdup(path), .first = set->n};
    if (!s->path)
        return ts_fail_nomem(err, "a path", strlen(path));
    set->n_sources++; /* from here on freed with the set */
    rc = ts_capture_open(capture, &s->file, NULL, err);
    if (rc == TS_OK)
        rc = is_one_prompt(capture, s->file, &one_prompt, err);
    if (rc == TS_OK)
        rc = ts_extract_facts_meet(facts, s->path, s->file, o, err);
    if (rc != TS_OK)
        return rc;
    s->skip = one_prompt ? s->file->shape.n_snapshots - 1 : 0;
    s->n = s->file->shape.n_snapshots - s->skip;
    set->n += s->n;
    if (set->n_sources > KEEP_OPEN) {
        close_data(s->file);
        json_decref(s->file->meta); /* the facts have met it */
        s->file->meta = NULL;
    }
    return TS_OK;
}

/* ---- folders */

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **names, size_t n) {
    for (size_t i = 0; i < n; i++)
        ts_free(names[i]);
    ts_free(names);
}

static int add_name(char ***names, size_t *n, const char *name, ts_error *err) {
    char **grown = ts_realloc(*names, *n + 1, sizeof *grown);

    if (!grown)
        return ts_fail_nomem(err, "names", (*n + 1) * sizeof *grown);
    *names = grown;
    grown[*n] = ts_strdup(name);
    return grown[*n] ? (++*n, TS_OK) : ts_fail_nomem(err, "a name", strlen(name));
}

/* Headers and safetensors of the folder, by name. */
static int list_folder(const char *path, char ***names, size_t *n, ts_error *err) {
    DIR *folder = opendir(path);
    struct dirent *entry;
    int rc = TS_OK;

    if (!folder)
        return ts_fail_errno(err, TS_ERR_IO, "cannot open '%s'", path);
    while (rc == TS_OK && (errno = 0, entry = readdir(folder)) != NULL)
        if (entry->d_name[0] != '.' && (ts_path_has_extension(entry->d_name, "json") ||
                                        ts_path_has_extension(entry->d_name, "safetensors")))
            rc = add_name(names, n, entry->d_name, err);
    if (rc == TS_OK && errno)
        rc = ts_fail_errno(err, TS_ERR_IO, "cannot read '%s'", path);
    closedir(folder);
    if (rc == TS_OK && *n == 0)
        rc = ts_fail(err, TS_ERR_ARG, "'%s' holds no captures: expected .json or .safetensors files", path);
    if (rc == TS_OK)
        qsort(*names, *n, sizeof **names, compare_names);
    return rc;
}

int ts_extract_set_add_folder(ts_extract_set *set, const char *path, ts_extract_facts *facts,
                              const ts_extract_options *o, ts_error *err) {
    size_t n = 0, length = strlen(path);
    char **names = NULL;
    int rc = list_folder(path, &names, &n, err);

    for (size_t i = 0; rc == TS_OK && i < n; i++) {
        ts_buf b = {0};
        char *full;

        ts_buf_text(&b, path);
        ts_buf_text(&b, length && path[length - 1] == '/' ? "" : "/");
        ts_buf_text(&b, names[i]);
        full = ts_buf_take(&b);
        rc = full ? ts_extract_set_add(set, full, full, facts, o, err) : ts_fail_nomem(err, "a path", length);
        ts_free(full);
    }
    free_names(names, n);
    return rc;
}

/* ---- rows */

/* Rows are mostly read in order, so the search begins where the last one ended. */
const ts_extract_source *ts_extract_set_find(ts_extract_set *set, int64_t snapshot) {
    if (snapshot < set->sources[set->at].first)
        set->at = 0;
    while (snapshot >= set->sources[set->at].first + set->sources[set->at].n)
        set->at++;
    return &set->sources[set->at];
}

int ts_extract_set_read(void *user, int64_t snapshot, int32_t layer, int32_t n_layers, float *rows, ts_error *err) {
    ts_extract_set *set = user;
    const ts_extract_source *s = ts_extract_set_find(set, snapshot);
    bool closed = s->file->fd < 0;
    uint64_t size;
    int rc = TS_OK;

    if (set->stop && *set->stop)
        return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted: nothing is written");
    if (closed)
        rc = ts_file_open_read(s->file->data, &s->file->fd, &size, err);
    if (rc == TS_OK)
        rc = ts_capture_read_layers(s->file, snapshot - s->first + s->skip, set->first_layer + layer, n_layers,
                                    rows, err);
    if (closed)
        close_data(s->file);
    return rc;
}

bool ts_extract_set_holds(const ts_extract_set *set, const char *path) {
    for (size_t i = 0; i < set->n_sources; i++) {
        const ts_extract_source *s = &set->sources[i];
        char *meta = ts_path_with_extension(s->path, "meta");
        bool same = ts_file_same(path, s->path) || ts_file_same(path, s->file->data) || (meta && ts_file_same(path, meta));

        ts_free(meta);
        if (same)
            return true;
    }
    return false;
}

void ts_extract_set_free(ts_extract_set *set) {
    for (size_t i = 0; i < set->n_sources; i++) {
        ts_capture_close(set->sources[i].file);
        ts_free(set->sources[i].path);
    }
    ts_free(set->sources);
    *set = (ts_extract_set){0};
}
