/* Zeroing: what the small FFN activations are worth. Runs a text teacher-forced, window by window, once untouched and
 * once for each level with the smallest activations of each token set to zero in the real graph, before ffn_down reads
 * them; compares every token's logits. Refuses texts of one token and models without a dense FFN. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/mem.h"
#include "instrument/ffn.h"
#include "stats/kl.h"
#include "stats/zero.h"

#define DEFAULT_WINDOW 512u
#define MAX_LOGIT_BYTES ((size_t)512 << 20) /* of one window, kept for comparing */

/* Sums of one level over the text. */
typedef struct tally {
    uint64_t n_values, n_zero; /* activations seen, and zero after the edit */
    uint64_t n_scored, n_same_top;
    double nll_base, nll, kl, kl_max;
    bool differs;
} tally;

typedef struct zeroing {
    ts_session *s;
    const ts_zero_options *o;
    size_t n_levels, level; /* level: the one being run */
    tally *tallies;         /* [n_levels] */
    int32_t *text, *positions; /* [n_text], [window] */
    size_t n_text, window, n_vocab;
    int8_t *output;            /* [window] */
    float *base;               /* [window][n_vocab] */
    uint32_t *scratch;
    size_t scratch_width;
    struct timespec begin;
} zeroing;

static bool by_threshold(const zeroing *z, size_t level) { return level >= z->o->n_percents; }

static double level_value(const zeroing *z, size_t level) {
    return by_threshold(z, level) ? z->o->below[level - z->o->n_percents] : z->o->percents[level];
}

/* The edit: one row a token. */
static int zero_rows(const struct ts_run *run, const ts_site *site, float *rows, int64_t n_rows, int64_t width, const int32_t *token_index,
                     bool *changed, void *user, ts_error *err) {
    zeroing *z = user;
    tally *t = &z->tallies[z->level];
    size_t n = (size_t)width;
    double value = level_value(z, z->level);
    (void)run;
    (void)site;
    (void)token_index;
    if (n > z->scratch_width) {
        uint32_t *grown = ts_realloc(z->scratch, n, sizeof(*grown));
        if (!grown) return ts_fail_nomem(err, "zeroing", n * sizeof(*grown));
        z->scratch = grown;
        z->scratch_width = n;
    }
    for (int64_t r = 0; r < n_rows; r++) {
        float *row = rows + r * width;
        size_t set = by_threshold(z, z->level) ? ts_zero_below(row, n, value) : ts_zero_smallest(row, n, value / 100.0, z->scratch);
        *changed = *changed || set > 0;
        for (size_t i = 0; i < n; i++) t->n_zero += row[i] == 0.0f;
        t->n_values += n;
    }
    return TS_OK;
}

/* The same was done on a device. */
static int count_zeroed(const ts_site *site, int64_t n_values, int64_t n_zero, void *user, ts_error *err) {
    zeroing *z = user;
    (void)site;
    (void)err;
    z->tallies[z->level].n_values += (uint64_t)n_values;
    z->tallies[z->level].n_zero += (uint64_t)n_zero;
    return TS_OK;
}

/* ---- windows */

static int decode(zeroing *z, size_t at, size_t n, const ts_edit *edit, ts_error *err) {
    ts_decode d = {.tokens = z->text + at, .positions = z->positions, .output = z->output, .n = n, .edit = edit};
    ts_session_clear(z->s);
    return ts_session_decode(z->s, &d, err);
}

static const float *logits_of(zeroing *z, size_t i, ts_error *err) {
    const float *logits = llama_get_logits_ith(z->s->ctx, (int32_t)i);
    if (!logits) ts_fail(err, TS_ERR_ENGINE, "llama.cpp gave no logits for token %zu of a window", i);
    return logits;
}

