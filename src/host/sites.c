/* The site table: finds each site in an observed graph. Refuses sites it cannot name again in a later graph
 * and tensors that are not one row of the residual width a token (several residual streams). */
#include "host/sites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "host/sites_moe.h"

typedef struct finder {
    ts_site_table *table;
    struct ggml_tensor *const *nodes;
    size_t n;
    int32_t n_embd;
    ts_error *err;
} finder;

const char *ts_site_kind_name(enum ts_site_kind kind) {
    static const char *const names[TS_SITE_KIND_COUNT] = {"resid", "ffn", "experts", "ffn_shexp", "router", "head", "router_weights"};
    return (unsigned)kind < TS_SITE_KIND_COUNT ? names[kind] : "unknown";
}

const char *ts_site_how_name(enum ts_site_how how) {
    static const char *const names[] = {"redirected", "asked", "refused"};
    return (unsigned)how <= TS_HOW_REFUSED ? names[how] : "unknown";
}

const ts_site_entry *ts_sites_find(const ts_site_table *table, enum ts_site_kind kind, int32_t block) {
    for (size_t i = 0; i < table->n; i++)
        if (table->entries[i].pub.kind == kind && table->entries[i].pub.block == block) return &table->entries[i];
    return NULL;
}

/* Where `t` stands among the nodes of its own name; *total counts them all. */
static int32_t occurrence(const finder *f, const struct ggml_tensor *t, int32_t *total) {
    int32_t nth = 0;
    *total = 0;
    for (size_t i = 0; i < f->n; i++) {
        if (f->nodes[i] == t) nth = *total;
        if (strcmp(f->nodes[i]->name, t->name) == 0) ++*total;
    }
    return nth;
}

/* Design, rule 3: split inputs are copied before the split's nodes are asked, so a copied view would be stale. */
static bool view_is_copied(const finder *f, const struct ggml_tensor *site) {
    char name[GGML_MAX_NAME];
    size_t n = strlen(site->name);
    for (size_t i = 0; i < f->n; i++)
        for (int k = 0; k < GGML_MAX_SRC && f->nodes[i]->src[k]; k++) {
            if (!ts_node_is_copy(f->nodes[i]->src[k])) continue;
            ts_node_name(f->nodes[i]->src[k], name);
            if (strncmp(name, site->name, n) == 0 && name[n] == ' ') return true;
        }
    return false;
}

static void decide_how(const finder *f, ts_site_entry *e, const struct ggml_tensor *t) {
    int32_t total = 0;
    snprintf(e->key, sizeof(e->key), "%s", t->name);
    e->nth = occurrence(f, t, &total);
    const char *why = ts_node_why_not(t);
    if (!why && total > 1) why = "its name occurs more than once";
    if (!why && view_is_copied(f, t)) why = "a view of it crosses devices";
    e->pub.how = why ? TS_HOW_ASKED : TS_HOW_REDIRECTED;
    if (!ts_node_name_stable(t->name)) {
        e->pub.how = TS_HOW_REFUSED;
        why = "its node has no name of its own";
    }
    snprintf(e->pub.why, sizeof(e->pub.why), "%s", why ? why : "");
}

/* act(gate) * up comes out of a GLU, a MUL of two activations, or a plain activation; anything else was normed or
 * scaled on its way to ffn_down. */
static bool is_normed(const struct ggml_tensor *t) {
    if (t->op == GGML_OP_GLU || t->op == GGML_OP_UNARY || t->op == GGML_OP_SQR) return false;
    return t->op != GGML_OP_MUL || ts_node_weight_block(t->src[1], "ffn_sub_norm.weight") >= 0 || t->src[1]->op == GGML_OP_NONE;
}

/* An empty row at the end, NULL without memory. */
static ts_site_entry *grow(finder *f) {
    ts_site_table *table = f->table;
    if (table->n == table->capacity) {
        size_t capacity = table->capacity ? table->capacity * 2 : 64;
        ts_site_entry *grown = ts_realloc(table->entries, capacity, sizeof(*grown));
        if (!grown) return NULL;
        table->entries = grown;
        table->capacity = capacity;
    }
    ts_site_entry *e = &table->entries[table->n++];
    memset(e, 0, sizeof(*e));
    return e;
}

