/*
 * Nested top-K selection over a row histogram.
 * Owns cuts, groups and ties; refuses to order more of the row than the bins the cuts fall in.
 */
#include "stats/topk.h"

#include <stdlib.h>

enum { UNDECIDED = 0x80 };

/* Where set j ends: in this bin (-1: the set holds every finite value), of which it takes this many. */
typedef struct cut {
    int bin;
    uint32_t take;
} cut;

/* The sets that end in one bin, first_set .. end_set - 1, and the bin's values in grouped[start .. end - 1]. */
typedef struct group {
    int first_set, end_set;
    uint32_t start, end;
} group;

int ts_topk_init(ts_topk *t, uint32_t max_width)
{
    size_t n = (size_t)max_width + 1;

    t->undecided = malloc(n * sizeof *t->undecided);
    t->grouped = malloc(n * sizeof *t->grouped);
    t->key = malloc(n * sizeof *t->key);
    return t->undecided && t->grouped && t->key ? 0 : -1;
}

void ts_topk_free(ts_topk *t)
{
    free(t->undecided);
    free(t->grouped);
    free(t->key);
    t->undecided = t->grouped = t->key = NULL;
}

static void find_cuts(const ts_row_hist *rh, const uint32_t *size, int n_sets, cut *cuts)
{
    uint32_t above = 0;
    int j = 0;

    for (int i = 0; i < rh->n_octaves && j < n_sets; i++) {
        int octave = rh->octave[i];
        uint32_t in_octave = ts_cell_count(rh->octave_cell[octave]);

        if (above + in_octave < size[j]) {
            above += in_octave;
            continue;
        }
        for (int b = (octave + 1) * TS_HIST_STEPS - 1; b >= octave * TS_HIST_STEPS; b--) {
            uint32_t count = ts_cell_count(rh->cell[0][b]);

            for (; j < n_sets && above + count >= size[j]; j++)
                cuts[j] = (cut){ b, size[j] - above };
            above += count;
        }
    }
    for (; j < n_sets; j++)
        cuts[j] = (cut){ -1, 0 };
}

/* Fills level_of for every bin of the row; returns the number of groups. */
static int plan_bins(ts_topk *t, const ts_row_hist *rh, const cut *cuts, int n_sets, group *groups)
{
    int top = rh->n_octaves > 0 ? (rh->octave[0] + 1) * TS_HIST_STEPS : 0; /* one past what is left to fill */
    int bottom = rh->n_octaves > 0 ? rh->octave[rh->n_octaves - 1] * TS_HIST_STEPS : 0;
    uint32_t start = 0;
    int n_groups = 0, j = 0;

    while (j < n_sets && cuts[j].bin >= 0) {
        int bin = cuts[j].bin;
        group *g = &groups[n_groups];

        memset(t->level_of + bin + 1, j, (size_t)(top - bin - 1));
        t->level_of[bin] = (uint8_t)(UNDECIDED | n_groups++);
        g->first_set = j;
        while (j < n_sets && cuts[j].bin == bin)
            j++;
        g->end_set = j;
        g->start = g->end = start;
        start += ts_cell_count(rh->cell[0][bin]);
        top = bin;
    }
    memset(t->level_of + bottom, j, (size_t)(top - bottom));
    memset(t->level_of + TS_HIST_N_BINS, n_sets, TS_HIST_STEPS);
    return n_groups;
}

/* Eight levels in one word, the first in its lowest byte; compilers make one load each and one store of it. */
static inline uint64_t look_up_8(const uint8_t *level_of, const uint16_t *bin)
{
    uint64_t word = 0;

    TS_UNROLL for (int k = 0; k < 8; k++)
        word |= (uint64_t)level_of[bin[k]] << (8 * k);
    return word;
}

static inline void store_8(uint8_t *level, uint64_t word)
{
    TS_UNROLL for (int k = 0; k < 8; k++)
        level[k] = (uint8_t)(word >> (8 * k));
}

/* Gives every value the level of its bin; returns the number of undecided ones, listed by index. */
static uint32_t apply_plan(ts_topk *t, const ts_row *row, uint8_t *level)
{
    uint32_t *undecided = t->undecided;
    size_t n = 0, i = 0;

    for (; i + 8 <= row->n; i += 8) {
        uint64_t word = look_up_8(t->level_of, row->bin + i);

        store_8(level + i, word);
        for (word &= UINT64_C(0x8080808080808080); word != 0; word &= word - 1)
            undecided[n++] = (uint32_t)i + (uint32_t)(__builtin_ctzll(word) / 8);
    }
    for (; i < row->n; i++) {
        level[i] = t->level_of[row->bin[i]];
        undecided[n] = (uint32_t)i;
        n += level[i] >> 7;
    }
    return (uint32_t)n;
}

static uint32_t count_from(const uint32_t *key, uint32_t n, uint32_t threshold)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++)
        count += key[i] >= threshold;
    return count;
}

/*
 * The largest threshold that at least `take` keys reach, or the first one found that exactly `take` do. All keys agree
 * outside the bits of differing.
 */
static uint32_t find_threshold(const uint32_t *key, uint32_t n, uint32_t differing, uint32_t take)
{
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
static void close_set(const uint32_t *key, const uint32_t *index, uint32_t n, uint32_t differing, uint32_t take,
                      uint8_t *level)
{
    uint32_t threshold = find_threshold(key, n, differing, take);
    uint32_t equal_left = take - count_from(key, n, threshold + 1);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t equal = key[i] == threshold && equal_left > 0;

        equal_left -= equal;
        level[index[i]] = (uint8_t)(level[index[i]] + !(key[i] > threshold || equal));
    }
}

/* The same for all sets of a group of equal values (the zeros of a sparse row), where the index decides. */
static void close_equal(const group *g, const cut *cuts, const uint32_t *index, uint8_t *level)
{
    uint32_t i = 0;

    for (int j = g->first_set; j <= g->end_set; j++) {
        uint32_t end = j < g->end_set ? cuts[j].take : g->end - g->start;

        for (; i < end; i++)
            level[index[i]] = (uint8_t)j;
    }
}

static void close_group(const ts_topk *t, const group *g, const cut *cuts, uint8_t *level)
{
    const uint32_t *key = t->key + g->start, *index = t->grouped + g->start;
    uint32_t n = g->end - g->start, differing = 0;

    for (uint32_t i = 1; i < n; i++)
        differing |= key[i] ^ key[0];
    if (differing == 0) {
        close_equal(g, cuts, index, level);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        level[index[i]] = (uint8_t)g->first_set;
    for (int j = g->first_set; j < g->end_set; j++)
        close_set(key, index, n, differing, cuts[j].take, level);
}

void ts_topk_levels(ts_topk *t, const ts_row_hist *rh, const ts_row *row, const uint32_t *size, int n_sets,
                    uint8_t *level)
{
    cut cuts[TS_TOPK_MAX_SETS];
    group groups[TS_TOPK_MAX_SETS];
    uint32_t n_undecided;
    int n_groups;

    find_cuts(rh, size, n_sets, cuts);
    n_groups = plan_bins(t, rh, cuts, n_sets, groups);
    n_undecided = apply_plan(t, row, level);
    for (uint32_t i = 0; i < n_undecided; i++) {
        uint32_t index = t->undecided[i];
        group *g = &groups[level[index] & (UNDECIDED - 1)];

        t->grouped[g->end] = index;
        t->key[g->end++] = ts_abs_bits(row->value + index);
    }
    for (int i = 0; i < n_groups; i++)
        close_group(t, &groups[i], cuts, level);
}
