/*
 * The FFN census's accumulator.
 * Owns the bookkeeping of passes, slots and pairs; refuses to touch a value itself (hist, topk and
 * ffn_kernel do).
 */
#include "core/mem.h"
#include "stats/ffn_stats.h"

#include <stdlib.h>
#include <string.h>

#include "stats/topk.h"

#define NONFINITE_BITS UINT32_C(0x7f800000)

const uint32_t ts_ffn_fixed_k[TS_FFN_N_FIXED] = {512, 1024, 2048, 4096};
const uint32_t ts_ffn_share_percent[TS_FFN_N_SHARES] = {1, 2, 5, 10, 20};
const double ts_ffn_top_p[TS_FFN_N_TOP_P] = {0.90, 0.95, 0.99};

/* What a slot remembers of one block: the row last recorded. */
typedef struct last_row {
    uint64_t pass;     /* 1-based number of its pass in the generation; 0: none yet */
    uint8_t *level[2]; /* [width] each; pass p uses [p % 2], so that consecutive rows do not
                          overwrite each other */
} last_row;

struct ts_ffn_slot {
    uint64_t n_passes; /* ended in this generation */
    last_row *last;    /* [n_blocks] */
};

struct ts_ffn_worker {
    ts_row_hist row;
    ts_topk topk;
    uint16_t *bin; /* [widest] */
};

/* Sizes of the sets and their ascending order, which is what the selection works in. */
static void plan_sets(ts_ffn_block *b) {
    for (int j = 0; j < TS_FFN_N_FIXED; j++)
        b->k[j] = ts_ffn_fixed_k[j] < b->width ? ts_ffn_fixed_k[j] : b->width;
    for (int j = 0; j < TS_FFN_N_SHARES; j++)
        b->k[TS_FFN_N_FIXED + j] = (b->width * ts_ffn_share_percent[j] + 99) / 100;
    for (int j = 0; j < TS_FFN_N_SETS; j++) {
        b->rank[j] = 0;
        for (int i = 0; i < TS_FFN_N_SETS; i++)
            b->rank[j] =
                (uint8_t)(b->rank[j] + (b->k[i] < b->k[j] || (b->k[i] == b->k[j] && i < j)));
    }
}

static int init_block(ts_ffn_block *b, uint32_t width) {
    b->width = width;
    b->nonfinite.row = UINT64_MAX;
    plan_sets(b);
    b->mass = ts_calloc((size_t)width + 1, sizeof *b->mass);
    return b->mass ? 0 : TS_FFN_ERR_MEMORY;
}

static int init_slot(ts_ffn_slot *slot, const ts_ffn_stats *s) {
    slot->last = ts_calloc((size_t)s->n_blocks + 1, sizeof *slot->last);
    if (slot->last == NULL)
        return TS_FFN_ERR_MEMORY;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        for (int i = 0; i < 2; i++) {
            slot->last[b].level[i] = ts_malloc((size_t)s->blocks[b].width + 1);
            if (slot->last[b].level[i] == NULL)
                return TS_FFN_ERR_MEMORY;
        }
    }
    return 0;
}

static int init_worker(ts_ffn_worker *w, uint32_t widest) {
    w->bin = ts_malloc(((size_t)widest + 1) * sizeof *w->bin);
    return ts_topk_init(&w->topk, widest) == 0 && w->bin ? 0 : TS_FFN_ERR_MEMORY;
}

static int init_stats(ts_ffn_stats *s, const uint32_t *width) {
    uint32_t widest = 0;
    int rc = 0;

    s->blocks = ts_calloc((size_t)s->n_blocks + 1, sizeof *s->blocks);
    s->slots = ts_calloc(s->n_slots, sizeof *s->slots);
    s->workers = ts_calloc(s->n_workers, sizeof *s->workers);
    if (!s->blocks || !s->slots || !s->workers)
        return TS_FFN_ERR_MEMORY;
    for (uint32_t b = 0; b < s->n_blocks && rc == 0; b++) {
        widest = width[b] > widest ? width[b] : widest;
        rc = init_block(&s->blocks[b], width[b]);
    }
    for (uint32_t i = 0; i < s->n_slots && rc == 0; i++)
        rc = init_slot(&s->slots[i], s);
    for (uint32_t i = 0; i < s->n_workers && rc == 0; i++)
        rc = init_worker(&s->workers[i], widest);
    return rc;
}

