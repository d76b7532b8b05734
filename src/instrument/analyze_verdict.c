/* Owns the verdict and its wording: what was found, against which threshold, and what would change it. */
#include "instrument/analyze.h"

#include <math.h>
#include <stdio.h>

const char *ts_verdict_name(enum ts_verdict verdict) {
    static const char *const names[] = {"undecided", "a neuron cache is plausible", "a dead end"};

    return names[verdict];
}

const char *ts_set_name(int set) {
    static const char *const names[TS_CENSUS_SETS] = {"512", "1024", "2048", "4096", "1 %",
                                                      "2 %", "5 %",  "10 %", "20 %"};

    return names[set];
}

/* 10 % of the width; else, in a census without detail, the fixed set whose chance level is nearest to 10 %. */
static int pick_set(const ts_analyze_row *mean) {
    const double *overlap = mean->value + TS_COL_OVERLAP, *chance = mean->value + TS_COL_CHANCE;
    double best = INFINITY;
    int set = -1;

    if (!isnan(overlap[TS_SET_10_PERCENT]))
        return TS_SET_10_PERCENT;
    for (int j = 0; j < TS_CENSUS_FIXED; j++) {
        double distance = fabs(log(chance[j] / 0.1));

        if (!isnan(overlap[j]) && chance[j] < 1 && distance < best) {
            best = distance;
            set = j;
        }
    }
    return set;
}

static char *next_line(ts_analyze_verdict *v) {
    return v->why[v->n_why++];
}

static void explain_overlap(ts_analyze_verdict *v) {
    if (v->set < 0)
        snprintf(next_line(v), sizeof v->why[0], "no overlap of consecutive passes was counted");
    else
        snprintf(next_line(v), sizeof v->why[0],
                 "overlap of consecutive passes at K = %s is %.3f, chance %.3f (high: at least %.1f and %.0f x "
                 "chance): %s",
                 ts_set_name(v->set), v->overlap, v->chance, TS_VERDICT_OVERLAP, TS_VERDICT_CHANCE,
                 ts_overlap_is_high(v->overlap, v->chance) ? "high" : "not high");
}

static void explain_change(ts_analyze_verdict *v) {
    char *line = next_line(v);
    size_t size = sizeof v->why[0];

    if (isnan(v->n95_percent))
        snprintf(line, size, "a census with some mass would change it");
    else if (v->verdict == TS_VERDICT_DEAD_END)
        snprintf(line, size, "an n95 below %.0f %% would change it", TS_VERDICT_N95_MANY);
    else if (v->verdict == TS_VERDICT_PLAUSIBLE)
        snprintf(line, size, "an n95 above %.0f %% or a lower overlap would change it", TS_VERDICT_N95_FEW);
    else if (v->n95_percent > TS_VERDICT_N95_FEW)
        snprintf(line, size, "an n95 of at most %.0f %% with high overlap, or of at least %.0f %%, would change it",
                 TS_VERDICT_N95_FEW, TS_VERDICT_N95_MANY);
    else
        snprintf(line, size, "%s would change it",
                 v->set < 0 ? "passes that follow each other in one generation" : "high overlap");
}

void ts_analyze_judge(const ts_analyze_section *s, ts_analyze_verdict *out) {
    const double *mean = s->mean.value;
    int set = pick_set(&s->mean);

    *out = (ts_analyze_verdict){.n95_percent = mean[TS_COL_N95_PERCENT], .set = set, .overlap = NAN, .chance = NAN};
    if (set >= 0) {
        out->overlap = mean[TS_COL_OVERLAP + set];
        out->chance = mean[TS_COL_CHANCE + set];
    }
    out->verdict = ts_verdict_of(out->n95_percent, out->overlap, out->chance);
    if (isnan(out->n95_percent))
        snprintf(next_line(out), sizeof out->why[0], "no block has any mass");
    else
        snprintf(next_line(out), sizeof out->why[0],
                 "n95 is %.1f %% of the width (mean; plausible: up to %.0f %%, a dead end: from %.0f %%)",
                 out->n95_percent, TS_VERDICT_N95_FEW, TS_VERDICT_N95_MANY);
    explain_overlap(out);
    explain_change(out);
}
