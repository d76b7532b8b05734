/* Extracts directions from raw float files, for tests/oracle/test_direction.py.
 *
 *   direction_of METHOD LAYERS HIDDEN POSITIVE NEGATIVE OUT [CONTROL]
 *
 * POSITIVE, NEGATIVE: f32 [n][layers][hidden]. OUT: f32 [layers][hidden]. CONTROL: one for each
 * layer, as OUT. Prints one line a layer: norm, separation, share, removed share, auc,
 * cos_previous, eigen_gap, mean_positive, mean_negative. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "stats/direction.h"

typedef struct raw {
    float *x;
    int32_t n_layers, n_hidden;
} raw;

static int read_raw(void *user, int64_t snapshot, int32_t layer, int32_t n_layers, float *rows,
                    ts_error *err) {
    const raw *r = user;
    size_t width = (size_t)r->n_hidden;

    (void)err;
    memcpy(rows, r->x + ((size_t)snapshot * (size_t)r->n_layers + (size_t)layer) * width,
           (size_t)n_layers * width * sizeof *rows);
    return TS_OK;
}

static float *load(const char *path, size_t *n) {
    ts_error err = {0};
    char *bytes;

    if (ts_file_get(path, (size_t)4 << 30, &bytes, n, &err)) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    *n /= sizeof(float);
    return (float *)(void *)bytes;
}

static void print_block(const ts_direction_block *b) {
    printf("%.17g %.17g %.17g %.17g %.17g %.17g %.17g %.17g %.17g\n", b->norm, b->separation,
           b->share, b->removed_share, b->auc, b->cos_previous, b->eigen_gap, b->mean_positive,
           b->mean_negative);
}

int main(int argc, char **argv) {
    ts_direction_options o = {.n_threads = 2};
    ts_direction_set set[2];
    const float *control[1024] = {0};
    float *x = NULL;
    raw r[2];
    ts_direction *d;
    ts_error err = {0};
    int32_t layers, hidden;
    size_t n;

    if (argc < 7 || !ts_direction_method_find(argv[1], &o.method))
        return 2;
    layers = atoi(argv[2]);
    hidden = atoi(argv[3]);
    for (int i = 0; i < 2; i++) {
        r[i] = (raw){load(argv[4 + i], &n), layers, hidden};
        set[i] = (ts_direction_set){
            argv[4 + i], (int64_t)(n / (size_t)(layers * hidden)), layers, hidden, read_raw, &r[i]};
    }
    if (argc > 7) {
        x = load(argv[7], &n);
        for (int32_t l = 0; l < layers && l < 1024; l++)
            control[l] = x + (size_t)(l * hidden);
        o.orthogonal = control;
    }
    if (ts_direction_extract(&set[0], &set[1], &o, &d, &err) ||
        ts_file_put(argv[6], d->d, (size_t)(layers * hidden) * sizeof *d->d, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (int32_t l = 0; l < layers; l++)
        print_block(&d->blocks[l]);
    ts_direction_free(d);
    free(x);
    for (int i = 0; i < 2; i++)
        ts_free(r[i].x);
    return 0;
}
