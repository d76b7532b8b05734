/* Writing a census. Owns what the accumulators do not know: the FFN weights' sizes and what stands between the
 * activation and ffn_down. */
#include "instrument/ffn_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/mem.h"
#include "instrument/ffn_record.h"
#include "instrument/provenance.h"
#include "store/census.h"

static void fill_weights(const ts_ffn_census *c, ts_census *out) {
    const ts_site_table *table = &c->session->tap->table;
    for (int32_t il = 0; il < c->n_layer; il++) {
        const ts_ffn_weights *w = c->dense_kind[il] == TS_SITE_FFN ? &table->dense[il] : &table->shared[il];
        out->gate_bytes[il] = w->gate_bytes;
        out->up_bytes[il] = w->up_bytes;
        out->down_bytes[il] = w->down_bytes;
        out->down_block[il] = w->down_block;
    }
}

/* Says so where the value is not act(gate) * up alone, naming the first such block. */
static int fill_note(const ts_ffn_census *c, ts_census *out, ts_error *err) {
    for (int32_t il = 0; il < c->n_layer; il++) {
        const ts_site_entry *e = c->width[il] ? ts_sites_find(&c->session->tap->table, c->dense_kind[il], il) : NULL;
        if (!e || !e->normed) continue;
        ts_buf b = {0};
        ts_buf_printf(&b, "from block %d on the value counted is what ffn_down reads, after a %s between activation and ffn_down", il, e->op);
        out->site_note = ts_buf_take(&b);
        return out->site_note ? TS_OK : ts_fail_nomem(err, "site note", 0);
    }
    return TS_OK;
}

int ts_ffn_write(const ts_ffn_census *c, const ts_provenance *prov, const char *plan, const char *path, bool partial, bool overwrite,
                 ts_error *err) {
    ts_census record = {0};
    ts_provenance own = {0};
    char *sites = ts_session_sites_json(c->session);
    int rc = sites ? ts_ffn_to_census(c->dense, c->shared, &record, err) : ts_fail_nomem(err, "sites", 0);
    if (rc == TS_OK) {
        snprintf(record.plan, sizeof(record.plan), "%s", plan);
        fill_weights(c, &record);
        rc = fill_note(c, &record, err);
    }
    if (rc == TS_OK && !prov) rc = ts_provenance_complete(c->session, &own, err);
    if (rc == TS_OK) rc = ts_census_write(&record, path, prov ? prov : &own, sites, partial, overwrite, err);
    ts_provenance_free(&own);
    ts_census_free(&record);
    free(sites);
    return rc;
}
