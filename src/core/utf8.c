/* Owns the question whether bytes are UTF-8 (RFC 3629). Refuses surrogates, overlong forms, values
 * past U+10FFFF. */
#include "core/utf8.h"

#include <stdint.h>
#include <string.h>

/* Length of the character at p, 0 when invalid; -1 when it is right so far and ends before it is
 * whole. n >= 1. */
static int sequence(const unsigned char *p, size_t n) {
    unsigned char low = 0x80,
                  high = 0xbf; /* of the second byte: closes the overlong and surrogate gaps */
    int length;

    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    length = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (p[0] == 0xe0)
        low = 0xa0;
    else if (p[0] == 0xed)
        high = 0x9f;
    else if (p[0] == 0xf0)
        low = 0x90;
    else if (p[0] == 0xf4)
        high = 0x8f;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == n)
            return -1;
        if (p[i] < low || p[i] > high)
            return 0;
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

static size_t ascii_run(const char *bytes, size_t n) {
    size_t i = 0;
    uint64_t word;

    for (; i + sizeof word <= n; i += sizeof word) {
        memcpy(&word, bytes + i, sizeof word);
        if (word & UINT64_C(0x8080808080808080))
            break;
    }
    while (i < n && !((unsigned char)bytes[i] & 0x80))
        i++;
    return i;
}

size_t ts_utf8_valid(const char *bytes, size_t n) {
    size_t i = 0;

    while ((i += ascii_run(bytes + i, n - i)) < n) {
        int length = sequence((const unsigned char *)bytes + i, n - i);

        if (length <= 0)
            return i;
        i += (size_t)length;
    }
    return n;
}

size_t ts_utf8_complete(const char *bytes, size_t n) {
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const unsigned char *p = (const unsigned char *)bytes + n - back;

        if ((*p & 0xc0) != 0x80)
            return sequence(p, back) < 0 ? n - back : n;
    }
    return n;
}
