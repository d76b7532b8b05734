/* FFN census of a corpus: generation of a prompt list, several sequences side by side, or a text read teacher-forced.
 * Counts stream into accumulators; a checkpoint between groups or windows makes a killed census go on to the same
 * bytes. Refuses a text of one token and a trace that would not fit the disk, before it computes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/buf.h"
#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "instrument/census_plan.h"
#include "instrument/expert.h"
#include "instrument/ffn_checkpoint.h"
#include "instrument/ffn_write.h"
#include "instrument/group.h"
#include "instrument/provenance.h"
#include "store/census.h"
#include "store/fingerprint.h"
#include "store/meta.h"

/* At most every second, and so that they cost at most a hundredth of the time. */
#define CHECKPOINT_SECONDS 1.0
#define CHECKPOINT_SHARE 100.0

typedef struct census {
    ts_session *s;
    const ts_census_options *o;
    ts_census_plan plan;
    ts_ffn_census ffn;
    ts_group group;
    ts_ffn_progress done;
    uint64_t kept; /* prompts, or tokens of a text, that the checkpoint holds */
    ts_lock *lock;
    char *checkpoint_path, *trace_path, *trace_part; /* NULL = measure only */
    ts_experts experts; /* no layers: the model has none */
    char *experts_path;
    bool fresh; /* the checkpoint is this run's, from its start */
    ts_provenance prov; /* empty without output */
    bool replace;       /* files that exist may be replaced: told so, or they are an unfinished census' */
    bool finished;      /* to be resumed, but nothing unfinished is there */
    ts_census_result *result;
    double begin, checkpointed, checkpoint_cost;
    uint64_t tokens_resumed;
    /* text: the window's arrays, [window] */
    int32_t *positions, *slots;
    int8_t *output;
    bool *begins;
    size_t run_base;
} census;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- files beside the result */

static ts_progress progress(const census *c) {
    return (ts_progress){.prompts_done = c->done.prompts, .prompts_total = c->plan.summary.n_prompts, .tokens_done = c->done.tokens,
                         .tokens_total = c->plan.n_tokens, .bytes_total = c->plan.trace_bytes, .bytes_done = c->done.trace_bytes,
                         .seconds = now() - c->begin, .tokens_resumed = c->tokens_resumed};
}

/* Whether the model has experts is not known yet; a file of an earlier census' would be taken for this one's. */
static int check_experts_target(const census *c, ts_error *err) {
    const char *path = c->o->output_path;
    if (strcmp(path, c->experts_path) == 0 || ts_file_same(path, c->experts_path))
        return ts_fail(err, TS_ERR_ARG, "'%s' would be both census and expert census; name the census .json", path);
    int rc = c->replace ? TS_OK : ts_file_vacant(c->experts_path, err);
    return rc == TS_OK ? ts_file_check_target(c->experts_path, err) : rc;
}

/* Before anything is computed: may the files stand there. */
static int check_output(census *c, ts_error *err) {
    const char *path = c->o->output_path;
    c->checkpoint_path = ts_path_append(path, ".part.census");
    c->trace_part = ts_path_append(path, ".part.trace");
    c->trace_path = ts_path_with_extension(path, "trace");
    c->experts_path = ts_path_with_extension(path, "experts");
    if (!c->checkpoint_path || !c->trace_part || !c->trace_path || !c->experts_path)
        return ts_fail_nomem(err, "output path", 0);
    static const char *const beside[] = {"detail", "meta", "trace", "experts", NULL};
    int rc = ts_session_keep_model(c->s, path, beside, err);
    if (rc == TS_OK) rc = ts_file_check_target(path, err);
    if (rc == TS_OK) rc = ts_lock_take(path, &c->lock, err); /* a checkpoint may be that of a run at work */
    if (rc == TS_OK && !c->o->resume && !c->o->overwrite) rc = ts_file_keep_unfinished(c->checkpoint_path, err);
    c->replace = c->o->overwrite || (c->o->resume && ts_file_exists(c->checkpoint_path));
    c->finished = c->o->resume && !c->replace && ts_file_exists(path);
    if (rc == TS_OK && c->finished) return TS_OK;
    if (rc == TS_OK) rc = ts_census_check_target(path, c->replace, err);
    if (rc == TS_OK) rc = check_experts_target(c, err);
    if (rc != TS_OK || !c->o->trace) return rc;
    if (strcmp(path, c->trace_path) == 0 || ts_file_same(path, c->trace_path))
        return ts_fail(err, TS_ERR_ARG, "'%s' would be both census and trace; name the census .json", path);
    if (!c->replace) rc = ts_file_vacant(c->trace_path, err);
    return rc == TS_OK ? ts_file_check_target(c->trace_path, err) : rc;
}

