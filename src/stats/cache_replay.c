/* Owns the three caches of one block. All capacities are replayed at once: LRU and LFU hold, at every capacity, the
 * first C of one list of neurons, so a neuron's place in the list says which capacities hit. */
#include "stats/cache_replay.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"

/* Moments, numbered from 2 in the order of the passes; tracks of a capacity are counted at the moment they became
 * free. `next_lower[t]` leads towards the latest moment not after t that has tracks: t itself where it has some. */
enum { NEVER = 0, BEGINNING = 1 };

typedef struct timeline {
    uint32_t *tracks, *next_lower; /* [n_moments] */
} timeline;

struct ts_cache_replay {
    uint32_t width, n_seen;
    int n_capacities;
    uint32_t capacity[TS_CACHE_MAX_CAPACITIES];
    ts_cache_counts counts;
    uint32_t *lru, *lfu; /* [width] the n_seen neurons used so far, the first to keep first */
    uint32_t *scratch;   /* [width] */
    uint64_t *uses;      /* [width] */
    uint32_t *last;      /* [width] moment of the last use, or NEVER */
    uint8_t *in_pass;    /* [width] */
    uint32_t n_moments, now;
    timeline line[TS_CACHE_MAX_CAPACITIES];
};

static bool allocate(ts_cache_replay *r) {
    bool ok;

    r->lru = ts_calloc(r->width, sizeof *r->lru);
    r->lfu = ts_calloc(r->width, sizeof *r->lfu);
    r->scratch = ts_calloc(r->width, sizeof *r->scratch);
    r->uses = ts_calloc(r->width, sizeof *r->uses);
    r->last = ts_calloc(r->width, sizeof *r->last);
    r->in_pass = ts_calloc(r->width, sizeof *r->in_pass);
    ok = r->lru && r->lfu && r->scratch && r->uses && r->last && r->in_pass;
    for (int c = 0; c < r->n_capacities && ok; c++) {
        r->line[c].tracks = ts_calloc(r->n_moments, sizeof(uint32_t));
        r->line[c].next_lower = ts_calloc(r->n_moments, sizeof(uint32_t));
        ok = r->line[c].tracks && r->line[c].next_lower;
    }
    return ok;
}

int ts_cache_replay_create(uint32_t width, const uint32_t *capacity, int n, ts_cache_replay **out) {
    ts_cache_replay *r;

    *out = NULL;
    if (n < 1 || n > TS_CACHE_MAX_CAPACITIES || width > UINT32_C(1) << 30)
        return TS_ERR_ARG;
    for (int c = 0; c < n; c++)
        if (capacity[c] < 1 || capacity[c] > width || (c && capacity[c] < capacity[c - 1]))
            return TS_ERR_ARG;
    r = ts_calloc(1, sizeof *r);
    if (!r)
        return TS_ERR_NOMEM;
    r->width = width;
    r->n_capacities = n;
    memcpy(r->capacity, capacity, (size_t)n * sizeof *capacity);
    r->n_moments = 2 * width + 8; /* renumbering leaves width + 2 at most */
    r->now = BEGINNING;
    if (!allocate(r)) {
        ts_cache_replay_free(r);
        return TS_ERR_NOMEM;
    }
    for (int c = 0; c < n; c++) {
        r->line[c].tracks[BEGINNING] = capacity[c];
        r->line[c].next_lower[BEGINNING] = BEGINNING;
    }
    *out = r;
    return TS_OK;
}

void ts_cache_replay_free(ts_cache_replay *r) {
    if (!r)
        return;
    for (int c = 0; c < r->n_capacities; c++) {
        free(r->line[c].tracks);
        free(r->line[c].next_lower);
    }
    free(r->lru);
    free(r->lfu);
    free(r->scratch);
    free(r->uses);
    free(r->last);
    free(r->in_pass);
    free(r);
}

const ts_cache_counts *ts_cache_replay_counts(const ts_cache_replay *r) {
    return &r->counts;
}

static bool mark_pass(ts_cache_replay *r, const uint32_t *ids, uint32_t n) {
    uint32_t i = 0;

    while (i < n && ids[i] < r->width && !r->in_pass[ids[i]])
        r->in_pass[ids[i++]] = 1;
    if (i == n)
        return true;
    while (i-- > 0)
        r->in_pass[ids[i]] = 0;
    return false;
}

/* Counts each used neuron as a hit of every capacity that its place in the list is inside of. */
static void count_hits(const ts_cache_replay *r, const uint32_t *list, uint64_t *hits) {
    uint64_t found = 0;
    uint32_t place = 0;

    for (int c = 0; c < r->n_capacities; c++) {
        for (; place < r->n_seen && place < r->capacity[c]; place++)
            found += r->in_pass[list[place]];
        hits[c] += found;
    }
}

/* Splits a list into the neurons of this pass, which go to the end of `scratch` in reverse of their order, followed by
 * those used for the first time, and the others, which stay in front of `list`. Returns the number of the others. */
