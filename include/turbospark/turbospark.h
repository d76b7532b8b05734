/* turbospark: an activation microscope for GGUF models on stock llama.cpp.
 *
 * Two objects. A ts_session loads a model, generates text and feeds instruments. A ts_probe hangs on a
 * llama_context that the caller owns and hands out the activations of each graph run.
 *
 * Conventions, for every function below unless it says otherwise:
 *  - returns 0 (TS_OK) or a negative TS_ERR_* code; objects leave through the last-but-one parameter, which
 *    is NULL after a failure. `err` may be NULL; it is written on failure only.
 *  - option structs start with `size`, set by TS_OPTIONS_INIT or `.size = sizeof(opts)`; zero or NULL in any
 *    field means the default; an unknown non-zero tail (a newer caller) is refused with TS_ERR_ARG.
 *  - strings are UTF-8 and NUL-terminated; memory returned as `char **` or `int32_t **` is the caller's, freed
 *    by ts_free().
 *  - a session or probe is used by one thread at a time; different sessions may run on different threads,
 *    but share the process-wide log callback (llama.cpp's own is process-wide).
 *  - the library never prints, exits or aborts.
 *
 * Words: block = one transformer layer, 0-based; residual stream = the vector between blocks, read at each
 * block's output after the FFN join, before any final norm; headful pass = one that computes logits.
 */
#ifndef TURBOSPARK_H
#define TURBOSPARK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TS_VERSION_MAJOR 0
#define TS_VERSION_MINOR 1
#define TS_VERSION_PATCH 0

#if defined(__GNUC__)
#define TS_API __attribute__((visibility("default")))
#else
#define TS_API
#endif

#define TS_OPTIONS_INIT(type) ((type){.size = sizeof(type)})

/* ---------------------------------------------------------------- errors, log, version */

enum ts_error_code {
    TS_OK = 0,
    TS_ERR_ARG = -1,         /* a parameter or option is out of range, or two contradict */
    TS_ERR_NOMEM = -2,       /* an allocation failed */
    TS_ERR_IO = -3,          /* the operating system refused a file operation */
    TS_ERR_FORMAT = -4,      /* a file or text is not what it should be; `position` says where */
    TS_ERR_MODEL = -5,       /* the model cannot be loaded or does not fit the request */
    TS_ERR_UNSUPPORTED = -6, /* the model has no such site, or the backend cannot tap it */
    TS_ERR_ENGINE = -7,      /* llama.cpp failed while computing */
    TS_ERR_INTERRUPTED = -8, /* the stop flag was raised; what was captured is kept */
    TS_ERR_STATE = -9,       /* called in the wrong order */
};

/* One clear line: lower case, no full stop. `position` is a byte offset, line or row, -1 when none. */
typedef struct ts_error {
    int code;
    int64_t position;
    char message[1024];
} ts_error;

enum ts_log_level { TS_LOG_ERROR = 1, TS_LOG_WARN = 2, TS_LOG_INFO = 3, TS_LOG_DEBUG = 4 };

/* Receives one line without newline. llama.cpp's own lines come with `from_engine` true. */
typedef void (*ts_log_fn)(enum ts_log_level level, bool from_engine, const char *line, void *user);

/* Sets the process-wide log receiver for this library and for llama.cpp; NULL silences both (the default
 * once any session or probe exists). Not thread-safe against running sessions. */
TS_API void ts_log_set(ts_log_fn fn, void *user);

/* Called with llama.cpp's own message when it hits an assertion (metadata it does not check). The process
 * is lost when the callback returns: a command prints the line and leaves with _exit. NULL restores the
 * default. Process-wide. */
typedef void (*ts_abort_fn)(const char *message);
TS_API void ts_abort_set(ts_abort_fn fn);

/* For a signal handler, or an abort function, that leaves at once: removes the temporaries and locks of files being
 * written, so that none stays; results and partial files stay as they are. Async-signal-safe. Nothing of this library
 * may be called afterwards: _exit. Without it (or killed) the next run with the same output removes them. */
TS_API void ts_unfinished_remove(void);

TS_API const char *ts_version(void);        /* "0.1.0" */
TS_API const char *ts_engine_version(void); /* llama.cpp's, static string */
TS_API const char *ts_ggml_version(void);   /* ggml's, static string */
TS_API void ts_free(void *memory);          /* frees what this library returned; NULL is fine */

typedef struct ts_device {
    char name[64];
    char description[128];
    char kind[16]; /* "cpu", "gpu", "igpu", "accel" */
    uint64_t memory_free, memory_total; /* bytes */
} ts_device;

/* Compute devices that ggml found. Index from 0; TS_ERR_ARG past the end. Loads the backends first. */
TS_API size_t ts_device_count(void);
TS_API int ts_device_get(size_t index, ts_device *out, ts_error *err);

/* ---------------------------------------------------------------- parsing (what the command line uses) */

/* Whole-string decimal numbers; no sign tricks, spaces or suffixes; finite. `name` is the option named in
 * the error, e.g. "-n". TS_ERR_ARG with expected range and found text. */
TS_API int ts_parse_i64(const char *name, const char *text, int64_t min, int64_t max, int64_t *out, ts_error *err);
TS_API int ts_parse_f64(const char *name, const char *text, double min, double max, double *out, ts_error *err);

/* Inclusive block range, 0-based. */
typedef struct ts_range {
    int32_t first, last;
} ts_range;

/* "A:B", "A" (one block). A <= B required. Upper limits are the model's business. */
TS_API int ts_parse_range(const char *name, const char *text, ts_range *out, ts_error *err);

enum ts_positions_kind {
    TS_POSITIONS_LAST = 0, /* the last prompt token */
    TS_POSITIONS_RANGE,    /* tokens first..last of the prompt; negative counts from the end (-1 = last) */
    TS_POSITIONS_ALL,
    TS_POSITIONS_MEAN,     /* one row: the mean over all prompt tokens, f64 accumulation */
};

typedef struct ts_positions {
    enum ts_positions_kind kind;
    int32_t first, last; /* for TS_POSITIONS_RANGE */
} ts_positions;

