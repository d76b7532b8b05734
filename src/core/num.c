/* Owns reading numbers, ranges and positions from option texts. Refuses anything but plain decimal
 * digits with an optional minus (and, for reals, a point and an exponent), whatever the locale;
 * never a part of the text. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include <turbospark/turbospark.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/locale_c.h"

#define GOT "got '%.200s'"

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Moves *p over a whole number and returns true, or false when there is none or it overflows. */
static bool scan_i64(const char **p, int64_t *out) {
    bool minus = **p == '-';
    int64_t value = 0;

    *p += minus;
    if (!is_digit(**p))
        return false;
    for (; is_digit(**p); ++*p) {
        int digit = **p - '0';

        /* summed as a negative number, which reaches one further */
        if (value < (INT64_MIN + digit) / 10)
            return false;
        value = value * 10 - digit;
    }
    if (!minus && value == INT64_MIN)
        return false;
    *out = minus ? value : -value;
    return true;
}

static bool scan_i32(const char **p, int32_t *out) {
    int64_t value;

    if (!scan_i64(p, &value) || value < INT32_MIN || value > INT32_MAX)
        return false;
    *out = (int32_t)value;
    return true;
}

int ts_parse_i64(const char *name, const char *text, int64_t min, int64_t max, int64_t *out,
                 ts_error *err) {
    const char *p = text ? text : "";
    int64_t value;

    if (scan_i64(&p, &value) && !*p && value >= min && value <= max) {
        *out = value;
        return TS_OK;
    }
    text = text ? text : "";
    if (max < INT64_MAX)
        return ts_fail(err, TS_ERR_ARG, "%s: expected a whole number from %lld to %lld, " GOT, name,
                       (long long)min, (long long)max, text);
    if (min > INT64_MIN)
        return ts_fail(err, TS_ERR_ARG, "%s: expected a whole number of at least %lld, " GOT, name,
                       (long long)min, text);
    return ts_fail(err, TS_ERR_ARG, "%s: expected a whole number, " GOT, name, text);
}

/* Is the whole text [-]digits[.digits][e[+-]digits], with a digit before or after the point? */
static bool is_decimal(const char *p) {
    bool mantissa = false;

    p += *p == '-';
    for (; is_digit(*p); p++)
        mantissa = true;
    if (*p == '.')
        for (p++; is_digit(*p); p++)
            mantissa = true;
    if (mantissa && (*p == 'e' || *p == 'E')) {
        p++;
        p += *p == '-' || *p == '+';
        if (!is_digit(*p))
            return false;
        while (is_digit(*p))
            p++;
    }
    return mantissa && !*p;
}

static double to_double(const char *text) {
    ts_locale_c l = ts_locale_c_enter();
    double value = strtod(text, NULL);

    ts_locale_c_leave(l);
    return value;
}

int ts_parse_f64(const char *name, const char *text, double min, double max, double *out,
                 ts_error *err) {
    text = text ? text : "";
    if (is_decimal(text)) {
        double value = to_double(text);

        if (isfinite(value) && value >= min && value <= max) {
            *out = value;
            return TS_OK;
        }
    }
    if (max < DBL_MAX && min > -DBL_MAX)
        return ts_fail(err, TS_ERR_ARG, "%s: expected a number from %g to %g, " GOT, name, min, max,
                       text);
    if (max < DBL_MAX)
        return ts_fail(err, TS_ERR_ARG, "%s: expected a number of at most %g, " GOT, name, max,
                       text);
    if (min > -DBL_MAX)
        return ts_fail(err, TS_ERR_ARG, "%s: expected a number of at least %g, " GOT, name, min,
                       text);
    return ts_fail(err, TS_ERR_ARG, "%s: expected a finite number, " GOT, name, text);
}

/* "A:B", or "A" which gives first = last. */
static bool scan_pair(const char *text, int32_t *first, int32_t *last) {
    const char *p = text;

    if (!scan_i32(&p, first))
        return false;
    *last = *first;
    if (*p == ':') {
        p++;
        if (!scan_i32(&p, last))
            return false;
    }
    return !*p;
}

int ts_parse_range(const char *name, const char *text, ts_range *out, ts_error *err) {
    ts_range range;

    text = text ? text : "";
    if (!scan_pair(text, &range.first, &range.last) || strchr(text, '-'))
        return ts_fail(err, TS_ERR_ARG,
                       "%s: expected a block or a range of blocks such as 0:29, " GOT, name, text);
    if (range.first > range.last)
        return ts_fail(err, TS_ERR_ARG, "%s: first block %d is after last block %d", name,
                       (int)range.first, (int)range.last);
    *out = range;
    return TS_OK;
}

int ts_parse_positions(const char *name, const char *text, ts_positions *out, ts_error *err) {
    static const struct {
        const char *word;
        enum ts_positions_kind kind;
    } words[] = {
        {"last", TS_POSITIONS_LAST}, {"all", TS_POSITIONS_ALL}, {"mean", TS_POSITIONS_MEAN}};
    ts_positions positions = {.kind = TS_POSITIONS_RANGE};

    text = text ? text : "";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(text, words[i].word) == 0) {
            *out = (ts_positions){.kind = words[i].kind};
            return TS_OK;
        }
    }
    if (!scan_pair(text, &positions.first, &positions.last))
        return ts_fail(
            err, TS_ERR_ARG,
            "%s: expected last, all, mean, a position or a range such as 0:7 or -4:-1, " GOT, name,
            text);
    /* ends of unlike sign can only be compared once the prompt's length is known */
    if ((positions.first < 0) == (positions.last < 0) && positions.first > positions.last)
        return ts_fail(err, TS_ERR_ARG, "%s: first position %d is after last position %d", name,
                       (int)positions.first, (int)positions.last);
    *out = positions;
    return TS_OK;
}
