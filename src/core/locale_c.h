/* Numbers in files, messages and options are written and read with a point, whatever locale the
 * host program has set: the calling thread wears the C locale between enter and leave. Refuses to
 * touch other threads. */
#ifndef TS_CORE_LOCALE_C_H
#define TS_CORE_LOCALE_C_H

#include <locale.h>

typedef struct ts_locale_c {
    locale_t c, before;
} ts_locale_c;

static inline ts_locale_c ts_locale_c_enter(void) {
    ts_locale_c l = {.c = newlocale(LC_ALL_MASK, "C", (locale_t)0)};

    l.before = l.c ? uselocale(l.c) : (locale_t)0;
    return l;
}

static inline void ts_locale_c_leave(ts_locale_c l) {
    if (!l.c)
        return;
    uselocale(l.before);
    freelocale(l.c);
}

#endif
