/* Shared by the end-to-end tests: the model's path, sessions over one loaded model, temporary folders. */
#ifndef TS_E2E_H
#define TS_E2E_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <turbospark/turbospark.h>

#define E2E_SKIP 77

/* What one generation gave: its text, and a hash over the logits of every pass. */
typedef struct e2e_outcome {
    char text[8192];
    size_t length;
    uint64_t logits; /* start with E2E_HASH */
    int n_passes;
} e2e_outcome;

/* TS_MODEL or NULL. */
const char *e2e_model_path(void);
/* Opens a session or fails the test with the library's message. */
ts_session *e2e_open(const ts_session_options *opts);
/* Checks rc == TS_OK and prints the message otherwise. */
#define e2e_ok(rc, err) e2e_check((rc), (err), __FILE__, __LINE__)
void e2e_check(int rc, const ts_error *err, const char *file, int line);

/* Generates from `prompt`, greedily or sampled, past an end of generation; adds to *o. */
void e2e_generate(ts_session *s, const char *prompt, int32_t n_predict, bool sampled, e2e_outcome *o);
void e2e_assert_same(const e2e_outcome *a, const e2e_outcome *b);

/* A fresh folder under TMPDIR; e2e_path joins in one of eight rotating buffers. */
const char *e2e_tmp(void);
const char *e2e_path(const char *name);
/* Whole file; fails the test when it cannot be read. Caller frees. */
char *e2e_slurp(const char *path, size_t *n);
void e2e_remove_tmp(void);

/* 64-bit FNV-1a, continued from `h` (start with E2E_HASH). */
#define E2E_HASH 14695981039346656037u
uint64_t e2e_hash(uint64_t h, const void *bytes, size_t n);

#endif
