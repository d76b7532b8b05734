/* Zeroing the smallest magnitudes of a row. */
#include "stats/zero.h"

#include <math.h>
#include <string.h>

static uint32_t magnitude(const float *x) {
    uint32_t bits;
    memcpy(&bits, x, sizeof(bits));
    return bits & UINT32_C(0x7fffffff);
}

/* The k-th smallest (from 0) of v[0..n), by Hoare's selection; reorders v. */
static uint32_t select_nth(uint32_t *v, size_t n, size_t k) {
    size_t low = 0, high = n - 1;
    while (low < high) {
        uint32_t pivot = v[low + (high - low) / 2];
        size_t i = low, j = high;
        for (;; i++, j--) {
            while (v[i] < pivot) i++;
            while (v[j] > pivot) j--;
            if (i >= j) break;
            uint32_t t = v[i];
            v[i] = v[j];
            v[j] = t;
        }
        if (k <= j) high = j;
        else low = j + 1;
    }
    return v[low];
}

size_t ts_zero_smallest(float *row, size_t n, double share, uint32_t *scratch) {
    size_t k = (size_t)floor(share * (double)n), below = 0, changed = 0;
    if (k == 0 || n == 0) return 0;
    if (k > n) k = n;
    for (size_t i = 0; i < n; i++) scratch[i] = magnitude(&row[i]);
    uint32_t cut = select_nth(scratch, n, k - 1);
    for (size_t i = 0; i < n; i++) below += magnitude(&row[i]) < cut;
    size_t ties = k - below; /* of the values at the cut, so many from the end */
    for (size_t i = n; i-- > 0;) {
        uint32_t m = magnitude(&row[i]);
        if (m > cut || (m == cut && ties == 0)) continue;
        ties -= m == cut;
        changed += m != 0;
        row[i] = 0.0f;
    }
    return changed;
}

size_t ts_zero_below(float *row, size_t n, double threshold) {
    size_t changed = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(fabs((double)row[i]) < threshold) || row[i] == 0.0f) continue;
        row[i] = 0.0f;
        changed++;
    }
    return changed;
}
