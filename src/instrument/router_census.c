/* From graph runs to the routing census' record. Refuses a model without experts, naming its architecture. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "instrument/provenance.h"
#include "instrument/router.h"

/* ---- what the model has */

static int open_layer(ts_router_census *c, int32_t il, bool *any, ts_error *err) {
    const ts_site_table *table = &c->session->tap->table;
    const ts_site_entry *ids = ts_sites_find(table, TS_SITE_ROUTER, il), *weights = ts_sites_find(table, TS_SITE_ROUTER_WEIGHTS, il);
    if (!ids) return TS_OK;
    const char *arch = c->session->model->architecture;
    if (ids->pub.how == TS_HOW_REFUSED)
        return ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s': the routing of block %d cannot be read: %s", arch, il, ids->pub.why);
    if (ids->type != GGML_TYPE_I32 || ids->top_k < 1 || ids->top_k > ids->pub.width)
        return ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s': the expert ids of block %d are %lld x %s, %d of them chosen", arch, il,
                       (long long)ids->pub.width, ids->pub.type, ids->top_k);
    c->weighed[il] = weights && weights->pub.how != TS_HOW_REFUSED && weights->ne[0] * weights->ne[1] == ids->top_k;
    *any = true;
    return ts_router_layer_init(&c->record.layers[il], (uint32_t)ids->n_expert, (uint32_t)ids->top_k, c->weighed[il], err);
}

static int make_slots(ts_router_census *c, uint32_t n_slots, ts_error *err) {
    size_t n = (size_t)c->n_layer;
    c->slots = ts_calloc(n_slots, sizeof(*c->slots));
    if (!c->slots) return ts_fail_nomem(err, "routing census", n_slots * sizeof(*c->slots));
    c->n_slots = n_slots;
    for (uint32_t i = 0; i < n_slots; i++) {
        ts_router_slot *slot = &c->slots[i];
        slot->ids = ts_calloc(n, sizeof(*slot->ids));
        slot->n = ts_calloc(n, sizeof(*slot->n));
        slot->room = ts_calloc(n, sizeof(*slot->room));
        slot->rows = ts_calloc(n * TS_ROUTER_PHASES, sizeof(*slot->rows));
        if (!slot->ids || !slot->n || !slot->room || !slot->rows) return ts_fail_nomem(err, "routing census", n * sizeof(*slot->n));
    }
    return TS_OK;
}

int ts_router_census_open(ts_router_census *c, ts_session *s, uint32_t n_slots, bool traced, ts_error *err) {
    bool any = false;
    memset(c, 0, sizeof(*c));
    c->session = s;
    c->n_layer = llama_model_n_layer(s->model->llama);
    c->weighed = ts_calloc((size_t)c->n_layer, sizeof(*c->weighed));
    if (!c->weighed) return ts_fail_nomem(err, "routing census", (size_t)c->n_layer);
    int rc = ts_router_init(&c->record, (uint32_t)c->n_layer, traced, err);
    for (int32_t il = 0; rc == TS_OK && il < c->n_layer; il++) rc = open_layer(c, il, &any, err);
    if (rc == TS_OK && !any)
        rc = ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s' has no experts: no ffn_down_exps in its graph", s->model->architecture);
    return rc == TS_OK ? make_slots(c, n_slots, err) : rc;
}

void ts_router_census_close(ts_router_census *c) {
    for (uint32_t i = 0; i < c->n_slots; i++) {
        ts_router_slot *slot = &c->slots[i];
        for (int32_t il = 0; slot->ids && il < c->n_layer; il++) free(slot->ids[il]);
        free(slot->ids);
        free(slot->n);
        free(slot->room);
        free(slot->rows);
    }
    free(c->slots);
    free(c->weighed);
    ts_router_free(&c->record);
    memset(c, 0, sizeof(*c));
}

/* ---- one run */

static int keep_ids(ts_router_slot *slot, int32_t il, const int32_t *ids, uint32_t n, ts_error *err) {
    if (slot->n[il] + n > slot->room[il]) {
        uint64_t room = slot->room[il] ? slot->room[il] * 2 : 256;
        while (room < slot->n[il] + n) room *= 2;
        uint32_t *grown = ts_realloc(slot->ids[il], room, sizeof(*grown));
        if (!grown) return ts_fail_nomem(err, "routing trace", room * sizeof(*grown));
        slot->ids[il] = grown;
        slot->room[il] = room;
    }
    memcpy(slot->ids[il] + slot->n[il], ids, n * sizeof(*ids)); /* counted, so none is negative */
    slot->n[il] += n;
    return TS_OK;
}

