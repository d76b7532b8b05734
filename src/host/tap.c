/* The tap's callback. Called for every node before its range is computed (ask) and once more after a range
 * that it asked to end. Refuses to re-point anything but the node being asked about. */
#include "host/tap.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "host/run.h"

static void latch(ts_tap *tap, int code, const ts_error *err) {
    if (tap->latched.code) return;
    tap->latched = *err;
    tap->latched.code = code;
}

/* ---- observing */

static void observe(ts_tap *tap, struct ggml_tensor *t) {
    if (tap->n_observed == tap->observed_capacity) {
        size_t capacity = tap->observed_capacity ? tap->observed_capacity * 2 : 4096;
        struct ggml_tensor **grown = ts_realloc(tap->observed, capacity, sizeof(*grown));
        if (!grown) {
            ts_error err = {0};
            latch(tap, ts_fail_nomem(&err, "graph nodes", capacity * sizeof(*grown)), &err);
            return;
        }
        tap->observed = grown;
        tap->observed_capacity = capacity;
    }
    tap->observed[tap->n_observed++] = t;
}

/* ---- slots by name */

/* Eight bytes of a name; what stands behind its end counts for nothing. */
static uint64_t name_word(const char *at) {
    uint64_t w = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(&w, at, sizeof(w));
    uint64_t ends = (w - 0x0101010101010101u) & ~w & 0x8080808080808080u;
    return ends ? w & ((ends & (~ends + 1)) - 1) : w;
#else
    for (int i = 0; i < 8 && at[i]; i++) w = w << 8 | (unsigned char)at[i];
    return w;
#endif
}

/* Asked about every node of every pass, so a word at a time. `name` has room for GGML_MAX_NAME bytes. */
static size_t hash_name(const char name[GGML_MAX_NAME]) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < GGML_MAX_NAME; i += 8) {
        uint64_t w = name_word(name + i);
        h = (h ^ w) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
        if (w >> 56 == 0) break;
    }
    return (size_t)h;
}

static ts_slot *slot_named(ts_tap *tap, const char *name) {
    size_t mask = tap->by_name_size - 1;
    for (size_t i = hash_name(name) & mask; tap->by_name[i] >= 0; i = (i + 1) & mask) {
        ts_slot *slot = &tap->slots[tap->by_name[i]];
        if (strcmp(slot->site.key, name) == 0) return slot;
    }
    return NULL;
}

/* The slot that a node fills: by its own name or, where it reads an unnamed one, by its weight's. */
static ts_slot *slot_of(ts_tap *tap, const struct ggml_tensor *t) {
    char weight[GGML_MAX_NAME];
    ts_slot *slot = slot_named(tap, t->name);
    if (slot || !tap->any_at_reader || (t->op != GGML_OP_MUL_MAT && t->op != GGML_OP_MUL_MAT_ID)) return slot;
    ts_node_name(t->src[0], weight);
    slot = slot_named(tap, weight);
    return slot && slot->site.at_reader ? slot : NULL;
}

static int index_names(ts_tap *tap, ts_error *err) {
    size_t size = 16;
    while (size < tap->n_slots * 4) size *= 2;
    tap->by_name = ts_malloc(size * sizeof(*tap->by_name));
    if (!tap->by_name) return ts_fail_nomem(err, "site index", size * sizeof(*tap->by_name));
    for (size_t i = 0; i < size; i++) tap->by_name[i] = -1;
    tap->by_name_size = size;
    for (size_t s = 0; s < tap->n_slots; s++) {
        size_t i = hash_name(tap->slots[s].site.key) & (size - 1);
        tap->any_at_reader = tap->any_at_reader || tap->slots[s].site.at_reader;
        while (tap->by_name[i] >= 0) i = (i + 1) & (size - 1);
        tap->by_name[i] = (int32_t)s;
    }
    return TS_OK;
}

/* ---- one site */

/* Copies the rows of a node's header copy, contiguous. */
static int stage(ts_slot *slot, ts_error *err) {
    const struct ggml_tensor *t = &slot->node;
    size_t row = ggml_row_size(t->type, t->ne[0]), bytes = row * (size_t)ts_node_rows(t);
    if (bytes > slot->staged_bytes) {
        char *grown = ts_realloc(slot->staged, bytes, 1);
        if (!grown) return ts_fail_nomem(err, "staged rows", bytes);
        slot->staged = grown;
        slot->staged_bytes = bytes;
    }
    if (ggml_is_contiguous(t)) {
        ggml_backend_tensor_get(t, slot->staged, 0, bytes);
    } else {
        char *out = slot->staged;
        for (int64_t k = 0; k < t->ne[3]; k++)
            for (int64_t j = 0; j < t->ne[2]; j++)
                for (int64_t i = 0; i < t->ne[1]; i++, out += row)
                    ggml_backend_tensor_get(t, out, (size_t)i * t->nb[1] + (size_t)j * t->nb[2] + (size_t)k * t->nb[3], row);
    }
    slot->rows = slot->staged;
    slot->picked = slot->read_back = false;
    slot->staged_valid = true;
    return TS_OK;
}