static int add(finder *f, enum ts_site_kind kind, int32_t block, const struct ggml_tensor *t) {
    ts_site_entry *e = grow(f);
    if (!e) return ts_fail_nomem(f->err, "site table", f->table->n * sizeof(*e));
    e->pub.kind = kind;
    e->pub.block = block;
    e->pub.width = e->ne[0] = t->ne[0];
    e->ne[1] = ts_node_rows(t);
    e->type = t->type;
    e->op = ggml_op_name(t->op);
    e->normed = kind != TS_SITE_RESID && kind != TS_SITE_ROUTER && kind != TS_SITE_ROUTER_WEIGHTS && kind != TS_SITE_HEAD && is_normed(t);
    bool adds_leaf = t->op == GGML_OP_ADD && t->src[1]->op == GGML_OP_NONE && !ts_node_is_copy(t->src[1]);
    e->added = adds_leaf ? t->src[1] : NULL; /* a copy would be gone with its graph */
    snprintf(e->pub.tensor, sizeof(e->pub.tensor), "%s", t->name);
    snprintf(e->pub.type, sizeof(e->pub.type), "%s", ggml_type_name(t->type));
    if (t->buffer) {
        e->buft = ggml_backend_buffer_get_type(t->buffer);
        snprintf(e->pub.device, sizeof(e->pub.device), "%s", ggml_backend_buft_name(e->buft));
    }
    decide_how(f, e, t);
    return TS_OK;
}

static bool one_stream(const finder *f, const struct ggml_tensor *t) {
    return t->ne[0] == f->n_embd && t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1;
}

/* The block whose output `t` is already, -1 when none. */
static int32_t output_of(const finder *f, const struct ggml_tensor *t) {
    for (size_t i = 0; i < f->table->n; i++) {
        const ts_site *site = &f->table->entries[i].pub;
        if (site->kind == TS_SITE_RESID && strcmp(site->tensor, t->name) == 0) return site->block;
    }
    return -1;
}

/* A block output, or a refused row when the model carries several streams side by side or the block adds nothing. */
static int add_resid(finder *f, int32_t block, const struct ggml_tensor *t) {
    int32_t other = output_of(f, t);
    if (ts_sites_find(f->table, TS_SITE_RESID, block)) return TS_OK;
    int rc = add(f, TS_SITE_RESID, block, t);
    if (rc != TS_OK || (one_stream(f, t) && other < 0)) return rc;
    ts_site_entry *e = &f->table->entries[f->table->n - 1];
    e->pub.how = TS_HOW_REFUSED;
    if (other >= 0)
        snprintf(e->pub.why, sizeof(e->pub.why), "no residual of its own: what comes after reads that of block %d", other);
    else
        snprintf(e->pub.why, sizeof(e->pub.why), "%lld x %lld values a token: several residual streams, no single one",
                 (long long)t->ne[0], (long long)ts_node_rows(t));
    return TS_OK;
}

static int find_named_resid(finder *f) {
    for (size_t i = 0; i < f->n; i++) {
        int32_t block = ts_name_block(f->nodes[i]->name, "l_out-");
        if (block < 0 || block >= f->table->n_layer) continue;
        int rc = add_resid(f, block, f->nodes[i]);
        if (rc != TS_OK) return rc;
    }
    return TS_OK;
}

/* What a norm with this weight reads: weight <- MUL -> norm -> its input, past the trimming of outputs. */
static const struct ggml_tensor *norm_input(const struct ggml_tensor *mul) {
    const struct ggml_tensor *norm = mul->src[0];
    if (!norm || (norm->op != GGML_OP_RMS_NORM && norm->op != GGML_OP_NORM)) return NULL;
    const struct ggml_tensor *x = norm->src[0];
    if (x && x->op == GGML_OP_GET_ROWS && ts_node_named(x->src[1], "out_ids")) x = x->src[0];
    return x;
}

static bool residual_join(const struct ggml_tensor *t) {
    return t->op == GGML_OP_ADD || t->op == GGML_OP_MUL || t->op == GGML_OP_SCALE || t->op == GGML_OP_ADD1;
}

static int32_t missing_resid(const finder *f) {
    for (int32_t block = 0; block < f->table->n_layer; block++)
        if (!ts_sites_find(f->table, TS_SITE_RESID, block)) return block;
    return -1;
}

/* Hyper-connections mix several streams by weights of their own. */
static bool mixes_streams(const finder *f, int32_t block) {
    char prefix[32], name[GGML_MAX_NAME];
    size_t n = (size_t)snprintf(prefix, sizeof(prefix), "blk.%d.hc_", block);
    for (size_t i = 0; i < f->n; i++)
        for (int k = 0; k < GGML_MAX_SRC && f->nodes[i]->src[k]; k++) {
            ts_node_name(f->nodes[i]->src[k], name);
            if (strncmp(name, prefix, n) == 0) return true;
        }
    return false;
}

