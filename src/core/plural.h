/* The end of a counted word in a message. */
#ifndef TS_CORE_PLURAL_H
#define TS_CORE_PLURAL_H

#include <stdint.h>

static inline const char *ts_plural(uint64_t n) { return n == 1 ? "" : "s"; }

#endif
