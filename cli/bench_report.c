/* Prints a comparison as a table that says what decided it, and writes its raw samples as JSON. */
#include "bench.h"
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

static void print_verdict(const bench_plan *plan, size_t arm, double spread) {
    double cost = bench_compare(plan, arm, 0).median;

    printf("%s costs %.2f %%%s\n", plan->arms[arm].name, cost,
           fabs(cost) <= spread ? ": no difference that can be told" : "");
}

void bench_print_table(const bench_plan *plan) {
    double spread = bench_spread(plan);

    printf("%s\n\n%-20s %10s %10s %10s %10s\n", plan->title, "arm", "tokens/s", "cost %", "min %",
           "max %");
    for (size_t a = 0; a < plan->n_arms; a++) {
        printf("%-20s %10.1f", plan->arms[a].name, bench_median_rate(plan, a));
        if (a == 0) {
            printf(" %10s %10s %10s\n", "-", "-", "-");
        } else {
            bench_cost c = bench_compare(plan, a, 0);

            printf(" %+10.2f %+10.2f %+10.2f\n", c.median, c.min, c.max);
        }
    }
    puts("\ntokens/s: median of the rounds. cost: time over the first arm's in the same\n"
         "round; median, least and largest of the rounds.");
    printf("spread of %s against itself: %.2f %%\n", plan->arms[0].name, spread);
    for (size_t a = 2; a < plan->n_arms; a++)
        print_verdict(plan, a, spread);
}

static void write_cost(FILE *out, const bench_plan *plan, size_t arm) {
    bench_cost c = bench_compare(plan, arm, 0);

    fprintf(out, ", \"cost_percent\": {\"median\": %.6g, \"min\": %.6g, \"max\": %.6g}", c.median,
            c.min, c.max);
}

static void write_plan(FILE *out, const bench_plan *plan) {
    fprintf(out, "{\"turbospark\": \"%s\", \"llama_cpp\": \"%s\", \"model\": ", ts_version(),
            ts_engine_version());
    cli_json_string(out, plan->info->description);
    fprintf(
        out,
        ", \"model_bytes\": %llu, \"threads\": %d, \"n_ubatch\": %u, \"work\": \"%s\", \"title\": ",
        (unsigned long long)plan->info->size_bytes, plan->common->n_threads, plan->common->n_ubatch,
        plan->work);
    cli_json_string(out, plan->title);
    fprintf(out, ", \"repetitions\": %d, \"spread_percent\": %.6g, \"arms\": [", plan->repetitions,
            bench_spread(plan));
    for (size_t a = 0; a < plan->n_arms; a++) {
        fprintf(out, "%s\n{\"name\": ", a ? "," : "");
        cli_json_string(out, plan->arms[a].name);
        fprintf(out, ", \"median_tokens_per_s\": %.6g", bench_median_rate(plan, a));
        write_cost(out, plan, a);
        fputs(", \"tokens_per_s\": [", out);
        for (int32_t r = 0; r < plan->repetitions; r++)
            fprintf(out, "%s%.6g", r ? ", " : "", plan->arms[a].tokens_per_s[r]);
        fputs("]}", out);
    }
    fputs("\n]}\n", out);
}

static bool part_path(char part[4096], const char *path) {
    return snprintf(part, 4096, "%s.part", path) < 4096;
}

int bench_json_open(const char *path, FILE **out) {
    char part[4096];

    *out = NULL;
    if (!path)
        return CLI_DONE;
    errno = ENAMETOOLONG;
    if (!part_path(part, path) || !(*out = fopen(part, "w")))
        return cli_fail("cannot write '%s': %s", path, strerror(errno));
    return CLI_DONE;
}

void bench_json_discard(const char *path, FILE *out) {
    char part[4096];

    if (out) {
        fclose(out);
        if (part_path(part, path))
            unlink(part);
    }
}

int bench_json_finish(const bench_plan *plan, const char *path, FILE *out) {
    char part[4096];

    if (!out)
        return CLI_DONE;
    part_path(part, path);
    write_plan(out, plan);
    if (fflush(out) != 0 || ferror(out) || fsync(fileno(out)) != 0 || rename(part, path) != 0) {
        cli_fail("cannot write '%s': %s", path, strerror(errno));
        bench_json_discard(path, out);
        return CLI_FAILED;
    }
    fclose(out);
    return CLI_DONE;
}