/* A resumed census must be of the same model, engine and settings: their facts join the plan. */
static int hash_model(census *c, ts_error *err) {
    ts_buf b = {0};
    int rc = ts_provenance_complete(c->s, &c->prov, err);
    if (rc != TS_OK) return rc;
    ts_buf_text(&b, c->plan.hash);
    ts_meta_provenance(&b, &c->prov);
    if (b.failed) rc = ts_fail_nomem(err, "plan", 0);
    else ts_fingerprint_bytes(b.data, b.length, c->plan.hash);
    ts_buf_free(&b);
    return rc;
}

/* The k of each block; refuses a trace that would not fit the disk. */
static int plan_trace(census *c, ts_trace_spec *spec, uint32_t *k, ts_error *err) {
    uint64_t free_bytes = 0, have = c->done.trace_bytes;
    c->ffn.trace_share = c->plan.trace_share;
    for (int32_t il = 0; il < c->ffn.n_layer; il++)
        k[il] = c->ffn.width[il] ? c->ffn.dense->blocks[il].k[TS_FFN_N_FIXED + c->plan.trace_share] : 0;
    c->plan.trace_bytes = ts_trace_bytes(spec, c->plan.n_passes);
    int rc = ts_file_free_bytes(c->o->output_path, &free_bytes, err);
    if (rc == TS_OK && c->plan.trace_bytes > have && c->plan.trace_bytes - have > free_bytes)
        rc = ts_fail(err, TS_ERR_IO, "the trace '%s' would take %.1f MiB, %.1f MiB are free there", c->trace_path,
                     (double)(c->plan.trace_bytes - have) / 1048576.0, (double)free_bytes / 1048576.0);
    return rc;
}

static ts_experts *experts(census *c) { return c->experts.n_layers ? &c->experts : NULL; }

static uint64_t n_done(const census *c) { return c->o->text ? c->done.tokens : c->done.prompts; }

static int write_checkpoint(census *c, ts_error *err) {
    c->kept = n_done(c);
    return ts_ffn_checkpoint_write(c->checkpoint_path, c->plan.hash, c->ffn.dense, c->ffn.shared, experts(c), &c->done, err);
}

/* A fresh census first replaces whatever checkpoint an earlier one left, so that no resume takes up that one's. */
static int begin_files(census *c, const ts_trace_spec *spec, ts_error *err) {
    ts_trace_at at = {c->done.trace_bytes, c->done.trace_passes, c->done.trace_generations};
    int rc = TS_OK;
    c->fresh = c->done.batches == 0;
    if (c->fresh) rc = write_checkpoint(c, err);
    if (rc != TS_OK || !c->o->trace) return rc;
    return ts_trace_open(c->trace_part, spec, at.bytes ? &at : NULL, &c->ffn.trace, err);
}

static void close_counts(census *c) {
    ts_ffn_census_close(&c->ffn);
    ts_experts_free(&c->experts);
}

static int open_counts(census *c, ts_error *err) {
    int rc = ts_ffn_census_open_beside(&c->ffn, c->s, (uint32_t)c->plan.parallel, err);
    return rc == TS_OK && ts_expert_any(c->s) ? ts_expert_open(&c->experts, c->s, err) : rc;
}

/* Killed just before the end, when the trace had its final name already: the counts alone cannot go on. */
static int start_over(census *c, ts_error *err) {
    if (!ts_file_exists(c->trace_path))
        return ts_fail(err, TS_ERR_STATE, "'%s' is gone, without which the census cannot go on; start over with --overwrite", c->trace_part);
    ts_log(TS_LOG_WARN, "'%s' has its place already, and cannot be continued: the census starts over", c->trace_path);
    close_counts(c);
    memset(&c->done, 0, sizeof(c->done));
    return open_counts(c, err);
}

/* Goes on where the checkpoint says. */
static int resume(census *c, ts_error *err) {
    bool found = false;
    int rc = ts_ffn_checkpoint_read(c->checkpoint_path, c->plan.hash, c->ffn.dense, c->ffn.shared, experts(c), &c->done, &found, err);
    if (rc == TS_OK && c->o->trace && c->done.trace_bytes && !ts_file_exists(c->trace_part)) rc = start_over(c, err);
    c->tokens_resumed = c->done.tokens;
    c->kept = n_done(c);
    return rc;
}

