/* The neurons inside experts, as ts_analyze prints them after an FFN census' tables. Internal to analyze*.c. */
#ifndef TS_INSTRUMENT_ANALYZE_EXPERT_H
#define TS_INSTRUMENT_ANALYZE_EXPERT_H

#include "core/buf.h"
#include "store/expert.h"

enum { TS_EXPERT_SHARES = 3 }; /* 50, 90, 95 % of an expert's mass */

typedef struct ts_expert_row {
    int32_t block; /* -1: the mean */
    uint32_t n_experts, width, seen; /* seen: chosen by some row */
    uint64_t fewest, most;           /* rows of an expert that was seen */
    double rows;                     /* mean over experts seen */
    double n[TS_EXPERT_SHARES], percent[TS_EXPERT_SHARES]; /* fewest neurons that hold the share; mean over experts with mass */
} ts_expert_row;

typedef struct ts_expert_analysis {
    ts_expert_row *rows; /* [n] layers with experts */
    size_t n;
    ts_expert_row mean;
    uint64_t decode_passes;
} ts_expert_analysis;

/* Sums the .experts beside each census; *sum has no layers when no census has one. TS_ERR_ARG when some have and some have not,
 * or one does not belong to its census; TS_ERR_FORMAT. */
int ts_expert_read_group(const char *const *paths, size_t n, uint64_t decode_passes, ts_experts *sum, ts_error *err);
int ts_expert_analyze(ts_expert_analysis *a, const ts_experts *x, ts_error *err);
void ts_expert_analysis_free(ts_expert_analysis *a);
void ts_expert_text(ts_buf *b, const ts_expert_analysis *a);
void ts_expert_json(ts_buf *b, const ts_expert_analysis *a); /* a member, begun with a comma */

#endif