/* Shape of a random llama model for measuring: blocks, width, FFN width, heads and key-value heads. */
typedef struct ts_synthetic {
    int32_t n_layer, n_embd, n_ff, n_head, n_head_kv;
    int32_t n_expert, n_expert_used; /* 0 = dense */
    int32_t n_vocab;                 /* 0 = 32000 */
    uint64_t seed;                   /* of the weights */
    bool f32;                        /* else Q8_0 where rows are a multiple of 32 */
} ts_synthetic;

/* "135M", "3B", "8B" or "L,E,FF,H,HKV[,EXPERTS,USED]". */
TS_API int ts_parse_synthetic(const char *name, const char *text, ts_synthetic *out, ts_error *err);

/* "last", "all", "mean", "7", "-2", "A:B". */
TS_API int ts_parse_positions(const char *name, const char *text, ts_positions *out, ts_error *err);

/* ---------------------------------------------------------------- session */

typedef struct ts_session ts_session;

enum ts_flash { TS_FLASH_AUTO = 0, TS_FLASH_ON = 1, TS_FLASH_OFF = 2 };

/* How a wanted activation is taken. Redirect points the node at memory of ours (no copy, no range split)
 * wherever the node allows it and trust was earned; ask has the scheduler stop at each node. */
enum ts_tap_method {
    TS_TAP_REDIRECT = 0,
    TS_TAP_ASK = 1,
    TS_TAP_DECLINE = 2, /* nothing is taken: a callback that declines every node, attached or not, for measuring its cost */
};

#define TS_GPU_LAYERS_NONE (-1) /* n_gpu_layers: 0 is llama.cpp's default (all that fit the devices) */

typedef struct ts_session_options {
    size_t size;
    const char *model_path;       /* a GGUF; of a split model, its first shard */
    const ts_session *share;      /* use that session's loaded model instead of model_path */
    struct llama_model *model;    /* or a model the caller owns and keeps alive (e.g. built in memory) */
    int32_t n_gpu_layers;         /* TS_GPU_LAYERS_NONE, 0 default, > 0 count */
    const char *device;           /* comma-separated ggml device names, NULL = all; "none" = CPU only */
    int32_t n_threads;            /* 0 = all cores this process may use */
    uint32_t n_ctx;               /* tokens; 0 = min(model's, 4096) */
    uint32_t n_batch;             /* 0 = 2048 */
    uint32_t n_ubatch;            /* 0 = 512; at most n_batch */
    uint32_t n_seq_max;           /* 0 = 1; at most 256 */
    enum ts_flash flash_attn;
    const char *type_k, *type_v;  /* KV cache types: "f32", "f16" (default), "bf16", "q8_0", ... */
    enum ts_tap_method tap;
    volatile const int *stop;     /* nullable; when *stop becomes non-zero, work ends at the next token or batch */
    const ts_synthetic *synthetic; /* instead of model_path: a random model of that shape, made in memory at open */
} ts_session_options;

/* Loads the model. The context (KV cache, callback) is made by ts_session_start or the first use, so that
 * instruments can be attached in between. Errors: TS_ERR_IO no such file; TS_ERR_FORMAT not a GGUF or cut
 * short; TS_ERR_MODEL missing shard (named), vocabulary only, encoder or embedding model, llama.cpp's
 * own refusal. */
TS_API int ts_session_open(const ts_session_options *opts, ts_session **out, ts_error *err);

/* Makes the context; with an instrument attached also the site table and the trust check (a few short
 * decodes, after which the memory is cleared). Without one no eval callback is installed. Idempotent. */
TS_API int ts_session_start(ts_session *s, ts_error *err);

/* Frees everything; instruments that were not finished write nothing. NULL is fine. */
TS_API void ts_session_close(ts_session *s);

typedef struct ts_model_info {
    char architecture[64];
    char name[128];
    char description[128]; /* llama.cpp's, e.g. "llama 135M Q4_1" */
    uint64_t size_bytes;
    uint64_t n_params;
    int32_t n_layer, n_embd, n_ctx_train, n_vocab;
    bool hybrid, recurrent;
    bool has_chat_template;
    bool adds_bos;
} ts_model_info;

TS_API int ts_session_model_info(const ts_session *s, ts_model_info *out, ts_error *err);

/* True when the session's context parameters carry an eval callback (for tests of "off is off"). */
TS_API bool ts_session_has_callback(const ts_session *s);

enum ts_site_kind {
    TS_SITE_RESID = 0, /* block output, [n_embd] */
    TS_SITE_FFN,       /* what ffn_down reads: act(gate) * up, [n_ff] */
    TS_SITE_EXPERTS,   /* what ffn_down_exps reads, [n_ff_exp][n_used] */
    TS_SITE_FFN_SHEXP, /* what ffn_down_shexp reads, [n_ff_shexp] */
    TS_SITE_ROUTER,    /* ids of the chosen experts, i32; may go on with the others in rank order */
    TS_SITE_HEAD,      /* input of the head (after output_norm), [n_embd] */
    TS_SITE_ROUTER_WEIGHTS, /* what is multiplied into the chosen experts' outputs, [n_used] */
    TS_SITE_KIND_COUNT
};

enum ts_site_how { TS_HOW_REDIRECTED = 0, TS_HOW_ASKED, TS_HOW_REFUSED };

typedef struct ts_site {
    enum ts_site_kind kind;
    int32_t block; /* -1 for TS_SITE_HEAD */
    char tensor[64]; /* the graph node's name */
    char type[16];
    int64_t width; /* elements a row; 0 when unknown */
    char device[64]; /* buffer type that holds it */
    enum ts_site_how how;
    char why[160]; /* why asked or refused; empty when redirected */
} ts_site;

/* The site table (design: one row per site and block, in graph order). Makes a tapped context if none is
 * started; TS_ERR_STATE when the session was started with nothing attached. */
TS_API int ts_session_sites(ts_session *s, ts_site **out, size_t *n, ts_error *err);

TS_API const char *ts_site_kind_name(enum ts_site_kind kind); /* "resid", "ffn", ... */
TS_API const char *ts_site_how_name(enum ts_site_how how);    /* "redirected", "asked", "refused" */