/* Points the node at its slot. False when this graph's node does not allow it. */
static bool redirect(ts_tap *tap, ts_slot *slot, struct ggml_tensor *t) {
    ts_arena *arena = &tap->arenas.list[slot->arena];
    char *base = ggml_backend_buffer_get_base(arena->buffer);
    if (t->buffer != arena->buffer) { /* a reused graph's node points here already */
        bool one = tap->run.n_tokens == 1;
        if (ts_node_why_not(t) || ggml_backend_buffer_get_type(t->buffer) != arena->buft) return false;
        if (ggml_backend_buft_get_alloc_size(arena->buft, t) > (one ? slot->one_bytes : slot->bytes)) return false;
        t->buffer = arena->buffer;
        t->data = base + (one ? slot->one_offset : slot->offset);
    }
    slot->at = (size_t)((char *)t->data - base);
    slot->seen = TS_SLOT_REDIRECTED;
    slot->node = *t;
    return true;
}

static bool edits(const ts_tap *tap, const ts_slot *slot) {
    const ts_site *site = &slot->site.pub;
    const ts_edit *e = &tap->edit;
    return e->fn && ((e->kinds >> site->kind) & 1u) && site->block >= e->blocks.first && site->block <= e->blocks.last &&
           (!e->mask || e->mask[site->block]);
}

/* True when the range must end here so that the rows can be copied or edited. */
static bool visit_site(ts_tap *tap, ts_slot *slot, struct ggml_tensor *t) {
    if (slot->occurrences++ != slot->site.nth) return false;
    slot->staged_valid = false;
    slot->seen = TS_SLOT_UNSEEN;
    if (ts_node_rows(t) == 0) return false;
    bool may = tap->mode == TS_TAP_LIVE && tap->want == TS_TAP_REDIRECT && slot->site.pub.how == TS_HOW_REDIRECTED;
    if (may && redirect(tap, slot, t)) return edits(tap, slot);
    return edits(tap, slot) || ((tap->wanted >> slot->site.pub.kind) & 1u);
}

/* Rows in host memory are edited where they are, others on their device or by way of a copy. */
static int edit_rows(ts_tap *tap, ts_slot *slot, struct ggml_tensor *t, ts_error *err) {
    int64_t rows = ts_node_rows(t);
    bool done = false;
    const int32_t *tokens = ts_run_row_tokens(&tap->run, rows);
    bool host = ggml_backend_buffer_is_host(t->buffer), changed = false;
    const void *copy = t->data;
    if (slot->site.at_reader)
        return ts_fail(err, TS_ERR_UNSUPPORTED, "%s of block %d ('%s') cannot be edited: it has no name of its own and is read where it is used",
                       ts_site_kind_name(slot->site.pub.kind), slot->site.pub.block, slot->site.pub.tensor);
    if (!tokens || t->type != GGML_TYPE_F32 || !ggml_is_contiguous(t))
        return ts_fail(err, TS_ERR_UNSUPPORTED, "'%s' cannot be edited: not one contiguous f32 row a token", t->name);
    slot->node = *t;
    slot->staged_valid = false;
    int rc = ts_device_edit_run(tap, slot, t, &done, err);
    if (rc != TS_OK || done) return rc;
    if (tap->arenas.as_device && slot->seen == TS_SLOT_REDIRECTED && (tap->edit.steps || tap->edit.zero))
        return ts_fail(err, TS_ERR_STATE, "an edit of '%s' needs the host", slot->site.pub.tensor);
    if (!host) rc = stage(slot, err);
    if (rc != TS_OK) return rc;
    if (!host) copy = slot->staged;
    rc = tap->edit.fn(&tap->run, &slot->site.pub, (float *)copy, rows, t->ne[0], tokens, &changed, tap->edit.user, err);
    if (rc == TS_OK && !host && changed) ggml_backend_tensor_set(t, copy, 0, ggml_nbytes(t));
    return rc;
}

/* ---- asking and answering */

