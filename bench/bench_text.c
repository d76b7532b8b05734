/* What reading a text for the census costs: the same batches with every token an output, untapped and counted, one after
 * the other in one process. Prints tokens a second of each pair and the median ratio.
 *
 *   bench_text MODEL TEXT [PAIRS [THREADS]] */
#include <stdio.h>
#include <stdlib.h>

#include <turbospark/turbospark.h>

enum { MAX_PAIRS = 101 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Tokens a second; negative after an error, which is printed. */
static double read_text(const ts_session *base, const char *text, int threads, bool tapped) {
    ts_error err = {0};
    ts_session *s = NULL;
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    ts_census_options o = TS_OPTIONS_INIT(ts_census_options);
    ts_census_result r = {0};
    so.share = base;
    so.n_threads = threads;
    o.input_path = text;
    o.text = true;
    o.no_tap = !tapped;
    int rc = ts_session_open(&so, &s, &err);
    if (rc == TS_OK) rc = ts_census_run(s, &o, &r, &err);
    ts_session_close(s);
    if (rc == TS_OK) return (double)r.n_tokens / r.seconds;
    fprintf(stderr, "bench_text: %s\n", err.message);
    return -1;
}

int main(int argc, char **argv) {
    int pairs = argc > 3 ? atoi(argv[3]) : 9, threads = argc > 4 ? atoi(argv[4]) : 2;
    double ratio[MAX_PAIRS];
    ts_error err = {0};
    ts_session *base = NULL;
    ts_session_options so = TS_OPTIONS_INIT(ts_session_options);
    if (argc < 3 || pairs < 1 || pairs > MAX_PAIRS) {
        fprintf(stderr, "usage: bench_text MODEL TEXT [PAIRS [THREADS]]\n");
        return 2;
    }
    so.model_path = argv[1];
    if (ts_session_open(&so, &base, &err) != TS_OK) {
        fprintf(stderr, "bench_text: %s\n", err.message);
        return 1;
    }
    read_text(base, argv[2], threads, true); /* warm */
    for (int i = 0; i < pairs; i++) {
        double plain = 0, counted = 0;
        for (int k = 0; k < 2; k++) { /* the order alternates */
            bool tapped = (i + k) % 2;
            *(tapped ? &counted : &plain) = read_text(base, argv[2], threads, tapped);
        }
        if (plain < 0 || counted < 0) return 1;
        ratio[i] = counted / plain;
        printf("pair %2d: untapped %8.1f, census %8.1f tokens/s, ratio %.3f\n", i + 1, plain, counted, ratio[i]);
    }
    qsort(ratio, (size_t)pairs, sizeof(ratio[0]), by_value);
    printf("census --text keeps %.1f %% of the untapped tokens/s (median of %d pairs; %.1f to %.1f)\n", 100 * ratio[pairs / 2], pairs,
           100 * ratio[0], 100 * ratio[pairs - 1]);
    ts_session_close(base);
    return 0;
}
