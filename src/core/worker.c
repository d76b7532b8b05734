/* One background thread with room for one job. */
#include "core/worker.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/mem.h"

struct ts_worker {
    bool threaded, busy, quit;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ts_job_fn fn;
    void *user;
    int rc; /* of the last job, until somebody took it */
    ts_error error;
};

static void *loop(void *user) {
    ts_worker *w = user;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->busy && !w->quit) pthread_cond_wait(&w->changed, &w->lock);
        if (!w->busy) break;
        pthread_mutex_unlock(&w->lock);
        ts_error err = {0};
        int rc = w->fn(w->user, &err);
        pthread_mutex_lock(&w->lock);
        w->rc = rc;
        w->error = err;
        w->busy = false;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int ts_worker_create(bool threaded, ts_worker **out, ts_error *err) {
    *out = NULL;
    ts_worker *w = ts_calloc(1, sizeof(*w));
    if (!w) return ts_fail_nomem(err, "worker", sizeof(*w));
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->threaded = threaded && pthread_create(&w->thread, NULL, loop, w) == 0;
    *out = w;
    return TS_OK;
}

bool ts_worker_threaded(const ts_worker *w) { return w->threaded; }

int ts_worker_wait(ts_worker *w, ts_error *err) {
    if (!w->threaded) return TS_OK;
    pthread_mutex_lock(&w->lock);
    while (w->busy) pthread_cond_wait(&w->changed, &w->lock);
    int rc = w->rc;
    if (rc != TS_OK && err) *err = w->error;
    w->rc = TS_OK;
    pthread_mutex_unlock(&w->lock);
    return rc;
}

int ts_worker_submit(ts_worker *w, ts_job_fn fn, void *user, ts_error *err) {
    if (!w->threaded) return fn(user, err);
    int rc = ts_worker_wait(w, err);
    if (rc != TS_OK) return rc;
    pthread_mutex_lock(&w->lock);
    w->fn = fn;
    w->user = user;
    w->busy = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return TS_OK;
}

void ts_worker_free(ts_worker *w) {
    if (!w) return;
    if (w->threaded) {
        pthread_mutex_lock(&w->lock);
        w->quit = true;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