static bool on_ask(ts_tap *tap, struct ggml_tensor *t) {
    if (t->view_src) { /* design, rule 3: a view of a redirected node holds the old address */
        if (ts_arenas_own(&tap->arenas, t->view_src->buffer)) {
            t->buffer = t->view_src->buffer;
            t->data = (char *)t->view_src->data + t->view_offs;
        }
    }
    ts_error err = {0};
    if (tap->latched.code) return false; /* no run is looked at after an error, and none delivered */
    int rc = ts_run_visit(tap, t, &err);
    if (rc != TS_OK) {
        latch(tap, rc, &err);
        return false;
    }
    if (tap->skip_head && strcmp(t->name, tap->head) == 0) return true;
    ts_slot *slot = slot_of(tap, t);
    return slot && visit_site(tap, slot, t);
}

/* After a range that ended at `t`. False leaves the rest of the split uncomputed. */
static bool on_done(ts_tap *tap, struct ggml_tensor *t) {
    ts_slot *slot = slot_of(tap, t);
    if (slot && slot->occurrences == slot->site.nth + 1) {
        ts_error err = {0};
        const void *rows;
        int rc = edits(tap, slot) ? edit_rows(tap, slot, t, &err) : TS_OK; /* the edit comes before the capture */
        if (rc == TS_OK && slot->seen == TS_SLOT_UNSEEN) {
            slot->node = slot->site.at_reader ? *t->src[1] : *t;
            slot->seen = TS_SLOT_STAGED;
            rc = ts_slot_rows(tap, slot, &rows, &err);
        }
        if (rc != TS_OK) latch(tap, rc, &err);
    }
    return !(tap->skip_head && strcmp(t->name, tap->head) == 0);
}

static bool own_answer(ts_tap *tap, struct ggml_tensor *t, bool ask) {
    switch (tap->mode) {
    case TS_TAP_OBSERVE:
        if (ask) observe(tap, t);
        return !ask;
    case TS_TAP_LIVE:
    case TS_TAP_ASKING:
        if (tap->quiet) return !ask;
        return ask ? on_ask(tap, t) : on_done(tap, t);
    default: return !ask;
    }
}

bool ts_tap_callback(struct ggml_tensor *t, bool ask, void *user) {
    ts_tap *tap = user;
    if (ask) {
        tap->asked = own_answer(tap, t, true);
        tap->chain_asked = tap->chain && tap->chain(t, true, tap->chain_user);
        return tap->asked || tap->chain_asked;
    }
    bool go_on = tap->asked ? own_answer(tap, t, false) : true;
    if (tap->chain_asked && !tap->chain(t, false, tap->chain_user)) go_on = false;
    return go_on;
}

/* ---- rows */

int ts_slot_rows(ts_tap *tap, ts_slot *slot, const void **data, ts_error *err) {
    *data = NULL;
    if (slot->seen == TS_SLOT_UNSEEN) return TS_OK;
    if (slot->seen == TS_SLOT_REDIRECTED && tap->arenas.list[slot->arena].host) {
        *data = slot->node.data;
        return TS_OK;
    }
    int rc = TS_OK;
    if (!slot->staged_valid && slot->seen == TS_SLOT_REDIRECTED) rc = ts_readback_run(tap, err);
    if (rc == TS_OK && !slot->staged_valid) rc = stage(slot, err);
    if (rc == TS_OK) *data = slot->rows;
    return rc;
}

ts_slot *ts_tap_slot(const ts_tap *tap, enum ts_site_kind kind, int32_t block) {
    for (size_t i = 0; i < tap->n_slots; i++)
        if (tap->slots[i].site.pub.kind == kind && tap->slots[i].site.pub.block == block) return &tap->slots[i];
    return NULL;
}

/* ---- set-up and the frame of a decode */

static int copy_error(const ts_tap *tap, ts_error *err) {
    if (err) *err = tap->latched;
    return tap->latched.code;
}

int ts_tap_learn(ts_tap *tap, struct llama_context *ctx, ts_error *err) {
    const struct llama_model *model = llama_get_model(ctx);
    llama_token token = 0;
    memset(&tap->latched, 0, sizeof(tap->latched));
    tap->n_observed = 0;
    tap->head[0] = '\0';
    ts_sites_free(&tap->table);
    tap->mode = TS_TAP_OBSERVE;
    int decoded = llama_decode(ctx, llama_batch_get_one(&token, 1));
    llama_synchronize(ctx);
    tap->mode = TS_TAP_IDLE;
    if (tap->latched.code) return copy_error(tap, err);
    if (decoded != 0) return ts_fail(err, TS_ERR_ENGINE, "the warm-up pass failed: llama_decode returned %d", decoded);
    if (tap->n_observed == 0) return ts_fail(err, TS_ERR_STATE, "the context was not made with the prepared parameters: no callback came");
    int rc = ts_sites_learn(&tap->table, tap->observed, tap->n_observed, llama_model_n_layer(model), llama_model_n_embd(model), err);
    const ts_site_entry *head = ts_sites_find(&tap->table, TS_SITE_HEAD, -1);
    if (head) memcpy(tap->head, head->pub.tensor, sizeof(tap->head));
    free(tap->observed);
    tap->observed = NULL;
    tap->n_observed = tap->observed_capacity = 0;
    return rc;
}

