/* Prints a comparison as a table that says what decided it, and writes its raw samples as JSON. */
#include "bench.h"
#include "cli.h"

#include <math.h>

static void print_verdict(const bench_plan *plan, size_t arm) {
    bench_cost cost = bench_compare(plan, arm, 0);

    printf("%s costs %.2f %%%s\n", plan->arms[arm].name, cost.median,
           bench_told(plan, arm) ? "" : ": no difference that can be told");
}

void bench_print_table(const bench_plan *plan) {
    bool few = plan->repetitions < BENCH_MIN_ROUNDS;

    printf("%s\n\n%-20s %10s %10s   %s\n", plan->title, "arm", "tokens/s", "cost %",
           few ? "whole range" : "95 % interval");
    for (size_t a = 0; a < plan->n_arms; a++) {
        printf("%-20s %10.1f", plan->arms[a].name, bench_median_rate(plan, a));
        if (a == 0) {
            printf(" %10s   -\n", "-");
        } else {
            bench_cost c = bench_compare(plan, a, 0);

            printf(" %+10.2f   %+.2f .. %+.2f\n", c.median, c.low, c.high);
        }
    }
    printf("\ntokens/s: median of the rounds. cost: time over the first arm's in the same\n"
           "round; median of the rounds, and %s\n",
           few ? "their whole range: fewer than 6 rounds have no\n95 % interval, and tell no "
                 "difference."
               : "the interval that holds the true median in 95\nof 100 such runs.");
    printf("one round of %s differs from itself by %.2f %%\n", plan->arms[0].name,
           bench_spread(plan));
    for (size_t a = 2; a < plan->n_arms; a++)
        print_verdict(plan, a);
}

static void write_cost(FILE *out, const bench_plan *plan, size_t arm) {
    bench_cost c = bench_compare(plan, arm, 0);

    fprintf(out, ", \"cost_percent\": {\"median\": %.6g, \"low\": %.6g, \"high\": %.6g}", c.median,
            c.low, c.high);
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

int bench_json_write(const bench_plan *plan, const char *path) {
    cli_text text;

    if (!path)
        return CLI_DONE;
    if (!cli_text_open(&text))
        return cli_fail("out of memory");
    write_plan(text.file, plan);
    return cli_text_save(&text, path);
}
