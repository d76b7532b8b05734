/* Capturing a long corpus takes no more memory than a short one: rows, token ids and pieces go to disk as they come. */
#include "spawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define LIMIT_KIB (64 * 1024)

static char model[1024];

/* Peak of the command, KiB. */
static long peak(size_t n_prompts, const char *output) {
    char corpus[1024];
    struct rusage usage;
    snprintf(corpus, sizeof(corpus), "%s", spawn_corpus("corpus.jsonl", n_prompts));
    const char *argv[] = {"", "capture", "-m", model, "-i", corpus, "-o", e2e_path(output), "-t", "1", "-q", "--overwrite", NULL};
    assert_int_equal(spawn_wait(spawn_cli(argv), &usage), 0);
    return usage.ru_maxrss;
}

static void compare(const char *output, const char *data) {
    struct stat st;
    long few = peak(200, output), many = peak(20000, output);
    assert_int_equal(stat(e2e_path(data), &st), 0);
    print_message("  %s: 200 prompts %ld KiB, 20000 prompts %ld KiB, result %ld KiB\n", output, few, many, (long)(st.st_size / 1024));
    assert_true(many - few <= LIMIT_KIB);
    assert_true(many - few < st.st_size / 1024 / 4); /* and far below what it wrote */
}

static void test_pair(void **state) {
    (void)state;
    compare("out.json", "out.f32");
}

static void test_safetensors(void **state) {
    (void)state;
    compare("out.safetensors", "out.safetensors");
}

int main(void) {
    if (!getenv("TS_CLI")) return E2E_SKIP;
    snprintf(model, sizeof(model), "%s", spawn_tiny("llama", NULL));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pair),
        cmocka_unit_test(test_safetensors),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    e2e_remove_tmp();
    return failed;
}
