/* Looks at model files before llama.cpp does. Refuses what is not a GGUF model, is cut short, or lacks a
 * shard. Key types are checked before any value is read: gguf_get_val_* abort on a wrong type. */
#include "host/gguf_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/mem.h"
#include "host/engine.h"
#include "host/gguf_keys.h"

static int check_magic(const char *path, uint64_t *bytes, ts_error *err) {
    struct stat st;
    char magic[4] = {0};
    if (stat(path, &st) != 0) return ts_fail_errno(err, TS_ERR_IO, "cannot open model '%s'", path);
    if (!S_ISREG(st.st_mode)) return ts_fail(err, TS_ERR_IO, "model '%s' is not a regular file", path);
    *bytes = (uint64_t)st.st_size;
    FILE *f = fopen(path, "rb");
    if (!f) return ts_fail_errno(err, TS_ERR_IO, "cannot open model '%s'", path);
    size_t got = fread(magic, 1, sizeof(magic), f);
    fclose(f);
    if (got != sizeof(magic) || memcmp(magic, "GGUF", 4) != 0)
        return ts_fail(err, TS_ERR_FORMAT, "model '%s' is not a GGUF file: it does not begin with 'GGUF'", path);
    return TS_OK;
}

static const char *get_str(const struct gguf_context *g, const char *key) {
    int64_t id = gguf_find_key(g, key);
    return id >= 0 && gguf_get_kv_type(g, id) == GGUF_TYPE_STRING ? gguf_get_val_str(g, id) : NULL;
}

static int get_u16(const struct gguf_context *g, const char *key, int fallback) {
    int64_t id = gguf_find_key(g, key);
    return id >= 0 && gguf_get_kv_type(g, id) == GGUF_TYPE_UINT16 ? gguf_get_val_u16(g, id) : fallback;
}

/* The tensor that reaches furthest must end inside the file. */
static int check_length(const struct gguf_context *g, const char *path, uint64_t bytes, ts_error *err) {
    uint64_t need = gguf_get_data_offset(g);
    for (int64_t i = 0; i < gguf_get_n_tensors(g); i++) {
        uint64_t end = gguf_get_data_offset(g) + gguf_get_tensor_offset(g, i) + gguf_get_tensor_size(g, i);
        if (end > need) need = end;
    }
    if (need > bytes)
        return ts_fail(err, TS_ERR_FORMAT, "model '%s' is cut short: its header promises %llu bytes, the file has %llu", path,
                       (unsigned long long)need, (unsigned long long)bytes);
    return TS_OK;
}

static struct gguf_context *open_header(const char *path, uint64_t *bytes, ts_error *err) {
    if (check_magic(path, bytes, err) != TS_OK) return NULL;
    ts_engine_error_reset();
    struct gguf_init_params params = {.no_alloc = true, .ctx = NULL};
    struct gguf_context *g = gguf_init_from_file(path, params);
    if (!g) {
        const char *why = ts_engine_error();
        ts_fail(err, TS_ERR_FORMAT, "model '%s' has no readable GGUF header (damaged or cut short)%s%s", path, *why ? ": " : "", why);
    }
    return g;
}

static int check_kind(const struct gguf_context *g, const char *path, ts_error *err) {
    const char *arch = get_str(g, "general.architecture");
    const char *type = get_str(g, "general.type");
    if (!arch) return ts_fail(err, TS_ERR_MODEL, "'%s' names no general.architecture: not a model", path);
    if (strcmp(arch, "controlvector") == 0) return ts_fail(err, TS_ERR_MODEL, "'%s' is a control vector, not a model", path);
    if (type && strcmp(type, "model") != 0) return ts_fail(err, TS_ERR_MODEL, "'%s' is of type '%s', not a model", path, type);
    if (gguf_get_n_tensors(g) == 0 && get_u16(g, "split.count", 0) < 2)
        return ts_fail(err, TS_ERR_MODEL, "model '%s' has no tensors: a vocabulary-only file cannot run", path);
    return TS_OK;
}

static int check_shard(const char *path, ts_error *err) {
    uint64_t bytes = 0;
    struct gguf_context *g = open_header(path, &bytes, err);
    if (!g) return err->code;
    int rc = check_length(g, path, bytes, err);
    gguf_free(g);
    return rc;
}

static int add_shards(const char *path, int count, char **shards, size_t *n, ts_error *err) {
    char prefix[4096], name[4096];
    if (llama_split_prefix(prefix, sizeof(prefix), path, 0, count) <= 0)
        return ts_fail(err, TS_ERR_MODEL, "model '%s' is one of %d shards but is not named '...-00001-of-%05d.gguf'", path, count, count);
    for (int i = 0; i < count; i++) {
        llama_split_path(name, sizeof(name), prefix, i, count);
        struct stat st;
        if (stat(name, &st) != 0)
            return ts_fail_errno(err, TS_ERR_MODEL, "shard %d of %d is missing: '%s'", i + 1, count, name);
        int rc = check_shard(name, err);
        if (rc != TS_OK) return rc;
        if (!(shards[i] = ts_strdup(name))) return ts_fail_nomem(err, "shard name", strlen(name));
        *n = (size_t)i + 1;
    }
    return TS_OK;
}

static int list_files(const char *path, int count, char ***shards, size_t *n, ts_error *err) {
    *shards = ts_calloc((size_t)count, sizeof(char *));
    if (!*shards) return ts_fail_nomem(err, "shard list", (size_t)count * sizeof(char *));
    if (count > 1) return add_shards(path, count, *shards, n, err);
    if (!((*shards)[0] = ts_strdup(path))) return ts_fail_nomem(err, "model path", strlen(path));
    *n = 1;
    return TS_OK;
}

int ts_gguf_check(const char *path, char ***shards, size_t *n, ts_error *err) {
    ts_error local = {0};
    if (!err) err = &local;
    *shards = NULL;
    *n = 0;
    uint64_t bytes = 0;
    struct gguf_context *g = open_header(path, &bytes, err);
    if (!g) return err->code;
    int rc = check_kind(g, path, err);
    int count = get_u16(g, "split.count", 1), no = get_u16(g, "split.no", 0);
    if (rc == TS_OK && count > 1 && no != 0)
        rc = ts_fail(err, TS_ERR_MODEL, "'%s' is shard %d of %d: open the first one", path, no + 1, count);
    if (rc == TS_OK) rc = check_length(g, path, bytes, err);
    if (rc == TS_OK) rc = ts_gguf_check_keys(g, get_str(g, "general.architecture"), path, err);
    if (rc == TS_OK) rc = list_files(path, count > 1 ? count : 1, shards, n, err);
    gguf_free(g);
    return rc;
}
