/* Cuts a text into windows (logits_plan.h). Refuses texts in which nothing would be scored. */
#include "instrument/logits_plan.h"

static size_t min(size_t a, size_t b) { return a < b ? a : b; }

static int too_large(const char *option, const char *what, size_t limit, size_t got, ts_error *err) {
    if (limit == 1) return ts_fail(err, TS_ERR_ARG, "%s: expected 1 (%s), got %zu", option, what, got);
    return ts_fail(err, TS_ERR_ARG, "%s: expected 1 to %zu (%s), got %zu", option, limit, what, got);
}

static int check_sizes(size_t limit, size_t window, size_t stride, ts_error *err) {
    if (window > limit) return too_large("--window", "the context", limit, window, err);
    return stride > window ? too_large("--stride", "the window", window, stride, err) : TS_OK;
}

int ts_logits_plan_make(const char *path, size_t n_tokens, size_t limit, size_t window, size_t stride, bool bos,
                        ts_logits_plan *out, ts_error *err) {
    size_t w = window ? window : limit, m = n_tokens ? n_tokens - 1 : 0;
    int rc = check_sizes(limit, w, stride, err);
    if (rc != TS_OK) return rc;
    if (m == 0) return ts_fail(err, TS_ERR_ARG, "'%s' is too short: expected at least 2 tokens, got %zu", path, n_tokens);
    size_t s = stride ? stride : m <= w ? w : (w + 1) / 2;
    if (m <= w - s)
        return ts_fail(err, TS_ERR_ARG, "'%s' is too short: with a window of %zu and a stride of %zu expected at least %zu tokens, got %zu",
                       path, w, s, w - s + 2, n_tokens);
    *out = (ts_logits_plan){.n_run = m, .window = w, .stride = s, .n_windows = m <= w ? 1 : 1 + (m - w + s - 1) / s, .first_scored = w - s};
    if (bos && out->n_windows > 1 && s == w)
        return ts_fail(err, TS_ERR_ARG, "--stride: expected at most %zu, got %zu: every window begins with BOS in place of its first token",
                       w - 1, s);
    for (size_t k = 0; k < out->n_windows; k++) {
        ts_logits_window at = ts_logits_plan_window(out, k);
        out->n_decoded += at.end - at.begin;
    }
    return TS_OK;
}

ts_logits_window ts_logits_plan_window(const ts_logits_plan *p, size_t k) {
    size_t begin = k * p->stride;
    return (ts_logits_window){begin, min(begin + p->window, p->n_run), k ? begin + p->window - p->stride : 0};
}
