/* From captures to a control vector. Internal to extract*.c.
 *
 * Two sets of sources (extract_set.c), all of which agree in shape, blocks, model and tokenizer (extract_facts.c);
 * prompt lists become sources first (extract_capture.c); the arithmetic is stats/direction.h's; files out of it
 * are extract_write.c's. */
#ifndef TS_INSTRUMENT_EXTRACT_H
#define TS_INSTRUMENT_EXTRACT_H

#include "core/temporary.h"
#include "stats/direction.h"
#include "store/capture_file.h"
#include "store/cvec.h"

/* What every source must agree in, each fact from the first that tells it. Paths are the sources'. */
typedef struct ts_extract_facts {
    const char *shape_path; /* NULL until there is a source */
    int32_t n_layers, n_hidden;
    int32_t *block;         /* [n_layers] ascending; NULL until there is a source */
    bool assumed;           /* some capture does not say which blocks it holds */
    const char *blocks_path; /* that recorded them; NULL = as the options say, or counted from 0 */
    const char *model_path, *hash_path;
    char architecture[64], description[128], hash[33]; /* "" = not known */
    bool adds_bos;
    const char *template_path;
    char chat_template[128];
    bool steered;           /* that was told */
} ts_extract_facts;

/* Takes or compares what `f` tells. TS_ERR_ARG names both files and the difference. `path` must outlive the facts. */
int ts_extract_facts_meet(ts_extract_facts *facts, const char *path, const ts_capture_file *f,
                          const ts_extract_options *o, ts_error *err);
void ts_extract_facts_free(ts_extract_facts *facts);

/* One capture in a set. */
typedef struct ts_extract_source {
    char *path;          /* as the user knows it */
    ts_capture_file *file;
    int64_t first, n;    /* its snapshots in the set: [first, first + n) */
    int64_t skip;        /* snapshot of the file that is `first` */
} ts_extract_source;

typedef struct ts_extract_set {
    const char *name;    /* for messages: its path, or "positive set" where it has several */
    ts_extract_source *sources; /* [n_sources] */
    size_t n_sources, room;
    size_t at;           /* source of the last row read */
    int64_t n;           /* snapshots */
    int32_t first_layer; /* of the files, that counts as 0 when rows are read */
    volatile const int *stop;
} ts_extract_set;

/* Opens a capture that holds `path`'s rows (mostly path itself) as the set's next source. */
int ts_extract_set_add(ts_extract_set *set, const char *path, const char *capture, ts_extract_facts *facts,
                       const ts_extract_options *o, ts_error *err);
/* Every capture of a folder, by name. */
int ts_extract_set_add_folder(ts_extract_set *set, const char *path, ts_extract_facts *facts,
                              const ts_extract_options *o, ts_error *err);
/* For ts_direction_set.read; `user` is a ts_extract_set. */
int ts_extract_set_read(void *user, int64_t snapshot, int32_t layer, int32_t n_layers, float *rows, ts_error *err);
/* Does the set hold the file at `path`? Its data and meta files count. */
bool ts_extract_set_holds(const ts_extract_set *set, const char *path);
const ts_extract_source *ts_extract_set_find(ts_extract_set *set, int64_t snapshot);
void ts_extract_set_free(ts_extract_set *set);

/* Captures of prompt lists, in a folder of their own beside the output. */
typedef struct ts_extract_captures {
    const char *folder; /* NULL until there is one */
    ts_temporary temporary;
    unsigned n;
} ts_extract_captures;

/* Reads the prompt list through, as a capture will. */
int ts_extract_check_prompts(const ts_session *s, const char *path, const ts_extract_options *o, ts_error *err);
/* Captures the prompt list `path` into *capture, a path that the caller frees. */
int ts_extract_capture(ts_extract_captures *c, const ts_session *s, const char *path, const ts_extract_options *o,
                       char **capture, ts_error *err);
/* Removes the folder and what is in it. */
void ts_extract_captures_free(ts_extract_captures *c);

/* All that the two files are made of. */
typedef struct ts_extraction {
    const ts_extract_options *o;
    const ts_extract_facts *facts;
    const ts_extract_set *positive, *negative;
    const ts_extract_result *result;
    const float *d;       /* [n_blocks][n_hidden] of the blocks extracted */
    const int32_t *block; /* [n_blocks] */
} ts_extraction;

int ts_extract_write_vector(const ts_extraction *e, ts_error *err);
int ts_extract_write_json(const ts_extraction *e, ts_error *err);
const char *ts_extract_mode_name(const ts_extract_options *o); /* "add"; NULL when there is no such mode */

#endif