static int run_base(zeroing *z, size_t at, size_t n, ts_error *err) {
    int rc = decode(z, at, n, NULL, err);
    for (size_t i = 0; rc == TS_OK && i + 1 < n; i++) {
        const float *logits = logits_of(z, i, err);
        if (!logits) return TS_ERR_ENGINE;
        memcpy(z->base + i * z->n_vocab, logits, z->n_vocab * sizeof(float));
    }
    return rc;
}

static int compare(zeroing *z, const float *base, const float *logits, int32_t next, ts_error *err) {
    tally *t = &z->tallies[z->level];
    ts_kl_row row;
    int rc = ts_kl_compare(base, logits, (int32_t)z->n_vocab, next, &row, err);
    if (rc != TS_OK) return rc;
    t->nll_base += row.nll_p;
    t->nll += row.nll_q;
    t->kl += row.kl_pq;
    if (row.kl_pq > t->kl_max) t->kl_max = row.kl_pq;
    t->n_same_top += row.top_p == row.top_q;
    t->differs = t->differs || memcmp(base, logits, z->n_vocab * sizeof(float)) != 0;
    t->n_scored++;
    return TS_OK;
}

static int run_level(zeroing *z, size_t at, size_t n, ts_error *err) {
    int32_t last = llama_model_n_layer(z->s->model->llama) - 1;
    double value = level_value(z, z->level);
    ts_edit_zero how = {.by_share = !by_threshold(z, z->level), .value = by_threshold(z, z->level) ? value : value / 100.0};
    ts_edit edit = {.fn = zero_rows, .user = z, .kinds = TS_FFN_SITES, .blocks = {0, last}, .zero = &how, .zeroed = count_zeroed};
    int rc = decode(z, at, n, &edit, err);
    for (size_t i = 0; rc == TS_OK && i + 1 < n; i++) {
        const float *logits = logits_of(z, i, err);
        rc = logits ? compare(z, z->base + i * z->n_vocab, logits, z->text[at + i + 1], err) : TS_ERR_ENGINE;
    }
    return rc;
}

static void report_progress(const zeroing *z, size_t done) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    ts_progress p = {.tokens_done = done, .tokens_total = z->n_text, .prompts_total = 1,
                     .seconds = (double)(t.tv_sec - z->begin.tv_sec) + 1e-9 * (double)(t.tv_nsec - z->begin.tv_nsec)};
    if (z->o->on_progress) z->o->on_progress(&p, z->o->user);
}

static int walk(zeroing *z, ts_error *err) {
    int rc = TS_OK;
    for (size_t at = 0; rc == TS_OK && at + 1 < z->n_text; at += z->window) {
        size_t n = z->n_text - at < z->window ? z->n_text - at : z->window;
        rc = run_base(z, at, n, err);
        for (z->level = 0; rc == TS_OK && z->level < z->n_levels; z->level++) {
            if (ts_session_stopped(z->s)) return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted: zeroing writes no partial table");
            rc = run_level(z, at, n, err);
        }
        report_progress(z, at + n);
    }
    return rc;
}

/* ---- life */

static int check_levels(const ts_zero_options *o, ts_error *err) {
    int rc = ts_options_check(o, sizeof(*o), "ts_zero_options", err);
    if (rc != TS_OK) return rc;
    if (o->n_percents + o->n_below == 0) return ts_fail(err, TS_ERR_ARG, "zeroing needs at least one level");
    for (size_t i = 0; i < o->n_percents; i++)
        if (!(o->percents[i] >= 0 && o->percents[i] <= 100))
            return ts_fail(err, TS_ERR_ARG, "--zero: expected 0 to 100 %%, got %g", o->percents[i]);
    for (size_t i = 0; i < o->n_below; i++)
        if (!(o->below[i] >= 0)) return ts_fail(err, TS_ERR_ARG, "--zero-below: expected 0 or more, got %g", o->below[i]);
    return TS_OK;
}