static void refuse_resid(const finder *f, ts_site *site, const char *why) {
    site->how = TS_HOW_REFUSED;
    snprintf(site->why, sizeof(site->why), "%s",
             mixes_streams(f, site->block) ? "hyper-connections: several residual streams, no single one" : why);
}

/* One stream runs through all blocks. Where the structure shows some only, what it shows is something else: with
 * hyper-connections, the several streams merged for the head. */
static void doubt_resid(finder *f, size_t begin, int32_t missing) {
    char why[80];
    snprintf(why, sizeof(why), "block %d hands on no single residual stream, so this is none", missing);
    for (size_t i = begin; i < f->table->n; i++)
        if (f->table->entries[i].pub.how != TS_HOW_REFUSED) refuse_resid(f, &f->table->entries[i].pub, why);
}

/* Rows for the blocks without such a tensor, so that it is told why. */
static int add_missing_resids(finder *f) {
    for (int32_t block = 0; block < f->table->n_layer; block++) {
        if (ts_sites_find(f->table, TS_SITE_RESID, block)) continue;
        ts_site_entry *e = grow(f);
        if (!e) return ts_fail_nomem(f->err, "site table", f->table->n * sizeof(*e));
        e->pub.kind = TS_SITE_RESID;
        e->pub.block = block;
        e->op = "NONE";
        refuse_resid(f, &e->pub, "no node is named l_out, and no norm of the next block reads one");
    }
    return TS_OK;
}

/* Where no node is called l_out: the input of the next block's first norm. */
static int find_structural_resid(finder *f) {
    size_t begin = f->table->n;
    for (size_t i = 0; i < f->n; i++) {
        const struct ggml_tensor *t = f->nodes[i];
        if (t->op != GGML_OP_MUL) continue;
        int32_t block = ts_node_weight_block(t->src[1], "attn_norm.weight") - 1;
        if (ts_node_named(t->src[1], "output_norm.weight")) block = f->table->n_layer - 1;
        if (block < 0) continue;
        const struct ggml_tensor *x = norm_input(t);
        int rc = x && residual_join(x) && !ts_node_is_copy(x) ? add_resid(f, block, x) : TS_OK;
        if (rc != TS_OK) return rc;
    }
    if (missing_resid(f) >= 0) doubt_resid(f, begin, missing_resid(f));
    return add_missing_resids(f);
}

static int32_t uses_of_weight(const finder *f, const struct ggml_tensor *use) {
    int32_t uses = 0;
    for (size_t i = 0; i < f->n; i++) uses += f->nodes[i]->op == use->op && f->nodes[i]->src[0] == use->src[0];
    return uses;
}

static const char *last_number(const char *name) {
    const char *dash = strrchr(name, '-');
    return dash ? dash : name;
}

/* Which block a use of a weight belongs to. A model that loops over its blocks uses each weight several times: there the
 * nodes are numbered on, and the weights are not. */
static int32_t block_of_use(const finder *f, const struct ggml_tensor *use, int32_t of_weight) {
    int32_t own = ts_name_block(last_number(use->src[1]->name), "-");
    return uses_of_weight(f, use) > 1 && own >= 0 && own < f->table->n_layer ? own : of_weight;
}

/* A tensor without a name of its own is known by who reads it: the one use of that weight. It is still there when the
 * reader is done, as nothing later has been computed. */
static void read_where_used(const finder *f, ts_site_entry *e, const struct ggml_tensor *use) {
    if (e->pub.how != TS_HOW_REFUSED || uses_of_weight(f, use) != 1) return;
    e->pub.how = TS_HOW_ASKED;
    e->at_reader = true;
    e->nth = 0;
    ts_node_name(use->src[0], e->key);
    snprintf(e->pub.why, sizeof(e->pub.why), "its node has no name of its own: read where '%s' is used", e->key);
}

