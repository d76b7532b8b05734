/* What a file is, told by its content and never by its name. */
#ifndef TS_STORE_INSPECT_SNIFF_H
#define TS_STORE_INSPECT_SNIFF_H

#include "core/error.h"

enum ts_file_sort {
    TS_SORT_UNKNOWN = 0,
    TS_SORT_PAIR,    /* header of a residual pair */
    TS_SORT_META,    /* provenance beside a result */
    TS_SORT_PARTIAL, /* state of an unfinished capture */
    TS_SORT_CENSUS,  /* an FFN census */
    TS_SORT_DETAIL,  /* the .detail beside it */
    TS_SORT_EXPERTS, /* the .experts beside it */
    TS_SORT_TRACE,   /* the trace of a census */
    TS_SORT_ROUTER,  /* a routing census */
    TS_SORT_ROUTER_CSV, /* its "layer,expert" lines */
    TS_SORT_LOGITS,  /* meta.json of a logits dump */
    TS_SORT_REPORT,  /* what --json of a command wrote */
    TS_SORT_SWEEP,   /* finished cells of an unfinished sweep */
    TS_SORT_JSON,    /* JSON of another kind */
    TS_SORT_SAFETENSORS,
    TS_SORT_GGUF,
};

/* TS_ERR_IO when the file cannot be read; an unknown content is no error. */
int ts_sniff(const char *path, enum ts_file_sort *out, ts_error *err);
const char *ts_sort_name(enum ts_file_sort sort); /* "a GGUF file" */

#endif
