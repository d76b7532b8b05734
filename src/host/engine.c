/* Everything process-wide about llama.cpp. The statics here mirror llama.cpp's own global state: its log
 * receiver, its backend registry and its abort callback are one per process, and so is what the callback tells. */
#define _GNU_SOURCE
#include "host/engine.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/log.h"
#include "core/mem.h"

static pthread_once_t init_once = PTHREAD_ONCE_INIT;
static _Thread_local char last_error[512];
static char subject[4096];
static ts_abort_fn abort_fn;
static _Thread_local enum ts_log_level last_level = TS_LOG_INFO;

static enum ts_log_level level_of(enum ggml_log_level level) {
    switch (level) {
    case GGML_LOG_LEVEL_ERROR: return TS_LOG_ERROR;
    case GGML_LOG_LEVEL_WARN: return TS_LOG_WARN;
    case GGML_LOG_LEVEL_INFO: return TS_LOG_INFO;
    default: return TS_LOG_DEBUG;
    }
}

static void remember_error(const char *text) {
    size_t used = strlen(last_error);
    snprintf(last_error + used, sizeof(last_error) - used, "%s%s", used ? " " : "", text);
    for (char *c = last_error; *c; c++)
        if (*c == '\n') *c = ' ';
    size_t n = strlen(last_error);
    while (n > 0 && last_error[n - 1] == ' ') last_error[--n] = '\0';
}

static void on_log(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level != GGML_LOG_LEVEL_CONT) last_level = level_of(level);
    if (last_level == TS_LOG_ERROR) remember_error(text);
    ts_log_engine(last_level, text);
}

static void init(void) {
    llama_log_set(on_log, NULL);
    ggml_backend_load_all();
    llama_backend_init();
}

void ts_engine_init(void) { pthread_once(&init_once, init); }

void ts_engine_error_reset(void) { last_error[0] = '\0'; }
const char *ts_engine_error(void) { return last_error; }

void ts_engine_subject(const char *kind, const char *name) {
    if (name)
        snprintf(subject, sizeof(subject), "%s '%s'", kind, name);
    else
        subject[0] = '\0';
}

/* The model's name goes before llama.cpp's words, and the folder it was built in goes away. */
static void on_abort(const char *message) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    static char text[sizeof(subject) + 1024];
    while (atomic_flag_test_and_set(&told)) pause(); /* another of its threads tells it, and the process ends there */
    const char *end = strpbrk(message, ": "), *name = message;
    for (const char *c = message; end && c < end; c++)
        if (*c == '/') name = c + 1;
    snprintf(text, sizeof(text), "%s%s%s", subject, *subject ? " fails a check of llama.cpp, which ends the process: " : "", name);
    abort_fn(text);
}

void ts_abort_set(ts_abort_fn fn) {
    abort_fn = fn;
    ggml_set_abort_callback(fn ? on_abort : NULL);
}

const char *ts_engine_version(void) { return llama_version(); }
const char *ts_ggml_version(void) { return ggml_version(); }

int32_t ts_engine_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

size_t ts_device_count(void) {
    ts_engine_init();
    return ggml_backend_dev_count();
}

static const char *kind_name(enum ggml_backend_dev_type type) {
    switch (type) {
    case GGML_BACKEND_DEVICE_TYPE_CPU: return "cpu";
    case GGML_BACKEND_DEVICE_TYPE_GPU: return "gpu";
    case GGML_BACKEND_DEVICE_TYPE_IGPU: return "igpu";
    default: return "accel";
    }
}

int ts_device_get(size_t index, ts_device *out, ts_error *err) {
    if (index >= ts_device_count())
        return ts_fail(err, TS_ERR_ARG, "device %zu: only %zu found", index, ts_device_count());
    ggml_backend_dev_t dev = ggml_backend_dev_get(index);
    size_t free_bytes = 0, total = 0;
    ggml_backend_dev_memory(dev, &free_bytes, &total);
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "%s", ggml_backend_dev_name(dev));
    snprintf(out->description, sizeof(out->description), "%s", ggml_backend_dev_description(dev));
    snprintf(out->kind, sizeof(out->kind), "%s", kind_name(ggml_backend_dev_type(dev)));
    out->memory_free = free_bytes;
    out->memory_total = total;
    return TS_OK;
}

static int unknown_device(const char *name, ts_error *err) {
    ts_buf found = {0};
    for (size_t i = 0; i < ggml_backend_dev_count(); i++)
        ts_buf_printf(&found, "%s%s", i ? ", " : "", ggml_backend_dev_name(ggml_backend_dev_get(i)));
    int rc = ts_fail(err, TS_ERR_ARG, "no device '%s': found %s", name, found.data ? found.data : "none");
    ts_buf_free(&found);
    return rc;
}

int ts_engine_devices(const char *names, ggml_backend_dev_t **out, ts_error *err) {
    *out = NULL;
    if (!names) return TS_OK;
    ts_engine_init();
    int rc = TS_OK;
    size_t n = 0;
    char *copy = ts_strdup(names), *save = NULL;
    ggml_backend_dev_t *list = ts_calloc(strlen(names) / 2 + 2, sizeof(*list));
    if (!copy || !list) rc = ts_fail_nomem(err, "device list", strlen(names));
    bool none = strcmp(names, "none") == 0;
    for (char *name = rc == TS_OK && !none ? strtok_r(copy, ",", &save) : NULL; name && rc == TS_OK;
         name = strtok_r(NULL, ",", &save)) {
        list[n] = ggml_backend_dev_by_name(name);
        if (!list[n++]) rc = unknown_device(name, err);
    }
    if (rc == TS_OK && n == 0 && !none) rc = unknown_device(names, err);
    free(copy);
    if (rc != TS_OK) {
        free(list);
        list = NULL;
    }
    *out = list;
    return rc;
}

int ts_engine_kv_type(const char *option, const char *name, enum ggml_type *out, ts_error *err) {
    static const enum ggml_type known[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16,   GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
                                           GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_IQ4_NL, GGML_TYPE_Q5_1};
    *out = GGML_TYPE_F16;
    if (!name) return TS_OK;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(name, ggml_type_name(known[i])) != 0) continue;
        *out = known[i];
        return TS_OK;
    }
    return ts_fail(err, TS_ERR_ARG, "%s: expected f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl, got '%s'", option, name);
}
