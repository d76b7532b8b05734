/* A sweep's parts: what it will do (plan, input, arms), how rows are edited (edit), one group of sequences (group), teacher-forced
 * scoring (force), what the scales are good for (band), its files (file). */
#ifndef TS_INSTRUMENT_SWEEP_H
#define TS_INSTRUMENT_SWEEP_H

#include "core/buf.h"
#include "core/file.h"
#include "host/session.h"
#include "instrument/group.h"
#include "instrument/steering.h"

#define TS_SWEEP_NO_EFFECT 1e-4    /* nats */
#define TS_SWEEP_COLLAPSE 0.5      /* of the unsteered texts' distinct tokens */
#define TS_SWEEP_OWN_LIMIT 2.0     /* times the unsteered texts' perplexity, where there is no human text */
#define TS_SWEEP_UNSTEERED SIZE_MAX /* a job of no cell */

typedef struct ts_sweep_prompt {
    int32_t *tokens; /* [n] */
    size_t n;
    int32_t *text;   /* [n_text] its unsteered continuation, once that is known */
    size_t n_text;
} ts_sweep_prompt;

/* A continuation to score. */
typedef struct ts_sweep_tail {
    int32_t *tokens; /* [n] */
    size_t n;
    bool positive;
} ts_sweep_tail;

/* One prompt of one cell: what a sequence of the batch works at. */
typedef struct ts_sweep_job {
    size_t cell, prompt;
    int32_t *text;   /* [n_text] greedy, under steering */
    size_t n_text;
    double nll;      /* of the text, unsteered */
    double kl_max, kl_sum;
    size_t n_kl;
    double positive, negative; /* sums over continuations of the mean log-probability a token */
    double *c, *c_unsteered;   /* [n_layer] sums over the window's rows; [n_arms][n_layer] */
} ts_sweep_job;

/* Sums over the prompts of a cell. */
typedef struct ts_sweep_tally {
    double nll, kl_max, kl_sum, c, c_unsteered, positive, negative;
    int64_t n_tokens, n_distinct, n_kl;
    size_t n_prompts;
    int32_t n_diverged, first;
} ts_sweep_tally;

/* A sequence read teacher-forced: `head` given, `tail` scored. */
typedef struct ts_sweep_forced {
    const int32_t *head, *tail;
    size_t n_head, n_tail;
} ts_sweep_forced;

typedef struct ts_sweep {
    ts_session *s;
    const ts_sweep_options *o;
    ts_sweep_result *r;
    /* plan */
    int32_t n_layer, n_predict, parallel;
    size_t n_vocab, window, longest; /* tokens; of a window at most, of the longest prompt */
    ts_steering_file file;
    ts_steer_axis **arms; /* [n_arms][n_layer]; 0 = the file's, n 0 where there is no direction */
    size_t n_arms;
    bool *mask;           /* [n_layer] blocks that some cell steers */
    ts_sweep_prompt *prompts; /* [r->n_prompts] */
    ts_sweep_tail *tails; /* [n_tails] */
    size_t n_tails;
    ts_steer_rule *rules; /* [r->n_cells] */
    int32_t *anchor;      /* [n_anchor] tokens of the human text */
    size_t n_anchor;
    char corpus[33], plan[33]; /* fingerprints; plan: of everything the result depends on */
    /* group */
    ts_sweep_job *jobs;   /* [parallel]; index = sequence id */
    size_t n_jobs;
    ts_group group;
    ts_edit steer, look;
    bool measuring;       /* the steering edit also sums c */
    float *logits;        /* [parallel][window][n_vocab] unsteered, of the window of each job */
    size_t *looked;       /* [n_looked] prompts those are of */
    size_t n_looked;
    int32_t *batch_tokens, *batch_positions, *batch_seqs, *batch_row; /* [n_ubatch] */
    int8_t *batch_output;
    /* walk */
    ts_sweep_tally *tallies, unsteered; /* [r->n_cells] */
    size_t n_done;        /* cells; all before it are done too */
    /* file */
    ts_lock *lock;
    ts_append *part;
    char *part_path;
    bool finished; /* to be resumed, but nothing unfinished is there */
    ts_provenance prov;
} ts_sweep;

/* ---- plan: options, cells, directions, prompts; sizes the session. */
int ts_sweep_plan(ts_sweep *w, ts_error *err);
void ts_sweep_plan_free(ts_sweep *w);
/* After the session started: fingerprint of options, prompts, directions and, with prov, model and settings. */
int ts_sweep_plan_hash(ts_sweep *w, ts_error *err);

/* ---- input: prompts, continuations, the human text, as tokens. */
int ts_sweep_read_inputs(ts_sweep *w, ts_error *err);
void ts_sweep_free_inputs(ts_sweep *w);

/* ---- arms: n further sets of random directions, each as long as the file's at that block. */
int ts_sweep_arms(ts_sweep *w, int32_t n, uint32_t seed, ts_error *err);
void ts_sweep_arms_free(ts_sweep *w);

/* ---- edit: fills w->steer (each row by its job's cell) and w->look (edits nothing, sums every arm's c). */
void ts_sweep_edits(ts_sweep *w);
/* The direction a cell has at a block, or NULL. */
const ts_steer_axis *ts_sweep_axis(const ts_sweep *w, size_t cell, int32_t block);

/* ---- force: `on_row` gets the logits that predict tail[i] of sequence seq. Empties the memory first. */
typedef int (*ts_sweep_row_fn)(size_t seq, size_t i, const float *logits, void *user, ts_error *err);
int ts_sweep_force(ts_sweep *w, const ts_sweep_forced *seqs, size_t n, const ts_edit *edit, ts_sweep_row_fn on_row, void *user,
                   ts_error *err);
/* Perplexity of the human text. Each token scored has as much before it as those of the cells' texts have. */
int ts_sweep_anchor(ts_sweep *w, ts_error *err);

/* ---- group: w->jobs [n_jobs], of which cell and prompt are set, through all they need. */
int ts_sweep_group_init(ts_sweep *w, ts_error *err);
int ts_sweep_group_run(ts_sweep *w, ts_error *err);
void ts_sweep_group_free(ts_sweep *w);

/* ---- cell: a job's figures join their cell; a cell whose prompts are all in gets its record. */
int ts_sweep_cell_add(ts_sweep *w, const ts_sweep_job *j, ts_error *err);
/* After the last cell: control arms' spread, the limit, the bands. */
int ts_sweep_conclude(ts_sweep *w, ts_error *err);
/* Pieces of tokens, an end of generation at the end left out. NULL on no memory. */
char *ts_sweep_text(const ts_sweep *w, const int32_t *tokens, size_t n);

/* ---- file */
int ts_sweep_file_check(ts_sweep *w, ts_error *err); /* before anything is computed */
/* Opens the partial file; with resume takes over its finished cells and sets n_done. */
int ts_sweep_file_open(ts_sweep *w, ts_error *err);
int ts_sweep_file_save(ts_sweep *w, size_t cell, ts_error *err);
int ts_sweep_file_finish(ts_sweep *w, ts_error *err); /* the result; removes the partial file */
void ts_sweep_file_free(ts_sweep *w);
/* One cell as a JSON object on one line; `final` adds what only the whole sweep knows. */
void ts_sweep_cell_write(ts_buf *b, const ts_sweep_cell *c, size_t n_texts, bool final);
int ts_sweep_cell_read(const char *line, size_t length, ts_sweep_cell *c, size_t n_texts, ts_error *err);

#endif
