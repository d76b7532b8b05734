/* Trust in redirection is earned per graph shape. Owns the short decodes at open and the comparison; refuses
 * to leave a site redirected whose rows or whose effect on the logits differ. */
#include "host/trust.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"

#define MAX_SHAPE 64 /* tokens of the largest shape tried on a device; kernels switch well below it */

/* What one decode gave: logits of the last token and the rows of every slot. */
typedef struct outcome {
    float *logits;    /* [n_vocab] */
    char **rows;      /* [n_slots] */
    size_t *bytes;    /* [n_slots] */
    size_t n_slots;
} outcome;

static void outcome_free(outcome *o) {
    for (size_t i = 0; o->rows && i < o->n_slots; i++) free(o->rows[i]);
    free(o->rows);
    free(o->bytes);
    free(o->logits);
    memset(o, 0, sizeof(*o));
}

/* The consumer of the tap while trust is earned: keeps a copy of every slot's rows. */
static int keep_rows(const ts_run *run, void *user, ts_error *err) {
    outcome *o = user;
    ts_tap *tap = run->tap;
    for (size_t i = 0; i < tap->n_slots; i++) {
        const void *data = NULL;
        int rc = ts_slot_rows(tap, &tap->slots[i], &data, err);
        if (rc != TS_OK) return rc;
        if (!data) continue;
        const struct ggml_tensor *t = &tap->slots[i].node;
        o->bytes[i] = ggml_row_size(t->type, t->ne[0]) * (size_t)ts_node_rows(t);
        if (!(o->rows[i] = ts_malloc(o->bytes[i]))) return ts_fail_nomem(err, "rows to compare", o->bytes[i]);
        memcpy(o->rows[i], data, o->bytes[i]);
    }
    return TS_OK;
}

static int decode_once(ts_tap *tap, struct llama_context *ctx, enum ts_tap_mode mode, int32_t n, outcome *o, ts_error *err) {
    llama_token tokens[MAX_SHAPE];
    int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    for (int32_t i = 0; i < n; i++) tokens[i] = (int32_t)((7 + 37 * (int64_t)i) % n_vocab);
    o->n_slots = tap->n_slots;
    o->rows = ts_calloc(tap->n_slots + 1, sizeof(*o->rows));
    o->bytes = ts_calloc(tap->n_slots + 1, sizeof(*o->bytes));
    o->logits = ts_calloc((size_t)n_vocab, sizeof(float));
    if (!o->rows || !o->bytes || !o->logits) return ts_fail_nomem(err, "trust check", (size_t)n_vocab * sizeof(float));
    ts_arenas_poison(&tap->arenas);
    tap->mode = mode;
    tap->on_run = keep_rows;
    tap->user = o;
    tap->wanted = ~0u;
    ts_tap_begin(tap, NULL);
    int decoded = llama_decode(ctx, llama_batch_get_one(tokens, n));
    int rc = ts_tap_end(tap, ctx, decoded, err);
    const float *logits = decoded == 0 ? llama_get_logits_ith(ctx, -1) : NULL;
    if (logits) memcpy(o->logits, logits, (size_t)n_vocab * sizeof(float));
    tap->mode = TS_TAP_IDLE;
    llama_memory_clear(llama_get_memory(ctx), true);
    if (rc == TS_OK && decoded != 0) rc = ts_fail(err, TS_ERR_ENGINE, "the trust check failed: llama_decode returned %d", decoded);
    return rc;
}

static bool same_logits(const outcome *a, const outcome *b, struct llama_context *ctx) {
    size_t n = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    return memcmp(a->logits, b->logits, n * sizeof(float)) == 0;
}

static void ask_for(ts_slot *slot, const char *why, int32_t n) {
    if (slot->site.pub.how != TS_HOW_REDIRECTED) return;
    slot->site.pub.how = TS_HOW_ASKED;
    snprintf(slot->site.pub.why, sizeof(slot->site.pub.why), "%s (%d tokens)", why, n);
}

/* Of a router only the chosen ids are read: what a fused selection leaves behind them is nobody's. */
static bool same_ids(const ts_slot *slot, const char *a, const char *b, size_t bytes) {
    size_t row = (size_t)slot->site.ne[0] * sizeof(int32_t), used = (size_t)slot->site.top_k * sizeof(int32_t);
    for (size_t at = 0; at < bytes; at += row)
        if (memcmp(a + at, b + at, used) != 0) return false;
    return true;
}

/* A device computes the weights in one fused kernel unless it is asked to stop among its nodes, and rounds otherwise then:
 * what was multiplied is what the fused one wrote. A row it left unwritten is NaN, and near nothing. */
