/* Replays which neurons each pass used through neuron caches of several sizes: LRU, LFU and Belady's optimum.
 *
 * Owns: one block's caches. Refuses: files, and an order inside a pass: a token uses its neurons at once, so a hit
 * is a neuron that was held when the pass began, and a policy decides after it what to keep. It may keep any C of
 * the neurons it held and those just used (a neuron can be read and not kept):
 *
 *   lru     those used last; among neurons of one pass, those used more recently before it
 *   lfu     those used most often since the start, counts of dropped neurons kept; then those used last
 *   belady  the best that any policy with that choice can do, knowing the future
 *
 * The first use of a neuron is a compulsory miss for each of them, counted apart. The optimum needs no second
 * reading: the hits of an optimal cache of C neurons are the most spans (from one use of a neuron to its next) that
 * can be chosen with no more than C of them over any moment, and choosing them by their ends, each on the track that
 * was freed last, is optimal and only looks back.
 *
 * Memory: (25 + 16 n_capacities) bytes a neuron, whatever the length of the trace. */
#ifndef TS_STATS_CACHE_REPLAY_H
#define TS_STATS_CACHE_REPLAY_H

#include <stdint.h>

enum ts_cache_policy { TS_CACHE_LRU = 0, TS_CACHE_LFU, TS_CACHE_BELADY, TS_CACHE_POLICIES };
enum { TS_CACHE_MAX_CAPACITIES = 8 };

typedef struct ts_cache_replay ts_cache_replay;

typedef struct ts_cache_counts {
    uint64_t passes, references; /* references: neurons used, summed over passes */
    uint64_t compulsory;         /* first uses, in no hit */
    uint64_t hits[TS_CACHE_POLICIES][TS_CACHE_MAX_CAPACITIES];
} ts_cache_counts;

/* capacity[n]: ascending, 1..width each; width at most 2^30. 0, TS_ERR_ARG or TS_ERR_NOMEM. */
int ts_cache_replay_create(uint32_t width, const uint32_t *capacity, int n, ts_cache_replay **out);
/* The neurons one pass used, each once, in any order (neurons never used before enter in the order given).
 * TS_ERR_ARG, with nothing counted, for an id outside the width or given twice. */
int ts_cache_replay_pass(ts_cache_replay *r, const uint32_t *ids, uint32_t n);
const ts_cache_counts *ts_cache_replay_counts(const ts_cache_replay *r); /* valid as long as r */
void ts_cache_replay_free(ts_cache_replay *r);

#endif