/* What stands there already: all of this census, or another's. */
static int settle(census *c, ts_error *err) {
    char *meta = ts_path_with_extension(c->o->output_path, "meta");
    if (!meta) return ts_fail_nomem(err, "output path", 0);
    c->result->complete = ts_meta_complete(meta, c->plan.hash) && (!c->o->trace || ts_file_exists(c->trace_path));
    free(meta);
    return ts_result_settle(c->o->output_path, c->result->complete, err);
}

static int open_output(census *c, ts_error *err) {
    char model[33];
    uint32_t *k = ts_calloc((size_t)c->ffn.n_layer, sizeof(*k));
    int rc = k ? TS_OK : ts_fail_nomem(err, "trace", 0);
    if (rc == TS_OK && c->o->resume) rc = resume(c, err);
    if (rc == TS_OK) ts_meta_model_hash(&c->prov, model);
    ts_trace_spec spec = {(uint32_t)c->ffn.n_layer, c->ffn.width, k, model};
    if (rc == TS_OK && c->o->trace) rc = plan_trace(c, &spec, k, err);
    if (rc == TS_OK) rc = begin_files(c, &spec, err);
    free(k);
    return rc;
}

static int checkpoint(census *c, ts_error *err) {
    double begin = now(), since = begin - c->checkpointed;
    if (!c->o->output_path) return TS_OK;
    if (!ts_session_stopped(c->s) && (since < CHECKPOINT_SECONDS || since < CHECKPOINT_SHARE * c->checkpoint_cost)) return TS_OK;
    ts_trace_at at = {0};
    int rc = ts_ffn_census_wait(&c->ffn, err);
    if (rc == TS_OK && c->ffn.trace) rc = ts_trace_sync(c->ffn.trace, &at, err);
    c->done.trace_bytes = at.bytes;
    c->done.trace_passes = at.passes;
    c->done.trace_generations = at.generations;
    if (rc == TS_OK) rc = write_checkpoint(c, err);
    c->checkpointed = now();
    c->checkpoint_cost = c->checkpointed - begin;
    return rc;
}

static int advance(census *c, ts_error *err) {
    c->done.batches++;
    int rc = checkpoint(c, err);
    ts_progress p = progress(c);
    if (rc == TS_OK && c->o->on_progress) c->o->on_progress(&p, c->o->user);
    return rc;
}

/* ---- generation */

static int on_pass(const ts_run *run, const int32_t *seqs, const bool *first, void *user, ts_error *err) {
    census *c = user;
    int rc = ts_ffn_census_run(&c->ffn, run, seqs, first, err);
    return rc == TS_OK && c->experts.n_layers ? ts_expert_run(&c->experts, run, err) : rc;
}

/* Kinds that a block does not have are neither tapped nor read. */
static unsigned wanted(const census *c) { return c->experts.n_layers ? TS_FFN_SITES | TS_EXPERT_SITES : TS_FFN_SITES; }

static int run_group(census *c, ts_error *err) {
    size_t n = c->group.n;
    uint64_t prefill = 0, ran = c->group.n_run;
    if (n == 0) return TS_OK;
    for (size_t i = 0; i < n; i++) prefill += c->group.seqs[i].n - 1;
    int rc = c->o->no_tap ? TS_OK : ts_ffn_census_wait(&c->ffn, err);
    if (rc == TS_OK && !c->o->no_tap) ts_ffn_census_prefill(&c->ffn, prefill);
    if (rc == TS_OK) rc = ts_group_run(&c->group, err);
    if (rc != TS_OK) return rc;
    c->done.prompts += n;
    c->done.tokens += c->group.n_run - ran;
    return advance(c, err);
}

static int walk_prompts(census *c, ts_error *err) {
    ts_corpus_entry e;
    bool got = true;
    int rc = ts_group_init(&c->group, c->s, (size_t)c->plan.parallel, err);
    c->group.n_predict = c->plan.n_predict;
    c->group.ignore_eos = c->o->ignore_eos;
    c->group.wanted = c->o->no_tap ? 0 : wanted(c);
    c->group.on_pass = on_pass;
    c->group.user = c;
    while (rc == TS_OK && !ts_session_stopped(c->s)) {
        rc = ts_corpus_next(c->plan.corpus, &e, &got, err);
        if (rc != TS_OK || !got) break;
        if ((uint64_t)e.index < c->done.prompts) continue;
        rc = ts_group_add(&c->group, e.tokens, e.n, err);
        if (rc == TS_OK && c->group.n == c->group.capacity) rc = run_group(c, err);
    }
    return rc == TS_OK && !ts_session_stopped(c->s) ? run_group(c, err) : rc;
}

