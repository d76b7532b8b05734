/* The tap: the scheduler's eval callback. It observes a graph once to learn the sites, then redirects or asks
 * for the wanted ones, splits a decode into graph runs, guards each run with the graph's own tokens, and
 * hands finished runs to one consumer. Errors are latched here and checked after every decode. */
#ifndef TS_HOST_TAP_H
#define TS_HOST_TAP_H

#include "host/arena.h"
#include "host/device_edit.h"
#include "host/device_zero.h"
#include "host/readback.h"
#include "host/sites.h"
#include "llama.h"

enum ts_tap_mode {
    TS_TAP_IDLE = 0, /* declines everything */
    TS_TAP_OBSERVE,  /* records the nodes of one run */
    TS_TAP_LIVE,     /* as each slot says */
    TS_TAP_ASKING,   /* every slot is asked for, whatever it says */
};

enum ts_slot_seen { TS_SLOT_UNSEEN = 0, TS_SLOT_REDIRECTED, TS_SLOT_STAGED };

/* One wanted site. */
typedef struct ts_slot {
    ts_site_entry site;
    size_t arena, offset, bytes; /* reserved room; bytes 0 when the site is only asked for */
    size_t one_offset, one_bytes; /* and the room for one token, beside the other sites' */
    size_t at;                   /* where the current run writes, from the arena's base */
    char *staged;                /* copied rows (asked for, or read back from a device one by one), contiguous */
    size_t staged_bytes;
    /* of the current run */
    enum ts_slot_seen seen;
    bool staged_valid;           /* `rows` holds them */
    bool read_back, picked;      /* they came with the others of the run; they are those of run.picked only */
    char *rows;                  /* in `staged` or in read-back memory */
    int32_t occurrences;
    struct ggml_tensor node;     /* copy of the node's header: shape, strides, address */
} ts_slot;

struct ts_run {
    struct ts_tap *tap;
    int32_t n_tokens, n_out;
    bool has_tokens, has_positions, has_out_ids;
    int32_t *tokens, *positions, *out_ids, *identity, *picked; /* [capacity] */
    int32_t capacity, n_picked;
    bool picking; /* only the rows of the tokens `picked` are read */
};

/* What the session sent, to be met by the graph's own inputs in this order. */
typedef struct ts_expect {
    const int32_t *tokens, *positions, *seq_ids; /* [n]; n 0 = no guard; seq_ids nullable */
    const int8_t *output;                        /* [n], nullable: only these tokens' rows are read */
    size_t n, cursor;                            /* cursor: the run at hand begins there */
} ts_expect;

/* Changes rows of a site in place, before anything reads them. `rows` is [n_rows][width] of the run's tokens
 * token_index[i]. Sets *changed false when it left every row alone. */
typedef int (*ts_edit_fn)(const struct ts_run *run, const ts_site *site, float *rows, int64_t n_rows, int64_t width,
                          const int32_t *token_index, bool *changed, void *user, ts_error *err);
typedef struct ts_edit {
    ts_edit_fn fn; /* NULL = nothing is edited */
    void *user;
    unsigned kinds;
    ts_range blocks;
    const bool *mask; /* [block], nullable: only these of the range */
    /* Nullable: what `fn` does to the row of a token, as steps that a device takes by itself; steps[TS_EDIT_STEPS]. False
     * where it cannot be said so: then `fn` edits the run's rows of this block. */
    bool (*steps)(const struct ts_run *run, int32_t block, int32_t token, ts_edit_step *steps, size_t *n, void *user);
    /* Nullable: the coefficient that a token's step had, by the end of the run. |c| >= TS_EDIT_C_MAX or NaN: not finite. */
    int (*taken)(const struct ts_run *run, const ts_site *site, int32_t token, size_t step, float c, void *user, ts_error *err);
    /* Nullable, in place of steps: `fn` sets small values to zero. `zeroed` then gets how many of a site's values are zero. */
    const ts_edit_zero *zero;
    int (*zeroed)(const ts_site *site, int64_t n_values, int64_t n_zero, void *user, ts_error *err);
} ts_edit;

typedef struct ts_tap {
    enum ts_tap_mode mode;
    enum ts_tap_method want;             /* redirect or ask, as the user wished */
    ts_site_table table;
    ts_slot *slots;               /* [n_slots] */
    size_t n_slots;
    int32_t *by_name;             /* hash table of slot numbers by node name, -1 empty; [by_name_size] power of two */
    size_t by_name_size;
    bool any_at_reader;           /* some slot's key is a weight's name */
    ts_arenas arenas;
    ts_readback readbacks[TS_ARENA_MAX]; /* of each arena on a device */
    ts_device_edit edits[TS_ARENA_MAX];  /* likewise */
    int32_t n_ubatch;
    struct ts_run run;
    bool run_open;
    unsigned wanted;              /* kinds to be read in this decode: bit mask */
    bool quiet;                   /* nothing is read, edited or skipped in this decode: no node is looked at */
    bool skip_head;               /* stop the split at the head's input: nobody needs logits */
    char head[GGML_MAX_NAME];     /* its name; "" when unknown */
    ts_expect expect;
    ts_edit edit;
    ts_run_fn on_run;
    void *user;
    uint64_t n_runs;
    ts_error latched;             /* code 0 = none */
    struct ggml_tensor **observed; /* [n_observed] */
    size_t n_observed, observed_capacity;
    /* a callback that was there before (probe) and what it answered to the last ask */
    ggml_backend_sched_eval_callback chain;
    void *chain_user;
    bool chain_asked, asked;
} ts_tap;

bool ts_tap_callback(struct ggml_tensor *t, bool ask, void *user);

/* One-token decode in observing mode, fills `table` anew. The caller clears the memory afterwards. */
int ts_tap_learn(ts_tap *tap, struct llama_context *ctx, ts_error *err);
/* Makes slots for the usable sites of these kinds and blocks, and their arenas. After learn, once. */
int ts_tap_request(ts_tap *tap, unsigned kinds, ts_range blocks, int32_t n_ubatch, ts_error *err);

/* Around each llama_decode: begin resets the latch and sets the guard, end synchronises, delivers the last
 * run and returns the latched error. `decoded` is llama_decode's result. */
void ts_tap_begin(ts_tap *tap, const ts_expect *expect);
int ts_tap_end(ts_tap *tap, struct llama_context *ctx, int decoded, ts_error *err);

ts_slot *ts_tap_slot(const ts_tap *tap, enum ts_site_kind kind, int32_t block);
/* Which token of the run each of `rows` rows of a slot belongs to; NULL when the counts do not fit. */
const int32_t *ts_run_row_tokens(const struct ts_run *run, int64_t rows);
/* Through how many later runs this one's rows stay valid, after they were read once. */
int32_t ts_run_rows_stay(const struct ts_run *run);
/* Sequence id of a token of the run, 0 when none were given. */
int32_t ts_run_seq_id(const struct ts_run *run, int32_t token);
/* Its position in its sequence, -1 when unknown. Known before the run ends where the session sent the tokens. */
int32_t ts_run_position(const struct ts_run *run, int32_t token);
/* Rows of a slot in the run at hand as contiguous host memory: straight from the arena, or staged. Only those of
 * run.picked where slot->picked says so afterwards. */
int ts_slot_rows(ts_tap *tap, ts_slot *slot, const void **data, ts_error *err);
/* The public rows of the table; caller frees. */
int ts_tap_copy_sites(const ts_tap *tap, ts_site **out, size_t *n, ts_error *err);
void ts_tap_free(ts_tap *tap);

#endif