int ts_ffn_stats_create(ts_ffn_stats **out, const uint32_t *width, uint32_t n_blocks,
                        const ts_ffn_options *o) {
    static const ts_ffn_options defaults;
    const ts_ffn_kernel *kernel;
    ts_ffn_stats *s;
    int rc;

    o = o ? o : &defaults;
    kernel = ts_ffn_kernel_find(o->kernel);
    if (kernel == NULL)
        return TS_FFN_ERR_ARGUMENT;
    for (uint32_t b = 0; b < n_blocks; b++) {
        if (width[b] > TS_FFN_MAX_WIDTH)
            return TS_FFN_ERR_ARGUMENT;
    }
    s = ts_calloc(1, sizeof *s);
    if (s == NULL)
        return TS_FFN_ERR_MEMORY;
    s->kernel = kernel;
    s->n_blocks = n_blocks;
    s->n_slots = o->n_slots ? o->n_slots : 1;
    s->n_workers = o->n_workers ? o->n_workers : 1;
    rc = init_stats(s, width);
    if (rc == 0)
        *out = s;
    else
        ts_ffn_stats_free(s);
    return rc;
}

static void free_slot(ts_ffn_slot *slot, uint32_t n_blocks) {
    for (uint32_t b = 0; slot->last && b < n_blocks; b++) {
        free(slot->last[b].level[0]);
        free(slot->last[b].level[1]);
    }
    free(slot->last);
}

void ts_ffn_stats_free(ts_ffn_stats *s) {
    if (s == NULL)
        return;
    for (uint32_t i = 0; s->slots && i < s->n_slots; i++)
        free_slot(&s->slots[i], s->n_blocks);
    for (uint32_t i = 0; s->workers && i < s->n_workers; i++) {
        ts_topk_free(&s->workers[i].topk);
        free(s->workers[i].bin);
    }
    for (uint32_t b = 0; s->blocks && b < s->n_blocks; b++)
        free(s->blocks[b].mass);
    free(s->slots);
    free(s->workers);
    free(s->blocks);
    free(s);
}

int ts_ffn_begin_generation(ts_ffn_stats *s, uint32_t slot) {
    if (slot >= s->n_slots)
        return TS_FFN_ERR_ARGUMENT;
    s->slots[slot].n_passes = 0;
    for (uint32_t b = 0; b < s->n_blocks; b++)
        s->slots[slot].last[b].pass = 0;
    return 0;
}

void ts_ffn_note_prefill(ts_ffn_stats *s, uint64_t n) {
    s->prefill_passes += n;
}

/* Remembers the first non-finite value of a row that has one; returns the bits of its largest
 * finite magnitude. */
static uint32_t inspect_nonfinite(ts_ffn_block *b, const float *value) {
    uint32_t max_bits = 0;

    for (uint32_t i = 0; i < b->width; i++) {
        uint32_t bits = ts_abs_bits(value + i);

        if (bits < NONFINITE_BITS)
            max_bits = bits > max_bits ? bits : max_bits;
        else if (b->nonfinite.row == UINT64_MAX)
            b->nonfinite = (ts_ffn_place){b->n_rows, i};
    }
    return max_bits;
}

static void note_extremes(ts_ffn_block *b, const float *value, uint32_t max_bits) {
    float magnitude;

    if (max_bits >= NONFINITE_BITS)
        max_bits = inspect_nonfinite(b, value);
    memcpy(&magnitude, &max_bits, sizeof magnitude);
    if (magnitude > b->max_abs)
        b->max_abs = magnitude;
}

static void add_row(const ts_ffn_kernel *kernel, ts_ffn_worker *w, ts_ffn_block *b,
                    const float *value, uint8_t *level) {
    ts_row row = kernel->scan(b->mass, w->bin, value, b->width);
    uint32_t size[TS_FFN_N_SETS];
    uint64_t needed[TS_FFN_N_TOP_P];

    ts_row_hist_fill(&w->row, &b->hist, &row);
    ts_row_hist_top_p(&w->row, ts_ffn_top_p, TS_FFN_N_TOP_P, needed);
    for (int p = 0; p < TS_FFN_N_TOP_P; p++)
        b->top_p[p] += needed[p];
    for (int j = 0; j < TS_FFN_N_SETS; j++)
        size[b->rank[j]] = b->k[j];
    ts_topk_levels(&w->topk, kernel, &w->row, &row, size, level);
    ts_row_hist_clear(&w->row);
    note_extremes(b, value, row.max_bits);
}

static void add_overlap(const ts_ffn_kernel *kernel, ts_ffn_block *b, const last_row *last) {
    uint64_t by_rank[TS_FFN_N_SETS] = {0};

    kernel->count_overlap(last->level[0], last->level[1], b->width, by_rank);
    for (int j = 0; j < TS_FFN_N_SETS; j++)
        b->hits[j] += by_rank[b->rank[j]];
}

static int record(ts_ffn_stats *s, uint32_t worker, ts_ffn_block *b, last_row *last, uint64_t pass,
                  const float *row) {
    if (b->n_rows >= (TS_HIST_MAX_COUNT - 1) / (b->width ? b->width : 1))
        return TS_FFN_ERR_FULL;
    if (b->width > 0)
        add_row(s->kernel, &s->workers[worker], b, row, last->level[pass % 2]);
    if (last->pass > 0 && last->pass == pass - 1) {
        add_overlap(s->kernel, b, last);
        b->n_pairs++;
    }
    b->n_rows++;
    last->pass = pass;
    return 0;
}

