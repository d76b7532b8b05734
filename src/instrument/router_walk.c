/* Routing census of a corpus: every pass of every prompt, several sequences side by side. A checkpoint between groups (a file
 * of the result's own format) makes a killed census go on to the same bytes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "instrument/census_plan.h"
#include "instrument/group.h"
#include "instrument/provenance.h"
#include "instrument/router.h"
#include "store/fingerprint.h"
#include "store/meta.h"

/* At most every second, and so that they cost at most a hundredth of the time. */
#define CHECKPOINT_SECONDS 1.0
#define CHECKPOINT_SHARE 100.0

typedef struct walk {
    ts_session *s;
    const ts_router_options *o;
    ts_census_plan plan;
    ts_router_census census;
    ts_group group;
    ts_lock *lock, *csv_lock;
    char *state_path; /* NULL = measure only */
    ts_provenance prov;
    bool replace, traced, fresh; /* fresh: the state is this run's, from its start */
    bool finished, complete;     /* to be resumed, but nothing unfinished is there; and what is there is all of it */
    uint64_t prompts_done, tokens_done, tokens_resumed;
    double begin, checkpointed, checkpoint_cost;
} walk;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- before anything is computed */

static int check_options(const ts_router_options *o, ts_error *err) {
    if (!o->input_path) return ts_fail(err, TS_ERR_ARG, "router: no input");
    if (o->csv_path && !o->output_path) return ts_fail(err, TS_ERR_ARG, "a CSV needs an output beside it");
    if (o->csv_path && (strcmp(o->csv_path, o->output_path) == 0 || ts_file_same(o->csv_path, o->output_path)))
        return ts_fail(err, TS_ERR_ARG, "'%s' would be both routing census and CSV", o->csv_path);
    if (o->csv_path && ts_file_same(o->csv_path, o->input_path)) return ts_fail(err, TS_ERR_ARG, "output '%s' is the input", o->csv_path);
    return ts_file_keep(o->output_path, "input", o->input_path, err);
}

static int make_plan(walk *w, ts_error *err) {
    const ts_router_options *o = w->o;
    ts_census_options c = TS_OPTIONS_INIT(ts_census_options);
    c.input_path = o->input_path;
    c.output_path = o->output_path;
    c.column = o->column;
    c.chat_template = o->chat_template;
    c.chat = o->chat;
    c.special = o->special;
    c.n_predict = o->n_predict == 0 ? 1 : o->n_predict; /* the last prompt token's pass gives the first token */
    c.parallel = o->parallel;
    c.ignore_eos = o->ignore_eos;
    return ts_census_plan_make(&w->plan, w->s, &c, err);
}

static int check_output(walk *w, ts_error *err) {
    static const char *const beside[] = {"meta", NULL}, *const none[] = {NULL};
    const char *path = w->o->output_path, *csv = w->o->csv_path;
    w->state_path = ts_path_append(path, ".part.router");
    if (!w->state_path) return ts_fail_nomem(err, "output path", strlen(path));
    int rc = ts_session_keep_model(w->s, path, beside, err);
    if (rc == TS_OK) rc = ts_file_check_target(path, err);
    if (rc == TS_OK) rc = ts_lock_take(path, &w->lock, err); /* a state may be that of a run at work */
    w->replace = w->o->overwrite || (w->o->resume && ts_file_exists(w->state_path));
    if (rc == TS_OK && !w->o->resume && !w->o->overwrite) rc = ts_file_keep_unfinished(w->state_path, err);
    w->finished = w->o->resume && !w->replace && ts_file_exists(path);
    if (rc == TS_OK && w->finished) return TS_OK;
    if (rc == TS_OK) rc = ts_router_check_target(path, w->replace, err);
    if (rc != TS_OK || !csv) return rc;
    rc = ts_session_keep_model(w->s, csv, none, err);
    if (rc == TS_OK && !w->replace) rc = ts_file_vacant(csv, err);
    return rc == TS_OK ? ts_file_check_target(csv, err) : rc;
}

/* A resumed census must be of the same model, engine and settings: their facts join the plan. */
static int hash_plan(walk *w, ts_error *err) {
    ts_buf b = {0};
    int rc = ts_provenance_complete(w->s, &w->prov, err);
    if (rc != TS_OK) return rc;
    ts_buf_printf(&b, "router|%d|%s|", w->traced, w->plan.hash);
    ts_meta_provenance(&b, &w->prov);
    if (b.failed) rc = ts_fail_nomem(err, "plan", 0);
    else ts_fingerprint_bytes(b.data, b.length, w->plan.hash);
    ts_buf_free(&b);
    return rc;
}

/* ---- resume */

