/* UTF-8 checks for prompts and streaming. */
#ifndef TS_CORE_UTF8_H
#define TS_CORE_UTF8_H

#include <stddef.h>

/* Offset of the first invalid byte, or `n` when all of it is valid (RFC 3629: no surrogates, no overlongs). */
size_t ts_utf8_valid(const char *bytes, size_t n);
/* Length of the longest prefix that does not end inside a character; invalid bytes count as complete. */
size_t ts_utf8_complete(const char *bytes, size_t n);

#endif
