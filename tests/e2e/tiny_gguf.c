/*
 * tiny_gguf.c: command that writes a tiny random model as a GGUF file, for tests that need a path.
 *
 * usage: tiny_gguf ARCH PATH [key=value]...   keys are tiny_opts' fields; `tiny_gguf --list` names
 * them Owns: the option parsing. Refuses: what tiny_save refuses.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-backend.h"
#include "llama.h"
#include "tiny.h"

static void quiet(enum ggml_log_level level, const char *text, void *userdata) {
    (void)userdata;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static bool set_option(tiny_opts *o, const char *arg) {
    const struct {
        const char *key;
        uint32_t *value;
    } fields[] = {
        {"n_layer", &o->n_layer},
        {"n_embd", &o->n_embd},
        {"n_ff", &o->n_ff},
        {"n_head", &o->n_head},
        {"n_head_kv", &o->n_head_kv},
        {"n_ctx_train", &o->n_ctx_train},
        {"n_vocab", &o->n_vocab},
        {"n_expert", &o->n_expert},
        {"n_expert_used", &o->n_expert_used},
        {"dead_of_8", &o->dead_of_8},
        {"nan_block", &o->nan_block},
    };
    const char *eq = strchr(arg, '=');
    char *end = NULL;
    if (!eq)
        return false;
    const unsigned long long v = strtoull(eq + 1, &end, 10);
    if (end == eq + 1 || *end)
        return false;
    const size_t n = (size_t)(eq - arg);
    if (n == 4 && strncmp(arg, "seed", n) == 0) {
        o->seed = v;
        return true;
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strlen(fields[i].key) == n && strncmp(arg, fields[i].key, n) == 0 && v <= UINT32_MAX) {
            *fields[i].value = (uint32_t)v;
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv) {
    tiny_opts opts = {0};
    const char *err = "failed";
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const char *const *name = tiny_arch_names; *name; name++)
            puts(*name);
        return 0;
    }
    if (argc < 3) {
        fputs("usage: tiny_gguf ARCH PATH [key=value]... | tiny_gguf --list\n", stderr);
        return 2;
    }
    for (int i = 3; i < argc; i++) {
        if (!set_option(&opts, argv[i])) {
            fprintf(stderr, "tiny_gguf: bad option '%s'\n", argv[i]);
            return 2;
        }
    }
    llama_log_set(quiet, NULL);
    ggml_backend_load_all();
    if (!tiny_save(argv[1], &opts, argv[2], &err)) {
        fprintf(stderr, "tiny_gguf: '%s': %s\n", argv[1], err);
        return 1;
    }
    return 0;
}