/* ---------------------------------------------------------------- text */

enum ts_tokenize_flags {
    TS_TOKENIZE_SPECIAL = 1, /* text such as "<|im_start|>" becomes the control token */
    TS_TOKENIZE_NO_BOS = 2,  /* do not add what the model adds at the start */
};

/* Text to token ids. `length` in bytes, no NUL inside, valid UTF-8 (TS_ERR_FORMAT with offset). */
TS_API int ts_session_tokenize(const ts_session *s, const char *text, size_t length, unsigned flags,
                               int32_t **tokens, size_t *n, ts_error *err);

/* One token's text (bytes, may be part of a UTF-8 character); control tokens rendered. Returns the number
 * of bytes written without NUL, or negative. */
TS_API int ts_session_piece(const ts_session *s, int32_t token, char *buf, size_t size, ts_error *err);

typedef struct ts_chat_message {
    const char *role, *content;
} ts_chat_message;

/* Renders messages through the model's template, or through llama.cpp's built-in `template_name` when not
 * NULL. A template llama.cpp does not recognise is TS_ERR_UNSUPPORTED, never a silent fallback.
 * Tokenize the result with TS_TOKENIZE_SPECIAL; a BOS the template wrote is not doubled (warned once). */
TS_API int ts_session_chat(const ts_session *s, const ts_chat_message *messages, size_t n, const char *template_name,
                           char **text, ts_error *err);

/* A chat as token ids: what the template writes as control tokens, what roles and contents say as text, also where it
 * spells a control token, unless `flags` has TS_TOKENIZE_SPECIAL. The errors of ts_session_chat and of
 * ts_session_tokenize. */
TS_API int ts_session_chat_tokenize(const ts_session *s, const ts_chat_message *messages, size_t n, const char *template_name,
                                    unsigned flags, int32_t **tokens, size_t *n_tokens, ts_error *err);

/* A JSON array of {"role": ..., "content": ...} objects from a file; `*messages` and its strings are one
 * allocation, freed by one ts_free(). TS_ERR_FORMAT with line and column, TS_ERR_IO. */
TS_API int ts_chat_messages_read(const char *path, ts_chat_message **messages, size_t *n, ts_error *err);

/* A whole text file as a prompt: valid UTF-8 without NUL, at most 64 MiB. TS_ERR_FORMAT with offset, TS_ERR_IO. */
TS_API int ts_text_file_read(const char *path, char **text, size_t *length, ts_error *err);

/* ---------------------------------------------------------------- generation */

/* Called with whole UTF-8 characters (partial ones are held back; invalid bytes come as they are at the end). */
typedef void (*ts_text_fn)(const char *bytes, size_t length, void *user);
/* Called with the logits of each headful pass, [n_vocab], before sampling. Read only. */
typedef void (*ts_logits_fn)(const float *logits, int32_t n_vocab, void *user);

typedef struct ts_generate_options {
    size_t size;
    const int32_t *tokens; /* the prompt; at least one */
    size_t n_tokens;
    int32_t n_predict;     /* tokens to generate, >= 0 */
    bool ignore_eos;       /* go on after an end-of-generation token */
    float temperature;     /* 0 = greedy */
    int32_t top_k;         /* 0 = 40; negative = off; sampling only */
    float top_p;           /* 0 = 0.95; 1 = off; sampling only */
    uint32_t seed;
    ts_text_fn on_text;
    ts_logits_fn on_logits;
    void *user;
    int32_t prompt_index;  /* recorded in the captures' meta data */
    const char *label;     /* likewise, nullable */
} ts_generate_options;

typedef struct ts_generate_result {
    int32_t n_prompt, n_generated;
    bool stopped_at_eog;
    double prefill_ms, decode_ms; /* wall clock; decode counts passes after the first headful one */
    int32_t n_decode_passes;
} ts_generate_result;

/* One generation from an empty memory. Every prompt token but the last goes in n_ubatch chunks without
 * output, the last as a pass of its own, then one pass a generated token; the same whether or not anything
 * is attached. TS_ERR_ARG empty prompt, or prompt and n_predict exceed the context; TS_ERR_ENGINE;
 * TS_ERR_INTERRUPTED after a raised stop flag (result is filled, instruments keep what they have). */
TS_API int ts_session_generate(ts_session *s, const ts_generate_options *opts, ts_generate_result *out, ts_error *err);

/* Lets every attached instrument write its result (once; later calls do nothing). With several failures
 * the first is returned; each is logged. */
TS_API int ts_session_finish(ts_session *s, ts_error *err);

/* ---------------------------------------------------------------- instrument: residual capture */

typedef struct ts_resid_options {
    size_t size;
    const char *path; /* PATH.json; its data goes to PATH.f32 and provenance to PATH.meta; NULL = measure only */
    bool every_pass;  /* read the rows of every headful pass, for measuring what that costs; kept is the first as ever */
} ts_resid_options;

/* One snapshot a generation: every block's output at the last prompt token (the first headful pass).
 * Before ts_session_start. TS_ERR_UNSUPPORTED at start, naming the architecture, when a block has no such
 * site. TS_ERR_ARG when path and data file coincide (x.f32), TS_ERR_IO when it cannot be written. */
TS_API int ts_session_attach_resid(ts_session *s, const ts_resid_options *opts, ts_error *err);

/* Attaches what the environment asks for: TURBOSPARK_RESID_CAPTURE=/path.json. A model that cannot serve it
 * gets one warning line at start and the generation goes on. */
TS_API int ts_session_attach_env(ts_session *s, ts_error *err);

/* Whether a capture may run beside speculative decoding: false with a message in `err` when the drafter
 * makes prefill passes headful and so would move the snapshot. */
TS_API bool ts_resid_allows_speculation(bool mtp_open, bool headless_drafter, ts_error *err);

/* ---------------------------------------------------------------- steering */

enum ts_steering_mode {
    TS_STEERING_DECLARED = 0, /* what the file declares (turbospark.mode); an undeclared file is TS_ERR_ARG */
    TS_STEERING_ABLATE,       /* x - s c u */
    TS_STEERING_ADD,          /* x + s d */
    TS_STEERING_CLAMP,        /* x + s (target - c) u */
    TS_STEERING_RENORM,       /* ablate, then back to |x| */
};