/* ---- text */

static int on_window(const ts_run *run, void *user, ts_error *err) {
    census *c = user;
    int rc = ts_ffn_census_run(&c->ffn, run, c->slots + c->run_base, c->begins + c->run_base, err);
    c->run_base += (size_t)ts_run_n_tokens(run);
    if (rc == TS_OK && c->experts.n_layers) rc = ts_expert_run(&c->experts, run, err);
    return rc;
}

/* Tokens [at, at + n) of the text from an empty memory, every one an output so that the last block runs them all. */
static int run_window(census *c, size_t at, size_t n, ts_error *err) {
    size_t chunk = c->s->opts.n_ubatch;
    int rc = TS_OK;
    ts_session_clear(c->s);
    c->run_base = 0;
    for (size_t i = 0; rc == TS_OK && i < n; i += chunk) {
        ts_decode d = {.tokens = c->plan.text + at + i, .positions = c->positions + i, .output = c->output + i,
                       .n = n - i < chunk ? n - i : chunk, .wanted = wanted(c), .skip_head = true,
                       .on_run = c->o->no_tap ? NULL : on_window, .user = c};
        rc = ts_session_decode(c->s, &d, err);
    }
    c->done.tokens += n;
    return rc == TS_OK ? advance(c, err) : rc;
}

static int walk_text(census *c, ts_error *err) {
    size_t window = c->plan.window;
    c->positions = ts_calloc(window, sizeof(*c->positions));
    c->slots = ts_calloc(window, sizeof(*c->slots));
    c->output = ts_calloc(window, 1);
    c->begins = ts_calloc(window, sizeof(*c->begins));
    if (!c->positions || !c->slots || !c->output || !c->begins) return ts_fail_nomem(err, "window", window * sizeof(int32_t));
    for (size_t i = 0; i < window; i++) c->positions[i] = (int32_t)i;
    memset(c->output, 1, window);
    c->begins[0] = true;
    int rc = TS_OK;
    while (rc == TS_OK && c->done.tokens < c->plan.n_text && !ts_session_stopped(c->s)) {
        size_t left = c->plan.n_text - (size_t)c->done.tokens;
        rc = run_window(c, (size_t)c->done.tokens, left < window ? left : window, err);
    }
    c->done.prompts = rc == TS_OK && c->done.tokens == c->plan.n_text ? 1 : 0;
    return rc;
}

/* ---- life */

static int check_trace(const census *c, ts_error *err) {
    for (int32_t il = 0; il < c->ffn.n_layer; il++)
        if (c->ffn.width[il]) return TS_OK;
    return ts_fail(err, TS_ERR_UNSUPPORTED, "architecture '%s' has no dense FFN whose neurons a trace could name: see 'turbospark router --trace'",
                   c->s->model->architecture);
}

static int prepare(census *c, ts_error *err) {
    int rc = ts_census_plan_make(&c->plan, c->s, c->o, err);
    if (rc == TS_OK && c->o->output_path) rc = check_output(c, err);
    if (rc == TS_OK && !c->o->no_tap) rc = ts_session_want(c->s, TS_FFN_SITES | TS_EXPERT_SITES, NULL, err);
    if (rc == TS_OK) rc = ts_session_start(c->s, err);
    if (rc == TS_OK && !c->o->no_tap) rc = open_counts(c, err);
    if (rc == TS_OK && c->o->trace) rc = check_trace(c, err);
    if (rc == TS_OK && c->o->output_path) rc = hash_model(c, err);
    if (rc == TS_OK && c->o->output_path) rc = c->finished ? settle(c, err) : open_output(c, err);
    ts_progress p = progress(c);
    if (rc == TS_OK && c->o->on_plan && !c->result->complete) c->o->on_plan(&p, c->o->user);
    return rc;
}

/* Of a model without experts, none may stay from an earlier census. */
static int write_experts(census *c, ts_error *err) {
    if (!c->experts.n_layers) {
        remove(c->experts_path);
        return TS_OK;
    }
    ts_experts out = c->experts;
    ts_meta_model_hash(&c->prov, out.model);
    return ts_experts_write(&out, c->experts_path, err);
}

