/* Owns the end of a safetensors capture: the columns behind the rows, the header in the space kept
 * for it, one rename.
 *
 * Tensors: hidden_states F32 [n, layers, hidden]; token_ids, positions, prompt_index I32 [n];
 * layer_ids I32 [layers]; prompt_tokens I32 [total] with prompt_offsets I64 [prompts + 1], the
 * prompts in the order of their first snapshot; labels U8, the text of a JSON array with a string
 * or null a prompt, where any prompt has one. __metadata__ holds "format" and, under "turbospark",
 * the object of meta.h as text. */
#include "store/resid_internal.h"

#include <inttypes.h>
#include <string.h>

#include "core/log.h"
#include "store/meta.h"
#include "store/meta_json.h"
#include "store/safetensors.h"

enum column {
    TOKEN_IDS,
    POSITIONS,
    LAYER_IDS,
    PROMPT_INDEX,
    PROMPT_TOKENS,
    PROMPT_OFFSETS,
    LABELS
};
enum { MAX_TENSORS = 8 };

static const char *const column_names[] = {"token_ids",    "positions",     "layer_ids",
                                           "prompt_index", "prompt_tokens", "prompt_offsets",
                                           "labels"};

static int put_i32(ts_resid_out *o, int64_t value, ts_error *err) {
    if (value < INT32_MIN || value > INT32_MAX)
        return ts_fail(err, TS_ERR_FORMAT, "%" PRId64 " does not fit an I32 tensor", value);
    int32_t v = (int32_t)value;
    return ts_append_write(o->rows, &v, sizeof v, err);
}

/* The label of a generation as JSON, null where it has none. */
static int put_label(ts_resid_out *o, const ts_resid_gen *g, bool first, ts_error *err) {
    json_t *v;
    ts_buf b = {0};
    int rc = ts_json_parse(g->line, g->length, &v, err);
    if (rc < 0)
        return rc;
    const char *label = json_string_value(json_object_get(v, "label"));
    ts_buf_text(&b, first ? "[" : ", ");
    if (label != NULL)
        ts_buf_json_string(&b, label, strlen(label));
    else
        ts_buf_text(&b, "null");
    rc = b.failed ? ts_fail_nomem(err, "a label", b.length)
                  : ts_append_write(o->rows, b.data, b.length, err);
    ts_buf_free(&b);
    json_decref(v);
    return rc;
}

static int put_tokens(ts_resid_out *o, const char *at, ts_error *err) {
    int32_t token;
    int rc = TS_OK;
    while (rc == TS_OK && ts_resid_gen_token(&at, &token))
        rc = put_i32(o, token, err);
    return rc;
}

static int64_t count_tokens(const char *at) {
    int64_t n = 0;
    int32_t token;
    while (ts_resid_gen_token(&at, &token))
        n++;
    return n;
}

typedef struct cursor {
    enum column column;
    int64_t offset; /* of the next prompt's tokens */
    bool first;     /* no label yet */
} cursor;

/* What one generation adds to the cursor's column. */
static int put_value(ts_resid_out *o, cursor *c, const ts_resid_gen *g, ts_error *err) {
    int rc = TS_OK;
    switch (c->column) {
    case TOKEN_IDS:
        return put_i32(o, g->token, err);
    case POSITIONS:
        return put_i32(o, g->position, err);
    case PROMPT_INDEX:
        return put_i32(o, g->prompt_index, err);
    case PROMPT_TOKENS:
        return g->tokens ? put_tokens(o, g->tokens, err) : TS_OK;
    case PROMPT_OFFSETS:
        if (g->tokens == NULL)
            return TS_OK;
        c->offset += count_tokens(g->tokens);
        return ts_append_write(o->rows, &c->offset, sizeof c->offset, err);
    case LABELS:
        if (g->tokens != NULL)
            rc = put_label(o, g, c->first, err);
        c->first = c->first && g->tokens == NULL;
        return rc;
    default:
        return TS_OK;
    }
}

/* One pass over the generations a column: constant memory, and each column lies in one piece. */
static int write_column(ts_resid_out *o, enum column column, ts_error *err) {
    cursor c = {.column = column, .first = true};
    ts_resid_gen g;
    bool got = false;
    int rc = TS_OK;
    if (column == LAYER_IDS) {
        size_t n = (size_t)o->n_layers * sizeof *o->layer_ids;
        return ts_append_write(o->rows, o->layer_ids, n, err);
    }
    if (column == PROMPT_OFFSETS)
        rc = ts_append_write(o->rows, &c.offset, sizeof c.offset, err);
    if (rc < 0)
        return rc;
    rc = ts_resid_gen_open(o->paths.gen, &g, err);
    while (rc == TS_OK && (rc = ts_resid_gen_next(&g, &got, err)) == TS_OK && got)
        rc = put_value(o, &c, &g, err);
    ts_resid_gen_close(&g);
    if (rc == TS_OK && column == LABELS)
        rc = ts_append_write(o->rows, "]", 1, err);
    return rc;
}

