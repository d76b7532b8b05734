/* Numbers, ranges and positions of the command line: what is taken is in range, and reads the same when written out. */
#include "fuzz/fuzz_file.h"

#include <inttypes.h>
#include <math.h>

static void integers(const char *text) {
    char again[32];
    int64_t i, k;
    ts_error err = {0};
    int rc = ts_parse_i64("-n", text, -1000, INT64_MAX, &i, &err);

    fuzz_expect(rc, &err);
    if (rc != TS_OK)
        return;
    snprintf(again, sizeof again, "%" PRId64, i);
    if (i < -1000 || ts_parse_i64("-n", again, INT64_MIN, INT64_MAX, &k, &err) != TS_OK || k != i)
        abort();
}

static void reals(const char *text) {
    char again[64];
    double x, y;
    ts_error err = {0};
    int rc = ts_parse_f64("--temp", text, -1e300, 1e300, &x, &err);

    fuzz_expect(rc, &err);
    if (rc != TS_OK)
        return;
    snprintf(again, sizeof again, "%.17g", x);
    if (!isfinite(x) || fabs(x) > 1e300 || ts_parse_f64("--temp", again, -1e300, 1e300, &y, &err) != TS_OK || x < y || y < x)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    ts_range range;
    ts_positions positions;
    ts_error err = {0};
    int rc;

    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    integers(text);
    reals(text);
    rc = ts_parse_range("--layers", text, &range, &err);
    fuzz_expect(rc, &err);
    if (rc == TS_OK && (range.first < 0 || range.last < range.first))
        abort();
    fuzz_expect(ts_parse_positions("--positions", text, &positions, &err), &err);
    free(text);
    return 0;
}
