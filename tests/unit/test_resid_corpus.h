/* A small corpus for the tests of the capture writer, and what they do with folders and files. */
#ifndef TEST_RESID_CORPUS_H
#define TEST_RESID_CORPUS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/file.h"
#include "store/resid_out.h"

/* ---------------------------------------------------------------- a small corpus */

enum { LAYERS = 3, HIDDEN = 5, PROMPTS = 7, NAME = 512 };

static uint64_t n_prompts = PROMPTS; /* of capture() */
static const int32_t layer_ids[LAYERS] = {0, 1, 2};

static inline ts_provenance provenance(ts_shard *shard) {
    ts_provenance p = {.architecture = "llama",
                       .name = "Tiny \"one\"",
                       .description = "llama 1M F32",
                       .engine = "llama.cpp 0.5.0",
                       .ggml = "ggml 0.25.1",
                       .devices = "CPU",
                       .flash_attn = "auto",
                       .type_k = "f16",
                       .type_v = "f16",
                       .tap = "redirect",
                       .n_threads = 2,
                       .n_ctx = 4096,
                       .n_batch = 2048,
                       .n_ubatch = 512,
                       .n_seq_max = 1,
                       .kv_unified = true,
                       .adds_bos = true};
    *shard = (ts_shard){
        .path = (char *)"dir/tiny.gguf", .bytes = 123, .xxh3 = "0123456789abcdef0123456789abcdef"};
    p.shards = shard;
    p.n_shards = 1;
    return p;
}

static inline float value(uint64_t row, int32_t l, int32_t i) {
    if (row == 4 && l == 1 && i == 2)
        return NAN;
    if (row == 5 && l == 1 && i == 0)
        return -INFINITY;
    return (float)((double)(row + 1) * 0.37 - (double)l * 1.5 + (double)i * 0.01);
}

/* Prompt p has one snapshot, an odd one two; the tokens come with the first. */
static inline int add_prompt(ts_resid_out *o, uint64_t p, uint64_t *rows, ts_error *err) {
    const int32_t tokens[3] = {1, (int32_t)p, 31999};
    int rc = TS_OK;
    for (int k = 0; rc == TS_OK && k < (p % 2 ? 2 : 1); k++) {
        float x[LAYERS * HIDDEN];
        ts_resid_row row = {.prompt_index = (int64_t)p,
                            .position = k,
                            .token = tokens[k],
                            .piece = p == 3   ? "\xff\n\""
                                     : p == 1 ? "[1, 2"
                                              : " caf\xc3\xa9",
                            .piece_length = p == 3   ? 3
                                            : p == 1 ? 5
                                                     : 6,
                            .prompt_tokens = k ? NULL : tokens,
                            .n_prompt_tokens = k ? 0 : 3,
                            .label = p == 2 ? "pos \"[9]\"" : NULL};
        for (int32_t l = 0; l < LAYERS; l++)
            for (int32_t i = 0; i < HIDDEN; i++)
                x[l * HIDDEN + i] = value(*rows, l, i);
        rc = ts_resid_out_add(o, x, &row, err);
        ++*rows;
    }
    return rc;
}

static inline ts_resid_spec spec_of(const char *path, bool overwrite) {
    bool pair = ts_path_has_extension(path, "json");
    return (ts_resid_spec){.path = path,
                           .format = pair ? TS_CAPTURE_F32 : TS_CAPTURE_SAFETENSORS,
                           .n_layers = LAYERS,
                           .n_hidden = HIDDEN,
                           .layer_ids = layer_ids,
                           .plan_hash = "00ff",
                           .resume = true,
                           .overwrite = overwrite};
}

/* The whole capture, from where an earlier process left it; a checkpoint after every second prompt.
 */
static inline int capture(const char *path, bool overwrite, ts_error *err) {
    ts_resid_spec spec = spec_of(path, overwrite);
    ts_resid_out *o;
    ts_resid_done done;
    ts_shard shard;
    ts_provenance p = provenance(&shard);
    int rc = ts_resid_out_open(&spec, &o, &done, err);
    if (rc < 0)
        return rc;
    uint64_t rows = done.rows;
    for (uint64_t i = done.prompts; rc == TS_OK && i < n_prompts; i++) {
        rc = add_prompt(o, i, &rows, err);
        if (rc == TS_OK && i % 2 == 1) {
            const ts_resid_done now = {
                .prompts = i + 1, .batches = (i + 1) / 2, .tokens = 3 * (i + 1)};
            rc = ts_resid_out_checkpoint(o, &now, err);
        }
    }
    if (rc < 0) {
        ts_resid_out_abandon(o, false);
        return rc;
    }
    return ts_resid_out_finish(o, &p, "[{\"site\": \"resid\"}]", false, err);
}

/* ---------------------------------------------------------------- folders and bytes */

static inline void empty_folder(const char *name) {
    char path[NAME];
    DIR *d = opendir(name);
    const struct dirent *e;
    if (d == NULL) {
        assert_int_equal(mkdir(name, 0777), 0);
        return;
    }
    while ((e = readdir(d)) != NULL)
        if (e->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", name, e->d_name);
            unlink(path);
        }
    closedir(d);
}

static inline int count_files(const char *name) {
    int n = 0;
    DIR *d = opendir(name);
    const struct dirent *e;
    while (d != NULL && (e = readdir(d)) != NULL)
        n += e->d_name[0] != '.';
    if (d != NULL)
        closedir(d);
    return n;
}

static inline bool exists(const char *folder, const char *name) {
    char path[NAME];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &st) == 0;
}

static inline void slurp(const char *folder, const char *name, char **bytes, size_t *n) {
    char path[NAME];
    ts_error err = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (ts_file_get(path, 1 << 24, bytes, n, &err) != TS_OK)
        fail_msg("%s", err.message);
}

static inline void same_file(const char *a, const char *b, const char *name) {
    size_t n, m;
    char *x, *y;
    slurp(a, name, &x, &n);
    slurp(b, name, &y, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    ts_free(x);
    ts_free(y);
}

static inline void same_result(const char *a, const char *b, bool pair) {
    same_file(a, b, pair ? "x.json" : "x.safetensors");
    if (pair) {
        same_file(a, b, "x.f32");
        same_file(a, b, "x.meta");
    }
    assert_int_equal(count_files(b), pair ? 3 : 1);
}

static inline const char *result_in(char path[NAME], const char *folder, bool pair) {
    snprintf(path, NAME, "%s/%s", folder, pair ? "x.json" : "x.safetensors");
    return path;
}

#endif
