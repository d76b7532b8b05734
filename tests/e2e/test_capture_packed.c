/* Packed corpus capture on the real model: 64 prompts of 1 to 700 tokens equal the exact capture row by row, with their
 * positions and token ids; a prompt in chunks of any size gives the snapshot of the whole, and no neighbour's. */
#include "real_f32.h"
#include "rows.h"

#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Relative L2 of a layer's row, f32 weights and plain attention. (ggml's flash attention on the CPU sums a lone token's
 * values in f16 and a batch's in f32: about 4e-3 between them.) */
#define TOLERANCE 2e-3
#define F32_BLOCKS 12 /* of 30: f32 products are slow */
/* The file's quantised weights have llama.cpp round activations to 8 bits before each product, so that one last bit's
 * difference grows to a few per cent of a row; see real_f32.h. Rows of two tokens differ by more. */
#define TOLERANCE_QUANTISED 0.12
#define DISTINCT 0.2

/* The model of the file, and with f32 weights. */
static ts_session *quantised, *precise;
static struct llama_model *f32_model;

static const char *const words[] = {"the",   "river", "house", "stone", "light", "green", "story", "music", "winter", "table", "paper",
                                    "train", "ocean", "night", "bread", "cloud", "field", "horse", "glass", "city",   "voice", "road"};

/* Words until the text has `want` tokens; each of them is one token after a space. */
static char *make_text(size_t want, unsigned seed) {
    size_t n_words = sizeof(words) / sizeof(words[0]), size = want * 16 + 16, used = 0;
    char *text = calloc(size, 1);
    assert_non_null(text);
    for (size_t i = 0; i < want; i++) {
        seed = seed * 1664525u + 1013904223u;
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? " " : "", words[(seed >> 16) % n_words]);
    }
    return text;
}

/* The prompt list of issue 2, case 4, as text lines; its token ids, as the session makes them, into *ids. */
static const char *write_prompts(json_t **ids) {
    static const size_t special[] = {700, 1, 2, 513, 1, 1, 3, 100, 64, 65};
    ts_error err = {0};
    const char *path = e2e_path("prompts.txt");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    *ids = json_array();
    size_t total = 0, shortest = SIZE_MAX, longest = 0;
    for (size_t i = 0; i < 64; i++) {
        size_t at = (i * 37) % 64, n; /* the special ones among the others */
        char *text = make_text(at < 10 ? special[at] : 2 + (at * at * 7) % 24, (unsigned)i + 1);
        int32_t *tokens;
        fprintf(f, "%s\n", text);
        e2e_ok(ts_session_tokenize(quantised, text, strlen(text), 0, &tokens, &n, &err), &err);
        json_t *list = json_array();
        for (size_t k = 0; k < n; k++) json_array_append_new(list, json_integer(tokens[k]));
        json_array_append_new(*ids, list);
        total += n;
        shortest = n < shortest ? n : shortest;
        longest = n > longest ? n : longest;
        ts_free(tokens);
        free(text);
    }
    assert_int_equal(fclose(f), 0);
    print_message("  64 prompts of %zu to %zu tokens, %zu in all\n", shortest, longest, total);
    assert_int_equal(shortest, 1);
    assert_true(longest >= 700);
    return path;
}

static ts_session_options options(const ts_session *of, uint32_t n_ubatch) {
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.share = of;
    so.n_ubatch = n_ubatch;
    so.n_threads = 1; /* a second one waits by spinning, which a busy machine makes slow */
    so.flash_attn = of == precise ? TS_FLASH_OFF : TS_FLASH_AUTO;
    return so;
}

static void packed_is_exact(const ts_session *of, double tolerance) {
    json_t *ids;
    const char *input = write_prompts(&ids);
    ts_session_options so = options(of, 512);
    rows packed, exact;
    rows_make(&so, input, false, "packed.json", &packed);
    rows_make(&so, input, true, "exact.json", &exact);
    rows_check_meta(e2e_path("packed.json"), &packed, ids);
    rows_check_meta(e2e_path("exact.json"), &exact, ids);
    double worst = rows_worst(&packed, &exact);
    print_message("  worst error of a row: %.2e\n", worst);
    assert_true(worst <= tolerance);
    for (int64_t i = 1; i < packed.shape.n_snapshots; i++) /* the measure tells rows apart */
        if (packed.positions[i] != packed.positions[i - 1])
            assert_true(rows_error(rows_at(&packed, i, 10), rows_at(&exact, i - 1, 10), packed.shape.n_hidden) > DISTINCT);
    rows_free(&packed);
    rows_free(&exact);
    json_decref(ids);
}