enum ts_steering_from {
    TS_STEERING_ALL = 0,
    TS_STEERING_PROMPT, /* the prompt's tokens, its last included */
    TS_STEERING_DECODE, /* tokens after the prompt: the first steered position is the first generated token */
};

/* With d a block's stored direction, u = d/|d|, c = u.x, s the scale. Scale 0 is the identity to the bit. */
typedef struct ts_steering_options {
    size_t size;
    const char *path;          /* control-vector GGUF */
    enum ts_steering_mode mode;
    double scale;              /* as it is: 0 means off */
    double target;             /* clamp only */
    double gate;               /* edits only rows with |c| >= gate */
    const ts_range *blocks;    /* NULL = every block the file has */
    enum ts_steering_from from;
} ts_steering_options;

/* Steers every later generation of the session at the residual site: one edit a row, before anything reads it and before
 * a capture of the same block. Repeatable; edits apply in the order attached. Before ts_session_start. Errors:
 * TS_ERR_FORMAT a damaged file, TS_ERR_ARG numbers out of range or no block left, TS_ERR_MODEL another width or model;
 * at start TS_ERR_UNSUPPORTED where a block has no site. */
TS_API int ts_session_attach_steering(ts_session *s, const ts_steering_options *opts, ts_error *err);

/* Writes c of every row and steered block as JSON Lines: {"file", "block", "position", "token", "c", "edited"}. */
TS_API int ts_session_trace_steering(ts_session *s, const char *path, ts_error *err);

/* One line on what is in force: mode, scale, blocks covered of how many; caller frees. NULL text when nothing steers. */
TS_API int ts_session_steering_summary(const ts_session *s, char **text, ts_error *err);

/* ---------------------------------------------------------------- corpus capture */

enum ts_capture_format { TS_CAPTURE_F32 = 0, TS_CAPTURE_SAFETENSORS = 1 };

/* State of a running capture, for a progress bar. */
typedef struct ts_progress {
    uint64_t prompts_done, prompts_total;
    uint64_t tokens_done, tokens_total;
    uint64_t bytes_done, bytes_total;
    double seconds; /* since this process began computing */
    uint64_t tokens_resumed; /* tokens done by an earlier process */
} ts_progress;
typedef void (*ts_progress_fn)(const ts_progress *progress, void *user);

typedef struct ts_capture_options {
    size_t size;
    const char *input_path;  /* prompt list: .txt one a line (\n escapes), .jsonl prompt|messages|token_ids, label */
    const char *output_path; /* PATH.json (f32) or PATH.safetensors; NULL = measure only */
    const char *column;      /* JSON Lines text field, NULL = "prompt" */
    const char *chat_template; /* for `messages` lines, NULL = the model's */
    bool chat;               /* wrap plain prompts as one user message */
    bool special;            /* control tokens in plain prompts are parsed */
    const ts_range *layers;  /* NULL = all; a subset needs TS_CAPTURE_SAFETENSORS */
    ts_positions positions;
    enum ts_capture_format format;
    bool exact;              /* pass structure of `run`, one prompt at a time: equal to the bit */
    bool resume;             /* continue a partial file; starts anew when there is none */
    bool overwrite;          /* replace existing output */
    bool no_tap;             /* measure the same batches with nothing tapped; needs output_path NULL */
    ts_progress_fn on_plan;  /* once, before computing: totals and predicted bytes */
    ts_progress_fn on_progress; /* after each batch */
    void *user;
} ts_capture_options;

typedef struct ts_capture_result {
    uint64_t n_prompts, n_rows, n_tokens, n_skipped_empty, n_batches;
    uint64_t n_nonfinite;
    double seconds;
    bool partial; /* interrupted; what was captured is on disk for resume */
} ts_capture_result;

/* Walks a corpus in one open session (not started yet; the capture sizes its context). Prompts are packed
 * by sequence id up to n_ubatch tokens, longer ones run over several; recurrent and hybrid models run one
 * sequence at a time. Rows stream to disk with constant memory. Errors: TS_ERR_FORMAT with line for the
 * prompt list; TS_ERR_IO no space (predicted bytes named) or write failure, after which resume goes on;
 * TS_ERR_ARG; TS_ERR_UNSUPPORTED; TS_ERR_ENGINE when the graph's own tokens are not the ones sent. */
TS_API int ts_capture_run(ts_session *s, const ts_capture_options *opts, ts_capture_result *out, ts_error *err);

/* ---------------------------------------------------------------- instrument: FFN activation census */

typedef struct ts_ffn_hist_options {
    size_t size;
    const char *path; /* PATH.json (byte format of the runtime this replaces), PATH.meta, PATH.detail; NULL = measure only */
} ts_ffn_hist_options;

/* Counts what ffn_down reads, act(gate) * up, in every headful pass of every generation; prompt tokens before it
 * are counted in prefill_passes. Before ts_session_start. TS_ERR_UNSUPPORTED at start for a model with no dense FFN,
 * naming what it has. Also by environment: TURBOSPARK_FFN_HIST=/path.json (ts_session_attach_env). */
TS_API int ts_session_attach_ffn(ts_session *s, const ts_ffn_hist_options *opts, ts_error *err);

typedef struct ts_census_options {
    size_t size;
    const char *input_path;    /* prompt list as for capture, or with `text` one text file */
    const char *output_path;   /* PATH.json; NULL = measure only */
    const char *column, *chat_template;
    bool chat, special;
    bool text;                 /* read the file teacher-forced in full batches: every token counts, no head */
    int32_t n_predict;         /* tokens generated per prompt; 0 = 64 */
    int32_t parallel;          /* sequences decoded in one batch; 0 = 1, at most 256 */
    bool ignore_eos;
    bool trace;                /* also PATH.trace: ids of the top neurons of each pass, for analyze --cache */
    int32_t trace_percent;     /* of the width, per pass; 0 = 10 */
    bool resume, overwrite;
    bool no_tap;               /* measure the same batches with nothing tapped; needs output_path NULL */
    ts_progress_fn on_plan, on_progress;
    void *user;
} ts_census_options;

