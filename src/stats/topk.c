/*
 * Nested top-K selection over a row histogram.
 * Owns cuts, groups and ties; refuses to order more of the row than the bins the cuts fall in.
 */
#include "core/mem.h"
#include "stats/topk.h"

#include <stdlib.h>

enum { N_SETS = TS_FFN_N_SETS };

/* Where each set ends: in bin[j] (-1: the set holds every finite value), of which it takes take[j].
 */
typedef struct cuts {
    int16_t bin[N_SETS];
    uint32_t take[N_SETS];
} cuts;

/* The values of one cut's bin, in grouped[start .. end - 1]; sets first_set .. end_set - 1 end
 * there. */
typedef struct group {
    int first_set, end_set;
    uint32_t start, end;
} group;

int ts_topk_init(ts_topk *t, uint32_t max_width) {
    size_t n = (size_t)max_width + 4; /* list_bits writes up to four more than it lists */

    t->undecided = ts_malloc((n / 64 + 1) * sizeof *t->undecided);
    t->listed = ts_malloc(n * sizeof *t->listed);
    t->grouped = ts_malloc(n * sizeof *t->grouped);
    t->key = ts_malloc(n * sizeof *t->key);
    return t->undecided && t->listed && t->grouped && t->key ? 0 : -1;
}

void ts_topk_free(ts_topk *t) {
    free(t->undecided);
    free(t->listed);
    free(t->grouped);
    free(t->key);
    *t = (ts_topk){NULL, NULL, NULL, NULL};
}

static void find_cuts(const ts_row_hist *rh, const uint32_t *size, cuts *c) {
    uint32_t above = 0;
    int j = 0;

    for (int i = 0; i < rh->n_octaves && j < N_SETS; i++) {
        int octave = rh->octave[i];
        uint32_t in_octave = ts_cell_count(rh->octave_cell[octave]);

        if (above + in_octave < size[j]) {
            above += in_octave;
            continue;
        }
        for (int b = (octave + 1) * TS_HIST_STEPS - 1; b >= octave * TS_HIST_STEPS; b--) {
            uint32_t count = ts_cell_count(rh->cell[0][b]);

            for (; j < N_SETS && above + count >= size[j]; j++) {
                c->bin[j] = (int16_t)b;
                c->take[j] = size[j] - above;
            }
            above += count;
        }
    }
    for (; j < N_SETS; j++)
        c->bin[j] = -1;
}

/* Groups the cuts by bin: groups[j] for the first set j of each. */
static void find_groups(const ts_row_hist *rh, const cuts *c, group groups[N_SETS]) {
    uint32_t start = 0;
    int end;

    for (int j = 0; j < N_SETS && c->bin[j] >= 0; j = end) {
        for (end = j + 1; end < N_SETS && c->bin[end] == c->bin[j];)
            end++;
        groups[j] = (group){j, end, start, start};
        start += ts_cell_count(rh->cell[0][c->bin[j]]);
    }
}

/* Appends first + the number of each bit set. Four at a time, since a branch for each would be a
 * coin toss. */
static inline size_t list_bits(uint32_t *list, size_t n, uint32_t first, uint64_t bits) {
    do {
        TS_UNROLL for (int k = 0; k < 4; k++) {
            list[n] = first + (uint32_t)__builtin_ctzll(bits | UINT64_C(1) << 63);
            n += bits != 0;
            bits &= bits - 1;
        }
    } while (bits != 0);
    return n;
}

/* Sorts the undecided values into their groups, in order of index. An undecided level is its
 * group's first set. */
static void fill_groups(ts_topk *t, const ts_row *row, const uint8_t *level, group groups[N_SETS]) {
    size_t n = 0;

    for (uint32_t i = 0; i < row->n; i += 64)
        n = list_bits(t->listed, n, i, t->undecided[i / 64]);
    for (size_t i = 0; i < n; i++) {
        uint32_t index = t->listed[i];
        group *g = &groups[level[index]];

        t->grouped[g->end] = index;
        t->key[g->end++] = ts_abs_bits(row->value + index);
    }
}

static uint32_t count_from(const uint32_t *key, uint32_t n, uint32_t threshold) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++)
        count += key[i] >= threshold;
    return count;
}

/*
 * The largest threshold that at least `take` keys reach, or the first one found that exactly `take`
 * do. All keys agree outside the bits of differing.
 */
static uint32_t find_threshold(const uint32_t *key, uint32_t n, uint32_t differing, uint32_t take) {
    uint32_t threshold = key[0] & ~differing;

    for (int b = TS_HIST_SHIFT - 1; b >= 0; b--) {
        uint32_t bit = UINT32_C(1) << b, count;

        if (!(differing & bit))
            continue;
        count = count_from(key, n, threshold | bit);
        if (count >= take)
            threshold |= bit;
        if (count == take)
            break;
    }
    return threshold;
}

/* Raises the level of every value of the group that a set leaves out. */
static void close_set(const uint32_t *key, const uint32_t *index, uint32_t n, uint32_t differing,
                      uint32_t take, uint8_t *level) {
    uint32_t threshold = find_threshold(key, n, differing, take);
    uint32_t equal_left = take - count_from(key, n, threshold + 1);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t equal = (uint32_t)(key[i] == threshold) & (uint32_t)(equal_left > 0);

        equal_left -= equal;
        level[index[i]] =
            (uint8_t)(level[index[i]] + (((uint32_t)(key[i] > threshold) | equal) ^ 1));
    }
}

/* The same for all sets of a group of equal values (the zeros of a sparse row), where the index
 * decides. */
static void close_equal(const group *g, const cuts *c, const uint32_t *index, uint8_t *level) {
    uint32_t i = 0;

    for (int j = g->first_set; j <= g->end_set; j++) {
        uint32_t end = j < g->end_set ? c->take[j] : g->end - g->start;

        for (; i < end; i++)
            level[index[i]] = (uint8_t)j;
    }
}

static void close_group(const ts_topk *t, const group *g, const cuts *c, uint8_t *level) {
    const uint32_t *key = t->key + g->start, *index = t->grouped + g->start;
    uint32_t n = g->end - g->start, differing = 0;

    for (uint32_t i = 1; i < n; i++)
        differing |= key[i] ^ key[0];
    if (differing == 0) {
        close_equal(g, c, index, level);
        return;
    }
    for (int j = g->first_set; j < g->end_set; j++)
        close_set(key, index, n, differing, c->take[j], level);
}

/* A non-finite value's bin is above every cut, but it is in no set. */
static void exclude_nonfinite(const ts_row *row, uint8_t *level) {
    for (uint32_t i = 0; i < row->n; i++) {
        if (row->bin[i] >= TS_HIST_N_BINS)
            level[i] = N_SETS;
    }
}

void ts_topk_levels(ts_topk *t, const ts_ffn_kernel *kernel, const ts_row_hist *rh,
                    const ts_row *row, const uint32_t size[TS_FFN_N_SETS], uint8_t *level) {
    cuts c;
    group groups[N_SETS];

    find_cuts(rh, size, &c);
    find_groups(rh, &c, groups);
    kernel->classify(row->bin, row->n, c.bin, level, t->undecided);
    fill_groups(t, row, level, groups);
    for (int j = 0; j < N_SETS && c.bin[j] >= 0; j = groups[j].end_set)
        close_group(t, &groups[j], &c, level);
    if (rh->n_nonfinite > 0)
        exclude_nonfinite(row, level);
}