static int take_state(walk *w, ts_router *old, ts_error *err) {
    ts_router *r = &w->census.record;
    if (strcmp(old->plan, w->plan.hash) != 0 || !old->split || old->traced != r->traced)
        return ts_fail(err, TS_ERR_STATE, "'%s' belongs to another corpus, model or options; remove it, or start over with --overwrite", w->state_path);
    ts_error why = {0};
    if (ts_router_same_shape(r, old, &why) != TS_OK) return ts_fail(err, TS_ERR_STATE, "'%s': %s", w->state_path, why.message);
    if (old->prompts_done > w->plan.summary.n_prompts || old->n_generations != old->prompts_done)
        return ts_fail(err, TS_ERR_STATE, "'%s' is damaged: %llu generations counted, %llu prompts done of %llu", w->state_path,
                       (unsigned long long)old->n_generations, (unsigned long long)old->prompts_done, (unsigned long long)w->plan.summary.n_prompts);
    w->prompts_done = old->prompts_done;
    w->tokens_done = w->tokens_resumed = old->tokens_done;
    ts_router empty = *r;
    *r = *old;
    *old = empty;
    ts_router_forget_sources(r); /* it is no sum */
    return TS_OK;
}

static int resume(walk *w, ts_error *err) {
    ts_router old = {0};
    if (!ts_file_exists(w->state_path)) return TS_OK;
    int rc = ts_router_read(w->state_path, &old, err);
    if (rc == TS_OK) rc = take_state(w, &old, err);
    ts_router_free(&old);
    return rc;
}

static int write_state(walk *w, ts_error *err) {
    ts_router *r = &w->census.record;
    memcpy(r->plan, w->plan.hash, sizeof(w->plan.hash));
    r->prompts_done = w->prompts_done;
    r->tokens_done = w->tokens_done;
    return ts_router_write_state(r, w->state_path, err);
}

/* What stands there already: all of this census, or another's. */
static int settle(walk *w, ts_error *err) {
    char *meta = ts_path_with_extension(w->o->output_path, "meta");
    if (!meta) return ts_fail_nomem(err, "output path", 0);
    w->complete = ts_meta_complete(meta, w->plan.hash) && (!w->o->csv_path || ts_file_exists(w->o->csv_path));
    free(meta);
    return ts_result_settle(w->o->output_path, w->complete, err);
}

static int open_output(walk *w, ts_error *err) {
    int rc = TS_OK;
    if (w->o->csv_path) rc = ts_lock_take(w->o->csv_path, &w->csv_lock, err);
    if (rc == TS_OK && w->o->resume) rc = resume(w, err);
    w->fresh = rc == TS_OK && w->prompts_done == 0;
    return w->fresh ? write_state(w, err) : rc; /* no later resume takes up an older one's */
}

static int checkpoint(walk *w, ts_error *err) {
    double begin = now(), since = begin - w->checkpointed;
    if (!w->state_path) return TS_OK;
    if (!ts_session_stopped(w->s) && (since < CHECKPOINT_SECONDS || since < CHECKPOINT_SHARE * w->checkpoint_cost)) return TS_OK;
    int rc = write_state(w, err);
    w->checkpointed = now();
    w->checkpoint_cost = w->checkpointed - begin;
    return rc;
}

/* ---- the walk */

/* Slots a prompt's token fills, over all blocks. */
static uint64_t slots_per_token(const walk *w) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < w->census.record.n_layers; i++) n += w->census.record.layers[i].top_k;
    return n;
}

static ts_progress progress(const walk *w) {
    return (ts_progress){.prompts_done = w->prompts_done, .prompts_total = w->plan.summary.n_prompts, .tokens_done = w->tokens_done,
                         .tokens_total = w->plan.n_tokens, .seconds = now() - w->begin, .tokens_resumed = w->tokens_resumed,
                         .bytes_total = w->traced ? w->plan.n_tokens * slots_per_token(w) * sizeof(uint32_t) : 0};
}

static int on_pass(const ts_run *run, const int32_t *seqs, const bool *first, void *user, ts_error *err) {
    walk *w = user;
    (void)seqs;
    (void)first;
    return ts_router_census_run(&w->census, run, w->group.headful ? TS_ROUTER_DECODE : TS_ROUTER_PREFILL, err);
}

static int run_group(walk *w, ts_error *err) {
    size_t n = w->group.n;
    uint64_t ran = w->group.n_run;
    int rc = TS_OK;
    if (n == 0) return TS_OK;
    for (uint32_t i = 0; rc == TS_OK && i < n; i++) rc = ts_router_census_begin(&w->census, i, err);
    if (rc == TS_OK) rc = ts_group_run(&w->group, err);
    if (rc == TS_OK) rc = ts_router_census_flush(&w->census, err);
    if (rc != TS_OK) return rc;
    w->prompts_done += n;
    w->tokens_done += w->group.n_run - ran;
    rc = checkpoint(w, err);
    ts_progress p = progress(w);
    if (rc == TS_OK && w->o->on_progress) w->o->on_progress(&p, w->o->user);
    return rc;
}

