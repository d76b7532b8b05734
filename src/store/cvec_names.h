/* The keys and limits that reader and writer of control vectors share. */
#ifndef TS_STORE_CVEC_NAMES_H
#define TS_STORE_CVEC_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define TS_CVEC_ARCHITECTURE "controlvector"
#define TS_CVEC_MODEL_HINT "controlvector.model_hint"
#define TS_CVEC_LAYER_COUNT "controlvector.layer_count"
#define TS_CVEC_LAYER_BASE "turbospark.layer_base"
#define TS_CVEC_EXTRACTION "turbospark.extraction"
#define TS_CVEC_MODE "turbospark.mode"
#define TS_CVEC_HOOK "turbospark.hook"
#define TS_CVEC_MODEL_HASH "turbospark.model_hash"

enum { TS_CVEC_MAX_BLOCK = 999998, TS_CVEC_MAX_KEYS = 256 };

/* The names of stats/steer.h, which this room cannot see. */
static inline bool ts_cvec_mode_known(const char *mode) {
    static const char *const modes[] = {"ablate", "add", "clamp", "renorm"};

    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(mode, modes[i]) == 0)
            return true;
    return false;
}

#endif