typedef struct ts_census_result {
    uint64_t n_prompts, n_tokens, n_skipped_empty; /* tokens: run through the model */
    uint64_t decode_passes, prefill_passes, overlap_pairs, n_nonfinite;
    double seconds;
    bool partial;
    bool complete; /* resume found all of it there: nothing ran, the counts are 0 */
} ts_census_result;

/* FFN census of a corpus in one open session (not started yet). Errors as ts_capture_run. A text shorter than two
 * tokens is TS_ERR_ARG. */
TS_API int ts_census_run(ts_session *s, const ts_census_options *opts, ts_census_result *out, ts_error *err);

/* ---------------------------------------------------------------- instrument: routing census of mixtures of experts */

typedef struct ts_router_hist_options {
    size_t size;
    const char *path; /* PATH.json, with PATH.meta; NULL = measure only */
    bool trace;       /* also the ids of every row, in pass order */
} ts_router_hist_options;

/* Counts the experts that every block's router chose, in every pass of every generation, prompt tokens (prefill) and headful
 * passes (decode) apart. Before ts_session_start. TS_ERR_UNSUPPORTED at start for a model without experts. Also by environment:
 * TURBOSPARK_ROUTER_HIST=/path.json, with TURBOSPARK_ROUTER_TRACE=1 for the trace (ts_session_attach_env). */
TS_API int ts_session_attach_router(ts_session *s, const ts_router_hist_options *opts, ts_error *err);

typedef struct ts_router_options {
    size_t size;
    const char *input_path;    /* prompt list as for capture */
    const char *output_path;   /* PATH.json; NULL = measure only */
    const char *csv_path;      /* nullable: also the trace as "layer,expert" lines */
    const char *column, *chat_template;
    bool chat, special;
    int32_t n_predict;         /* tokens generated per prompt; 0 = prompts only */
    int32_t parallel;          /* sequences decoded in one batch; 0 = 1 (the passes of `run`), at most 256 */
    bool ignore_eos;
    bool trace;                /* ids in pass order; implied by csv_path. Held in memory: 4 bytes a slot */
    bool resume, overwrite;
    ts_progress_fn on_plan, on_progress;
    void *user;
} ts_router_options;

typedef struct ts_router_result {
    uint64_t n_prompts, n_tokens, n_skipped_empty; /* tokens: run through the model */
    uint64_t n_rows, n_slots;     /* over all blocks */
    uint64_t n_duplicates;        /* slots that repeat an expert of their row */
    int32_t n_blocks, n_experts, top_k; /* blocks with experts; the largest of any block */
    double seconds;
    bool partial;
    bool complete; /* resume found all of it there: nothing ran, the counts are 0 */
} ts_router_result;

/* Routing census of a corpus in one open session (not started yet). Errors as ts_census_run. */
TS_API int ts_router_run(ts_session *s, const ts_router_options *opts, ts_router_result *out, ts_error *err);

typedef struct ts_zero_options {
    size_t size;
    const char *input_path;   /* a text, teacher-forced in windows of n_ubatch tokens */
    const double *percents;   /* [n_percents] share of each token's smallest activations to zero, 0..100 */
    size_t n_percents;
    const double *below;      /* [n_below] or fixed thresholds: |a| < T is zeroed */
    size_t n_below;
    ts_progress_fn on_progress;
    void *user;
    bool special;             /* text that spells a control token is that token */
} ts_zero_options;

/* One level's effect on the text, against the untouched model. */
typedef struct ts_zero_row {
    double level;             /* percent or threshold as asked */
    bool threshold;
    double zeroed;            /* share of activations actually zeroed, 0..1 */
    double perplexity, perplexity_base;
    double kl_mean, kl_max;   /* KL(base || zeroed) per token, nats */
    double top1;              /* share of tokens with the same most likely next token */
    bool identical;           /* every logit equal to the bit */
    uint64_t n_scored;
} ts_zero_row;

/* Zeroes activations in the real graph (what ffn_down reads) and measures; `rows` [n_percents + n_below] in the order
 * given, percents first. TS_ERR_UNSUPPORTED as for the census. */
TS_API int ts_zero_run(ts_session *s, const ts_zero_options *opts, ts_zero_row *rows, ts_error *err);

typedef struct ts_analyze_options {
    size_t size;
    const char *const *paths; /* [n_paths] censuses of one model, summed: FFN, or routing (.json or "layer,expert" CSV) */
    size_t n_paths;
    const char *const *against; /* [n_against] a second group, compared block by block; nullable */
    size_t n_against;
    bool cache;               /* replay PATH.trace through LRU, LFU and Belady caches */
    bool as_json;
    bool diffable;            /* leave out what varies between runs */
    uint32_t csv_top_k;       /* of a CSV: experts a token; 0 = the shortest run of lines of one layer */
    uint32_t csv_experts;     /* of a CSV: experts of a layer; 0 = the largest id and one */
} ts_analyze_options;

/* Tables and verdict as text, or one JSON object; needs no model. TS_ERR_FORMAT names file and fault; TS_ERR_ARG
 * files of different models or shapes, naming the difference. */
TS_API int ts_analyze(const ts_analyze_options *opts, char **text, ts_error *err);

/* Adds up censuses of one model and kind into `output` (PATH.json with .meta and, of an FFN census, .detail). */
TS_API int ts_merge(const char *const *paths, size_t n_paths, const char *output, bool overwrite, ts_error *err);

/* ---------------------------------------------------------------- directions */

enum ts_extract_method { /* equations and sources: turbospark-extract(1) */
    TS_EXTRACT_MEAN = 0, /* difference of the means */
    TS_EXTRACT_PCA,      /* leading axis of the paired differences, not centred */
    TS_EXTRACT_PCA_REPENG, /* of the centred ones, at length 1 */
    TS_EXTRACT_SVD,      /* leading axis of all pairwise differences, centred */
    TS_EXTRACT_LDA,      /* difference of the means through the inverse, shrunk, within-class covariance */
};

