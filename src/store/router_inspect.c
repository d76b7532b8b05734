/* Reports on routing censuses and their CSV. Refuses what their readers refuse. */
#include <inttypes.h>

#include "store/inspect_internal.h"
#include "store/router.h"

static uint64_t sum_phase(const ts_router *c, int phase) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        n += c->layers[i].rows[phase] * c->layers[i].top_k;
    return n;
}

static void report_counts(ts_report *r, const ts_router *c) {
    uint64_t duplicates = 0, blocks = 0;
    bool gated = true;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const ts_router_layer *l = &c->layers[i];
        blocks += l->n_experts > 0;
        duplicates += l->duplicates;
        gated = gated && (l->n_experts == 0 || l->gate_mass);
    }
    ts_report_int(r, "layers", c->n_layers);
    ts_report_int(r, "routed_layers", (int64_t)blocks);
    ts_report_int(r, "experts", ts_router_experts(c));
    ts_report_int(r, "top_k", ts_router_top_k(c));
    ts_report_int(r, "rows", (int64_t)ts_router_most_rows(c));
    if (c->split) {
        ts_report_int(r, "slots_prefill", (int64_t)sum_phase(c, TS_ROUTER_PREFILL));
        ts_report_int(r, "slots_decode", (int64_t)sum_phase(c, TS_ROUTER_DECODE));
        ts_report_int(r, "duplicates", (int64_t)duplicates);
    } else {
        ts_report_int(r, "slots", (int64_t)sum_phase(c, TS_ROUTER_DECODE));
    }
    ts_report_text(r, "gate_mass", "%s", gated ? "yes" : "no");
}

int ts_inspect_router(const char *path, bool csv, ts_report *r, ts_error *err) {
    const ts_router_csv_options defaults = {0};
    ts_router c = {0};
    int rc = csv ? ts_router_read_csv(path, &defaults, &c, err) : ts_router_read(path, &c, err);
    if (rc != TS_OK)
        return rc;
    ts_report_begin(r, csv ? "router-csv" : "router", csv ? "list of layers and experts" : "routing census", path);
    report_counts(r, &c);
    if (c.bounded)
        ts_report_int(r, "generations", (int64_t)c.n_generations);
    ts_report_text(r, "trace", "%s", c.traced ? "yes" : "no");
    ts_report_text(r, "partial", "%s", c.partial || c.plan[0] ? "yes" : "no");
    if (c.provenance)
        ts_report_text(r, "model", "%s '%s'", c.provenance->architecture, c.provenance->name);
    ts_report_line(r, "  'turbospark analyze' gives its tables");
    ts_report_end(r);
    ts_router_free(&c);
    return TS_OK;
}
