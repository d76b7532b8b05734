/* One function a sort of file behind ts_inspect; each fills the report or fails with one clear
 * line. */
#ifndef TS_STORE_INSPECT_INTERNAL_H
#define TS_STORE_INSPECT_INTERNAL_H

#include "store/inspect_report.h"

int ts_inspect_capture(const char *path, ts_report *r,
                       ts_error *err); /* pair or safetensors with rows */
int ts_inspect_safetensors(const char *path, ts_report *r, ts_error *err); /* any */
int ts_inspect_meta(const char *path, ts_report *r, ts_error *err);
int ts_inspect_partial(const char *path, ts_report *r, ts_error *err);
int ts_inspect_census(const char *path, ts_report *r, ts_error *err);
int ts_inspect_trace(const char *path, ts_report *r, ts_error *err);
int ts_inspect_router(const char *path, bool csv, ts_report *r, ts_error *err);
int ts_inspect_logits(const char *path, ts_report *r, ts_error *err); /* the folder or its meta.json */
int ts_inspect_gguf(const char *path, ts_report *r, ts_error *err);

/* The lines that every provenance gives; in JSON the object under "meta". */
void ts_inspect_provenance(ts_report *r, const json_t *meta);

#endif
