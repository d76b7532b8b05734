/* From graph runs to the expert-activation census. Refuses a block whose experts or ids cannot be read, by name. */
#include "instrument/expert.h"

#include "stats/expert_stats.h"

bool ts_expert_any(const ts_session *s) {
    const ts_site_table *table = &s->tap->table;
    for (size_t i = 0; i < table->n; i++)
        if (table->entries[i].pub.kind == TS_SITE_EXPERTS) return true;
    return false;
}

static int open_layer(ts_experts *x, const ts_session *s, int32_t il, ts_error *err) {
    const ts_site_entry *values = ts_sites_find(&s->tap->table, TS_SITE_EXPERTS, il), *ids = ts_sites_find(&s->tap->table, TS_SITE_ROUTER, il);
    if (!values) return TS_OK;
    const char *why = values->pub.how == TS_HOW_REFUSED ? values->pub.why : !ids ? "its expert ids were not found" : NULL;
    if (!why && ids->pub.how == TS_HOW_REFUSED) why = ids->pub.why;
    if (!why && (ids->type != GGML_TYPE_I32 || values->type != GGML_TYPE_F32 || values->ne[1] != ids->top_k || ids->top_k > ids->pub.width))
        why = "ids and activations do not fit each other";
    if (why)
        return ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s': the experts of block %d cannot be counted: %s", s->model->architecture, il, why);
    return ts_expert_layer_init(&x->layers[il], (uint32_t)ids->n_expert, (uint32_t)ids->top_k, (uint32_t)values->ne[0], err);
}

int ts_expert_open(ts_experts *x, const ts_session *s, ts_error *err) {
    int32_t n_layer = llama_model_n_layer(s->model->llama);
    int rc = ts_experts_init(x, (uint32_t)n_layer, err);
    for (int32_t il = 0; rc == TS_OK && il < n_layer; il++) rc = open_layer(x, s, il, err);
    return rc;
}

static int run_layer(ts_expert_layer *l, const ts_run *run, int32_t il, ts_error *err) {
    ts_rows values = {0}, ids = {0};
    int rc = ts_run_rows(run, TS_SITE_EXPERTS, il, &values, err);
    if (rc == TS_OK) rc = ts_run_rows(run, TS_SITE_ROUTER, il, &ids, err);
    if (rc == TS_OK && (values.n_rows != ids.n_rows || ids.n_rows != ts_run_n_tokens(run)))
        rc = ts_fail(err, TS_ERR_ENGINE, "block %d gave %lld expert rows and %lld of ids for %d tokens", il, (long long)values.n_rows,
                     (long long)ids.n_rows, ts_run_n_tokens(run));
    ts_expert_counts counts = {l->n_experts, l->top_k, l->width, l->rows, l->mass, l->bucket_count};
    for (int64_t t = 0; rc == TS_OK && t < ids.n_rows; t++)
        if (ts_expert_count(&counts, (const int32_t *)(const void *)ids.data + t * ids.width, values.data + t * values.width) != TS_OK)
            rc = ts_fail(err, TS_ERR_ENGINE, "block %d: the router chose an expert beyond the %u there are", il, l->n_experts);
    return rc;
}

int ts_expert_run(ts_experts *x, const ts_run *run, ts_error *err) {
    int rc = TS_OK;
    for (uint32_t il = 0; rc == TS_OK && il < x->n_layers; il++)
        if (x->layers[il].n_experts) rc = run_layer(&x->layers[il], run, (int32_t)il, err);
    if (rc == TS_OK) x->decode_passes += (uint64_t)ts_run_n_tokens(run);
    return rc;
}
