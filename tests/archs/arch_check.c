/* One architecture, checked. Owns the arms and their comparison; refuses nothing, it reports. */
#include "arch_check.h"

#include <llama.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch_oracle.h"
#include "e2e/tiny_each.h"

enum arm { ARM_OFF, ARM_REDIRECT, ARM_ASK, ARM_STEPS, N_ARMS };
enum { N_PROMPT = 21, N_DECODE = 3 };

typedef struct checker {
    struct llama_model *model;
    ts_site *sites;
    size_t n_sites;
    unsigned kinds;   /* usable ones */
    ts_range blocks;  /* those at hand: the residual stream is tapped only where no block of a range lacks it */
    int32_t n_vocab;
    size_t top_k;     /* experts a token */
    arch_result *out;
} checker;

static char engine_error[200]; /* the last line that llama.cpp logged as an error */

static void keep_error(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level != GGML_LOG_LEVEL_ERROR) return;
    fputs(text, stderr);
    const char *what = strstr(text, "error loading model: "); /* what follows it says less */
    if (!what && *engine_error) return;
    what = what ? what + strlen("error loading model: ") : text;
    snprintf(engine_error, sizeof(engine_error), "%.*s", (int)strcspn(what, "\n"), what);
}

static void note(checker *c, const char *format, ...) {
    char text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    size_t n = strlen(c->out->note);
    snprintf(c->out->note + n, sizeof(c->out->note) - n, "%s%s", n ? "; " : "", text);
}

/* ---- rows */

void arch_rows_begin(arch_rows *r) {
    memset(r, 0, sizeof(*r));
    for (int k = 0; k < ARCH_KINDS; k++)
        for (int b = 0; b < ARCH_BLOCKS; b++) r->hash[k][b] = E2E_HASH;
    r->logits = E2E_HASH;
}

void arch_rows_add(arch_rows *r, int kind, int32_t block, const void *bytes, size_t n) {
    if (block < -1 || ++block >= ARCH_BLOCKS) return;
    const float *x = bytes;
    bool ids = kind == TS_SITE_ROUTER;
    float size = 0;
    for (size_t i = 0; !ids && i < n / sizeof(float); i++) size += fabsf(x[i]);
    if (!ids && n > 0 && (!isfinite(size) || size == 0)) r->bad = true;
    r->hash[kind][block] = e2e_hash(r->hash[kind][block], bytes, n);
    r->n[kind][block] += (int64_t)n;
}

typedef struct collector {
    checker *c;
    arch_rows *rows;
} collector;

/* Of a router the chosen ids, which come first. */
static void add_site_rows(collector *k, const ts_site *site, const ts_rows *rows) {
    size_t width = (size_t)rows->width, used = site->kind == TS_SITE_ROUTER ? k->c->top_k : width;
    for (int64_t i = 0; i < rows->n_rows; i++)
        arch_rows_add(k->rows, (int)site->kind, site->block, rows->data + (size_t)i * width, used * sizeof(float));
}

static bool at_hand(const checker *c, const ts_site *s) {
    bool inside = s->block < 0 || (s->block >= c->blocks.first && s->block <= c->blocks.last);
    return inside && s->how != TS_HOW_REFUSED && ((c->kinds >> s->kind) & 1u);
}

static int on_run(const ts_run *run, void *user, ts_error *err) {
    collector *k = user;
    for (size_t i = 0; i < k->c->n_sites; i++) {
        const ts_site *site = &k->c->sites[i];
        ts_rows rows;
        if (!at_hand(k->c, site)) continue;
        int rc = ts_run_rows(run, site->kind, site->block, &rows, err);
        if (rc != TS_OK) return rc;
        add_site_rows(k, site, &rows);
    }
    return TS_OK;
}

/* ---- arms */

static void add_logits(const checker *c, struct llama_context *ctx, int32_t i, arch_rows *r) {
    const float *logits = llama_get_logits_ith(ctx, i);
    if (!logits) return;
    for (int32_t v = 0; v < c->n_vocab; v++)
        if (!isfinite(logits[v])) r->logits_bad = true;
    r->logits = e2e_hash(r->logits, logits, (size_t)c->n_vocab * sizeof(float));
}

/* Outputs where some runs of a small -ub have none, some one, and the last. */
static int decode_prompt(checker *c, struct llama_context *ctx, arch_rows *r) {
    struct llama_batch batch = llama_batch_init(N_PROMPT, 0, 1);
    batch.n_tokens = N_PROMPT;
    for (int32_t i = 0; i < N_PROMPT; i++) {
        batch.token[i] = (3 + i * 37) % c->n_vocab;
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = i == 5 || i == 6 || i == N_PROMPT - 1;
    }
    int rc = llama_decode(ctx, batch);
    for (int32_t i = 0; rc == 0 && i < N_PROMPT; i++)
        if (batch.logits[i]) add_logits(c, ctx, i, r);
    llama_batch_free(batch);
    return rc;
}

