/* A session's life: open, attach, start, decode, close. Refuses use in the wrong order and contexts that a
 * wish of the user cannot fit. With nothing attached it installs no eval callback. */
#include "host/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "host/adapter.h"
#include "host/trust.h"

#define DEFAULT_CTX 4096u
#define DEFAULT_BATCH 2048u
#define DEFAULT_UBATCH 512u
#define MAX_SEQUENCES 256u /* llama.cpp's LLAMA_MAX_SEQ */
#define MAX_THREADS 512    /* ggml's GGML_MAX_N_THREADS */

static int check_options(const ts_session_options *o, ts_error *err) {
    int rc = ts_options_check(o, sizeof(*o), "ts_session_options", err);
    if (rc != TS_OK) return rc;
    if ((o->model_path != NULL) + (o->share != NULL) + (o->model != NULL) + (o->synthetic != NULL) != 1)
        return ts_fail(err, TS_ERR_ARG, "ts_session_options: exactly one of model_path, share, model and synthetic is needed");
    if ((unsigned)o->tap > TS_TAP_DECLINE) return ts_fail(err, TS_ERR_ARG, "ts_session_options: unknown tap method %d", (int)o->tap);
    if (o->n_threads < 0 || o->n_threads > MAX_THREADS)
        return ts_fail(err, TS_ERR_ARG, "threads: expected 1 to %d, got %d", MAX_THREADS, o->n_threads);
    if (o->n_gpu_layers < TS_GPU_LAYERS_NONE) return ts_fail(err, TS_ERR_ARG, "gpu layers: got %d", o->n_gpu_layers);
    if (o->n_seq_max > MAX_SEQUENCES)
        return ts_fail(err, TS_ERR_ARG, "sequences: expected at most %u, got %u", MAX_SEQUENCES, o->n_seq_max);
    if (o->n_batch && o->n_ubatch > o->n_batch)
        return ts_fail(err, TS_ERR_ARG, "ubatch size %u exceeds batch size %u", o->n_ubatch, o->n_batch);
    enum ggml_type type;
    rc = ts_engine_kv_type("-ctk", o->type_k, &type, err);
    return rc == TS_OK ? ts_engine_kv_type("-ctv", o->type_v, &type, err) : rc;
}

static int copy_strings(ts_session *s, ts_error *err) {
    const char **fields[] = {&s->opts.model_path, &s->opts.device, &s->opts.type_k, &s->opts.type_v};
    bool failed = false;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (!*fields[i]) continue;
        *fields[i] = ts_strdup(*fields[i]);
        failed = failed || !*fields[i];
    }
    return failed ? ts_fail_nomem(err, "session options", 0) : TS_OK;
}

/* Said once a model: sessions that share one mostly share the number too. */
static void warn_of_threads(const ts_session_options *o) {
    if (o->share || o->n_threads <= ts_engine_cores()) return;
    ts_log(TS_LOG_WARN, "threads: %d on %d cores: llama.cpp's threads wait for one another without sleeping, so this is slower than one a core",
           o->n_threads, ts_engine_cores());
}

int ts_session_open(const ts_session_options *opts, ts_session **out, ts_error *err) {
    *out = NULL;
    int rc = check_options(opts, err);
    if (rc != TS_OK) return rc;
    ts_session *s = ts_calloc(1, sizeof(*s));
    if (!s) return ts_fail_nomem(err, "session", sizeof(*s));
    memcpy(&s->opts, opts, opts->size < sizeof(*opts) ? opts->size : sizeof(*opts));
    s->opts.size = sizeof(s->opts);
    rc = copy_strings(s, err);
    s->as_device = opts->share && opts->share->as_device;
    if (rc == TS_OK && opts->share)
        s->model = ts_model_share(opts->share->model);
    else if (rc == TS_OK)
        rc = ts_model_load(opts, &s->model, err);
    if (rc != TS_OK) {
        ts_session_close(s);
        return rc;
    }
    s->blocks = (ts_range){0, llama_model_n_layer(s->model->llama) - 1};
    warn_of_threads(&s->opts);
    *out = s;
    return TS_OK;
}