static int64_t column_length(const ts_resid_out *o, enum column column) {
    switch (column) {
    case LAYER_IDS:
        return o->n_layers;
    case PROMPT_TOKENS:
        return (int64_t)o->now.tokens;
    case PROMPT_OFFSETS:
        return (int64_t)o->now.prompts + 1;
    case LABELS:
        return -1; /* as long as its text */
    default:
        return (int64_t)o->now.rows;
    }
}

static int add_column(ts_resid_out *o, enum column column, ts_st_tensor *t, ts_error *err) {
    int64_t length = column_length(o, column);
    uint64_t width = column == PROMPT_OFFSETS ? 8 : column == LABELS ? 1 : 4;
    *t = (ts_st_tensor){.n_dims = 1, .begin = ts_append_length(o->rows) - o->reserve};
    snprintf(t->name, sizeof t->name, "%s", column_names[column]);
    snprintf(t->dtype, sizeof t->dtype, "%s", width == 8 ? "I64" : width == 1 ? "U8" : "I32");
    int rc = write_column(o, column, err);
    if (rc < 0)
        return rc;
    t->end = ts_append_length(o->rows) - o->reserve;
    t->shape[0] = (int64_t)((t->end - t->begin) / width);
    if (length >= 0 && t->shape[0] != length)
        return ts_fail(err, TS_ERR_FORMAT,
                       "'%s': expected %" PRId64 " values for '%s', found %" PRId64, o->paths.gen,
                       length, t->name, t->shape[0]);
    return TS_OK;
}

/* The I64 column must lie on 8 bytes: right behind the rows, or, where their count of floats is odd
 * (then n is odd too), behind one I32 column of n. */
static int add_columns(ts_resid_out *o, ts_st_tensor *tensors, size_t *n, ts_error *err) {
    bool odd = (ts_append_length(o->rows) - o->reserve) % 8 != 0;
    const enum column order[] = {odd ? TOKEN_IDS : PROMPT_OFFSETS,
                                 odd ? PROMPT_OFFSETS : TOKEN_IDS,
                                 POSITIONS,
                                 LAYER_IDS,
                                 PROMPT_INDEX,
                                 PROMPT_TOKENS,
                                 LABELS};
    int rc = TS_OK;
    for (size_t i = 0; rc == TS_OK && i < sizeof order / sizeof *order; i++)
        if (order[i] != LABELS || o->now.labels)
            rc = add_column(o, order[i], &tensors[(*n)++], err);
    return rc;
}

/* {"format": .., "turbospark": ".."} and the header around it. */
static int render_header(const ts_resid_out *o, const ts_st_tensor *tensors, size_t n,
                         const ts_meta_resid *facts, ts_buf *out, ts_error *err) {
    ts_buf object = {0}, metadata = {0};
    int rc;
    ts_meta_resid_head(&object, facts);
    ts_buf_text(&object, "\n}");
    ts_buf_text(&metadata, "{\"format\": \"turbospark-resid-1\", \"turbospark\": ");
    if (!object.failed)
        ts_buf_json_string(&metadata, object.data, object.length);
    ts_buf_text(&metadata, "}");
    if (object.failed || metadata.failed)
        rc = ts_fail_nomem(err, "meta data", object.length);
    else
        rc = ts_st_header(tensors, n, metadata.data, (size_t)o->reserve, out, err);
    ts_buf_free(&object);
    ts_buf_free(&metadata);
    return rc;
}

static int write_header(ts_resid_out *o, const ts_st_tensor *tensors, size_t n,
                        const ts_meta_resid *facts, ts_error *err) {
    ts_buf header = {0};
    ts_meta_resid fewer = *facts;
    fewer.sites_json = NULL;
    int rc = render_header(o, tensors, n, facts, &header, NULL);
    if (rc == TS_ERR_ARG) { /* the rows matter more than how each site was tapped */
        ts_log(TS_LOG_WARN, "'%s': the site table does not fit the header and is left out",
               o->paths.out);
        rc = render_header(o, tensors, n, &fewer, &header, err);
    } else if (rc < 0) {
        rc = ts_fail_nomem(err, "a header", (size_t)o->reserve);
    }
    if (rc == TS_OK)
        rc = ts_append_write_at(o->rows, 0, header.data, header.length, err);
    ts_buf_free(&header);
    return rc;
}

int ts_resid_finish_st(ts_resid_out *o, const ts_meta_resid *facts, ts_error *err) {
    ts_st_tensor tensors[MAX_TENSORS] = {
        {.name = "hidden_states",
         .dtype = "F32",
         .n_dims = 3,
         .shape = {(int64_t)o->now.rows, o->n_layers, o->n_hidden},
         .end = facts->data_bytes},
    };
    size_t n = 1;
    int rc = add_columns(o, tensors, &n, err);
    if (rc == TS_OK)
        rc = write_header(o, tensors, n, facts, err);
    if (rc == TS_OK)
        rc = ts_append_sync(o->rows, err);
    if (rc == TS_OK)
        rc = ts_resid_state_put(o, ts_append_length(o->rows), err);
    if (rc < 0)
        return rc;
    ts_append *rows = o->rows;
    o->rows = NULL;
    return ts_append_commit(rows, o->paths.out, err);
}