static bool near_weights(const char *a, const char *b, size_t bytes) {
    for (size_t at = 0; at < bytes; at += sizeof(float)) {
        float x, y;
        memcpy(&x, a + at, sizeof(x));
        memcpy(&y, b + at, sizeof(y));
        if (!(fabsf(x - y) <= 1e-3f * fabsf(y) + 1e-6f)) return false;
    }
    return true;
}

static bool same_rows(const ts_slot *slot, const char *a, const char *b, size_t bytes) {
    if (slot->site.pub.kind == TS_SITE_ROUTER) return same_ids(slot, a, b, bytes);
    return memcmp(a, b, bytes) == 0 || (slot->site.pub.kind == TS_SITE_ROUTER_WEIGHTS && near_weights(a, b, bytes));
}

/* Sites whose redirected rows are not those that asking gives lose their redirection. */
static void compare_rows(ts_tap *tap, const outcome *redirected, const outcome *asked, int32_t n) {
    for (size_t i = 0; i < tap->n_slots; i++) {
        bool same = redirected->bytes[i] == asked->bytes[i] && redirected->bytes[i] > 0 &&
                    same_rows(&tap->slots[i], redirected->rows[i], asked->rows[i], asked->bytes[i]);
        if (!same) ask_for(&tap->slots[i], "its redirected rows differ from those asked for", n);
    }
}

static int earn_shape(ts_tap *tap, struct llama_context *ctx, int32_t n, ts_error *err) {
    outcome plain = {0}, redirected = {0}, asked = {0};
    int rc = decode_once(tap, ctx, TS_TAP_IDLE, n, &plain, err);
    /* Asked before redirected: llama.cpp reuses the graph, whose nodes then keep pointing at the arena. */
    if (rc == TS_OK) rc = decode_once(tap, ctx, TS_TAP_ASKING, n, &asked, err);
    if (rc == TS_OK) rc = decode_once(tap, ctx, TS_TAP_LIVE, n, &redirected, err);
    if (rc == TS_OK) {
        compare_rows(tap, &redirected, &asked, n);
        if (!same_logits(&plain, &redirected, ctx)) {
            ts_log(TS_LOG_WARN, "redirecting changes the logits of %d tokens on this backend: every site is asked for", n);
            for (size_t i = 0; i < tap->n_slots; i++) ask_for(&tap->slots[i], "redirecting changes the logits", n);
        }
        if (!same_logits(&plain, &asked, ctx))
            ts_log(TS_LOG_INFO, "asking for the sites changes the logits of %d tokens on this backend", n);
    }
    outcome_free(&plain);
    outcome_free(&redirected);
    outcome_free(&asked);
    return rc;
}

/* A graph of another shape, so that none with nodes pointing at lost slots is reused. */
static int drop_graph(ts_tap *tap, struct llama_context *ctx, ts_error *err) {
    outcome unused = {0};
    int rc = decode_once(tap, ctx, TS_TAP_IDLE, 2, &unused, err);
    outcome_free(&unused);
    return rc;
}

static bool on_device(const ts_tap *tap) {
    for (size_t i = 0; i < tap->arenas.n; i++)
        if (!tap->arenas.list[i].host) return true;
    return false;
}

/* Publishes what was decided in the site table that `nodes` and the meta data show. */
static void publish(ts_tap *tap) {
    for (size_t s = 0; s < tap->n_slots; s++)
        for (size_t i = 0; i < tap->table.n; i++) {
            ts_site *pub = &tap->table.entries[i].pub;
            if (pub->kind == tap->slots[s].site.pub.kind && pub->block == tap->slots[s].site.pub.block) *pub = tap->slots[s].site.pub;
        }
}

int ts_trust_earn(ts_tap *tap, struct llama_context *ctx, ts_error *err) {
    ts_run_fn on_run = tap->on_run;
    void *user = tap->user;
    unsigned wanted = tap->wanted;
    int32_t shapes[] = {1, 4, 16, MAX_SHAPE}, limit = on_device(tap) ? MAX_SHAPE : 4;
    int rc = TS_OK;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && rc == TS_OK; i++)
        if (shapes[i] <= limit && shapes[i] <= tap->n_ubatch) rc = earn_shape(tap, ctx, shapes[i], err);
    if (rc == TS_OK && tap->n_ubatch >= 2) rc = drop_graph(tap, ctx, err);
    tap->on_run = on_run;
    tap->user = user;
    tap->wanted = wanted;
    publish(tap);
    tap->mode = TS_TAP_LIVE;
    return rc;
}