/* The census first and its trace last: killed in between, resume still has what it needs. */
static int finish_files(census *c, ts_error *err) {
    int rc = write_experts(c, err);
    if (rc == TS_OK) rc = ts_ffn_write(&c->ffn, &c->prov, c->plan.hash, c->o->output_path, false, c->replace, err);
    if (rc == TS_OK && c->ffn.trace) {
        rc = ts_trace_finish(c->ffn.trace, c->trace_path, err);
        c->ffn.trace = NULL;
    }
    if (rc != TS_OK) return rc;
    remove(c->checkpoint_path);
    if (!c->o->trace) remove(c->trace_part); /* of an earlier census that had one */
    return TS_OK;
}

/* What was counted, marked partial; checkpoint and unfinished trace stay for resume. */
static int finish_partial(census *c, ts_error *err) {
    int rc = write_experts(c, err);
    if (rc == TS_OK) rc = ts_ffn_write(&c->ffn, &c->prov, c->plan.hash, c->o->output_path, true, c->replace, err);
    if (rc != TS_OK) return rc;
    c->fresh = false; /* what is said to be resumable must be */
    const char *what = c->o->text ? "token" : "prompt";
    uint64_t total = c->o->text ? c->plan.n_tokens : c->plan.summary.n_prompts;
    return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted after %llu of %llu %ss: '%s' holds what was counted, marked partial; resume goes on at %s %llu",
                   (unsigned long long)n_done(c), (unsigned long long)total, what, c->o->output_path, what, (unsigned long long)c->kept + 1);
}

static int conclude(census *c, ts_error *err) {
    int rc = ts_ffn_census_wait(&c->ffn, err);
    c->result->decode_passes = c->ffn.dense->decode_passes;
    c->result->prefill_passes = c->ffn.dense->prefill_passes;
    c->result->overlap_pairs = c->ffn.dense->overlap_pairs;
    for (uint32_t il = 0; il < c->ffn.dense->n_blocks; il++) c->result->n_nonfinite += c->ffn.dense->blocks[il].hist.n_nonfinite;
    if (rc != TS_OK || !c->o->output_path) return rc;
    if (c->result->decode_passes == 0) return ts_fail(err, TS_ERR_INTERRUPTED, "interrupted before the first pass: nothing counted");
    ts_ffn_census_warn(&c->ffn);
    return c->result->partial ? finish_partial(c, err) : finish_files(c, err);
}

/* A run that wrote nothing leaves nothing to resume from. */
static void remove_start(const census *c) {
    if (!c->fresh || c->done.batches > 0) return;
    remove(c->checkpoint_path);
    if (c->o->trace) remove(c->trace_part);
}

static void release(census *c) {
    if (c->ffn.trace) ts_trace_close(c->ffn.trace, NULL);
    c->ffn.trace = NULL;
    remove_start(c);
    close_counts(c);
    ts_group_free(&c->group);
    ts_census_plan_free(&c->plan);
    ts_lock_release(c->lock);
    free(c->checkpoint_path);
    free(c->trace_path);
    free(c->trace_part);
    free(c->experts_path);
    ts_provenance_free(&c->prov);
    free(c->positions);
    free(c->slots);
    free(c->output);
    free(c->begins);
}

int ts_census_run(ts_session *s, const ts_census_options *opts, ts_census_result *out, ts_error *err) {
    ts_census_result unused;
    census c = {.s = s, .o = opts, .result = out ? out : &unused};
    memset(c.result, 0, sizeof(*c.result));
    c.begin = c.checkpointed = now();
    int rc = ts_options_check(opts, sizeof(*opts), "ts_census_options", err);
    if (rc == TS_OK) rc = prepare(&c, err);
    c.begin = c.checkpointed = now();
    if (rc == TS_OK && !c.result->complete) rc = opts->text ? walk_text(&c, err) : walk_prompts(&c, err);
    if (rc == TS_ERR_INTERRUPTED) rc = TS_OK; /* what was counted is written, marked partial */
    c.result->seconds = now() - c.begin;
    c.result->partial = rc == TS_OK && !c.result->complete && ts_session_stopped(s) && c.done.prompts < c.plan.summary.n_prompts;
    if (rc == TS_OK && !opts->no_tap && !c.result->complete) rc = conclude(&c, err);
    c.result->n_prompts = c.done.prompts;
    c.result->n_tokens = c.done.tokens;
    c.result->n_skipped_empty = c.plan.summary.n_skipped;
    release(&c);
    return rc;
}