static int decode_all(checker *c, struct llama_context *ctx, ts_probe *probe, arch_rows *r, ts_error *err) {
    int rc = decode_prompt(c, ctx, r);
    int collected = probe ? ts_probe_collect(probe, err) : TS_OK;
    for (int32_t i = 0; rc == 0 && collected == TS_OK && i < N_DECODE; i++) {
        llama_token token = (11 + i * 29) % c->n_vocab;
        rc = llama_decode(ctx, llama_batch_get_one(&token, 1));
        if (rc == 0) add_logits(c, ctx, -1, r);
        collected = probe ? ts_probe_collect(probe, err) : TS_OK;
    }
    if (rc != 0) snprintf(err->message, sizeof(err->message), "llama_decode returned %d: %s", rc, engine_error);
    return rc != 0 ? TS_ERR_ENGINE : collected;
}

static int run_arm(checker *c, enum arm arm, uint32_t n_ubatch, arch_rows *r, ts_error *err) {
    struct llama_context_params params = llama_context_default_params();
    collector collect = {c, r};
    arch_oracle oracle = {.rows = r, .sites = c->sites, .n_sites = c->n_sites};
    ts_probe *probe = NULL;
    int rc = TS_OK;
    arch_rows_begin(r);
    params.n_ctx = 64;
    params.n_batch = 32;
    params.n_ubatch = n_ubatch;
    params.n_threads = params.n_threads_batch = 1;
    params.kv_unified = true;
    params.swa_full = false;
    if (arm == ARM_STEPS) {
        params.cb_eval = arch_oracle_step;
        params.cb_eval_user_data = &oracle;
    }
    if (arm == ARM_REDIRECT || arm == ARM_ASK) {
        ts_probe_options po = TS_OPTIONS_INIT(ts_probe_options);
        po.sites = c->kinds;
        po.blocks = &c->blocks;
        po.tap = arm == ARM_ASK ? TS_TAP_ASK : TS_TAP_REDIRECT;
        po.on_run = on_run;
        po.user = &collect;
        rc = ts_probe_create(&po, &probe, err);
        if (rc == TS_OK) rc = ts_probe_prepare(probe, &params, err);
    }
    struct llama_context *ctx = rc == TS_OK ? llama_init_from_model(c->model, params) : NULL;
    if (rc == TS_OK && !ctx) rc = TS_ERR_ENGINE;
    if (rc == TS_OK && probe) rc = ts_probe_attach(probe, ctx, err);
    if (rc == TS_OK) arch_rows_begin(r); /* not what the attachment's own decodes gave */
    if (rc == TS_OK) rc = decode_all(c, ctx, probe, r, err);
    llama_free(ctx);
    ts_probe_free(probe);
    return rc;
}

/* ---- comparison */

static bool steps_read(const ts_site *s) { return s->kind != TS_SITE_HEAD && s->kind != TS_SITE_ROUTER_WEIGHTS; }

static bool compare_sites(checker *c, const arch_rows *a, const arch_rows *b, bool steps, uint32_t n_ubatch) {
    const char *what = steps ? "of stepping" : "asked for";
    for (size_t i = 0; i < c->n_sites; i++) {
        const ts_site *s = &c->sites[i];
        if (!at_hand(c, s) || (steps && !steps_read(s))) continue;
        int32_t at = s->block + 1;
        if (at < ARCH_BLOCKS && a->hash[s->kind][at] == b->hash[s->kind][at] && a->n[s->kind][at] > 0) continue;
        note(c, "%s of block %d: redirected rows are not those %s (-ub %u)", ts_site_kind_name(s->kind), s->block, what, n_ubatch);
        return false;
    }
    return true;
}

static bool compare_arms(checker *c, uint32_t n_ubatch) {
    arch_rows *r = calloc(N_ARMS, sizeof(*r));
    bool same = r != NULL;
    if (!r) return false;
    ts_error err = {0};
    for (int arm = 0; arm < N_ARMS && same; arm++)
        if (run_arm(c, (enum arm)arm, n_ubatch, &r[arm], &err) != TS_OK) {
            note(c, "arm %d: %s", arm, err.message);
            same = false;
        }
    if (same) same = compare_sites(c, &r[ARM_REDIRECT], &r[ARM_ASK], false, n_ubatch);
    if (same) same = compare_sites(c, &r[ARM_REDIRECT], &r[ARM_STEPS], true, n_ubatch);
    if (same && (r[ARM_REDIRECT].logits != r[ARM_OFF].logits || r[ARM_ASK].logits != r[ARM_OFF].logits)) {
        note(c, "a tap changes the logits (-ub %u)", n_ubatch);
        same = false;
    }
    /* comparing those would show nothing */
    if (r[ARM_OFF].logits_bad) note(c, "logits not finite");
    if (r[ARM_REDIRECT].bad) note(c, "a row is zero or not finite");
    same = same && !r[ARM_OFF].logits_bad && !r[ARM_REDIRECT].bad;
    free(r);
    return same;
}