static uint32_t split_list(ts_cache_replay *r, uint32_t *list, const uint32_t *ids, uint32_t n) {
    uint32_t others = 0, used = r->width;

    for (uint32_t i = 0; i < r->n_seen; i++) {
        if (r->in_pass[list[i]])
            r->scratch[--used] = list[i];
        else
            list[others++] = list[i];
    }
    for (uint32_t i = 0; i < n; i++)
        if (r->last[ids[i]] == NEVER)
            r->scratch[--used] = ids[i];
    return others;
}

static void update_lru(ts_cache_replay *r, const uint32_t *ids, uint32_t n) {
    uint32_t others = split_list(r, r->lru, ids, n);

    memmove(r->lru + n, r->lru, others * sizeof *r->lru);
    for (uint32_t i = 0; i < n; i++)
        r->lru[i] = r->scratch[r->width - 1 - i];
}

/* Merges from the end, where there is room: by uses, and of equals those of this pass come first. */
static void update_lfu(ts_cache_replay *r, const uint32_t *ids, uint32_t n) {
    uint32_t others = split_list(r, r->lfu, ids, n), place = others + n, used = r->width - n;

    for (uint32_t i = 0; i < n; i++)
        r->uses[ids[i]]++;
    while (used < r->width) {
        uint32_t last = r->scratch[used];

        if (others && r->uses[r->lfu[others - 1]] <= r->uses[last])
            r->lfu[--place] = r->lfu[--others];
        else
            r->lfu[--place] = r->scratch[used++];
    }
}

static uint32_t latest_free(timeline *l, uint32_t moment) {
    while (l->next_lower[moment] != moment) {
        l->next_lower[moment] = l->next_lower[l->next_lower[moment]];
        moment = l->next_lower[moment];
    }
    return moment; /* NEVER, which leads to itself, when there is none */
}

/* Takes a track for each span that ends now; all of them are free again at this moment. */
static uint64_t take_tracks(const ts_cache_replay *r, timeline *l, const uint32_t *ids, uint32_t n) {
    uint32_t taken = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t free_at = latest_free(l, r->last[ids[i]]);

        if (free_at == NEVER)
            continue;
        taken++;
        if (--l->tracks[free_at] == 0)
            l->next_lower[free_at] = free_at - 1;
    }
    l->tracks[r->now] = taken;
    l->next_lower[r->now] = taken ? r->now : r->now - 1;
    return taken;
}

/* Tracks freed at a moment that no neuron was last used at serve whom the next such moment's serve. */
static void renumber_line(timeline *l, const uint32_t *number, uint32_t now, uint32_t n) {
    for (uint32_t old = BEGINNING, tracks = 0; old <= now; old++) {
        tracks += l->tracks[old];
        l->tracks[old] = 0;
        if (number[old]) {
            l->tracks[number[old]] = tracks; /* number[old] <= old: not read again */
            tracks = 0;
        }
    }
    for (uint32_t t = BEGINNING; t <= n; t++)
        l->next_lower[t] = l->tracks[t] ? t : t - 1;
}

/* Makes room on the timelines: keeps only moments at which some neuron was last used, and the last one. */
static int renumber(ts_cache_replay *r) {
    uint32_t *number = ts_calloc(r->n_moments, sizeof *number), n = 0; /* new number, 0 = dropped */

    if (!number)
        return TS_ERR_NOMEM;
    for (uint32_t i = 0; i < r->width; i++)
        number[r->last[i]] = 1;
    number[NEVER] = 0;
    number[r->now] = 1;
    for (uint32_t t = BEGINNING; t <= r->now; t++)
        if (number[t])
            number[t] = ++n;
    for (uint32_t i = 0; i < r->width; i++)
        r->last[i] = number[r->last[i]];
    for (int c = 0; c < r->n_capacities; c++)
        renumber_line(&r->line[c], number, r->now, n);
    r->now = n;
    free(number);
    return TS_OK;
}

int ts_cache_replay_pass(ts_cache_replay *r, const uint32_t *ids, uint32_t n) {
    uint32_t fresh = 0;
    int rc;

    if (!mark_pass(r, ids, n))
        return TS_ERR_ARG;
    rc = r->now + 1 < r->n_moments ? TS_OK : renumber(r);
    if (rc == TS_OK) {
        r->now++;
        count_hits(r, r->lru, r->counts.hits[TS_CACHE_LRU]);
        count_hits(r, r->lfu, r->counts.hits[TS_CACHE_LFU]);
        for (int c = 0; c < r->n_capacities; c++)
            r->counts.hits[TS_CACHE_BELADY][c] += take_tracks(r, &r->line[c], ids, n);
        update_lru(r, ids, n);
        update_lfu(r, ids, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        r->in_pass[ids[i]] = 0;
        if (rc == TS_OK) {
            fresh += r->last[ids[i]] == NEVER;
            r->last[ids[i]] = r->now;
        }
    }
    if (rc != TS_OK)
        return rc;
    r->n_seen += fresh;
    r->counts.compulsory += fresh;
    r->counts.passes++;
    r->counts.references += n;
    return TS_OK;
}
