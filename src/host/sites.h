/* The site table: which graph nodes carry which activation. Built from one observed graph of one token; a
 * row is learned by its node's exact name. New kinds of sites are new finders, not new mechanism. */
#ifndef TS_HOST_SITES_H
#define TS_HOST_SITES_H

#include "core/error.h"
#include "host/node.h"
#include "host/weights.h"

typedef struct ts_site_entry {
    ts_site pub;           /* what `nodes` prints */
    enum ggml_type type;
    int64_t ne[2];         /* shape of one token's part: width, and rows a token (experts: n_used) */
    char key[GGML_MAX_NAME]; /* the node's name; at a reader the name of the weight it is read with */
    int32_t nth;           /* which occurrence of the key in graph order, from 0 */
    bool at_reader;        /* asked for where it is read, having no name of its own; cannot be edited */
    ggml_backend_buffer_type_t buft;
    const char *op;        /* ggml's name of the operation that computes it */
    const struct ggml_tensor *added; /* the leaf it adds last, NULL where it adds none: llama.cpp's adapter, or a bias */
    int32_t top_k, n_expert; /* router only: the row's first top_k are the chosen ids, below n_expert */
    bool normed;           /* a norm or scale stands between the activation and the reader (FFN sites) */
} ts_site_entry;

typedef struct ts_site_table {
    ts_site_entry *entries; /* [n], graph order */
    size_t n, capacity;
    int32_t n_layer;
    ts_ffn_weights *dense, *shared; /* [n_layer] sizes of the FFN weights */
} ts_site_table;

/* `nodes` [n] in graph order, still allocated, of a one-token run with one output. */
int ts_sites_learn(ts_site_table *table, struct ggml_tensor *const *nodes, size_t n, int32_t n_layer, int32_t n_embd,
                   ts_error *err);
/* NULL when the model has no such site. Block -1 for TS_SITE_HEAD. */
const ts_site_entry *ts_sites_find(const ts_site_table *table, enum ts_site_kind kind, int32_t block);
void ts_sites_free(ts_site_table *table);

/* The one predicate of capture and steering: every block in [first, last] has a usable site of that kind.
 * TS_ERR_UNSUPPORTED naming architecture, block and reason. */
int ts_sites_require(const ts_site_table *table, enum ts_site_kind kind, int32_t first, int32_t last,
                     const char *architecture, ts_error *err);

#endif
