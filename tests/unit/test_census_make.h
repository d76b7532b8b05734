/* Censuses for the tests: recorded from rows through the real accumulators. */
#ifndef TEST_CENSUS_MAKE_H
#define TEST_CENSUS_MAKE_H

#include "test_core_tmp.h"

#include <math.h>

#include "core/file.h"
#include "instrument/ffn_record.h"

/* xorshift: the same rows on every machine */
static inline uint32_t make_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

/* Magnitudes over many octaves, zeros, ties, and now and then a NaN or an infinity. */
static inline float make_value(uint64_t *state) {
    uint32_t r = make_random(state);
    switch (r % 64) {
    case 0:
        return r & 64 ? NAN : INFINITY;
    case 1:
    case 2:
        return 0.0f;
    case 3:
        return -0.5f;
    default:
        return ldexpf((float)(int32_t)make_random(state), (int)(r >> 8 & 31) - 48);
    }
}

static inline ts_ffn_stats *make_stats(const uint32_t *width, uint32_t n_blocks) {
    ts_ffn_stats *s = NULL;
    assert_int_equal(ts_ffn_stats_create(&s, width, n_blocks, NULL), 0);
    return s;
}

/* One generation of n passes of random rows. */
static inline void make_generation(ts_ffn_stats *s, ts_ffn_stats *shared, uint32_t n,
                                   uint64_t *state) {
    static float row[1 << 15];
    ts_ffn_stats *const both[] = {s, shared};
    ts_ffn_note_prefill(s, make_random(state) % 9);
    for (int k = 0; k < 2; k++)
        if (both[k])
            assert_int_equal(ts_ffn_begin_generation(both[k], 0), 0);
    for (uint32_t pass = 0; pass < n; pass++)
        for (int k = 0; k < 2; k++) {
            if (!both[k])
                continue;
            for (uint32_t b = 0; b < both[k]->n_blocks; b++) {
                for (uint32_t i = 0; i < both[k]->blocks[b].width; i++)
                    row[i] = make_value(state);
                if (both[k]->blocks[b].width)
                    assert_int_equal(ts_ffn_record_block(both[k], 0, 0, b, row), 0);
            }
            assert_int_equal(ts_ffn_end_pass(both[k], 0), 0);
        }
}

static inline void make_census(const ts_ffn_stats *s, const ts_ffn_stats *shared, ts_census *c) {
    ts_error err = {0};
    if (ts_ffn_to_census(s, shared, c, &err))
        fail_msg("%s", err.message);
}

static inline ts_provenance make_provenance(ts_shard *shard) {
    *shard = (ts_shard){.path = (char *)(uintptr_t) "folder/model.gguf",
                        .bytes = 12345,
                        .xxh3 = "00112233445566778899aabbccddeeff"};
    return (ts_provenance){.architecture = "llama",
                           .name = "Tiny \"one\"",
                           .description = "a test",
                           .shards = shard,
                           .n_shards = 1,
                           .engine = "llama.cpp 0.5.0",
                           .ggml = "ggml 0.25.1",
                           .devices = "CPU",
                           .flash_attn = "auto",
                           .type_k = "f16",
                           .type_v = "f16",
                           .tap = "redirect",
                           .n_threads = 2,
                           .n_gpu_layers = -1,
                           .n_ctx = 512,
                           .n_batch = 256,
                           .n_ubatch = 128,
                           .n_seq_max = 1,
                           .kv_unified = true,
                           .chat_template = "chatml"};
}

static inline void make_ok(int rc, const ts_error *err) {
    if (rc)
        fail_msg("%s", err->message);
}

/* A new file each time: some file systems flush one that was cut and written again. */
static inline void make_write(const char *path, const void *bytes, size_t n) {
    unlink(path);
    tmp_write(path, bytes, n);
}

static inline char *make_slurp(const char *path, size_t *n) {
    char *bytes;
    ts_error err = {0};
    make_ok(ts_file_get(path, (size_t)1 << 28, &bytes, n, &err), &err);
    return bytes;
}

static inline void make_same_files(const char *a, const char *b) {
    size_t n, m;
    char *x = make_slurp(a, &n), *y = make_slurp(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

static inline void make_same_block(const ts_census_block *a, const ts_census_block *b) {
    assert_int_equal(a->width, b->width);
    if (a->width == 0)
        return;
    assert_int_equal(a->n_rows, b->n_rows);
    assert_int_equal(a->n_pairs, b->n_pairs);
    assert_memory_equal(a->hits, b->hits, sizeof a->hits);
    assert_memory_equal(a->k, b->k, sizeof a->k);
    assert_memory_equal(a->top_p, b->top_p, sizeof a->top_p);
    assert_memory_equal(a->bucket_count, b->bucket_count, sizeof a->bucket_count);
    assert_memory_equal(a->bucket_mass, b->bucket_mass, sizeof a->bucket_mass);
    assert_memory_equal(a->mass, b->mass, a->width * sizeof *a->mass);
    assert_int_equal(a->zeros, b->zeros);
    assert_int_equal(a->nonfinite, b->nonfinite);
    assert_true(a->max_abs == b->max_abs);
    assert_memory_equal(a->fine_count, b->fine_count, TS_CENSUS_FINE_BINS * sizeof *a->fine_count);
    assert_memory_equal(a->fine_mass, b->fine_mass, TS_CENSUS_FINE_BINS * sizeof *a->fine_mass);
}

/* Counts and masses, to the bit; not the sources. */
static inline void make_same(const ts_census *a, const ts_census *b) {
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->inter, b->inter);
    assert_int_equal(a->decode_passes, b->decode_passes);
    assert_int_equal(a->prefill_passes, b->prefill_passes);
    assert_int_equal(a->overlap_pairs, b->overlap_pairs);
    assert_int_equal(a->detailed, b->detailed);
    assert_int_equal(a->shared == NULL, b->shared == NULL);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        make_same_block(&a->dense[i], &b->dense[i]);
        if (a->shared)
            make_same_block(&a->shared[i], &b->shared[i]);
    }
}

#endif
