/* `turbospark kld`: two dumps of logits compared, without a model. */
#include "cli.h"
#include "options.h"
#include "progress.h"

#include <inttypes.h>
#include <string.h>

typedef struct kld {
    const char *floor, *json;
    bool progress, quiet, verbose;
    cli_progress bar;
} kld;

static int parse(kld *o, int argc, char **argv, int *n_operands) {
    const cli_option table[] = {
        OPTION(NULL, "floor", "A2", CLI_TEXT, &o->floor,
               "A dumped once more: also compare A with it, which tells what a difference means"),
        OPTION(NULL, "json", "FILE", CLI_TEXT, &o->json, "also write the result there as JSON"),
        CLI_PROGRESS_OPTION(&o->progress),
        OPTION("q", "quiet", NULL, CLI_FLAG, &o->quiet, "errors only on stderr"),
        OPTION("v", "verbose", NULL, CLI_FLAG, &o->verbose, "also informational lines on stderr"),
    };
    const cli_group groups[] = {CLI_GROUP("Options", table)};
    const cli_syntax syntax = {
        "kld A B [options]",
        "Compares two folders of 'turbospark logits' made of the same tokens: KL divergence both "
        "ways in nats, agreement of the most likely token, perplexity, where they first part.",
        groups, 1, true};

    return cli_parse(&syntax, argc, argv, n_operands);
}

/* --json must not name a file of a dump. */
static int keep_dumps(const kld *o, const char *a, const char *b) {
    static const char *const names[] = {"", "/meta.json", "/logits.f16", "/logits.f32"};
    const char *const dumps[] = {a, b, o->floor};
    char path[4096];
    int code = -1;

    for (size_t i = 0; o->json && i < 12 && code < 0; i++) {
        if (!dumps[i / 4])
            continue;
        if (snprintf(path, sizeof(path), "%s%s", dumps[i / 4], names[i % 4]) < (int)sizeof(path))
            code = cli_keep_input(o->json, "dump to compare", path);
    }
    return code;
}

static void print(const char *label, const ts_kld_result *r, double pair, double floor) {
    char line[128];
    int n = snprintf(line, sizeof(line), "%-22s", label);

    n += snprintf(line + n, sizeof(line) - (size_t)n, " %14.6g", pair);
    if (r->has_floor)
        n += snprintf(line + n, sizeof(line) - (size_t)n, " %14.6g", floor);
    line[n++] = '\n';
    cli_out(line, (size_t)n);
}

static void print_stats(const char *name, const ts_kld_result *r, const ts_kld_stats *pair,
                        const ts_kld_stats *floor) {
    char label[32];
    const char *const names[] = {"mean", "median", "99 %", "max"};
    const double values[][2] = {{pair->mean, floor->mean},
                                {pair->median, floor->median},
                                {pair->p99, floor->p99},
                                {pair->max, floor->max}};

    for (size_t i = 0; i < 4; i++) {
        snprintf(label, sizeof(label), "%-10s %s", i ? "" : name, names[i]);
        print(label, r, values[i][0], values[i][1]);
    }
}

static void print_parting(const char *name, const ts_kld_pair *p) {
    char line[160];
    int n;

    if (p->parted_row < 0)
        n = snprintf(line, sizeof(line), "%s never part: the same top token in every row%s\n", name,
                     p->identical ? ", equal to the bit" : "");
    else
        n = snprintf(line, sizeof(line),
                     "%s first part at token %" PRId64 ": top %" PRId32 " and %" PRId32
                     ", text %" PRId32 "\n",
                     name, p->parted_row + 1, p->parted_top[0], p->parted_top[1], p->parted_token);
    cli_out(line, (size_t)n);
}

static void print_result(const ts_kld_result *r) {
    const ts_kld_pair *p = &r->pair, *f = &r->floor;
    char line[160];
    int n = snprintf(line, sizeof(line),
                     "%" PRId64 " of %" PRId64 " rows compared, from row %" PRId64
                     "; vocabulary %" PRId32 "\n\n%-22s %14s%s\n",
                     r->n_rows - r->first_scored_position, r->n_rows, r->first_scored_position,
                     r->n_vocab, "", "A and B", r->has_floor ? "       A and A2" : "");

    cli_out(line, (size_t)n);
    print_stats("KL(A|B)", r, &p->forward, &f->forward);
    print_stats("KL(B|A)", r, &p->backward, &f->backward);
    print("same top token, %", r, 100 * p->agreement, 100 * f->agreement);
    print("perplexity of A", r, p->perplexity[0], f->perplexity[0]);
    print(r->has_floor ? "perplexity of B, A2" : "perplexity of B", r, p->perplexity[1],
          f->perplexity[1]);
    if (p->n_outside || f->n_outside) {
        print("rows with -inf apart", r, (double)p->n_outside, (double)f->n_outside);
        print("most probability there", r, p->max_outside, f->max_outside);
    }
    cli_out("\n", 1);
    print_parting("A and B", p);
    if (r->has_floor)
        print_parting("A and A2", f);
}

static void on_progress(const ts_progress *p, void *user) {
    cli_progress_draw(&((kld *)user)->bar, p);
}

static int compare(kld *o, const char *a, const char *b) {
    ts_kld_options opts = TS_OPTIONS_INIT(ts_kld_options);
    ts_kld_result result;
    ts_error err = {0};
    int code = keep_dumps(o, a, b);

    if (code >= 0)
        return code;
    opts.a = a;
    opts.b = b;
    opts.floor = o->floor;
    opts.json_path = o->json;
    opts.on_progress = on_progress;
    opts.user = o;
    opts.stop = cli_stop_flag();
    int rc = ts_kld_run(&opts, &result, &err);
    cli_progress_end(&o->bar);
    if (rc != 0)
        return cli_fail_error(&err);
    print_result(&result);
    return CLI_DONE;
}

int cmd_kld(int argc, char **argv) {
    kld o = {0};
    int n_operands, code = parse(&o, argc, argv, &n_operands);

    if (code >= 0)
        return code;
    cli_verbosity(o.quiet, o.verbose);
    o.bar.drawing = cli_wants_progress(o.progress);
    return n_operands == 2 ? compare(&o, argv[1], argv[2])
                           : cli_usage("expected two dumps to compare, got %d", n_operands);
}