static int find_matmul_inputs(finder *f) {
    static const struct {
        enum ts_site_kind kind;
        enum ggml_op op;
        const char *weight;
    } inputs[] = {{TS_SITE_FFN, GGML_OP_MUL_MAT, "ffn_down.weight"},
                  {TS_SITE_FFN, GGML_OP_MUL_MAT, "channel_mix_value.weight"}, /* RWKV's name for it */
                  {TS_SITE_FFN_SHEXP, GGML_OP_MUL_MAT, "ffn_down_shexp.weight"},
                  {TS_SITE_EXPERTS, GGML_OP_MUL_MAT_ID, "ffn_down_exps.weight"}};
    for (size_t i = 0; i < f->n; i++)
        for (size_t k = 0; k < sizeof(inputs) / sizeof(inputs[0]); k++) {
            const struct ggml_tensor *t = f->nodes[i];
            int32_t block = t->op == inputs[k].op ? ts_node_weight_block(t->src[0], inputs[k].weight) : -1;
            if (block < 0 || ts_node_is_copy(t->src[1])) continue;
            block = block_of_use(f, t, block);
            if (ts_sites_find(f->table, inputs[k].kind, block)) continue;
            int rc = add(f, inputs[k].kind, block, t->src[1]);
            if (rc != TS_OK) return rc;
            read_where_used(f, &f->table->entries[f->table->n - 1], t);
        }
    return TS_OK;
}

/* Ids and weights of the chosen experts, by what the down projection of the experts reads and what follows it. */
static int add_router(finder *f, int32_t block, const struct ggml_tensor *down) {
    const struct ggml_tensor *ids = ts_moe_ids(f->nodes, f->n, down), *weights = ts_moe_weights(f->nodes, f->n, down);
    if (!ids) return TS_OK;
    int rc = add(f, TS_SITE_ROUTER, block, ids);
    if (rc != TS_OK) return rc;
    ts_site_entry *e = &f->table->entries[f->table->n - 1];
    e->top_k = (int32_t)down->src[2]->ne[0];
    e->n_expert = (int32_t)down->src[0]->ne[2];
    return weights ? add(f, TS_SITE_ROUTER_WEIGHTS, block, weights) : TS_OK;
}

static int find_router_and_head(finder *f) {
    for (size_t i = 0; i < f->n; i++) {
        const struct ggml_tensor *t = f->nodes[i];
        int rc = TS_OK;
        int32_t block = t->op == GGML_OP_MUL_MAT_ID ? ts_node_weight_block(t->src[0], "ffn_down_exps.weight") : -1;
        if (block >= 0 && !ts_sites_find(f->table, TS_SITE_ROUTER, block)) rc = add_router(f, block, t);
        bool head = t->op == GGML_OP_MUL_MAT && t->src[1] && !ts_node_is_copy(t->src[1]) &&
                    (ts_node_named(t->src[0], "output.weight") || ts_node_named(t->src[0], "token_embd.weight"));
        if (rc == TS_OK && head && !ts_sites_find(f->table, TS_SITE_HEAD, -1)) rc = add(f, TS_SITE_HEAD, -1, t->src[1]);
        if (rc != TS_OK) return rc;
    }
    return TS_OK;
}

int ts_sites_learn(ts_site_table *table, struct ggml_tensor *const *nodes, size_t n, int32_t n_layer, int32_t n_embd,
                   ts_error *err) {
    finder f = {.table = table, .nodes = nodes, .n = n, .n_embd = n_embd, .err = err};
    table->n_layer = n_layer;
    int rc = find_named_resid(&f);
    if (rc == TS_OK) rc = find_structural_resid(&f);
    if (rc == TS_OK) rc = find_matmul_inputs(&f);
    if (rc == TS_OK) rc = find_router_and_head(&f);
    table->dense = ts_calloc((size_t)n_layer + 1, sizeof(*table->dense));
    table->shared = ts_calloc((size_t)n_layer + 1, sizeof(*table->shared));
    if (!table->dense || !table->shared) return ts_fail_nomem(err, "site table", 0);
    ts_weights_learn(table->dense, table->shared, n_layer, nodes, n);
    return rc;
}

void ts_sites_free(ts_site_table *table) {
    free(table->entries);
    free(table->dense);
    free(table->shared);
    memset(table, 0, sizeof(*table));
}

int ts_sites_require(const ts_site_table *table, enum ts_site_kind kind, int32_t first, int32_t last,
                     const char *architecture, ts_error *err) {
    for (int32_t block = first; block <= last; block++) {
        const ts_site_entry *e = ts_sites_find(table, kind, block);
        if (e && e->pub.how != TS_HOW_REFUSED) continue;
        return ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s' has no %s site in block %d: %s", architecture,
                       ts_site_kind_name(kind), block, e ? e->pub.why : "its graph has no such node");
    }
    return TS_OK;
}