static int read_text(zeroing *z, ts_error *err) {
    char *text = NULL;
    size_t length = 0;
    int rc = ts_text_file_read(z->o->input_path, &text, &length, err);
    if (rc == TS_OK) rc = ts_session_tokenize(z->s, text, length, z->o->special ? TS_TOKENIZE_SPECIAL : 0, &z->text, &z->n_text, err);
    free(text);
    if (rc == TS_OK && z->n_text < 2)
        rc = ts_fail(err, TS_ERR_ARG, "'%s' has %zu token(s): a text needs at least two", z->o->input_path, z->n_text);
    return rc;
}

static int start_session(zeroing *z, ts_error *err) {
    ts_session_options *so = &z->s->opts;
    if (z->s->started) return ts_fail(err, TS_ERR_STATE, "zeroing needs a session that has not started");
    z->n_vocab = (size_t)llama_vocab_n_tokens(z->s->model->vocab);
    size_t most = MAX_LOGIT_BYTES / (z->n_vocab * sizeof(float));
    z->window = so->n_ctx ? so->n_ctx : DEFAULT_WINDOW;
    if (z->window < 2) return ts_fail(err, TS_ERR_ARG, "-c: zeroing needs a context of 2 tokens or more, got %zu", z->window);
    if (z->window > most) z->window = most > 2 ? most : 2;
    if (!so->n_ctx) so->n_ctx = (uint32_t)z->window;
    so->n_batch = so->n_ubatch = (uint32_t)z->window;
    int rc = ts_session_want(z->s, TS_FFN_SITES, NULL, err);
    return rc == TS_OK ? ts_session_start(z->s, err) : rc;
}

static int allocate(zeroing *z, ts_error *err) {
    z->n_levels = z->o->n_percents + z->o->n_below;
    z->tallies = ts_calloc(z->n_levels, sizeof(*z->tallies));
    z->positions = ts_calloc(z->window, sizeof(*z->positions));
    z->output = ts_calloc(z->window, 1);
    z->base = ts_calloc(z->window, z->n_vocab * sizeof(float));
    if (!z->tallies || !z->positions || !z->output || !z->base)
        return ts_fail_nomem(err, "logits of a window", z->window * z->n_vocab * sizeof(float));
    for (size_t i = 0; i < z->window; i++) z->positions[i] = (int32_t)i;
    memset(z->output, 1, z->window);
    return TS_OK;
}

static void fill_rows(const zeroing *z, ts_zero_row *rows) {
    for (size_t i = 0; i < z->n_levels; i++) {
        const tally *t = &z->tallies[i];
        double n = (double)t->n_scored;
        rows[i] = (ts_zero_row){.level = level_value(z, i), .threshold = by_threshold(z, i),
                                .zeroed = t->n_values ? (double)t->n_zero / (double)t->n_values : 0.0,
                                .perplexity = exp(t->nll / n), .perplexity_base = exp(t->nll_base / n), .kl_mean = t->kl / n,
                                .kl_max = t->kl_max, .top1 = (double)t->n_same_top / n, .identical = !t->differs, .n_scored = t->n_scored};
    }
}

int ts_zero_run(ts_session *s, const ts_zero_options *opts, ts_zero_row *rows, ts_error *err) {
    zeroing z = {.s = s, .o = opts};
    ts_ffn_census served = {0};
    clock_gettime(CLOCK_MONOTONIC, &z.begin);
    int rc = check_levels(opts, err);
    if (rc == TS_OK) rc = read_text(&z, err);
    if (rc == TS_OK) rc = start_session(&z, err);
    if (rc == TS_OK) rc = ts_ffn_census_open(&served, s, 1, err); /* the same refusals as the census */
    ts_ffn_census_close(&served);
    if (rc == TS_OK) rc = allocate(&z, err);
    if (rc == TS_OK) rc = walk(&z, err);
    if (rc == TS_OK) fill_rows(&z, rows);
    free(z.tallies);
    free(z.text);
    free(z.positions);
    free(z.output);
    free(z.base);
    free(z.scratch);
    return rc;
}
