/* The files of a logits dump. */
#ifndef TS_STORE_LOGITS_DUMP_NAMES_H
#define TS_STORE_LOGITS_DUMP_NAMES_H

#define TS_LOGITS_META "meta.json"
#define TS_LOGITS_DATA_F16 "logits.f16"
#define TS_LOGITS_DATA_F32 "logits.f32"

#endif
