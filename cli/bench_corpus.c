/* The arms of `bench --corpus`: a packed capture, the same batches untapped (twice), --exact, and
 * --exact untapped: what packing gains in the engine itself.
 * Captures write real files, into a folder of their own that is removed at the end; what a killed
 * comparison left is removed by the next one. */
#include "bench.h"
#include "cli.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "turbospark-bench-" /* and the process that writes there */

enum arm { NO_TAP, NO_TAP_AGAIN, PACKED, EXACT, EXACT_NO_TAP, ARMS };

typedef struct corpus {
    const cli_common *common;
    const ts_session *model; /* holds the model; never started */
    const char *path;
    char folder[4096], output[4200]; /* output = folder/bench.json */
    uint64_t n_prompts, n_tokens;
} corpus;

static int run_arm(size_t arm, void *user, double *tokens_per_s, ts_error *err) {
    corpus *c = user;
    ts_session_options session_opts;
    ts_capture_options opts = TS_OPTIONS_INIT(ts_capture_options);
    ts_capture_result result = {0};
    ts_session *session = NULL;
    int rc;

    cli_session_options(c->common, &session_opts);
    session_opts.model_path = NULL;
    session_opts.synthetic = NULL;
    session_opts.share = c->model;
    opts.input_path = c->path;
    opts.no_tap = arm != PACKED && arm != EXACT;
    opts.output_path = opts.no_tap ? NULL : c->output;
    opts.exact = arm == EXACT || arm == EXACT_NO_TAP;
    opts.overwrite = true;
    rc = ts_session_open(&session_opts, &session, err);
    if (rc == 0)
        rc = ts_capture_run(session, &opts, &result, err);
    ts_session_close(session);
    c->n_prompts = result.n_prompts;
    c->n_tokens = result.n_tokens;
    *tokens_per_s = result.seconds > 0 ? (double)result.n_tokens / result.seconds : 0;
    return rc;
}

static void remove_folder(const char *path) {
    DIR *folder = opendir(path);
    const struct dirent *entry;

    while (folder && (entry = readdir(folder)))
        if (strncmp(entry->d_name, "bench.", 6) == 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
    rmdir(path);
}

/* A folder of ours whose process is gone: named by its number alone, and no link. */
static bool left_behind(const char *path, const char *name) {
    struct stat st;
    char *end = NULL;
    long pid = 0;

    if (strncmp(name, FOLDER, strlen(FOLDER)) == 0)
        pid = strtol(name + strlen(FOLDER), &end, 10);
    if (pid <= 0 || *end || lstat(path, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid())
        return false;
    return pid == (long)getpid() || (kill((pid_t)pid, 0) != 0 && errno == ESRCH);
}

static void remove_left_behind(const char *base) {
    DIR *folder = opendir(base);
    const struct dirent *entry;
    char path[4096];

    while (folder && (entry = readdir(folder))) {
        int n = snprintf(path, sizeof(path), "%s/%s", base, entry->d_name);

        if (n > 0 && (size_t)n < sizeof(path) && left_behind(path, entry->d_name))
            remove_folder(path);
    }
    if (folder)
        closedir(folder);
}

static int make_folder(corpus *c) {
    const char *base = getenv("TMPDIR");

    base = base && *base ? base : "/tmp";
    remove_left_behind(base);
    snprintf(c->folder, sizeof(c->folder), "%s/" FOLDER "%ld", base, (long)getpid());
    if (mkdir(c->folder, 0700) != 0)
        return cli_fail("cannot make a folder '%s': %s", c->folder, strerror(errno));
    snprintf(c->output, sizeof(c->output), "%s/bench.json", c->folder);
    return CLI_DONE;
}

static void print_ratios(const bench_plan *plan) {
    double kept = 100 / (1 + bench_compare(plan, PACKED, NO_TAP).median / 100);
    double exact = 1 + bench_compare(plan, EXACT, PACKED).median / 100;
    double engine = 1 + bench_compare(plan, EXACT_NO_TAP, NO_TAP).median / 100;

    printf("packed capture keeps %.1f %% of the tokens/s of no tap\n"
           "packed capture runs %.2f times as fast as --exact (untapped batches: %.2f times)\n",
           kept, exact, engine);
}

/* The arms share the model of one session that is never started. */
static int compare(corpus *c, bench_plan *plan, ts_model_info *info, ts_error *err) {
    ts_session_options opts;
    ts_session *model = NULL;
    int rc;

    cli_session_options(c->common, &opts);
    rc = ts_session_open(&opts, &model, err);
    if (rc == 0)
        rc = ts_session_model_info(model, info, err);
    c->model = model;
    if (rc == 0)
        rc = bench_run(plan, err);
    ts_session_close(model);
    return rc;
}

int bench_corpus(const cli_common *common, const char *path, int32_t repetitions, bool drawing,
                 const char *json_path) {
    corpus c = {.common = common, .path = path};
    ts_model_info info;
    ts_error err;
    bench_plan plan = {.work = "corpus",
                       .info = &info,
                       .common = common,
                       .repetitions = repetitions,
                       .drawing = drawing,
                       .run = run_arm,
                       .user = &c,
                       .arms = {{.name = "no tap"},
                                {.name = "no tap again"},
                                {.name = "packed capture"},
                                {.name = "exact capture"},
                                {.name = "exact, no tap"}},
                       .n_arms = ARMS};
    int code = cli_check_json(json_path);

    if (code >= 0)
        return code;
    code = make_folder(&c);
    if (code != CLI_DONE)
        goto cleanup;
    if (compare(&c, &plan, &info, &err) != 0) {
        code = cli_fail_error(&err);
        goto cleanup;
    }
    snprintf(plan.title, sizeof(plan.title), "corpus: %.60s, %llu prompts, %llu tokens, %d rounds",
             info.description, (unsigned long long)c.n_prompts, (unsigned long long)c.n_tokens,
             repetitions);
    bench_print_table(&plan);
    print_ratios(&plan);
    code = bench_json_write(&plan, json_path);
cleanup:
    bench_free(&plan);
    if (*c.output)
        remove_folder(c.folder);
    return code;
}