static bool has_resid(const checker *c, int32_t block) {
    for (size_t i = 0; i < c->n_sites; i++)
        if (c->sites[i].kind == TS_SITE_RESID && c->sites[i].block == block) return c->sites[i].how != TS_HOW_REFUSED;
    return false;
}

/* Where single blocks lack a residual stream, one range after the other. */
static bool compare_ranges(checker *c) {
    bool some = ((c->kinds >> TS_SITE_RESID) & 1u) != 0;
    for (int32_t next = 0; next < c->out->n_layer;) {
        c->blocks = (ts_range){next, next};
        while (++next < c->out->n_layer && (!some || has_resid(c, next) == has_resid(c, c->blocks.first))) c->blocks.last = next;
        if (some && !has_resid(c, c->blocks.first)) continue;
        if (!compare_arms(c, 4) || !compare_arms(c, 32)) return false;
    }
    return true;
}

/* ---- the site table */

static void count_sites(checker *c) {
    for (size_t i = 0; i < c->n_sites; i++) {
        const ts_site *s = &c->sites[i];
        arch_cell *cell = &c->out->cells[s->kind];
        cell->n_redirected += s->how == TS_HOW_REDIRECTED;
        cell->n_asked += s->how == TS_HOW_ASKED;
        cell->n_refused += s->how == TS_HOW_REFUSED;
        if (s->how != TS_HOW_REFUSED) c->kinds |= 1u << s->kind;
    }
}

/* Each kind's reason, of the first block that has one. */
static void note_reasons(checker *c) {
    for (int kind = 0; kind <= TS_SITE_ROUTER; kind++) {
        const ts_site *first = NULL;
        for (size_t i = 0; i < c->n_sites; i++) {
            const ts_site *s = &c->sites[i];
            if ((int)s->kind == kind && s->why[0] && (!first || s->block < first->block)) first = s;
        }
        if (first) note(c, "%s: %s", ts_site_kind_name(first->kind), first->why);
    }
}

static int learn_sites(checker *c, ts_error *err) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    ts_session *s = NULL;
    so.model = c->model;
    so.n_ctx = 64;
    so.n_ubatch = 32;
    so.n_threads = 1;
    int rc = ts_session_open(&so, &s, err);
    if (rc == TS_OK) rc = ts_session_sites(s, &c->sites, &c->n_sites, err);
    ts_session_close(s);
    return rc;
}

static void dump_sites(const checker *c) {
    for (size_t i = 0; i < c->n_sites; i++) {
        const ts_site *s = &c->sites[i];
        fprintf(stderr, "%-9s %2d %-28s %5lld %-10s %s\n", ts_site_kind_name(s->kind), s->block, s->tensor, (long long)s->width,
                ts_site_how_name(s->how), s->why);
    }
}

static size_t experts_used(const struct llama_model *model) {
    char arch[64], key[128], value[32] = "0";
    llama_model_meta_val_str(model, "general.architecture", arch, sizeof(arch));
    snprintf(key, sizeof(key), "%s.expert_used_count", arch);
    llama_model_meta_val_str(model, key, value, sizeof(value));
    return (size_t)strtoul(value, NULL, 10);
}

/* The table is of the CPU; by hand it can be looked at elsewhere. */
static int32_t gpu_layers(void) {
    const char *n = getenv("ARCH_GPU_LAYERS");
    return n ? (int32_t)strtol(n, NULL, 10) : 0;
}

static struct llama_model *load_file(const char *recipe, const char **why) {
    struct llama_model *model = NULL;
    const char *path = e2e_path("model.gguf");
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = gpu_layers();
    if (tiny_save(recipe, NULL, path, why)) model = llama_model_load_from_file(path, params);
    e2e_remove_tmp(); /* mapped by now */
    return model;
}

void arch_check(const char *recipe, bool as_file, arch_result *out) {
    checker c = {.out = out};
    ts_error err = {0};
    const char *why = NULL;
    ts_device_count();
    llama_log_set(keep_error, NULL);
    tiny_opts opts = {.n_gpu_layers = gpu_layers()};
    c.model = as_file ? load_file(recipe, &why) : tiny_model(recipe, &opts, &why);
    if (!c.model) {
        note(&c, "%s", *engine_error ? engine_error : why);
        out->done = true;
        return;
    }
    out->built = true;
    out->n_layer = llama_model_n_layer(c.model);
    c.n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(c.model));
    c.top_k = experts_used(c.model);
    int rc = learn_sites(&c, &err);
    if (rc == TS_OK) {
        out->opened = true;
        if (getenv("ARCH_VERBOSE")) dump_sites(&c);
        count_sites(&c);
        note_reasons(&c);
        out->same = c.kinds && compare_ranges(&c);
    } else {
        note(&c, "%s", err.message);
    }
    ts_free(c.sites);
    llama_model_free(c.model);
    out->done = true;
}