int ts_session_attach(ts_session *s, const ts_instrument_class *class, void *self, bool gate, ts_error *err) {
    int rc = TS_OK;
    if (s->started) rc = ts_fail(err, TS_ERR_STATE, "%s must be attached before the session starts", class->name);
    if (rc == TS_OK && s->n_attached == TS_MAX_INSTRUMENTS)
        rc = ts_fail(err, TS_ERR_STATE, "%s: more than %d instruments", class->name, TS_MAX_INSTRUMENTS);
    if (rc != TS_OK) {
        class->free(self);
        return rc;
    }
    s->attached[s->n_attached++] = (ts_attached){.class = class, .self = self, .gate = gate};
    return TS_OK;
}

int ts_session_want(ts_session *s, unsigned kinds, const ts_range *blocks, ts_error *err) {
    if (s->started) return ts_fail(err, TS_ERR_STATE, "sites must be wanted before the session starts");
    s->extra_sites |= kinds;
    if (blocks) s->blocks = *blocks;
    return TS_OK;
}

/* ---- start */

static unsigned all_sites(const ts_session *s) {
    unsigned kinds = s->extra_sites;
    for (size_t i = 0; i < s->n_attached; i++) kinds |= s->attached[i].class->sites;
    return kinds;
}

static uint32_t at_least_one(uint32_t value, uint32_t fallback) { return value ? value : fallback; }

static void resolve_defaults(ts_session *s) {
    ts_session_options *o = &s->opts;
    int32_t trained = llama_model_n_ctx_train(s->model->llama);
    uint32_t limit = trained > 0 && (uint32_t)trained < DEFAULT_CTX ? (uint32_t)trained : DEFAULT_CTX;
    o->n_threads = o->n_threads ? o->n_threads : ts_engine_cores();
    o->n_ctx = at_least_one(o->n_ctx, limit);
    o->n_batch = at_least_one(o->n_batch, o->n_ubatch > DEFAULT_BATCH ? o->n_ubatch : DEFAULT_BATCH);
    if (o->n_batch > o->n_ctx) o->n_batch = o->n_ctx;
    o->n_ubatch = at_least_one(o->n_ubatch, DEFAULT_UBATCH);
    if (o->n_ubatch > o->n_batch) o->n_ubatch = o->n_batch;
    o->n_seq_max = at_least_one(o->n_seq_max, 1);
}

static struct llama_context_params context_params(ts_session *s) {
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = s->opts.n_ctx;
    p.n_batch = s->opts.n_batch;
    p.n_ubatch = s->opts.n_ubatch;
    p.n_seq_max = s->opts.n_seq_max;
    p.n_threads = p.n_threads_batch = s->opts.n_threads;
    p.flash_attn_type = s->opts.flash_attn == TS_FLASH_ON    ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                        : s->opts.flash_attn == TS_FLASH_OFF ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                                                             : LLAMA_FLASH_ATTN_TYPE_AUTO;
    ts_engine_kv_type("-ctk", s->opts.type_k, &p.type_k, NULL);
    ts_engine_kv_type("-ctv", s->opts.type_v, &p.type_v, NULL);
    p.swa_full = false;
    p.kv_unified = s->unified = true;
    p.no_perf = true;
    if (s->tap) {
        p.cb_eval = ts_tap_callback;
        p.cb_eval_user_data = s->tap;
    }
    return p;
}

