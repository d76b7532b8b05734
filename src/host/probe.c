/* The public probe: a tap on a llama_context that the caller owns. Refuses to be attached before it was
 * prepared, or to a context that has no memory to decode into. */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "host/engine.h"
#include "host/run.h"
#include "host/trust.h"

struct ts_probe {
    ts_tap tap;
    struct llama_context *ctx;
    unsigned sites;
    bool all_blocks, prepared;
    ts_range blocks;
};

int ts_probe_create(const ts_probe_options *opts, ts_probe **out, ts_error *err) {
    *out = NULL;
    int rc = ts_options_check(opts, sizeof(*opts), "ts_probe_options", err);
    if (rc != TS_OK) return rc;
    if (!opts->on_run) return ts_fail(err, TS_ERR_ARG, "ts_probe_options: on_run is required");
    if (opts->sites >> TS_SITE_KIND_COUNT) return ts_fail(err, TS_ERR_ARG, "ts_probe_options: unknown site in mask 0x%x", opts->sites);
    ts_engine_init();
    ts_probe *p = ts_calloc(1, sizeof(*p));
    if (!p) return ts_fail_nomem(err, "probe", sizeof(*p));
    p->sites = opts->sites ? opts->sites : 1u << TS_SITE_RESID;
    p->all_blocks = !opts->blocks;
    if (opts->blocks) p->blocks = *opts->blocks;
    p->tap.want = opts->tap;
    p->tap.on_run = opts->on_run;
    p->tap.user = opts->user;
    p->tap.wanted = p->sites;
    *out = p;
    return TS_OK;
}

int ts_probe_prepare(ts_probe *p, struct llama_context_params *params, ts_error *err) {
    if (p->prepared) return ts_fail(err, TS_ERR_STATE, "the probe is prepared for a context already");
    p->tap.chain = params->cb_eval;
    p->tap.chain_user = params->cb_eval_user_data;
    params->cb_eval = ts_tap_callback;
    params->cb_eval_user_data = &p->tap;
    p->prepared = true;
    return TS_OK;
}

/* Every asked-for kind must stand in at least one block, the residual stream in all of them. */
static int require(const ts_probe *p, const char *architecture, ts_error *err) {
    for (int kind = 0; kind < TS_SITE_KIND_COUNT; kind++) {
        bool found = false;
        if (!((p->sites >> kind) & 1u)) continue;
        for (size_t i = 0; i < p->tap.n_slots; i++) found = found || (int)p->tap.slots[i].site.pub.kind == kind;
        if (!found)
            return ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s' has no %s site", architecture,
                           ts_site_kind_name((enum ts_site_kind)kind));
    }
    if (!((p->sites >> TS_SITE_RESID) & 1u)) return TS_OK;
    return ts_sites_require(&p->tap.table, TS_SITE_RESID, p->blocks.first, p->blocks.last, architecture, err);
}

int ts_probe_attach(ts_probe *p, struct llama_context *ctx, ts_error *err) {
    const struct llama_model *model = llama_get_model(ctx);
    char architecture[64] = "";
    llama_model_meta_val_str(model, "general.architecture", architecture, sizeof(architecture));
    if (!p->prepared) return ts_fail(err, TS_ERR_STATE, "ts_probe_prepare must run before the context is made");
    if (p->ctx) return ts_fail(err, TS_ERR_STATE, "the probe is attached already");
    if (!llama_get_memory(ctx))
        return ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s' has no decoder memory: nothing to tap", architecture);
    int32_t n_layer = llama_model_n_layer(model);
    if (p->all_blocks) p->blocks = (ts_range){0, n_layer - 1};
    if (p->blocks.first < 0 || p->blocks.first > p->blocks.last || p->blocks.last >= n_layer)
        return ts_fail(err, TS_ERR_ARG, "blocks %d:%d: the model has blocks 0:%d", p->blocks.first, p->blocks.last, n_layer - 1);
    int rc = ts_tap_learn(&p->tap, ctx, err);
    llama_memory_clear(llama_get_memory(ctx), true);
    if (rc != TS_OK) return rc; /* nothing is kept of it: the right context may still come */
    p->ctx = ctx;
    rc = ts_tap_request(&p->tap, p->sites, p->blocks, (int32_t)llama_n_ubatch(ctx), err);
    if (rc == TS_OK) rc = require(p, architecture, err);
    if (rc == TS_OK) rc = ts_trust_earn(&p->tap, ctx, err);
    if (rc == TS_OK)
        ts_tap_begin(&p->tap, NULL);
    else
        p->tap.mode = TS_TAP_IDLE;
    return rc;
}

int ts_probe_collect(ts_probe *p, ts_error *err) {
    if (!p->ctx) return ts_fail(err, TS_ERR_STATE, "the probe is not attached to a context");
    int rc = ts_tap_end(&p->tap, p->ctx, 0, err);
    ts_tap_begin(&p->tap, NULL);
    return rc;
}

int ts_tap_copy_sites(const ts_tap *tap, ts_site **out, size_t *n, ts_error *err) {
    *n = 0;
    *out = ts_calloc(tap->table.n + 1, sizeof(**out));
    if (!*out) return ts_fail_nomem(err, "sites", tap->table.n * sizeof(**out));
    for (size_t i = 0; i < tap->table.n; i++) (*out)[i] = tap->table.entries[i].pub;
    *n = tap->table.n;
    return TS_OK;
}

int ts_probe_sites(const ts_probe *p, ts_site **out, size_t *n, ts_error *err) {
    return ts_tap_copy_sites(&p->tap, out, n, err);
}

void ts_probe_free(ts_probe *p) {
    if (!p) return;
    ts_tap_free(&p->tap);
    free(p);
}