static void test_packed_is_exact(void **state) {
    (void)state;
    packed_is_exact(precise, TOLERANCE);
}

static void test_packed_quantised(void **state) {
    (void)state;
    packed_is_exact(quantised, TOLERANCE_QUANTISED);
}

/* ---- chunked prefill */

static void snapshot(const ts_session *of, uint32_t n_ubatch, const int32_t *tokens, size_t n, rows *out) {
    ts_error err = {0};
    ts_session_options so = options(of, n_ubatch);
    so.n_ctx = 256;
    ts_session *s = e2e_open(&so);
    ts_resid_options ro = TS_OPTIONS_INIT(ts_resid_options);
    ro.path = e2e_path("snapshot.json");
    e2e_ok(ts_session_attach_resid(s, &ro, &err), &err);
    ts_generate_options g = TS_OPTIONS_INIT(ts_generate_options);
    g.tokens = tokens;
    g.n_tokens = n;
    e2e_ok(ts_session_generate(s, &g, NULL, &err), &err);
    e2e_ok(ts_session_finish(s, &err), &err);
    ts_session_close(s);
    rows_read(ro.path, out);
    assert_int_equal(out->shape.n_snapshots, 1);
    assert_int_equal(out->positions[0], n - 1);
}

static double nearest(const rows *a, const rows *b) {
    double least = 1e30;
    for (int32_t l = 0; l < a->shape.n_layers; l++) {
        double error = rows_error(rows_at(a, 0, l), rows_at(b, 0, l), a->shape.n_hidden);
        if (error < least) least = error;
    }
    return least;
}

/* One token at a time is sequential; chunks of 7 and 32 end inside the prompt, 512 holds it. */
static void chunked_is_sequential(const ts_session *of, double tolerance) {
    static const uint32_t sizes[] = {7, 32, 512};
    static const char text[] =
        "On the night of the great storm the keeper counted seventeen ships before the glass went dark, and in the morning, when "
        "the fishermen came up the path with their nets over their shoulders, he told them that none had been lost, that every "
        "lantern had answered his own, and that the sea, which had been so loud, was now as quiet as a sleeping animal beside "
        "the harbour wall where the children were already";
    ts_error err = {0};
    int32_t *tokens;
    size_t n;
    rows sequential, before;
    e2e_ok(ts_session_tokenize(quantised, text, strlen(text), 0, &tokens, &n, &err), &err);
    assert_in_range(n, 80, 100);
    snapshot(of, 1, tokens, n, &sequential);
    snapshot(of, 512, tokens, n - 1, &before);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        rows chunked;
        snapshot(of, sizes[i], tokens, n, &chunked);
        double error = rows_worst(&chunked, &sequential), neighbour = nearest(&chunked, &before);
        print_message("  -ub %u: %.2e from sequential, %.2f from the token before\n", sizes[i], error, neighbour);
        assert_true(error <= tolerance);
        assert_true(neighbour > DISTINCT); /* so that a row's offset by one would be seen, in every block */
        rows_free(&chunked);
    }
    rows_free(&sequential);
    rows_free(&before);
    ts_free(tokens);
}

static void test_chunked_is_sequential(void **state) {
    (void)state;
    chunked_is_sequential(precise, TOLERANCE);
}

static void test_chunked_quantised(void **state) {
    (void)state;
    chunked_is_sequential(quantised, TOLERANCE_QUANTISED);
}

static int open_models(void **state) {
    (void)state;
    ts_error err = {0};
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    so.model_path = e2e_model_path();
    if (ts_session_open(&so, &quantised, &err) != TS_OK) return -1;
    so.model_path = NULL;
    so.model = f32_model = real_f32_model(e2e_model_path(), F32_BLOCKS);
    return so.model && ts_session_open(&so, &precise, &err) == TS_OK ? 0 : -1;
}

static int close_models(void **state) {
    (void)state;
    ts_session_close(quantised);
    ts_session_close(precise);
    llama_model_free(f32_model);
    e2e_remove_tmp();
    return 0;
}

int main(void) {
    if (!e2e_model_path()) return E2E_SKIP;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunked_is_sequential),
        cmocka_unit_test(test_chunked_quantised),
        cmocka_unit_test(test_packed_is_exact),
        cmocka_unit_test(test_packed_quantised),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
