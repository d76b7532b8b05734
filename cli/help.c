/* Prints a command's --help from its table of options, 79 columns wide, defaults from the option's
 * own target. Refuses to know any option by name. */
#include "options.h"
#include "cli.h"

#include <string.h>

enum { HELP_INDENT = 30, HELP_WIDTH = 79 };

static void print_default(char *buf, size_t size, const cli_option *o) {
    switch (o->kind) {
    case CLI_I32:
        snprintf(buf, size, "%d", *(const int32_t *)o->target);
        break;
    case CLI_U32:
        snprintf(buf, size, "%u", *(const uint32_t *)o->target);
        break;
    case CLI_FLOAT:
        snprintf(buf, size, "%g", (double)*(const float *)o->target);
        break;
    case CLI_CHOICE:
        snprintf(buf, size, "%s", o->choices[*(const int *)o->target]);
        break;
    case CLI_TEXT:
        snprintf(buf, size, "%s", *(const char *const *)o->target);
        break;
    default:
        snprintf(buf, size, "%s", "");
    }
}

/* Breaks `text` at spaces; the cursor stands at column `column`, further lines start at `indent`.
 */
static void print_wrapped(const char *text, int column, int indent) {
    while (*text) {
        int n = (int)strcspn(text, " ");

        if (column + n > HELP_WIDTH && column > indent) {
            printf("\n%*s", indent, "");
            column = indent;
        }
        printf("%.*s", n, text);
        column += n;
        text += n;
        if (*text == ' ') {
            text++;
            if (column < HELP_WIDTH && *text &&
                column + 1 + (int)strcspn(text, " ") <= HELP_WIDTH) {
                putchar(' ');
                column++;
            } else if (*text) {
                printf("\n%*s", indent, "");
                column = indent;
            }
        }
    }
    putchar('\n');
}

static void print_option(const cli_option *o) {
    char value[128], text[512];
    const char *mark = strstr(o->help, "{}");
    int column = printf(o->dash ? "  -%s, --%s" : "  %s    --%s", o->dash ? o->dash : "", o->name);

    if (o->value)
        column += printf(" %s", o->value);
    if (column > HELP_INDENT - 2) {
        putchar('\n');
        column = 0;
    }
    printf("%*s", HELP_INDENT - column, "");
    if (mark) {
        print_default(value, sizeof(value), o);
        snprintf(text, sizeof(text), "%.*s%s%s", (int)(mark - o->help), o->help, value, mark + 2);
    }
    print_wrapped(mark ? text : o->help, HELP_INDENT, HELP_INDENT);
}

void cli_help(const cli_syntax *syntax) {
    printf("Usage: turbospark %s\n\n", syntax->usage);
    print_wrapped(syntax->about, 0, 0);
    for (size_t g = 0; g < syntax->n_groups; g++) {
        printf("\n%s:\n", syntax->groups[g].title);
        for (size_t i = 0; i < syntax->groups[g].n; i++)
            print_option(&syntax->groups[g].options[i]);
        if (g + 1 == syntax->n_groups)
            print_option(&(cli_option){.dash = "h", .name = "help", .help = "print this text"});
    }
}
