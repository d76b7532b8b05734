/* This library's own version, from the public header's numbers. */
#include <turbospark/turbospark.h>

#define TEXT(x) #x
#define DOTTED(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)

const char *ts_version(void) { return DOTTED(TS_VERSION_MAJOR, TS_VERSION_MINOR, TS_VERSION_PATCH); }
