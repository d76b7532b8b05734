/* The progress bar of commands that walk a corpus. */
#include "progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "cli.h"

enum { BAR_WIDTH = 24 };

const char *cli_bytes_text(uint64_t bytes, char buf[32]) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t unit = 0;

    for (; value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
        value /= 1024;
    snprintf(buf, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return buf;
}

static double now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void cli_progress_draw(cli_progress *bar, const ts_progress *p) {
    double done = p->tokens_total ? (double)p->tokens_done / (double)p->tokens_total : 1;
    double rate = p->seconds > 0 ? (double)(p->tokens_done - p->tokens_resumed) / p->seconds : 0;
    bool last = p->tokens_done >= p->tokens_total;
    int filled = (int)(done * BAR_WIDTH);
    long left = rate > 0 ? (long)((double)(p->tokens_total - p->tokens_done) / rate + 0.5) : 0;

    if (!bar->drawing || (!last && now() - bar->drawn_at < 0.1))
        return;
    bar->drawn = true;
    bar->drawn_at = now();
    fprintf(stderr, "\r[%.*s%.*s] %3d %%  %.0f tokens/s, %ld:%02ld:%02ld left ", filled,
            "########################", BAR_WIDTH - filled, "........................",
            (int)(done * 100), rate, left / 3600, left / 60 % 60, left % 60);
    fflush(stderr);
}

void cli_progress_end(cli_progress *bar) {
    if (bar->drawn)
        fputc('\n', stderr);
    bar->drawn = false;
}

void cli_note_skipped(uint64_t n_lines) {
    if (n_lines)
        cli_note("%" PRIu64 " empty line%s skipped", n_lines, cli_plural(n_lines));
}
