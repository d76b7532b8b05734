/* Files: what is left under which name, after success and after each refusal. */
#include "test_core_tmp.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "core/file.h"
#include "core/mem.h"

static void put_and_get(void **state) {
    char *bytes;
    size_t n;
    ts_error err;

    (void)state;
    assert_int_equal(ts_file_put("a.json", "hello", 5, &err), TS_OK);
    assert_int_equal(ts_file_put("a.json", "bye", 3, &err), TS_OK);
    assert_int_equal(tmp_count(), 1);
    assert_int_equal(ts_file_get("a.json", 3, &bytes, &n, &err), TS_OK);
    assert_string_equal(bytes, "bye");
    assert_int_equal(n, 3);
    ts_free(bytes);
    assert_int_equal(ts_file_get("a.json", 2, &bytes, &n, &err), TS_ERR_FORMAT);
    assert_string_equal(err.message, "'a.json' is too large: expected at most 2 bytes, got 3");
    assert_null(bytes);
    assert_int_equal(ts_file_put("empty", NULL, 0, &err), TS_OK);
    assert_int_equal(ts_file_get("empty", 0, &bytes, &n, &err), TS_OK);
    assert_string_equal(bytes, "");
    ts_free(bytes);
    /* says 0 bytes, has some */
    assert_int_equal(ts_file_get("/proc/self/status", 1 << 20, &bytes, &n, &err), TS_OK);
    assert_int_equal(strlen(bytes), n);
    assert_true(n > 100);
    ts_free(bytes);
    assert_int_equal(ts_file_get("/proc/self/status", 100, &bytes, &n, &err), TS_ERR_FORMAT);
    assert_int_equal(ts_file_get("none", 9, &bytes, &n, &err), TS_ERR_IO);
    assert_string_equal(err.message, "cannot open 'none': No such file or directory");
}

static void nothing_before_commit(void **state) {
    char block[300000];
    struct stat st;
    ts_file *f;
    ts_error err;

    (void)state;
    memset(block, 'b', sizeof block);
    tmp_write("a", "old", 3);
    assert_int_equal(chmod("a", 0640), 0);
    assert_int_equal(ts_file_create("a", &f, &err), TS_OK);
    assert_int_equal(ts_file_write(f, block, sizeof block, &err), TS_OK);
    tmp_expect("a", "old");
    ts_file_discard(f);
    assert_int_equal(tmp_count(), 1);
    assert_int_equal(ts_file_create("a", &f, &err), TS_OK);
    for (int i = 0; i < 30; i++)
        assert_int_equal(ts_file_write(f, block, 10000 + (size_t)i * 3000, &err), TS_OK);
    assert_int_equal(ts_file_commit(f, &err), TS_OK);
    assert_int_equal(stat("a", &st), 0);
    assert_int_equal(st.st_size, 30 * 10000 + 3000 * (29 * 30 / 2));
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(tmp_count(), 1);
    ts_file_discard(NULL);
}

