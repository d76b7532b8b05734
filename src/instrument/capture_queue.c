/* Rows of a capture on their way to its file. Owns two bounded lists: one fills while the other is written. Refuses nothing;
 * the file's own errors come back late, by the next flush or wait. */
#include "instrument/capture_queue.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/worker.h"

#define MOST_BYTES ((size_t)32 << 20) /* of rows in one list */

typedef struct item {
    ts_resid_row facts; /* its pointers are into `bytes` */
    char *bytes;
} item;

typedef struct list {
    ts_resid_out *out;
    float *rows; /* [capacity][n_floats] */
    item *items; /* [capacity] */
    size_t n, capacity, n_floats;
} list;

struct ts_capture_queue {
    ts_worker *worker;
    list *filling, *writing;
    size_t most;
};

static void clear(list *l) {
    for (size_t i = 0; i < l->n; i++) free(l->items[i].bytes);
    l->n = 0;
}

static void free_list(list *l) {
    if (!l) return;
    clear(l);
    free(l->rows);
    free(l->items);
    free(l);
}

static list *make_list(ts_resid_out *out, size_t n_floats) {
    list *l = ts_calloc(1, sizeof(*l));
    if (l) *l = (list){.out = out, .n_floats = n_floats};
    return l;
}

int ts_capture_queue_open(ts_resid_out *out, size_t n_floats, bool threaded, ts_capture_queue **queue, ts_error *err) {
    ts_capture_queue *q = ts_calloc(1, sizeof(*q));
    *queue = NULL;
    if (!q) return ts_fail_nomem(err, "rows to write", sizeof(*q));
    size_t fit = MOST_BYTES / (n_floats * sizeof(float));
    q->most = fit > 1 ? fit : 1;
    q->filling = make_list(out, n_floats);
    q->writing = make_list(out, n_floats);
    int rc = q->filling && q->writing ? ts_worker_create(threaded, &q->worker, err) : ts_fail_nomem(err, "rows to write", sizeof(list));
    if (rc == TS_OK)
        *queue = q;
    else
        ts_capture_queue_close(q);
    return rc;
}

static int grow(list *l, ts_error *err) {
    size_t capacity = l->capacity ? l->capacity * 2 : 16;
    if (l->n < l->capacity) return TS_OK;
    float *rows = ts_realloc(l->rows, capacity, l->n_floats * sizeof(*rows));
    if (rows) l->rows = rows;
    item *items = ts_realloc(l->items, capacity, sizeof(*items));
    if (items) l->items = items;
    if (!rows || !items) return ts_fail_nomem(err, "rows to write", capacity * l->n_floats * sizeof(*rows));
    l->capacity = capacity;
    return TS_OK;
}

/* The texts and tokens behind the facts, in one piece of memory. */
static int copy_facts(item *to, const ts_resid_row *facts, ts_error *err) {
    size_t tokens = facts->prompt_tokens ? facts->n_prompt_tokens * sizeof(*facts->prompt_tokens) : 0;
    size_t label = facts->label ? strlen(facts->label) + 1 : 0;
    *to = (item){.facts = *facts, .bytes = ts_malloc(tokens + label + facts->piece_length + 1)};
    if (!to->bytes) return ts_fail_nomem(err, "a row's facts", tokens + label + facts->piece_length);
    char *at = to->bytes;
    if (facts->prompt_tokens) to->facts.prompt_tokens = memcpy(at, facts->prompt_tokens, tokens);
    if (facts->label) to->facts.label = memcpy(at + tokens, facts->label, label);
    if (facts->piece) to->facts.piece = memcpy(at + tokens + label, facts->piece, facts->piece_length);
    return TS_OK;
}

int ts_capture_queue_add(ts_capture_queue *q, const float *row, const ts_resid_row *facts, ts_error *err) {
    int rc = q->filling->n < q->most ? TS_OK : ts_capture_queue_flush(q, err);
    list *l = q->filling;
    if (rc == TS_OK) rc = grow(l, err);
    if (rc == TS_OK) rc = copy_facts(&l->items[l->n], facts, err);
    if (rc != TS_OK) return rc;
    memcpy(l->rows + l->n * l->n_floats, row, l->n_floats * sizeof(*row));
    l->n++;
    return TS_OK;
}

static int write_list(void *user, ts_error *err) {
    list *l = user;
    int rc = TS_OK;
    for (size_t i = 0; i < l->n && rc == TS_OK; i++) rc = ts_resid_out_add(l->out, l->rows + i * l->n_floats, &l->items[i].facts, err);
    clear(l);
    return rc;
}

int ts_capture_queue_flush(ts_capture_queue *q, ts_error *err) {
    if (q->filling->n == 0) return TS_OK;
    int rc = ts_worker_submit(q->worker, write_list, q->filling, err);
    if (rc != TS_OK) return rc;
    list *written = q->writing; /* the worker was done with it, or it would not have taken another */
    q->writing = q->filling;
    q->filling = written;
    return TS_OK;
}

int ts_capture_queue_wait(ts_capture_queue *q, ts_error *err) {
    int rc = ts_capture_queue_flush(q, err);
    return rc == TS_OK ? ts_worker_wait(q->worker, err) : rc;
}

void ts_capture_queue_close(ts_capture_queue *q) {
    if (!q) return;
    ts_worker_free(q->worker);
    free_list(q->filling);
    free_list(q->writing);
    free(q);
}