typedef struct ts_extract_options {
    size_t size;
    /* Captures: headers of pairs, safetensors, or folders of them (every .json and .safetensors, by name). A safetensors
     * file with token_ids and hidden_states but no provenance (vLLM's extraction) is one prompt: its last token is
     * taken. With a session also prompt lists. */
    const char *const *positive; /* [n_positive] */
    size_t n_positive;
    const char *const *negative; /* [n_negative]; paired methods take the sets' snapshots in order */
    size_t n_negative;
    const char *output_path;     /* control-vector GGUF */
    const char *json_path;       /* the figures; nullable */
    enum ts_extract_method method;
    enum ts_steering_mode mode;  /* what the file declares; TS_STEERING_DECLARED = TS_STEERING_ADD */
    const char *orthogonal_path; /* a control vector whose directions are taken out; nullable */
    double shrinkage;            /* lda, 0.001 to 1; 0 = 0.1 */
    bool drop_nonfinite;         /* leave out rows with NaN or infinity (of pairs both); else they are an error */
    bool overwrite;
    int32_t n_threads;           /* of the arithmetic, 0 = 2; the result does not depend on it */
    const ts_range *blocks;      /* NULL = all that the captures hold */
    const int32_t *layer_blocks; /* [n_layer_blocks] block of each layer of captures that do not record it; NULL = 0, 1, .. */
    size_t n_layer_blocks;
    const char *column, *chat_template; /* of prompt lists, as ts_capture_options, down to exact */
    bool chat, special, exact;
    ts_positions positions;
    ts_progress_fn on_plan, on_progress; /* of each prompt list's capture */
    void *user;
    volatile const int *stop;    /* nullable; as in ts_session_options, which holds while prompts are captured */
} ts_extract_options;

/* Measured on one block, over the rows used, with d its direction, u = d/|d|, c = u.x. NAN where a figure does not
 * apply, INFINITY where its divisor is zero. */
typedef struct ts_extract_block {
    int32_t block;
    bool written;                /* false for block 0, which the format cannot name */
    int64_t n_positive, n_negative; /* rows used */
    double norm;                 /* |d| */
    double mean_positive, mean_negative; /* of c: what a clamp would aim at */
    double separation;           /* their gap over the pooled standard deviation of c within the sets */
    double mean_row_norm;        /* mean |x| */
    double share;                /* |d| over mean |x| */
    double removed_share;        /* mean |c| over mean |x|: what ablate at scale 1 takes away */
    double auc;                  /* of c, cross-validated */
    double cos_previous;         /* with the direction of the layer before */
    double eigen_gap;            /* (l1 - l2) / l1 of the pca methods and svd */
    int32_t n_folds;             /* that auc comes from */
} ts_extract_block;

typedef struct ts_extract_result {
    ts_extract_block *blocks;    /* [n_blocks] ascending; freed by ts_free() */
    size_t n_blocks;
    int32_t width;
    int64_t n_positive, n_negative; /* snapshots of the sets */
    int64_t n_dropped;           /* rows left out, over all blocks */
} ts_extract_result;

/* From two sets of captures to a direction a block, written as a control vector that declares mode, hook and model.
 * Prompt lists are captured first, by sessions of their own over the session's model and with its options (what steers
 * the session does not steer them), into a folder beside the output that is gone afterwards. `s` is nullable. Needs
 * memory for one block's rows, at least 256 MiB. `out` is nullable and empty after a failure. Errors: TS_ERR_ARG sets of
 * unlike width, blocks, model or tokenizer, fewer than two snapshots, a zero direction, output that exists or is an input;
 * TS_ERR_FORMAT what is no capture, rows that are not finite (named); TS_ERR_MODEL a control vector of another model;
 * TS_ERR_IO; TS_ERR_INTERRUPTED; what ts_capture_run returns. Nothing is written then. */
TS_API int ts_extract_run(const ts_session *s, const ts_extract_options *opts, ts_extract_result *out, ts_error *err);

TS_API const char *ts_extract_method_name(enum ts_extract_method method); /* "pca-repeng" */

/* ---------------------------------------------------------------- logits of a text, and their comparison */

typedef struct ts_logits_options {
    size_t size;
    const char *input_path;  /* a text, read teacher-forced: every token is given, none is sampled */
    const char *output_path; /* a folder, made if it is not there: meta.json with logits.f16 or logits.f32 */
    bool f32;                /* keep float32; else float16 */
    uint32_t window;         /* tokens of one context; 0 = the session's n_ctx (default: the model's, at most 4096) */
    uint32_t stride;         /* from one window's start to the next, 1 to window; 0 = half a window, or one window
                                where the text fits into it */
    bool overwrite;          /* replace a dump that is there */
    ts_progress_fn on_plan;  /* once, before computing: totals and predicted bytes */
    ts_progress_fn on_progress; /* after each batch; tokens count those of every window */
    void *user;
    bool special;            /* text that spells a control token is that token */
} ts_logits_options;

typedef struct ts_logits_result {
    int64_t n_tokens, n_rows; /* rows = tokens - 1: row i follows token i */
    int64_t first_scored_position; /* the first row that counts in comparisons: window - stride */
    uint32_t window, stride, n_windows;
    uint64_t n_bytes;         /* of the rows */
    double seconds;
} ts_logits_result;

/* Writes the logits of a text in one session (not started yet). A text longer than a window runs in several, each
 * from an empty memory; a window after the first writes only the rows behind those its predecessor wrote, so that
 * each scored token has at least window - stride tokens of context. Where the model begins texts with BOS, such a
 * window has it in place of its first token. Errors: TS_ERR_ARG numbers out of range, a text of one token or
 * one in which nothing would be scored, a dump already there; TS_ERR_IO no space (predicted bytes named);
 * TS_ERR_FORMAT logits that the type does not hold; TS_ERR_INTERRUPTED. After an error nothing is left, and a dump that
 * was to be replaced is as it was. */
TS_API int ts_logits_run(ts_session *s, const ts_logits_options *opts, ts_logits_result *out, ts_error *err);