static void links_are_followed(void **state) {
    struct stat st;
    ts_error err;

    (void)state;
    assert_int_equal(mkdir("d", 0777), 0);
    tmp_write("d/real", "old", 3);
    assert_int_equal(symlink("d/real", "link"), 0);
    assert_int_equal(ts_file_put("link", "new", 3, &err), TS_OK);
    assert_int_equal(lstat("link", &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    tmp_expect("d/real", "new");
    assert_int_equal(symlink("nowhere", "dangling"), 0);
    assert_int_equal(ts_file_put("dangling", "x", 1, &err), TS_ERR_IO);
    assert_string_equal(err.message,
                        "cannot write 'dangling': it is a link to a file that does not exist");
    assert_int_equal(symlink("loop", "loop"), 0);
    assert_int_equal(ts_file_check_target("loop", &err), TS_ERR_IO);
}

static void expect_refused(const char *path, const char *message) {
    ts_error err;
    ts_file *f = (ts_file *)&err;

    assert_int_equal(ts_file_check_target(path, &err), TS_ERR_IO);
    assert_string_equal(err.message, message);
    assert_int_equal(ts_file_create(path, &f, &err), TS_ERR_IO);
    assert_null(f);
}

static void targets_that_are_none(void **state) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    uint64_t size;
    int fd, left;
    ts_error err;

    (void)state;
    assert_int_equal(mkdir("folder", 0777), 0);
    assert_int_equal(mkfifo("fifo", 0666), 0);
    assert_int_equal(symlink("fifo", "to-fifo"), 0);
    assert_int_equal(bind(s, (struct sockaddr *)&address, sizeof address), 0);
    close(s);
    tmp_write("file", "x", 1);
    left = tmp_count();
    expect_refused("folder", "cannot write 'folder': expected a regular file, it is a folder");
    expect_refused(".", "cannot write '.': expected a regular file, it is a folder");
    expect_refused("fifo", "cannot write 'fifo': expected a regular file, it is a FIFO");
    expect_refused("to-fifo", "cannot write 'to-fifo': expected a regular file, it is a FIFO");
    expect_refused("socket", "cannot write 'socket': expected a regular file, it is a socket");
    expect_refused("/dev/null",
                   "cannot write '/dev/null': expected a regular file, it is a device");
    expect_refused("", "cannot write '': the path is empty");
    expect_refused("no/x", "cannot write 'no/x': folder 'no': No such file or directory");
    expect_refused("file/x", "cannot write 'file/x': Not a directory");
    expect_refused("new/",
                   "cannot write 'new/': expected the name of a file, got that of a folder");
    assert_int_equal(ts_file_check_target("folder/new", &err), TS_OK);
    assert_int_equal(ts_file_check_target("file", &err), TS_OK);
    assert_int_equal(ts_file_open_read("fifo", &fd, &size, &err), TS_ERR_IO);
    assert_string_equal(err.message, "cannot read 'fifo': expected a regular file, it is a FIFO");
    assert_int_equal(ts_file_open_read("folder", &fd, &size, &err), TS_ERR_IO);
    assert_string_equal(err.message,
                        "cannot read 'folder': expected a regular file, it is a folder");
    assert_int_equal(tmp_count(), left);
}

static void read_only_targets(void **state) {
    (void)state;
    if (geteuid() == 0)
        skip();
    assert_int_equal(mkdir("closed", 0555), 0);
    expect_refused("closed/x", "cannot write 'closed/x': folder 'closed': Permission denied");
    tmp_write("kept", "x", 1);
    assert_int_equal(chmod("kept", 0444), 0);
    expect_refused("kept", "cannot write 'kept': Permission denied");
}

static void *put_many(void *name) {
    for (int i = 0; i < 50; i++)
        if (ts_file_put(name, name, strlen(name), NULL))
            return name;
    return NULL;
}

static void writers_do_not_collide(void **state) {
    char one[] = "same", *names[4] = {one, one, one, one};
    pthread_t t[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, put_many, names[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;

        pthread_join(t[i], &failed);
        assert_null(failed);
    }
    tmp_expect("same", "same");
    assert_int_equal(tmp_count(), 1);
}

static void long_names(void **state) {
    char name[256];

    (void)state;
    memset(name, 'n', 255);
    name[255] = '\0';
    assert_int_equal(ts_file_put(name, "x", 1, NULL), TS_OK);
    tmp_expect(name, "x");
}

/* The file size limit stands in for a full disk. */
static void full_disk(void **state) {
    struct rlimit before, small = {100000, 100000};
    char block[70000] = {0};
    ts_error err, again;
    ts_append *a;
    ts_file *f;
    int rc;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(ts_file_create("out", &f, &err), TS_OK);
    assert_int_equal(ts_file_write(f, block, sizeof block, &err), TS_OK);
    rc = ts_file_write(f, block, sizeof block, &err);
    assert_int_equal(ts_file_commit(f, &again), TS_ERR_IO);
    assert_int_equal(ts_append_open("part", 0, &a, NULL), TS_OK);
    assert_int_equal(ts_append_write(a, block, sizeof block, NULL), TS_OK);
    assert_int_equal(ts_append_write(a, block, sizeof block, NULL), TS_ERR_IO);
    assert_int_equal(ts_append_sync(a, NULL), TS_ERR_IO);
    assert_int_equal(ts_append_commit(a, "final", NULL), TS_ERR_IO);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(rc, TS_ERR_IO);
    assert_string_equal(err.message, "cannot write 'out': File too large");
    assert_string_equal(again.message,
                        "cannot write 'out' after an earlier failure: File too large");
    assert_int_equal(access("part", F_OK), 0);
    assert_int_equal(tmp_count(), 1);
    assert_int_equal(ts_append_open("part", 70000, &a, NULL), TS_OK);
    assert_int_equal(ts_append_length(a), 70000);
    assert_int_equal(ts_append_close(a, NULL), TS_OK);
}

static void append_and_continue(void **state) {
    ts_append *a;
    ts_error err;

    (void)state;
    assert_int_equal(ts_append_open("p", 0, &a, &err), TS_OK);
    assert_int_equal(ts_append_write(a, "0123456789", 10, &err), TS_OK);
    assert_int_equal(ts_append_length(a), 10);
    assert_int_equal(ts_append_sync(a, &err), TS_OK);
    tmp_expect("p", "0123456789");
    assert_int_equal(ts_append_write_at(a, 2, "xx", 2, &err), TS_OK);
    assert_int_equal(ts_append_write_at(a, 9, "xx", 2, &err), TS_ERR_ARG);
    assert_int_equal(ts_append_write_at(a, UINT64_MAX, "xx", 2, &err), TS_ERR_ARG);
    assert_int_equal(ts_append_write(a, "ab", 2, &err), TS_OK);
    assert_int_equal(ts_append_close(a, &err), TS_OK);
    tmp_expect("p", "01xx456789ab");
    assert_int_equal(ts_append_open("p", 13, &a, &err), TS_ERR_FORMAT);
    assert_string_equal(err.message, "'p' is too short: expected at least 13 bytes, got 12; remove it, or start over with --overwrite");
    assert_int_equal(ts_append_open("none", 1, &a, &err), TS_ERR_IO);
    assert_int_equal(access("none", F_OK), -1);
    assert_int_equal(ts_append_open("p", 6, &a, &err), TS_OK);
    assert_int_equal(ts_append_write(a, "!", 1, &err), TS_OK);
    tmp_write("final", "old", 3);
    assert_int_equal(symlink("final", "link"), 0);
    assert_int_equal(ts_append_commit(a, "link", &err), TS_OK);
    tmp_expect("final", "01xx45!");
    assert_int_equal(access("p", F_OK), -1);
    assert_int_equal(ts_append_close(NULL, &err), TS_OK);
}

static void commit_over_file_systems(void **state) {
    char there[] = "/dev/shm/turbospark-test-XXXXXX";
    int fd = mkstemp(there);
    struct stat a_fs, b_fs;
    ts_append *a;
    ts_error err;

    (void)state;
    if (fd < 0 || stat(".", &a_fs) || fstat(fd, &b_fs) || a_fs.st_dev == b_fs.st_dev)
        skip();
    close(fd);
    assert_int_equal(symlink(there, "link"), 0);
    assert_int_equal(ts_append_open("p", 0, &a, &err), TS_OK);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(ts_append_write(a, "abc", 3, &err), TS_OK);
    assert_int_equal(ts_append_commit(a, "link", &err), TS_OK);
    assert_int_equal(stat(there, &b_fs), 0);
    assert_int_equal(b_fs.st_size, 3000);
    assert_int_equal(access("p", F_OK), -1);
    unlink(there);
}

static void one_writer(void **state) {
    ts_lock *lock, *second;
    ts_error err;
    int status;
    pid_t child;

    (void)state;
    assert_int_equal(ts_lock_take("out.json", &lock, &err), TS_OK);
    assert_int_equal(ts_lock_take("./out.json", &second, &err), TS_ERR_STATE);
    assert_string_equal(err.message, "cannot write './out.json': another run is writing it");
    assert_null(second);
    child = fork();
    if (child == 0)
        _exit(ts_lock_take("out.json", &second, NULL) == TS_ERR_STATE ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    ts_lock_release(lock);
    assert_int_equal(tmp_count(), 0);
    child = fork(); /* dies holding it */
    if (child == 0)
        _exit(ts_lock_take("out.json", &second, NULL) == TS_OK ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(tmp_count(), 1);
    assert_int_equal(ts_lock_take("out.json", &lock, &err), TS_OK);
    ts_lock_release(lock);
    ts_lock_release(NULL);
    assert_int_equal(tmp_count(), 0);
}

static int holders, most_holders;
static pthread_mutex_t holders_lock = PTHREAD_MUTEX_INITIALIZER;

static void count_holders(int change) {
    pthread_mutex_lock(&holders_lock);
    holders += change;
    if (holders > most_holders)
        most_holders = holders;
    pthread_mutex_unlock(&holders_lock);
}

static void *take_often(void *unused) {
    for (int i = 0; i < 3000; i++) {
        ts_lock *lock;

        if (ts_lock_take("x", &lock, NULL))
            continue;
        count_holders(1);
        count_holders(-1);
        ts_lock_release(lock);
    }
    return unused;
}

static void lock_has_no_gap(void **state) {
    pthread_t t[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, take_often, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(most_holders, 1);
    assert_int_equal(tmp_count(), 0);
}

static void extensions(void **state) {
    static const char *cases[][3] = {
        {"dir/name.json", "f32", "dir/name.f32"},
        {"name", "f32", "name.f32"},
        {".hidden", "f32", ".hidden.f32"},
        {"a.b.json", "f32", "a.b.f32"},
        {"dir.d/name", "f32", "dir.d/name.f32"},
        {"name.", "f32", "name.f32"},
        {"x.f32", "f32", "x.f32"},
        {"foo/", "f32", "foo.f32"},
        {"a.json", "", "a"},
        {"..", "f32", ".."},
        {"/", "f32", "/"},
        {"", "f32", ""},
        {"...", "f32", "...f32"},
        {"..a", "f32", "..f32"},
        {".a.b", "meta", ".a.meta"},
        {"d/..", "x", "d/.."},
        {"d/.", "x", "d/."},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = ts_path_with_extension(cases[i][0], cases[i][1]);

        assert_string_equal(path, cases[i][2]);
        ts_free(path);
    }
    assert_true(ts_path_has_extension("a/b.jsonl", "jsonl"));
    assert_false(ts_path_has_extension("a.jsonl/b", "jsonl"));
    assert_false(ts_path_has_extension(".jsonl", "jsonl"));
    assert_false(ts_path_has_extension("ajsonl", "jsonl"));
    assert_string_equal(ts_path_base("a/b"), "b");
    assert_string_equal(ts_path_base("b"), "b");
}

static void same_and_free(void **state) {
    uint64_t bytes = 0;
    ts_error err;

    (void)state;
    tmp_write("a", "x", 1);
    assert_int_equal(link("a", "b"), 0);
    assert_true(ts_file_same("a", "./b"));
    assert_false(ts_file_same("a", "none"));
    assert_false(ts_file_same("none", "none"));
    assert_int_equal(ts_file_free_bytes("new.json", &bytes, &err), TS_OK);
    assert_true(bytes > 0);
    assert_int_equal(ts_file_free_bytes("no/new.json", &bytes, &err), TS_ERR_IO);
    assert_string_equal(err.message,
                        "cannot tell the free space of folder 'no': No such file or directory");
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmp_setup, tmp_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(put_and_get),         IN_FOLDER(nothing_before_commit),
        IN_FOLDER(links_are_followed),  IN_FOLDER(targets_that_are_none),
        IN_FOLDER(read_only_targets),   IN_FOLDER(writers_do_not_collide),
        IN_FOLDER(long_names),          IN_FOLDER(full_disk),
        IN_FOLDER(append_and_continue), IN_FOLDER(commit_over_file_systems),
        IN_FOLDER(one_writer),          IN_FOLDER(lock_has_no_gap),
        IN_FOLDER(extensions),          IN_FOLDER(same_and_free),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