static bool requested(const ts_site_entry *e, unsigned kinds, ts_range blocks) {
    if (!((kinds >> e->pub.kind) & 1u) || e->pub.how == TS_HOW_REFUSED) return false;
    return e->pub.block < 0 || (e->pub.block >= blocks.first && e->pub.block <= blocks.last);
}

static int reserve(ts_tap *tap, ts_slot *slot, int32_t rows, size_t *offset, size_t *bytes, ts_error *err) {
    const ts_site_entry *e = &slot->site;
    return ts_arenas_reserve(&tap->arenas, e->buft, e->type, e->ne[0], e->ne[1], rows, &slot->arena, offset, bytes, err);
}

int ts_tap_request(ts_tap *tap, unsigned kinds, ts_range blocks, int32_t n_ubatch, ts_error *err) {
    tap->n_ubatch = n_ubatch;
    tap->slots = ts_calloc(tap->table.n + 1, sizeof(*tap->slots));
    if (!tap->slots) return ts_fail_nomem(err, "site slots", tap->table.n * sizeof(*tap->slots));
    for (size_t i = 0; i < tap->table.n; i++) {
        const ts_site_entry *e = &tap->table.entries[i];
        if (!requested(e, kinds, blocks)) continue;
        ts_slot *slot = &tap->slots[tap->n_slots++];
        slot->site = *e;
        if (e->pub.how != TS_HOW_REDIRECTED || tap->want != TS_TAP_REDIRECT) continue;
        int rc = reserve(tap, slot, n_ubatch, &slot->offset, &slot->bytes, err);
        if (rc != TS_OK) return rc;
    }
    for (size_t i = 0; i < tap->n_slots; i++) { /* side by side: one copy takes them all */
        int rc = tap->slots[i].bytes ? reserve(tap, &tap->slots[i], 1, &tap->slots[i].one_offset, &tap->slots[i].one_bytes, err) : TS_OK;
        if (rc != TS_OK) return rc;
    }
    int rc = index_names(tap, err);
    return rc == TS_OK ? ts_arenas_allocate(&tap->arenas, err) : rc;
}

void ts_tap_begin(ts_tap *tap, const ts_expect *expect) {
    memset(&tap->latched, 0, sizeof(tap->latched));
    tap->run_open = false;
    for (size_t i = 0; i < tap->arenas.n; i++) tap->edits[i].n_taken = 0; /* of a run that failed */
    tap->quiet = !tap->wanted && !tap->edit.fn && !tap->skip_head;
    tap->expect = expect && !tap->quiet ? *expect : (ts_expect){0};
}

int ts_tap_end(ts_tap *tap, struct llama_context *ctx, int decoded, ts_error *err) {
    llama_synchronize(ctx);
    ts_error local = {0};
    int rc = decoded == 0 && !tap->latched.code ? ts_run_close(tap, &local) : TS_OK;
    if (rc != TS_OK) latch(tap, rc, &local);
    /* idle: no site is tapped, so no run was looked at */
    if (tap->mode != TS_TAP_IDLE && !tap->latched.code && decoded == 0 && tap->expect.cursor < tap->expect.n) {
        rc = ts_fail(&local, TS_ERR_ENGINE, "the graph ran %zu of %zu tokens sent", tap->expect.cursor, tap->expect.n);
        latch(tap, rc, &local);
    }
    tap->expect = (ts_expect){0};
    tap->run_open = false;
    return tap->latched.code ? copy_error(tap, err) : TS_OK;
}

void ts_tap_free(ts_tap *tap) {
    if (!tap) return;
    for (size_t i = 0; i < tap->n_slots; i++) free(tap->slots[i].staged);
    free(tap->slots);
    free(tap->by_name);
    free(tap->observed);
    ts_run_free(&tap->run);
    for (size_t i = 0; i < TS_ARENA_MAX; i++) {
        ts_readback_free(&tap->readbacks[i]);
        ts_device_edit_free(&tap->edits[i]);
    }
    ts_arenas_free(&tap->arenas);
    ts_sites_free(&tap->table);
}