typedef struct ts_kld_options {
    size_t size;
    const char *a, *b;       /* dumps: folders, or their meta.json */
    const char *floor;       /* nullable: a made once more, compared with a as b is */
    const char *json_path;   /* nullable: the result as one JSON object */
    ts_progress_fn on_progress; /* tokens count rows */
    void *user;
    volatile const int *stop; /* nullable, as in ts_session_options */
} ts_kld_options;

typedef struct ts_kld_stats {
    double mean, median, p99, max; /* nats; median and p99 linear between the two nearest rows */
} ts_kld_stats;

/* Two dumps over the scored rows. p and q are the softmax of the two rows, restricted to tokens that neither rules out
 * with -infinity. */
typedef struct ts_kld_pair {
    ts_kld_stats forward;    /* KL(p | q) */
    ts_kld_stats backward;   /* KL(q | p) */
    double agreement;        /* share of rows with the same most likely token; the lower id of equals */
    double perplexity[2], entropy[2]; /* of each over the text; INFINITY where it rules out a token of the text */
    int64_t n_outside;       /* rows in which one rules out tokens that the other gives probability to */
    double max_outside;      /* the most probability on such tokens */
    bool identical;          /* every logit equal to the bit */
    int64_t parted_row;      /* first row whose most likely tokens differ, -1 = none; it is about token row + 1 */
    int32_t parted_top[2], parted_token; /* there: each one's most likely token, and the text's */
} ts_kld_pair;

typedef struct ts_kld_result {
    int64_t n_rows, first_scored_position; /* rows of a dump; of these, the first compared */
    int32_t n_vocab;
    ts_kld_pair pair, floor; /* floor: zero without one */
    bool has_floor;
} ts_kld_result;

/* Compares two dumps; needs no model. TS_ERR_ARG: of different vocabularies, lengths, tokens or scored rows, naming the
 * first difference, or without a scored row; TS_ERR_FORMAT damaged ones; TS_ERR_IO; TS_ERR_INTERRUPTED. */
TS_API int ts_kld_run(const ts_kld_options *opts, ts_kld_result *out, ts_error *err);

/* ---------------------------------------------------------------- sweep */

typedef struct ts_sweep_options {
    size_t size;
    const char *path;            /* the directions: a control-vector GGUF */
    const char *input_path;      /* prompt list, as ts_capture_options down to special */
    const char *column, *chat_template;
    bool chat, special;
    const double *scales;        /* [n_scales] at least one; 0 is the unsteered control */
    size_t n_scales;
    const ts_range *bands;       /* [n_bands]; one whose last is before its first, and none at all, mean every block */
    size_t n_bands;
    const enum ts_steering_mode *modes; /* [n_modes]; none means what the file declares */
    size_t n_modes;
    double target;               /* clamp only */
    double gate;                 /* edits only rows with |c| >= gate */
    enum ts_steering_from from;
    int32_t n_predict;           /* tokens generated per prompt and cell; 0 = 32 */
    int32_t parallel;            /* sequences of one batch; 0 = 8, at most 256 */
    bool ignore_eos;
    const char *anchor_path;     /* a human text, nullable: see ts_sweep_result.limit */
    const char *const *positive, *const *negative; /* [n_positive], [n_negative] continuations to score after each prompt */
    size_t n_positive, n_negative;
    int32_t n_random;            /* control arms: random directions, of each block's own norm; at most 64 */
    uint32_t seed;               /* of those */
    const char *output_path;     /* nullable; JSON. Finished cells gather in PATH.part.jsonl */
    bool resume, overwrite;
    ts_progress_fn on_plan, on_progress; /* prompts count cells, tokens those to generate at most */
    void *user;
} ts_sweep_options;

/* One point of scales x bands x modes, measured over all prompts. The window is the unsteered greedy continuation of each
 * prompt, read teacher-forced. */
typedef struct ts_sweep_cell {
    enum ts_steering_mode mode;  /* TS_STEERING_DECLARED: the unsteered one */
    double scale;
    ts_range band;
    int32_t arm;                 /* 0 = the file's directions, 1.. = random ones */
    int32_t n_blocks;            /* steered */
    char **texts;                /* [n_prompts] greedy text under steering */
    int64_t n_tokens;            /* of all texts */
    double perplexity;           /* of the texts under the unsteered model, after their prompts */
    double distinct;             /* different tokens over all tokens, text by text, 0..1 */
    int32_t n_diverged;          /* texts that are not the unsteered one */
    int32_t first_divergence;    /* index of the first generated token that differs, the least of all prompts; -1 = none */
    double kl_max, kl_mean;      /* KL(unsteered | steered) over the window, nats; INFINITY where steering breaks the logits */
    double c, c_unsteered;       /* of the window's rows after the edit, and without it: mean over rows, steered blocks, prompts */
    double score_positive, score_negative; /* log-probability a token of the continuations, mean; NAN without any */
    double score;                /* positive - negative, of what was given; NAN without any */
    double random_mean, random_sd; /* of the control arms' scores at this point; NAN without any, and in the arms */
    bool no_effect;              /* kl_max is under 1e-4 */
} ts_sweep_cell;

/* What the scales of one mode and band are good for, the file's directions only. */
typedef struct ts_sweep_band {
    enum ts_steering_mode mode;
    ts_range band;
    bool usable;                 /* some scale but 0 stays within the limit */
    double low, high;            /* usable scales: from 0 outward until the perplexity first exceeds the limit */
    double crossed_low, crossed_high; /* the first scales beyond; NAN = none was tried */
    double collapsed_low, collapsed_high; /* usable scales nearest to 0 whose distinct tokens are under half the unsteered's; NAN = none */
    bool no_effect;              /* no cell has a measurable one */
} ts_sweep_band;

typedef struct ts_sweep_result {
    ts_sweep_cell unsteered, *cells; /* [n_cells] by mode, band, scale, arm */
    size_t n_cells, n_prompts;
    uint64_t n_skipped_empty;    /* lines of the list */
    ts_sweep_band *bands;        /* [n_bands] */
    size_t n_bands;
    int32_t n_layer, window;     /* blocks of the model; tokens of a window at most */
    double anchor;               /* perplexity of the human text; without one that of the unsteered texts */
    double limit;                /* of a usable cell's perplexity: the anchor; without a human text twice the anchor, which is lower */
    bool anchor_given;
    int64_t n_anchor;            /* tokens that it comes from */
    double seconds;
    size_t n_resumed;            /* cells that an earlier process did */
    bool complete;               /* resume found all of it in output_path: nothing ran, no cell holds anything */
} ts_sweep_result;