static int walk_prompts(walk *w, ts_error *err) {
    ts_corpus_entry e;
    bool got = true;
    int rc = ts_group_init(&w->group, w->s, (size_t)w->plan.parallel, err);
    w->group.n_predict = w->plan.n_predict;
    w->group.ignore_eos = w->o->ignore_eos;
    w->group.wanted = TS_ROUTER_SITES;
    w->group.prefill_too = true;
    w->group.on_pass = on_pass;
    w->group.user = w;
    while (rc == TS_OK && !ts_session_stopped(w->s)) {
        rc = ts_corpus_next(w->plan.corpus, &e, &got, err);
        if (rc != TS_OK || !got) break;
        if ((uint64_t)e.index < w->prompts_done) continue;
        rc = ts_group_add(&w->group, e.tokens, e.n, err);
        if (rc == TS_OK && w->group.n == w->group.capacity) rc = run_group(w, err);
    }
    return rc == TS_OK && !ts_session_stopped(w->s) ? run_group(w, err) : rc;
}

/* ---- life */

static int prepare(walk *w, ts_error *err) {
    int rc = check_options(w->o, err);
    if (rc == TS_OK) rc = make_plan(w, err);
    if (rc == TS_OK && w->o->output_path) rc = check_output(w, err);
    if (rc == TS_OK) rc = ts_session_want(w->s, TS_ROUTER_SITES, NULL, err);
    if (rc == TS_OK) rc = ts_session_start(w->s, err);
    if (rc == TS_OK) rc = ts_router_census_open(&w->census, w->s, (uint32_t)w->plan.parallel, w->traced, err);
    if (rc == TS_OK && w->o->output_path) rc = hash_plan(w, err);
    if (rc == TS_OK && w->o->output_path) rc = w->finished ? settle(w, err) : open_output(w, err);
    ts_progress p = progress(w);
    if (rc == TS_OK && w->o->on_plan && !w->complete) w->o->on_plan(&p, w->o->user);
    return rc;
}

static int write_result(walk *w, bool partial, ts_error *err) {
    const char *path = w->o->output_path;
    int rc = ts_router_census_write(&w->census, &w->prov, path, partial, w->replace, err);
    if (rc != TS_OK) return rc;
    w->fresh = w->fresh && !partial; /* what is said to be resumable must be; the record says how far its state goes */
    if (partial)
        return ts_fail(err, TS_ERR_INTERRUPTED,
                       "interrupted after %llu of %llu prompts: '%s' holds what was counted, marked partial%s; resume goes on at prompt %llu",
                       (unsigned long long)w->prompts_done, (unsigned long long)w->plan.summary.n_prompts, path,
                       w->o->csv_path ? ", the CSV is not written" : "", (unsigned long long)w->census.record.prompts_done + 1);
    if (w->o->csv_path) rc = ts_router_write_csv(&w->census.record, w->o->csv_path, w->replace, err);
    if (rc == TS_OK) remove(w->state_path);
    return rc;
}

static void fill_result(const walk *w, ts_router_result *out) {
    const ts_router *r = &w->census.record;
    for (uint32_t i = 0; i < r->n_layers; i++) {
        const ts_router_layer *l = &r->layers[i];
        out->n_blocks += l->n_experts > 0;
        out->n_rows += ts_router_rows(l);
        out->n_slots += ts_router_rows(l) * l->top_k;
        out->n_duplicates += l->duplicates;
    }
    out->n_experts = (int32_t)ts_router_experts(r);
    out->top_k = (int32_t)ts_router_top_k(r);
    out->n_prompts = w->prompts_done;
    out->n_tokens = w->tokens_done;
    out->n_skipped_empty = w->plan.summary.n_skipped;
}

static int conclude(walk *w, bool partial, ts_error *err) {
    int rc = ts_router_census_flush(&w->census, err);
    if (rc != TS_OK || !w->o->output_path) return rc;
    if (ts_router_most_rows(&w->census.record) == 0)
        return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted before the first pass: nothing counted");
    ts_router_census_warn(&w->census);
    return write_result(w, partial, err);
}

static void release(walk *w) {
    if (w->fresh && w->prompts_done == 0) remove(w->state_path); /* nothing to resume from */
    ts_router_census_close(&w->census);
    ts_group_free(&w->group);
    ts_census_plan_free(&w->plan);
    ts_lock_release(w->csv_lock);
    ts_lock_release(w->lock);
    free(w->state_path);
    ts_provenance_free(&w->prov);
}

int ts_router_run(ts_session *s, const ts_router_options *opts, ts_router_result *out, ts_error *err) {
    ts_router_result unused;
    walk w = {.s = s, .o = opts};
    if (!out) out = &unused;
    memset(out, 0, sizeof(*out));
    int rc = ts_options_check(opts, sizeof(*opts), "ts_router_options", err);
    if (rc == TS_OK) {
        w.traced = opts->trace || opts->csv_path;
        rc = prepare(&w, err);
    }
    w.begin = w.checkpointed = now();
    if (rc == TS_OK && !w.complete) rc = walk_prompts(&w, err);
    if (rc == TS_ERR_INTERRUPTED) rc = TS_OK; /* what was counted is written, marked partial */
    out->seconds = now() - w.begin;
    out->complete = rc == TS_OK && w.complete;
    out->partial = rc == TS_OK && !w.complete && ts_session_stopped(s) && w.prompts_done < w.plan.summary.n_prompts;
    if (rc == TS_OK && !w.complete) rc = conclude(&w, out->partial, err);
    fill_result(&w, out);
    release(&w);
    return rc;
}
