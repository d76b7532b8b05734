/* Prompt lists on their way to a set: each is captured by a session of its own, into a folder beside the output. Owns
 * that folder until it is removed. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/log.h"
#include "core/plural.h"
#include "host/session.h"
#include "instrument/corpus.h"
#include "instrument/extract.h"

static int make_folder(ts_extract_captures *c, const char *output, ts_error *err) {
    int rc = ts_temporary_folder(&c->temporary, output, err);

    c->folder = c->temporary.name;
    return rc;
}

static ts_capture_options options_of(const ts_extract_options *o, const char *path, const char *capture) {
    ts_capture_options co = TS_OPTIONS_INIT(ts_capture_options);

    co.input_path = path;
    co.output_path = capture;
    co.column = o->column;
    co.chat_template = o->chat_template;
    co.chat = o->chat;
    co.special = o->special;
    co.layers = o->blocks;
    co.positions = o->positions;
    co.format = TS_CAPTURE_SAFETENSORS;
    co.exact = o->exact;
    co.on_plan = o->on_plan;
    co.on_progress = o->on_progress;
    co.user = o->user;
    return co;
}

/* As the session given, but of its own: that one may have started, and a capture sizes its context. */
static int open_session(const ts_session *s, ts_session **out, ts_error *err) {
    ts_session_options so = s->opts;

    so.model_path = NULL;
    so.model = NULL;
    so.share = s;
    return ts_session_open(&so, out, err);
}

int ts_extract_check_prompts(const ts_session *s, const char *path, const ts_extract_options *o, ts_error *err) {
    ts_corpus_options co = {path, o->column, o->chat_template, o->chat, o->special};
    ts_corpus_summary summary;
    ts_corpus *corpus = NULL;
    int rc = ts_corpus_open(s, &co, &corpus, err);

    if (rc == TS_OK)
        rc = ts_corpus_scan(corpus, NULL, NULL, &summary, err);
    ts_corpus_close(corpus);
    return rc;
}

int ts_extract_capture(ts_extract_captures *c, const ts_session *s, const char *path, const ts_extract_options *o,
                       char **capture, ts_error *err) {
    int rc = c->folder ? TS_OK : make_folder(c, o->output_path, err);
    ts_session *session = NULL;
    ts_capture_result result;
    ts_capture_options co;
    ts_buf b = {0};

    *capture = NULL;
    if (rc != TS_OK)
        return rc;
    ts_buf_printf(&b, "%s/%u.safetensors", c->folder, c->n++);
    *capture = ts_buf_take(&b);
    if (!*capture)
        return ts_fail_nomem(err, "a path", strlen(c->folder));
    rc = open_session(s, &session, err);
    if (rc != TS_OK)
        return rc;
    co = options_of(o, path, *capture);
    rc = ts_capture_run(session, &co, &result, err);
    ts_session_close(session);
    if (rc == TS_ERR_INTERRUPTED)
        return ts_fail(err, rc, "interrupted while '%s' was captured: nothing is written", path);
    if (rc == TS_OK && result.n_skipped_empty)
        ts_log(TS_LOG_WARN, "'%s': %llu empty line%s skipped", path, (unsigned long long)result.n_skipped_empty,
               ts_plural(result.n_skipped_empty));
    return rc;
}

void ts_extract_captures_free(ts_extract_captures *c) {
    DIR *folder = c->folder ? opendir(c->folder) : NULL;
    struct dirent *entry;

    while (folder && (entry = readdir(folder)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
    if (!c->folder)
        return;
    if (rmdir(c->folder))
        ts_log(TS_LOG_WARN, "'%s' could not be removed", c->folder);
    ts_temporary_end(&c->temporary, false);
    close(c->temporary.fd);
    c->folder = NULL;
}
