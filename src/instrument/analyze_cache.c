/* Owns the caches of all blocks of a model during a replay, and what they add up to. Refuses files. */
#include "instrument/analyze.h"

#include <math.h>
#include <stdlib.h>

#include "core/mem.h"

const unsigned ts_cache_percent[TS_N_CAPACITIES] = {5, 10, 20, 30, 50, 75, 100};

static int init_block(ts_analyze_cache *c, const ts_census *census, uint32_t il) {
    uint32_t width = census->dense[il].width;

    c->bytes_per_neuron[il] =
        census->detailed && census->down_bytes[il]
            ? (double)(census->gate_bytes[il] + census->up_bytes[il] + census->down_bytes[il]) / width
            : NAN;
    c->width[il] = width;
    for (int i = 0; i < TS_N_CAPACITIES; i++)
        c->capacity[il][i] = (uint32_t)(((uint64_t)width * ts_cache_percent[i] + 99) / 100);
    return ts_cache_replay_create(width, c->capacity[il], TS_N_CAPACITIES, &c->replays[il]);
}

int ts_analyze_cache_init(ts_analyze_cache *c, const ts_census *census, ts_error *err) {
    size_t n = census->n_layers;
    int rc = TS_OK;

    *c = (ts_analyze_cache){.n_layers = census->n_layers};
    c->replays = ts_calloc(n, sizeof *c->replays);
    c->bytes_per_neuron = ts_calloc(n, sizeof *c->bytes_per_neuron);
    c->width = ts_calloc(n, sizeof *c->width);
    c->capacity = ts_calloc(n, sizeof *c->capacity);
    if (!c->replays || !c->bytes_per_neuron || !c->width || !c->capacity)
        rc = TS_ERR_NOMEM;
    for (uint32_t il = 0; il < census->n_layers && rc == TS_OK; il++)
        if (census->dense[il].width > 0)
            rc = init_block(c, census, il);
    if (rc == TS_OK)
        return TS_OK;
    ts_analyze_cache_free(c);
    return ts_fail_nomem(err, "the caches to replay", n * census->inter * 137);
}

int ts_analyze_cache_pass(ts_analyze_cache *c, uint32_t block, const uint32_t *ids, uint32_t n, ts_error *err) {
    int rc;

    if (block >= c->n_layers || !c->replays[block])
        return ts_fail(err, TS_ERR_FORMAT, "block %u has no dense FFN", block);
    rc = ts_cache_replay_pass(c->replays[block], ids, n);
    if (rc == TS_ERR_NOMEM)
        return ts_fail_nomem(err, "the caches to replay", (size_t)c->width[block] * 8);
    if (rc != TS_OK)
        return ts_fail(err, TS_ERR_FORMAT, "block %u names a neuron twice in a pass, or one of %u or more", block,
                       c->width[block]);
    c->fewest_ids = c->most_ids == 0 || n < c->fewest_ids ? n : c->fewest_ids;
    c->most_ids = n > c->most_ids ? n : c->most_ids;
    return TS_OK;
}

/* NULL for a block that nothing was replayed of. */
static const ts_cache_counts *counts_of(const ts_analyze_cache *c, uint32_t il) {
    const ts_cache_counts *one = c->replays[il] ? ts_cache_replay_counts(c->replays[il]) : NULL;

    return one && one->passes ? one : NULL;
}

ts_cache_counts ts_analyze_cache_sums(const ts_analyze_cache *c) {
    ts_cache_counts sum = {0};

    for (uint32_t il = 0; il < c->n_layers; il++) {
        const ts_cache_counts *one = counts_of(c, il);

        if (!one)
            continue;
        sum.passes = one->passes > sum.passes ? one->passes : sum.passes;
        sum.references += one->references;
        sum.compulsory += one->compulsory;
        for (int p = 0; p < TS_CACHE_POLICIES; p++)
            for (int i = 0; i < TS_N_CAPACITIES; i++)
                sum.hits[p][i] += one->hits[p][i];
    }
    return sum;
}

ts_cache_line ts_analyze_cache_line(const ts_analyze_cache *c, int32_t block, int capacity) {
    ts_cache_line line = {0};
    double held = 0, width = 0, uses = 0;

    for (uint32_t il = 0; il < c->n_layers; il++) {
        const ts_cache_counts *one = counts_of(c, il);
        double again;

        if (!one || (block >= 0 && (uint32_t)block != il))
            continue;
        again = (double)(one->references - one->compulsory);
        held += c->capacity[il][capacity];
        width += c->width[il];
        uses += again;
        for (int p = 0; p < TS_CACHE_POLICIES; p++) {
            double hits = (double)one->hits[p][capacity];

            line.rate[p] += hits;
            line.bytes[p] += (again - hits) * c->bytes_per_neuron[il] / (double)one->passes;
        }
    }
    line.chance = width > 0 ? held / width : NAN;
    for (int p = 0; p < TS_CACHE_POLICIES; p++)
        line.rate[p] = uses > 0 ? line.rate[p] / uses : NAN;
    return line;
}

double ts_analyze_cache_bytes(const ts_analyze_cache *c) {
    double bytes = 0;

    for (uint32_t il = 0; il < c->n_layers; il++) {
        const ts_cache_counts *one = counts_of(c, il);

        if (one)
            bytes += (double)one->references * c->bytes_per_neuron[il] / (double)one->passes;
    }
    return bytes;
}

int ts_analyze_cache_control(const ts_analyze_cache *c, ts_error *err) {
    for (uint32_t il = 0; il < c->n_layers; il++) {
        const ts_cache_counts *one = counts_of(c, il);

        for (int p = 0; one && p < TS_CACHE_POLICIES; p++)
            if (one->hits[p][TS_N_CAPACITIES - 1] != one->references - one->compulsory)
                return ts_fail(err, TS_ERR_STATE, "the replay is wrong: block %u misses with room for every neuron",
                               il);
    }
    return TS_OK;
}

void ts_analyze_cache_free(ts_analyze_cache *c) {
    for (uint32_t il = 0; c->replays && il < c->n_layers; il++)
        ts_cache_replay_free(c->replays[il]);
    free(c->replays);
    free(c->bytes_per_neuron);
    free(c->width);
    free(c->capacity);
    *c = (ts_analyze_cache){0};
}
