/* `turbospark nodes`: prints a model's site table. Refuses a --site that matches nothing. */
#include "cli.h"
#include "options.h"

#include <stdlib.h>
#include <string.h>

typedef struct nodes {
    cli_common common;
    const char *site;
    int kind; /* enum ts_site_kind, -1 = all */
    bool json;
} nodes;

static int parse(nodes *o, int argc, char **argv) {
    cli_common_table common;
    const cli_option table[] = {
        OPTION(NULL, "site", "KIND", CLI_TEXT, &o->site,
               "only sites of this kind: resid, ffn, experts, ffn_shexp, router or head"),
        OPTION(NULL, "json", NULL, CLI_FLAG, &o->json, "print one JSON object instead of a table"),
    };
    const cli_group groups[] = {CLI_GROUP("Table", table), CLI_GROUP("Model", common.model),
                                CLI_GROUP("Messages", common.output)};
    const cli_syntax syntax = {
        "nodes -m FILE [options]",
        "Prints what can be tapped in a model: one line a site and block, whether its "
        "activation is redirected or asked for, or why it is refused.",
        groups, sizeof(groups) / sizeof(groups[0]), false};
    int n_operands;

    cli_common_options(&o->common, &common);
    return cli_parse(&syntax, argc, argv, &n_operands);
}

static int refuse_kind(const char *site) {
    char kinds[512] = "";
    size_t at = 0;

    for (int k = 0; k < TS_SITE_KIND_COUNT && at < sizeof(kinds); k++)
        at += (size_t)snprintf(kinds + at, sizeof(kinds) - at, "%s'%s'", k ? ", " : "", ts_site_kind_name((enum ts_site_kind)k));
    return cli_usage("--site: expected one of %s, got '%s'", kinds, site);
}

static int check(nodes *o) {
    int code = cli_common_check(&o->common);

    o->kind = -1;
    for (int k = 0; o->site && k < TS_SITE_KIND_COUNT; k++)
        if (strcmp(o->site, ts_site_kind_name((enum ts_site_kind)k)) == 0)
            o->kind = k;
    return code < 0 && o->site && o->kind < 0 ? refuse_kind(o->site) : code;
}

/* Keeps the sites asked for, in order. */
static size_t select_sites(const nodes *o, ts_site *sites, size_t n) {
    size_t kept = 0;

    for (size_t i = 0; i < n; i++)
        if (o->kind < 0 || (int)sites[i].kind == o->kind)
            sites[kept++] = sites[i];
    return kept;
}

static int wider(int width, const char *text) {
    int n = (int)strlen(text);

    return n > width ? n : width;
}

/* A refused block may have no tensor to name. */
static const char *or_dash(const char *text) { return *text ? text : "-"; }

static void print_table(const ts_site *sites, size_t n) {
    int tensor = 6, type = 4, device = 6;

    for (size_t i = 0; i < n; i++) {
        tensor = wider(tensor, sites[i].tensor);
        type = wider(type, sites[i].type);
        device = wider(device, sites[i].device);
    }
    printf("%-14s %5s %-*s %-*s %6s %-*s %s\n", "SITE", "BLOCK", tensor, "TENSOR", type, "TYPE",
           "WIDTH", device, "DEVICE", "HOW");
    for (size_t i = 0; i < n; i++) {
        const ts_site *s = &sites[i];
        char block[16];

        snprintf(block, sizeof(block), s->block < 0 ? "-" : "%d", s->block);
        printf("%-14s %5s %-*s %-*s %6lld %-*s %s%s%s\n", ts_site_kind_name(s->kind), block, tensor,
               or_dash(s->tensor), type, or_dash(s->type), (long long)s->width, device, or_dash(s->device),
               ts_site_how_name(s->how), *s->why ? ": " : "", s->why);
    }
}

static void print_field(const char *name, const char *text) {
    printf(", \"%s\": ", name);
    cli_json_string(stdout, text);
}

static void print_json(const ts_model_info *m, const ts_site *sites, size_t n) {
    fputs("{\"architecture\": ", stdout);
    cli_json_string(stdout, m->architecture);
    print_field("name", m->name);
    printf(", \"blocks\": %d, \"sites\": [", m->n_layer);
    for (size_t i = 0; i < n; i++) {
        const ts_site *s = &sites[i];

        printf("%s\n{\"site\": \"%s\", \"block\": ", i ? "," : "", ts_site_kind_name(s->kind));
        if (s->block < 0)
            fputs("null", stdout);
        else
            printf("%d", s->block);
        print_field("tensor", s->tensor);
        print_field("type", s->type);
        printf(", \"width\": %lld", (long long)s->width);
        print_field("device", s->device);
        print_field("how", ts_site_how_name(s->how));
        print_field("why", s->why);
        putchar('}');
    }
    puts("\n]}");
}

static int show(const nodes *o, ts_session *session) {
    ts_model_info info;
    ts_site *sites = NULL;
    size_t n = 0;
    ts_error err;
    int code = CLI_DONE;

    if (ts_session_model_info(session, &info, &err) != 0 ||
        ts_session_sites(session, &sites, &n, &err) != 0)
        return cli_fail_error(&err);
    n = select_sites(o, sites, n);
    if (n == 0)
        code = cli_fail("'%s' (architecture '%s') has no %s%ssite", o->common.model,
                        info.architecture, o->site ? o->site : "", o->site ? " " : "");
    else if (o->json)
        print_json(&info, sites, n);
    else
        print_table(sites, n);
    ts_free(sites);
    return code;
}

int cmd_nodes(int argc, char **argv) {
    nodes o = {0};
    ts_session_options opts;
    ts_session *session = NULL;
    ts_error err;
    int code = parse(&o, argc, argv);

    if (code < 0)
        code = check(&o);
    if (code >= 0)
        return code;
    cli_session_options(&o.common, &opts);
    code = ts_session_open(&opts, &session, &err) == 0 ? show(&o, session) : cli_fail_error(&err);
    ts_session_close(session);
    return code;
}