static bool known(const ts_ffn_stats *s, uint32_t worker, uint32_t slot, uint32_t block) {
    return worker < s->n_workers && slot < s->n_slots && block < s->n_blocks;
}

int ts_ffn_record_block(ts_ffn_stats *s, uint32_t worker, uint32_t slot, uint32_t block,
                        const float *row) {
    uint64_t pass;

    if (!known(s, worker, slot, block))
        return TS_FFN_ERR_ARGUMENT;
    pass = s->slots[slot].n_passes + 1;
    if (s->slots[slot].last[block].pass == pass)
        return TS_FFN_ERR_ARGUMENT;
    return record(s, worker, &s->blocks[block], &s->slots[slot].last[block], pass, row);
}

int ts_ffn_number_pass(ts_ffn_stats *s, uint32_t slot, bool begins, uint64_t *pass) {
    if (slot >= s->n_slots)
        return TS_FFN_ERR_ARGUMENT;
    if (begins)
        s->slots[slot].n_passes = 0;
    *pass = s->slots[slot].n_passes + 1;
    return ts_ffn_end_pass(s, slot);
}

int ts_ffn_record_numbered(ts_ffn_stats *s, uint32_t worker, uint32_t slot, uint32_t block,
                           uint64_t pass, const float *row) {
    last_row *last;

    if (!known(s, worker, slot, block) || pass == 0)
        return TS_FFN_ERR_ARGUMENT;
    last = &s->slots[slot].last[block];
    if (pass == 1)
        last->pass = 0; /* what was recorded belongs to another generation */
    else if (last->pass >= pass)
        return TS_FFN_ERR_ARGUMENT;
    return record(s, worker, &s->blocks[block], last, pass, row);
}

int ts_ffn_end_pass(ts_ffn_stats *s, uint32_t slot) {
    if (slot >= s->n_slots)
        return TS_FFN_ERR_ARGUMENT;
    if (s->slots[slot].n_passes++ > 0)
        s->overlap_pairs++;
    s->decode_passes++;
    return 0;
}

const uint8_t *ts_ffn_levels(const ts_ffn_stats *s, uint32_t slot, uint32_t block) {
    const last_row *last;

    if (slot >= s->n_slots || block >= s->n_blocks)
        return NULL;
    last = &s->slots[slot].last[block];
    return last->pass > 0 ? last->level[last->pass % 2] : NULL;
}

int64_t ts_ffn_first_nonfinite(const ts_ffn_stats *s, ts_ffn_place *place) {
    int64_t found = -1;

    for (uint32_t b = 0; b < s->n_blocks; b++) {
        const ts_ffn_place *p = &s->blocks[b].nonfinite;

        if (p->row != UINT64_MAX && (found < 0 || p->row < place->row)) {
            found = b;
            *place = *p;
        }
    }
    return found;
}

static int can_merge(const ts_ffn_stats *dst, const ts_ffn_stats *src) {
    if (dst->n_blocks != src->n_blocks)
        return TS_FFN_ERR_SHAPE;
    for (uint32_t b = 0; b < dst->n_blocks; b++) {
        const ts_ffn_block *d = &dst->blocks[b], *a = &src->blocks[b];
        uint64_t limit = TS_HIST_MAX_COUNT / (d->width ? d->width : 1);

        if (d->width != a->width)
            return TS_FFN_ERR_SHAPE;
        if (d->n_rows >= limit || a->n_rows >= limit - d->n_rows)
            return TS_FFN_ERR_FULL;
    }
    return 0;
}

static void merge_block(ts_ffn_block *dst, const ts_ffn_block *src) {
    if (dst->nonfinite.row == UINT64_MAX && src->nonfinite.row != UINT64_MAX)
        dst->nonfinite = (ts_ffn_place){src->nonfinite.row + dst->n_rows, src->nonfinite.neuron};
    dst->n_rows += src->n_rows;
    dst->n_pairs += src->n_pairs;
    for (int j = 0; j < TS_FFN_N_SETS; j++)
        dst->hits[j] += src->hits[j];
    for (int p = 0; p < TS_FFN_N_TOP_P; p++)
        dst->top_p[p] += src->top_p[p];
    if (src->max_abs > dst->max_abs)
        dst->max_abs = src->max_abs;
    for (uint32_t i = 0; i < dst->width; i++)
        dst->mass[i] += src->mass[i];
    ts_hist_merge(&dst->hist, &src->hist);
}

int ts_ffn_stats_merge(ts_ffn_stats *dst, const ts_ffn_stats *src) {
    int rc = can_merge(dst, src);

    if (rc != 0)
        return rc;
    for (uint32_t b = 0; b < dst->n_blocks; b++)
        merge_block(&dst->blocks[b], &src->blocks[b]);
    dst->decode_passes += src->decode_passes;
    dst->prefill_passes += src->prefill_passes;
    dst->overlap_pairs += src->overlap_pairs;
    return 0;
}
