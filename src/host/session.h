/* A session: model, context, one persistent threadpool, the tap when something is attached, and decodes. */
#ifndef TS_HOST_SESSION_H
#define TS_HOST_SESSION_H

#include "core/provenance.h"
#include "host/instrument.h"
#include "host/model.h"
#include "host/tap.h"

#define TS_MAX_INSTRUMENTS 8

typedef struct ts_attached {
    const ts_instrument_class *class;
    void *self;
    bool gate, off; /* off: refused at start, or finished */
    bool untapped;  /* set by its start: what it wants is in force without the tap */
} ts_attached;

struct ts_session {
    ts_session_options opts; /* defaults resolved at start; strings copied */
    ts_model *model;
    struct llama_context *ctx;
    struct ggml_threadpool *pool;
    void (*pool_free)(struct ggml_threadpool *);
    ts_tap *tap;             /* NULL when nothing is attached: no callback at all */
    ts_attached attached[TS_MAX_INSTRUMENTS];
    size_t n_attached;
    ts_edit edit;            /* applied in every decode that brings none of its own */
    unsigned extra_sites;    /* wanted by a corpus command rather than an instrument */
    ts_range blocks;
    bool started, unified, warned_bos;
    bool as_device;          /* tests: take host memory for a device's; before start; sessions that share inherit it */
    const float *added;      /* [n_layer][n_embd] vectors for llama.cpp's adapter, set before start; NULL = none */
    bool adapter_on;         /* after start: the graph applies them, by the graph itself */
    char steering[512];      /* what is edited in every decode, "" = nothing */
    char chat_template[128]; /* what ts_session_chat last applied */
    bool finished;
    /* the pass at hand, for the instruments */
    ts_pass pass;
};

/* A decode of up to n_batch tokens. The graph's own tokens and positions must be these, in this order. */
typedef struct ts_decode {
    const int32_t *tokens, *positions, *seq_ids; /* [n]; seq_ids NULL = all 0 */
    const int8_t *output;                        /* [n]; NULL = none */
    size_t n;
    unsigned wanted;  /* kinds that on_run will read */
    bool outputs_only; /* and of them only the rows of output tokens: others may not be there */
    bool skip_head;   /* nobody needs logits */
    const ts_edit *edit; /* nullable */
    ts_run_fn on_run; /* nullable */
    void *user;
} ts_decode;

int ts_session_decode(ts_session *s, const ts_decode *d, ts_error *err);
void ts_session_clear(ts_session *s); /* empties the context's memory */
bool ts_session_stopped(const ts_session *s);

/* Asks for sites outside any instrument; before start. Blocks NULL = all. */
int ts_session_want(ts_session *s, unsigned kinds, const ts_range *blocks, ts_error *err);

/* TS_ERR_ARG when a file that would be written, `path` or `path` with one of the extensions (NULL-terminated list),
 * is a shard of the loaded model. */
int ts_session_keep_model(const ts_session *s, const char *path, const char *const *extensions, ts_error *err);

/* Facts for result files; shard hashes are left empty. Freed by ts_provenance_free. */
int ts_session_provenance(const ts_session *s, ts_provenance *out, ts_error *err);
void ts_provenance_free(ts_provenance *p);
/* The tapped sites as a JSON array of {"site","block","tensor","how"}; caller frees. */
char *ts_session_sites_json(const ts_session *s);

#endif
