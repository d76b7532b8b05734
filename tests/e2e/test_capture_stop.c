/* A corpus capture that ends before its time: SIGTERM writes what there is, marked partial, and a resume goes on from it to
 * the same bytes; a full disk is one clear line and exit 1, and after space was made a resume ends with the same bytes. */
#include "rows.h"
#include "spawn.h"
#include "tiny.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static char model[1024], corpus[1024], folder[1024];

static pid_t start(const char *out, bool resume) {
    const char *argv[] = {"", "capture", "-m", model, "-i", corpus, "-o", out, "-t", "1", "-ub", "64", "-q", resume ? "--resume" : NULL, NULL};
    return spawn_cli(argv);
}

/* All lines of stderr: exactly one, saying so. */
static void assert_line(const char *says) {
    char *text = spawn_stderr();
    const char *end = strchr(text, '\n');
    print_message("  %s", text);
    if (!strstr(text, says) || !end || end[1] != '\0') fail_msg("got: %s", text);
    free(text);
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

static off_t size_of(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? st.st_size : 0;
}

/* Until rows lie in the partial file, the process still running. */
static void wait_for_rows(pid_t pid, const char *out, off_t bytes) {
    char part[1100];
    snprintf(part, sizeof(part), "%s.part", out);
    for (int i = 0; i < 6000 && !spawn_ended(pid) && size_of(part) < bytes; i++) spawn_sleep(0.01);
    assert_false(spawn_ended(pid));
}

static void same_bytes(const char *a, const char *b) {
    size_t n, m;
    char *x = e2e_slurp(a, &n), *y = e2e_slurp(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

static int64_t snapshots(const char *out) {
    ts_error err = {0};
    ts_capture_file *f;
    ts_capture_shape shape;
    e2e_ok(ts_capture_open(out, &f, &shape, &err), &err);
    ts_capture_close(f);
    return shape.n_snapshots;
}

/* ---- SIGTERM */

static void assert_marked(const char *out, bool partial) {
    char *text;
    ts_error err = {0};
    e2e_ok(ts_inspect(out, false, &text, &err), &err);
    assert_int_equal(strstr(text, "interrupted") != NULL, partial);
    ts_free(text);
}

static void stop_and_resume(const char *name, const char *whole, const char *data) {
    char out[1024], state[1100], sidecar[1024];
    snprintf(out, sizeof(out), "%s", e2e_path(name));
    snprintf(sidecar, sizeof(sidecar), "%s", e2e_path(data));
    snprintf(state, sizeof(state), "%s.part.state", out);
    int64_t total = snapshots(whole), before = 0;
    for (int i = 0; i < 3; i++) { /* stopped again after each resume */
        pid_t pid = start(out, i > 0);
        wait_for_rows(pid, out, i == 0 ? 300000 : size_of(sidecar) + 300000);
        kill(pid, SIGTERM);
        assert_int_equal(spawn_wait(pid, NULL), 1);
        assert_line("marked partial");
        assert_true(exists(state));
        assert_in_range(snapshots(out), before + 1, total - 1);
        assert_marked(out, true);
        before = snapshots(out);
    }
    pid_t again = start(out, false); /* not by accident */
    assert_int_equal(spawn_wait(again, NULL), 1);
    assert_line("is left of an unfinished run: go on with --resume, or start over with --overwrite");
    assert_int_equal(snapshots(out), before);
    assert_int_equal(spawn_wait(start(out, true), NULL), 0);
    assert_int_equal(snapshots(out), total);
    assert_marked(out, false);
    assert_false(exists(state));
    same_bytes(sidecar, strstr(name, ".json") ? e2e_path("whole.f32") : e2e_path("whole.safetensors"));
}

static void test_stop_pair(void **state) {
    (void)state;
    assert_int_equal(spawn_wait(start(e2e_path("whole.json"), false), NULL), 0);
    stop_and_resume("stop.json", e2e_path("whole.json"), "stop.f32");
}

/* In a folder of its own, under the same name: the file tells its own name. */
static void test_stop_safetensors(void **state) {
    (void)state;
    char kept[1024];
    snprintf(kept, sizeof(kept), "%s", e2e_path("kept.safetensors"));
    assert_int_equal(spawn_wait(start(e2e_path("stop.safetensors"), false), NULL), 0);
    assert_int_equal(rename(e2e_path("stop.safetensors"), kept), 0);
    assert_int_equal(rename(kept, e2e_path("whole.safetensors")), 0);
    stop_and_resume("stop.safetensors", e2e_path("whole.safetensors"), "stop.safetensors");
}

/* ---- a full disk */

static bool mount_small(void) {
    snprintf(folder, sizeof(folder), "%s", e2e_path("disk"));
    if (mkdir(folder, 0777) != 0) return false;
    if (mount("tmpfs", folder, "tmpfs", 0, "size=64m") == 0) return true;
    rmdir(folder);
    folder[0] = '\0';
    return false;
}

static int unmount(void **state) {
    (void)state;
    if (!folder[0]) return 0;
    umount2(folder, MNT_DETACH);
    rmdir(folder);
    return 0;
}

/* Leaves no byte free. */
static void fill_disk(const char *path) {
    static const char block[4096];
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0);
    while (write(fd, block, sizeof(block)) > 0) continue;
    assert_int_equal(errno, ENOSPC);
    close(fd);
}

static void full_disk(const char *name, const char *const files[3]) {
    char out[1100], filler[1100];
    snprintf(out, sizeof(out), "%s/%s", folder, name);
    snprintf(filler, sizeof(filler), "%s/filler", folder);
    pid_t pid = start(out, false);
    wait_for_rows(pid, out, 3000000); /* far enough for a checkpoint of a second or more */
    fill_disk(filler);
    assert_int_equal(spawn_wait(pid, NULL), 1);
    assert_line("No space left on device");
    assert_false(exists(out));
    unlink(filler);
    assert_int_equal(spawn_wait(start(out, true), NULL), 0);
    for (size_t i = 0; i < 3 && files[i]; i++) {
        char path[1100];
        snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
        same_bytes(path, e2e_path(files[i]));
        unlink(path);
    }
}

static void test_full_disk(void **state) {
    (void)state;
    static const char *const pair[3] = {"full.json", "full.f32", "full.meta"}, *const single[3] = {"full.safetensors", NULL, NULL};
    if (!mount_small()) {
        print_message("  no tmpfs can be mounted here: skipped\n");
        skip();
    }
    assert_int_equal(spawn_wait(start(e2e_path("full.json"), false), NULL), 0);
    assert_int_equal(spawn_wait(start(e2e_path("full.safetensors"), false), NULL), 0);
    full_disk("full.json", pair);
    full_disk("full.safetensors", single);
}

/* What would not fit is refused before anything is computed. */
static void test_no_room(void **state) {
    (void)state;
    char out[1100], filler[1100];
    if (!mount_small()) skip();
    snprintf(out, sizeof(out), "%s/out.json", folder);
    snprintf(filler, sizeof(filler), "%s/filler", folder);
    fill_disk(filler);
    assert_int_equal(truncate(filler, size_of(filler) - (1 << 20)), 0);
    assert_int_equal(spawn_wait(start(out, false), NULL), 1);
    assert_line("would take");
    assert_false(exists(out));
}

int main(void) {
    if (!getenv("TS_CLI")) return E2E_SKIP;
    tiny_opts o = {.n_layer = 8, .n_embd = 256, .n_ff = 512};
    snprintf(model, sizeof(model), "%s", spawn_tiny("llama", &o));
    snprintf(corpus, sizeof(corpus), "%s", spawn_corpus("corpus.jsonl", 1500));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_pair),
        cmocka_unit_test(test_stop_safetensors),
        cmocka_unit_test_teardown(test_full_disk, unmount),
        cmocka_unit_test_teardown(test_no_room, unmount),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    e2e_remove_tmp();
    return failed;
}
