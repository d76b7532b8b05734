/* IEEE 754 half precision, by integer arithmetic: the same on every processor, in every rounding
 * mode. */
#ifndef TS_STORE_LOGITS_DUMP_HALF_H
#define TS_STORE_LOGITS_DUMP_HALF_H

#include <stdint.h>
#include <string.h>

/* Nearest, ties to even; from 65520 on infinity; NaN stays NaN, quiet. */
static inline uint16_t ts_half_from_float(float x) {
    uint32_t bits, sign, abs, h;

    memcpy(&bits, &x, sizeof bits);
    sign = bits >> 16 & 0x8000;
    abs = bits & 0x7fffffff;
    if (abs > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (abs >> 13 & 0x1ff));
    if (abs >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (abs >=
        0x38800000) { /* normal: a carry out of the mantissa raises the exponent, as it should */
        h = (abs + 0xfff + (abs >> 13 & 1) - 0x38000000) >> 13;
    } else if (abs >> 23 < 102) { /* below half of the smallest */
        h = 0;
    } else { /* in units of 2^-24 */
        uint32_t mantissa = (abs & 0x7fffff) | 0x800000, shift = 126 - (abs >> 23);
        uint32_t rest = mantissa & ((UINT32_C(1) << shift) - 1), half = UINT32_C(1) << (shift - 1);

        h = mantissa >> shift;
        h += rest > half || (rest == half && (h & 1));
    }
    return (uint16_t)(sign | h);
}

/* Exact. */
static inline float ts_half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff,
             bits;
    float x;

    if (exponent == 0) {
        x = (float)mantissa * 0x1p-24f;
        return sign ? -x : x;
    }
    bits = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | mantissa << 13;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