/* Runs every cell in one session (not started yet, nothing attached). Prompts of cells run side by side, `parallel`
 * sequences of one batch, each row edited as its own cell says; what a batch holds is a pure function of options and
 * prompts, so an interrupted and an uninterrupted sweep end with the same bytes. Recurrent and hybrid models run one
 * sequence at a time. Empty after a failure, else freed by ts_sweep_free. Errors: TS_ERR_ARG no cell, numbers or bands out
 * of range, output that exists; TS_ERR_FORMAT, TS_ERR_MODEL, TS_ERR_UNSUPPORTED as ts_session_attach_steering;
 * TS_ERR_INTERRUPTED: finished cells stay for resume; TS_ERR_IO; TS_ERR_ENGINE. */
TS_API int ts_sweep_run(ts_session *s, const ts_sweep_options *opts, ts_sweep_result *out, ts_error *err);
TS_API void ts_sweep_free(ts_sweep_result *r);

TS_API const char *ts_steering_mode_name(enum ts_steering_mode mode); /* "ablate"; "unsteered" for TS_STEERING_DECLARED */

/* ---------------------------------------------------------------- files */

/* What one of our files is, without a model: residual pair (.json), .meta, .safetensors, control vector
 * .gguf, partial states. `*text` is a report of several lines, or a JSON object with as_json. Verifies sizes
 * and hashes. TS_ERR_FORMAT names what is wrong. */
TS_API int ts_inspect(const char *path, bool as_json, char **text, ts_error *err);

/* For a program's own JSON beside our results. Can one be written at `path`? Creates nothing that stays. TS_ERR_IO with
 * path and reason: a folder, a special file, a folder one cannot write into; TS_ERR_ARG: something that is no JSON,
 * or a result of ours other than such a report, stands there already. */
TS_API int ts_output_check(const char *path, ts_error *err);
/* Writes it whole or not at all, over an earlier one. The same errors, and TS_ERR_IO where writing fails. */
TS_API int ts_output_write(const char *path, const void *bytes, size_t length, ts_error *err);

/* Residual captures as rows, whatever their file (pair or safetensors): for readers in other programs. */
typedef struct ts_capture_file ts_capture_file;
typedef struct ts_capture_shape {
    int64_t n_snapshots;
    int32_t n_layers, n_hidden;
} ts_capture_shape;

/* Opens by the header's path; checks sizes, and the hash in .meta when there is one. */
TS_API int ts_capture_open(const char *path, ts_capture_file **out, ts_capture_shape *shape, ts_error *err);
/* Reads snapshot `index`, [layer][hidden], into `rows` (n_layers * n_hidden floats). */
TS_API int ts_capture_read(ts_capture_file *f, int64_t index, float *rows, ts_error *err);
/* Block number of layer `i` (0-based); token position of snapshot `index`, -1 when not recorded. */
TS_API int32_t ts_capture_layer(const ts_capture_file *f, int32_t i);
TS_API int64_t ts_capture_position(const ts_capture_file *f, int64_t index);
TS_API void ts_capture_close(ts_capture_file *f);

/* ---------------------------------------------------------------- probe */

struct llama_context;
struct llama_context_params;
struct llama_model;

typedef struct ts_probe ts_probe;
typedef struct ts_run ts_run; /* one graph run (one ubatch); valid inside the callback only */

/* Called for each graph run of a llama_decode, in order, from the thread that decodes. Return 0, or a
 * negative code to latch an error that ts_probe_collect then returns. Do not call llama_decode inside. */
typedef int (*ts_run_fn)(const ts_run *run, void *user, ts_error *err);

typedef struct ts_probe_options {
    size_t size;
    unsigned sites;          /* bit mask of 1u << TS_SITE_*; 0 = residual stream */
    const ts_range *blocks;  /* NULL = all */
    enum ts_tap_method tap;
    ts_run_fn on_run;        /* required */
    void *user;
} ts_probe_options;

TS_API int ts_probe_create(const ts_probe_options *opts, ts_probe **out, ts_error *err);

/* Puts the probe's eval callback into context parameters, chaining one already there. Before
 * llama_init_from_model; the probe must outlive the context. */
TS_API int ts_probe_prepare(ts_probe *p, struct llama_context_params *params, ts_error *err);

/* Learns the sites of a fresh context by short decodes, earns trust, allocates the arenas, clears the
 * context's memory. Call right after llama_init_from_model. TS_ERR_UNSUPPORTED names missing sites. */
TS_API int ts_probe_attach(ts_probe *p, struct llama_context *ctx, ts_error *err);

/* After each llama_decode: synchronises, delivers the last graph run, returns the first latched error. */
TS_API int ts_probe_collect(ts_probe *p, ts_error *err);

TS_API int ts_probe_sites(const ts_probe *p, ts_site **out, size_t *n, ts_error *err);
TS_API void ts_probe_free(ts_probe *p); /* after llama_free(ctx) */

/* The run's own tokens and positions, read from the graph, [n_tokens]; NULL when the graph has none. */
TS_API int32_t ts_run_n_tokens(const ts_run *run);
TS_API const int32_t *ts_run_tokens(const ts_run *run);
TS_API const int32_t *ts_run_positions(const ts_run *run);

typedef struct ts_rows {
    const float *data;      /* [n_rows][width], row-contiguous, host memory, valid inside the callback */
    int64_t n_rows, width;
    const int32_t *token_index; /* [n_rows]: which token of the run each row belongs to */
} ts_rows;

/* Rows of a site in this run. The last block ran only the output tokens: n_rows may be less than
 * n_tokens, or 0. TS_ERR_UNSUPPORTED when the site is not tapped. */
TS_API int ts_run_rows(const ts_run *run, enum ts_site_kind kind, int32_t block, ts_rows *out, ts_error *err);

#ifdef __cplusplus
}
#endif
#endif