/* One threadpool for the session's life: without it ggml makes threads for every graph (design, rule 10). */
static void attach_pool(ts_session *s) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_reg_t reg = cpu ? ggml_backend_dev_backend_reg(cpu) : NULL;
    if (!reg) return;
    union {
        void *address;
        struct ggml_threadpool *(*make)(struct ggml_threadpool_params *);
        void (*drop)(struct ggml_threadpool *);
    } make = {ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_new")},
      drop = {ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_free")};
    if (!make.address || !drop.address) return;
    struct ggml_threadpool_params params = ggml_threadpool_params_default(s->opts.n_threads);
    s->pool = make.make(&params);
    s->pool_free = drop.drop;
    if (s->pool) llama_attach_threadpool(s->ctx, s->pool, s->pool);
}

/* The context goes before the arenas its nodes point at, and before its threads. */
static void drop_context(ts_session *s) {
    if (s->ctx) llama_free(s->ctx);
    if (s->pool) s->pool_free(s->pool);
    s->ctx = NULL;
    s->pool = NULL;
}

static int make_context(ts_session *s, ts_error *err) {
    if (s->opts.n_seq_max > s->opts.n_batch) /* llama.cpp asserts on it */
        return ts_fail(err, TS_ERR_ARG, "%u sequences exceed the batch size of %u tokens", s->opts.n_seq_max, s->opts.n_batch);
    ts_engine_error_reset();
    s->ctx = llama_init_from_model(s->model->llama, context_params(s));
    if (!s->ctx)
        return ts_fail(err, TS_ERR_ENGINE, "llama.cpp cannot make a context of %u tokens: %s", s->opts.n_ctx,
                       *ts_engine_error() ? ts_engine_error() : "no reason given");
    if (!llama_get_memory(s->ctx))
        return ts_fail(err, TS_ERR_MODEL, "architecture '%s' has no decoder memory (an embedding model): it cannot generate",
                       s->model->architecture);
    attach_pool(s);
    return TS_OK;
}

/* A model that cannot serve an instrument asked for by environment costs one line; by flag, the run. */
static int start_instruments(ts_session *s, ts_error *err) {
    for (size_t i = 0; i < s->n_attached; i++) {
        ts_attached *a = &s->attached[i];
        ts_error why = {0};
        int rc = a->off ? TS_OK : a->class->start(a->self, s, &why);
        if (rc == TS_OK) continue;
        if (!a->gate) {
            if (err) *err = why;
            return rc;
        }
        ts_log(TS_LOG_WARN, "%s: %s; ignored", a->class->name, why.message);
        a->off = true;
    }
    return TS_OK;
}

static int learn(ts_session *s, ts_error *err) {
    int rc = ts_tap_learn(s->tap, s->ctx, err);
    ts_session_clear(s);
    return rc;
}

/* With an adapter the graph is another one, so it is set before the graph is looked at, and taken out again where the
 * graph does not show it. */
static int learn_adapted(ts_session *s, ts_error *err) {
    ts_error why = {0};
    int rc = ts_adapter_set(s->ctx, s->added, &why);
    if (rc == TS_OK && (rc = learn(s, err)) != TS_OK) return rc;
    s->adapter_on = rc == TS_OK && ts_adapter_applied(&s->tap->table, s->added, llama_model_n_embd(s->model->llama));
    if (s->adapter_on) return TS_OK;
    ts_log(TS_LOG_INFO, "llama.cpp's adapter does not serve architecture '%s'%s%s", s->model->architecture, why.message[0] ? ": " : "",
           why.message);
    rc = ts_adapter_set(s->ctx, NULL, err);
    return rc == TS_OK ? learn(s, err) : rc;
}

static int start_tap(ts_session *s, ts_error *err) {
    int rc = s->added ? learn_adapted(s, err) : learn(s, err);
    if (rc == TS_OK) rc = ts_tap_request(s->tap, all_sites(s), s->blocks, (int32_t)llama_n_ubatch(s->ctx), err);
    if (rc != TS_OK) return rc;
    ts_log(TS_LOG_INFO, "tapped sites: %zu, arenas %.1f MiB", s->tap->n_slots, (double)ts_arenas_bytes(&s->tap->arenas) / 1048576.0);
    return s->tap->n_slots > 0 ? ts_trust_earn(s->tap, s->ctx, err) : TS_OK;
}

/* False when every instrument was asked for by environment and none can be served: then the callback declines all. */
static bool taps_something(const ts_session *s) {
    bool any = s->extra_sites || s->edit.fn;
    for (size_t i = 0; i < s->n_attached; i++) any = any || !s->attached[i].off;
    return any;
}

/* Nothing but instruments by environment asks for the tap. */
static bool only_gates(const ts_session *s) {
    bool gates = !s->extra_sites && !s->edit.fn && !s->added;
    for (size_t i = 0; i < s->n_attached; i++) gates = gates && s->attached[i].gate;
    return gates;
}

static void drop_tap(ts_session *s) {
    drop_context(s);
    ts_tap_free(s->tap);
    free(s->tap);
    s->tap = NULL;
}

/* A tap that cannot be made (no memory for its arenas) costs instruments by environment one line each, and the run
 * nothing: it starts anew in a context without a callback. */
static int start_tap_or_go_on(ts_session *s, ts_error *err) {
    ts_error why = {0};
    int rc = start_tap(s, &why);
    if (rc == TS_OK) return TS_OK;
    if (!only_gates(s)) {
        if (err) *err = why;
        return rc;
    }
    for (size_t i = 0; i < s->n_attached; i++) {
        ts_log(TS_LOG_WARN, "%s: %s; ignored", s->attached[i].class->name, why.message);
        s->attached[i].off = true;
    }
    drop_tap(s);
    return make_context(s, err);
}

/* Everything that wanted the tap is done by llama.cpp's adapter, as the tap has just seen. */
static bool adapter_only(const ts_session *s) {
    bool only = s->adapter_on && !s->extra_sites && !s->edit.fn && s->opts.tap != TS_TAP_DECLINE;
    for (size_t i = 0; i < s->n_attached; i++) only = only && (s->attached[i].off || s->attached[i].untapped);
    return only;
}

/* A context of its own again: a callback costs something even where it declines everything. */
static int go_untapped(ts_session *s, ts_error *err) {
    drop_tap(s);
    int rc = make_context(s, err);
    return rc == TS_OK ? ts_adapter_set(s->ctx, s->added, err) : rc;
}

int ts_session_start(ts_session *s, ts_error *err) {
    if (s->started) return s->ctx ? TS_OK : ts_fail(err, TS_ERR_STATE, "the session failed to start");
    s->started = true;
    resolve_defaults(s);
    if (all_sites(s) || s->opts.tap == TS_TAP_DECLINE) {
        s->tap = ts_calloc(1, sizeof(*s->tap));
        if (!s->tap) return ts_fail_nomem(err, "tap", sizeof(*s->tap));
        s->tap->want = s->opts.tap;
        s->tap->arenas.as_device = s->as_device;
    }
    int rc = make_context(s, err);
    if (rc == TS_OK && s->tap && s->opts.tap != TS_TAP_DECLINE) rc = start_tap_or_go_on(s, err);
    if (rc == TS_OK) rc = start_instruments(s, err);
    if (rc == TS_OK && s->tap && !taps_something(s)) s->tap->mode = TS_TAP_IDLE;
    if (rc == TS_OK && s->tap && adapter_only(s)) rc = go_untapped(s, err);
    if (rc != TS_OK && s->ctx) {
        if (s->tap) s->tap->mode = TS_TAP_IDLE;
        llama_free(s->ctx);
        s->ctx = NULL;
    }
    return rc;
}

/* ---- decode */

bool ts_session_stopped(const ts_session *s) { return s->opts.stop && *s->opts.stop; }

void ts_session_clear(ts_session *s) { llama_memory_clear(llama_get_memory(s->ctx), true); }

static struct llama_batch fill_batch(const ts_decode *d) {
    struct llama_batch b = llama_batch_init((int32_t)d->n, 0, 1);
    b.n_tokens = (int32_t)d->n;
    for (size_t i = 0; i < d->n; i++) {
        b.token[i] = d->tokens[i];
        b.pos[i] = d->positions[i];
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = d->seq_ids ? d->seq_ids[i] : 0;
        b.logits[i] = d->output ? d->output[i] : 0;
    }
    return b;
}

static int decode_failed(const ts_session *s, int code, size_t n, ts_error *err) {
    if (code == 1)
        return ts_fail(err, TS_ERR_ENGINE, "the context of %u tokens is full", llama_n_ctx(s->ctx));
    const char *why = ts_engine_error();
    return ts_fail(err, TS_ERR_ENGINE, "llama_decode of %zu tokens returned %d%s%s", n, code, *why ? ": " : "", why);
}

int ts_session_decode(ts_session *s, const ts_decode *d, ts_error *err) {
    if (d->n > llama_n_batch(s->ctx))
        return ts_fail(err, TS_ERR_ARG, "a batch of %zu tokens exceeds the batch size %u", d->n, llama_n_batch(s->ctx));
    struct llama_batch batch = fill_batch(d);
    ts_expect expect = {.tokens = d->tokens, .positions = d->positions, .seq_ids = d->seq_ids, .n = d->n,
                        .output = d->outputs_only ? d->output : NULL};
    if (s->tap) {
        s->tap->on_run = d->on_run;
        s->tap->user = d->user;
        s->tap->wanted = d->on_run ? d->wanted : 0;
        s->tap->skip_head = d->skip_head && *s->tap->head;
        s->tap->edit = d->edit ? *d->edit : s->edit;
        ts_tap_begin(s->tap, s->tap->mode == TS_TAP_IDLE ? NULL : &expect);
    }
    ts_engine_error_reset();
    int code = llama_decode(s->ctx, batch), rc = TS_OK;
    if (s->tap)
        rc = ts_tap_end(s->tap, s->ctx, code, err);
    else
        llama_synchronize(s->ctx);
    llama_batch_free(batch);
    return rc == TS_OK && code != 0 ? decode_failed(s, code, d->n, err) : rc;
}

/* ---- end */

int ts_session_finish(ts_session *s, ts_error *err) {
    int first = TS_OK;
    if (s->finished) return TS_OK;
    s->finished = true;
    for (size_t i = 0; i < s->n_attached; i++) {
        ts_attached *a = &s->attached[i];
        ts_error why = {0};
        if (a->off || !a->class->finish) continue;
        a->off = true;
        int rc = a->class->finish(a->self, s, &why);
        if (rc == TS_OK) continue;
        if (first != TS_OK) ts_log(TS_LOG_ERROR, "%s: %s", a->class->name, why.message);
        if (first == TS_OK && err) *err = why;
        if (first == TS_OK) first = rc;
    }
    return first;
}

void ts_session_close(ts_session *s) {
    if (!s) return;
    for (size_t i = 0; i < s->n_attached; i++) s->attached[i].class->free(s->attached[i].self);
    drop_context(s);
    ts_tap_free(s->tap);
    free(s->tap);
    ts_model_release(s->model);
    free((char *)s->opts.model_path);
    free((char *)s->opts.device);
    free((char *)s->opts.type_k);
    free((char *)s->opts.type_v);
    free(s);
}

/* ---- questions */

int ts_session_model_info(const ts_session *s, ts_model_info *out, ts_error *err) {
    (void)err;
    ts_model_info_fill(s->model, out);
    return TS_OK;
}

bool ts_session_has_callback(const ts_session *s) { return s->tap != NULL; }

int ts_session_sites(ts_session *s, ts_site **out, size_t *n, ts_error *err) {
    *out = NULL;
    *n = 0;
    int rc = TS_OK;
    if (!s->started) {
        if (!s->opts.n_ubatch) s->opts.n_ubatch = 32; /* small arenas: nothing but the table is wanted */
        if (!all_sites(s)) rc = ts_session_want(s, (1u << TS_SITE_KIND_COUNT) - 1, NULL, err);
    }
    if (rc == TS_OK) rc = ts_session_start(s, err);
    if (rc == TS_OK && !s->tap) rc = ts_fail(err, TS_ERR_STATE, "the session was started with nothing attached");
    return rc == TS_OK ? ts_tap_copy_sites(s->tap, out, n, err) : rc;
}
