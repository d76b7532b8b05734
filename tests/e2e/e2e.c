/* Shared by the end-to-end tests. */
#include "e2e.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *e2e_model_path(void) {
    const char *path = getenv("TS_MODEL");
    return path && access(path, R_OK) == 0 ? path : NULL;
}

void e2e_check(int rc, const ts_error *err, const char *file, int line) {
    if (rc == TS_OK) return;
    print_error("%s:%d: %d: %s\n", file, line, rc, err->message);
    _fail(file, line);
}

ts_session *e2e_open(const ts_session_options *opts) {
    ts_session *s = NULL;
    ts_error err = {0};
    e2e_ok(ts_session_open(opts, &s, &err), &err);
    return s;
}

static void on_text(const char *bytes, size_t n, void *user) {
    e2e_outcome *o = user;
    assert_true(o->length + n < sizeof(o->text));
    memcpy(o->text + o->length, bytes, n);
    o->length += n;
}

static void on_logits(const float *logits, int32_t n_vocab, void *user) {
    e2e_outcome *o = user;
    o->logits = e2e_hash(o->logits, logits, (size_t)n_vocab * sizeof(float));
    o->n_passes++;
}

void e2e_generate(ts_session *s, const char *prompt, int32_t n_predict, bool sampled, e2e_outcome *o) {
    ts_error err = {0};
    int32_t *tokens;
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    e2e_ok(ts_session_tokenize(s, prompt, strlen(prompt), 0, &tokens, &g.n_tokens, &err), &err);
    g.tokens = tokens;
    g.n_predict = n_predict;
    g.ignore_eos = true;
    g.temperature = sampled ? 0.8f : 0.0f;
    g.seed = 1;
    g.on_text = on_text;
    g.on_logits = on_logits;
    g.user = o;
    e2e_ok(ts_session_generate(s, &g, NULL, &err), &err);
    ts_free(tokens);
}

void e2e_assert_same(const e2e_outcome *a, const e2e_outcome *b) {
    assert_int_equal(a->length, b->length);
    assert_memory_equal(a->text, b->text, a->length);
    assert_int_equal(a->n_passes, b->n_passes);
    assert_true(a->logits == b->logits);
}

static char *tmp_dir(void) {
    static char dir[512];
    return dir;
}

const char *e2e_tmp(void) {
    if (tmp_dir()[0]) return tmp_dir();
    const char *base = getenv("TMPDIR");
    snprintf(tmp_dir(), 512, "%s/ts-e2e-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(tmp_dir()));
    return tmp_dir();
}

const char *e2e_path(const char *name) {
    static char paths[8][1024];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, 1024, "%s/%s", e2e_tmp(), name);
    return path;
}

char *e2e_slurp(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) print_error("cannot open %s\n", path);
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *bytes = malloc((size_t)size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)size, f), (size_t)size);
    bytes[size] = '\0';
    fclose(f);
    *n = (size_t)size;
    return bytes;
}

void e2e_remove_tmp(void) {
    DIR *d = tmp_dir()[0] ? opendir(tmp_dir()) : NULL;
    if (!d) return;
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        if (e->d_name[0] != '.') unlink(e2e_path(e->d_name));
    closedir(d);
    rmdir(tmp_dir());
    tmp_dir()[0] = '\0';
}

uint64_t e2e_hash(uint64_t h, const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}
