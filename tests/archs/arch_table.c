/* The table as Markdown. Owns its words; the facts come from arch_check. */
#include "arch_table.h"

#include <string.h>

static const arch_result *result_of(const arch_entry *e) {
    if (!e->memory) return NULL;
    return e->memory->result.done ? &e->memory->result : &e->file->result;
}

static int usable(const arch_cell *c) { return c->n_redirected + c->n_asked; }

static bool captures(const arch_entry *e, int kind) {
    const arch_result *r = result_of(e);
    return r && r->same && usable(&r->cells[kind]) > 0;
}

static void print_cell(FILE *out, const arch_result *r, int kind) {
    const arch_cell *c = &r->cells[kind];
    const char *word = c->n_redirected && c->n_asked ? "both" : c->n_redirected ? "redirected" : c->n_asked ? "asked" : c->n_refused ? "refused" : "";
    fprintf(out, " %s", word);
    if (usable(c) && c->n_refused) fprintf(out, " %d of %d", usable(c), usable(c) + c->n_refused);
    fputs(" |", out);
}

static bool same_cells(const arch_result *a, const arch_result *b) { return memcmp(a->cells, b->cells, sizeof(a->cells)) == 0; }

/* Memory and file are expected to say the same; what differs is told. */
static void print_note(FILE *out, const arch_entry *e) {
    const arch_result *m = &e->memory->result, *f = &e->file->result, *r = result_of(e);
    const char *gap = "";
    if (!m->done && f->done) {
        fprintf(out, "as a file only (in memory %s)", m->note);
        gap = "; ";
    }
    if (r->note[0]) {
        fprintf(out, "%s%s", gap, r->note);
        gap = "; ";
    }
    if (m->same && (!f->same || !same_cells(m, f))) {
        fprintf(out, "%sas a file: %s", gap, f->note[0] ? f->note : "other sites");
        gap = "; ";
    }
    if (e->row->remark) fprintf(out, "%s%s", gap, e->row->remark);
}

static void print_row(FILE *out, const arch_entry *e) {
    static const int columns[] = {TS_SITE_RESID, TS_SITE_FFN, TS_SITE_EXPERTS, TS_SITE_FFN_SHEXP, TS_SITE_ROUTER};
    const arch_result *r = result_of(e);
    fprintf(out, "| %s | %s |", e->row->arch, e->row->variant ? e->row->variant : "");
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++)
        if (r && r->opened)
            print_cell(out, r, columns[i]);
        else
            fputs(i ? " |" : " refused |", out);
    fputc(' ', out);
    if (r)
        print_note(out, e);
    else
        fputs(e->row->remark, out);
    fputs(" |\n", out);
}

static arch_counts count(const arch_entry *entries, size_t n) {
    arch_counts c = {0};
    for (size_t i = 0, next; i < n; i = next) {
        bool resid = false, ffn = false;
        for (next = i; next < n && strcmp(entries[next].row->arch, entries[i].row->arch) == 0; next++) {
            const arch_result *r = result_of(&entries[next]);
            resid = resid || captures(&entries[next], TS_SITE_RESID);
            ffn = ffn || captures(&entries[next], TS_SITE_FFN) || captures(&entries[next], TS_SITE_EXPERTS);
            c.n_models += r != NULL;
            c.wrong += r && ((r->opened && !r->same) || (entries[next].file->result.opened && !entries[next].file->result.same));
        }
        c.n_archs++;
        c.resid += resid;
        c.ffn += ffn;
        c.refused += !resid && !ffn;
    }
    return c;
}

void arch_table_print(FILE *out, const arch_entry *entries, size_t n, arch_counts *counts) {
    *counts = count(entries, n);
    fprintf(out,
            "# Architectures\n\n"
            "Written by `make test-archs UPDATE=1`; `make test-archs` fails when it no longer matches.\n\n"
            "llama.cpp v0.5.0 names %d architectures. Of %d the residual stream is captured (`resid`), of %d the FFN\n"
            "(`ffn`, or `experts` in a mixture of experts); %d are refused, for the reason in the last column.\n\n",
            counts->n_archs, counts->resid, counts->ffn, counts->refused);
    fprintf(out,
            "Each of the %d tiny random models below was built in memory and written as a file, in a process of its own. Its\n"
            "rows were taken redirected, asked for, and without this library by stepping through the graph node by node:\n"
            "the same bits, in prefill and in decode, with `-ub` 4 and 32, and the logits those of a run that nobody taps.\n"
            "*redirected* and *asked* say how a row is taken (turbospark-nodes(1)); an empty cell is a block part that the\n"
            "architecture does not have.\n\n"
            "| architecture | model | resid | ffn | experts | ffn_shexp | router | note |\n"
            "|---|---|---|---|---|---|---|---|\n",
            counts->n_models);
    for (size_t i = 0; i < n; i++) print_row(out, &entries[i]);
}