static int count_row(ts_router_census *c, const ts_run *run, int32_t il, enum ts_router_phase phase, int32_t token, const int32_t *ids,
                     const float *weights, ts_error *err) {
    ts_router_layer *l = &c->record.layers[il];
    uint32_t seq = (uint32_t)ts_run_seq_id(run, token);
    if (seq >= c->n_slots) return ts_fail(err, TS_ERR_STATE, "a run of sequence %u where %u are counted", seq, c->n_slots);
    int rc = ts_router_count(l, phase, ids, weights, err);
    if (rc != TS_OK) {
        ts_error_prefix(err, "block %d: ", il);
        return rc;
    }
    c->slots[seq].rows[(uint32_t)il * TS_ROUTER_PHASES + phase]++;
    return c->record.traced ? keep_ids(&c->slots[seq], il, ids, l->top_k, err) : TS_OK;
}

static int count_block(ts_router_census *c, const ts_run *run, int32_t il, enum ts_router_phase phase, ts_error *err) {
    ts_rows ids = {0}, weights = {0};
    int rc = ts_run_rows(run, TS_SITE_ROUTER, il, &ids, err);
    if (rc == TS_OK && c->weighed[il]) rc = ts_run_rows(run, TS_SITE_ROUTER_WEIGHTS, il, &weights, err);
    if (rc == TS_OK && c->weighed[il] && weights.n_rows != ids.n_rows)
        rc = ts_fail(err, TS_ERR_ENGINE, "block %d routed %lld rows and weighed %lld", il, (long long)ids.n_rows, (long long)weights.n_rows);
    for (int64_t i = 0; rc == TS_OK && i < ids.n_rows; i++) {
        const int32_t *row = (const int32_t *)(const void *)ids.data + i * ids.width;
        rc = count_row(c, run, il, phase, ids.token_index[i], row, c->weighed[il] ? weights.data + i * weights.width : NULL, err);
    }
    return rc;
}

int ts_router_census_run(ts_router_census *c, const ts_run *run, enum ts_router_phase phase, ts_error *err) {
    int rc = TS_OK;
    for (int32_t il = 0; rc == TS_OK && il < c->n_layer; il++)
        if (c->record.layers[il].n_experts) rc = count_block(c, run, il, phase, err);
    return rc;
}

/* ---- generations */

static int end_generation(ts_router_census *c, ts_router_slot *slot, ts_error *err) {
    int rc = TS_OK;
    if (!slot->open) return TS_OK;
    for (int32_t il = 0; rc == TS_OK && c->record.traced && il < c->n_layer; il++)
        if (slot->n[il]) rc = ts_router_trace(&c->record.layers[il], slot->ids[il], slot->n[il], err);
    if (rc == TS_OK) rc = ts_router_generation(&c->record, slot->rows, err);
    memset(slot->n, 0, (size_t)c->n_layer * sizeof(*slot->n));
    memset(slot->rows, 0, (size_t)c->n_layer * TS_ROUTER_PHASES * sizeof(*slot->rows));
    slot->open = false;
    return rc;
}

int ts_router_census_begin(ts_router_census *c, uint32_t slot, ts_error *err) {
    int rc = end_generation(c, &c->slots[slot], err);
    c->slots[slot].open = true;
    return rc;
}

int ts_router_census_flush(ts_router_census *c, ts_error *err) {
    int rc = TS_OK;
    for (uint32_t i = 0; rc == TS_OK && i < c->n_slots; i++) rc = end_generation(c, &c->slots[i], err);
    return rc;
}

/* ---- the result */

void ts_router_census_warn(const ts_router_census *c) {
    bool twice = false, broken = false;
    for (int32_t il = 0; il < c->n_layer; il++) {
        const ts_router_layer *l = &c->record.layers[il];
        if (l->duplicates && !twice)
            ts_log(TS_LOG_WARN, "router-hist: block %d listed an expert twice for a token, %llu times: each is counted as a slot", il,
                   (unsigned long long)l->duplicates);
        if (l->gate_nonfinite && !broken)
            ts_log(TS_LOG_WARN, "router-hist: weights are not finite, first in block %d (%llu): they are in no gate mass", il,
                   (unsigned long long)l->gate_nonfinite);
        twice = twice || l->duplicates;
        broken = broken || l->gate_nonfinite;
    }
}

int ts_router_census_write(const ts_router_census *c, const ts_provenance *prov, const char *path, bool partial, bool overwrite,
                           ts_error *err) {
    ts_provenance own = {0};
    ts_router out = c->record; /* a finished file has its plan in the meta data */
    char *sites = ts_session_sites_json(c->session);
    snprintf(out.of_plan, sizeof(out.of_plan), "%s", out.plan[0] ? out.plan : "run");
    out.plan[0] = '\0';
    int rc = sites ? TS_OK : ts_fail_nomem(err, "sites", 0);
    if (rc == TS_OK && !prov) rc = ts_provenance_complete(c->session, &own, err);
    if (rc == TS_OK) rc = ts_router_write(&out, path, prov ? prov : &own, sites, partial, overwrite, err);
    ts_provenance_free(&own);
    free(sites);
    return rc;
}
