/* Owns the conversion of accumulators to a census. Refuses nothing: the census' writer checks what
 * adds up. */
#include "instrument/ffn_record.h"

#include <string.h>

_Static_assert((int)TS_FFN_N_FIXED == TS_CENSUS_FIXED && (int)TS_FFN_N_SETS == TS_CENSUS_SETS &&
                   (int)TS_FFN_N_TOP_P == TS_CENSUS_TOP_P,
               "sets of the accumulators and of the file");
_Static_assert((int)TS_HIST_N_BINS == TS_CENSUS_FINE_BINS &&
                   (int)TS_HIST_STEPS == TS_CENSUS_FINE_STEPS &&
                   (int)TS_HIST_N_BUCKETS == TS_CENSUS_BUCKETS &&
                   (int)TS_HIST_BUCKET_OFFSET == TS_CENSUS_BUCKET_OFFSET,
               "histograms of the accumulators and of the file");

static int convert_block(const ts_ffn_block *from, ts_census_block *to, ts_error *err) {
    int rc = ts_census_block_init(to, from->width, true, err);
    if (rc < 0 || from->width == 0)
        return rc;
    to->n_rows = from->n_rows;
    to->n_pairs = from->n_pairs;
    memcpy(to->hits, from->hits, sizeof to->hits);
    memcpy(to->k, from->k, sizeof to->k);
    memcpy(to->top_p, from->top_p, sizeof to->top_p);
    memcpy(to->mass, from->mass, from->width * sizeof *to->mass);
    ts_hist_buckets(&from->hist, to->bucket_count, to->bucket_mass);
    to->zeros = from->hist.n_zero;
    to->nonfinite = from->hist.n_nonfinite;
    to->max_abs = (double)from->max_abs;
    memcpy(to->fine_count, from->hist.count, sizeof from->hist.count);
    for (int b = 0; b < TS_HIST_N_BINS; b++)
        to->fine_mass[b] = from->hist.count[b] ? ts_hist_bin_mass(&from->hist, b) : 0.0;
    return TS_OK;
}

static int convert(const ts_ffn_stats *from, ts_census_block *to, ts_error *err) {
    int rc = TS_OK;
    for (uint32_t i = 0; rc == TS_OK && i < from->n_blocks; i++)
        rc = convert_block(&from->blocks[i], &to[i], err);
    return rc;
}

int ts_ffn_to_census(const ts_ffn_stats *dense, const ts_ffn_stats *shared, ts_census *out,
                     ts_error *err) {
    int rc = ts_census_init(out, dense->n_blocks, shared != NULL, err);
    if (rc == TS_OK)
        rc = convert(dense, out->dense, err);
    if (rc == TS_OK && shared != NULL)
        rc = convert(shared, out->shared, err);
    if (rc < 0) {
        ts_census_free(out);
        return rc;
    }
    out->decode_passes = dense->decode_passes;
    out->prefill_passes = dense->prefill_passes;
    out->overlap_pairs = dense->overlap_pairs;
    for (uint32_t i = 0; i < dense->n_blocks; i++)
        out->inter = dense->blocks[i].width > out->inter ? dense->blocks[i].width : out->inter;
    return TS_OK;
}
