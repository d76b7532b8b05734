/* Prompt lists: forms, line and column of each refusal, long lines. */
#include "test_core_tmp.h"

#include "core/mem.h"
#include "store/prompts.h"

static void put(const char *path, const char *text) {
    tmp_write(path, text, strlen(text));
}

static ts_prompts *open_list(const char *path, const char *column) {
    ts_prompts *p;

    assert_int_equal(ts_prompts_open(path, column, &p, NULL), TS_OK);
    return p;
}

static const ts_prompt *next(ts_prompts *p) {
    const ts_prompt *prompt;
    ts_error err = {.message = ""};
    bool got;

    if (ts_prompts_next(p, &prompt, &got, &err))
        fail_msg("%s", err.message);
    assert_int_equal(got, prompt != NULL);
    return prompt;
}

static void expect_text(ts_prompts *p, int64_t line, const char *text) {
    const ts_prompt *prompt = next(p);

    assert_non_null(prompt);
    assert_int_equal(prompt->line, line);
    assert_string_equal(prompt->text, text);
    assert_int_equal(prompt->text_length, strlen(text));
}

/* The list's first line that cannot be read gives this message. */
static void expect_error(const char *path, const void *bytes, size_t n, int64_t line,
                         const char *message) {
    const ts_prompt *prompt;
    ts_prompts *p;
    ts_error err = {.message = ""};
    bool got = true;
    int rc = TS_OK;

    tmp_write(path, bytes, n);
    p = open_list(path, NULL);
    while (!rc && got)
        rc = ts_prompts_next(p, &prompt, &got, &err);
    assert_int_equal(rc, TS_ERR_FORMAT);
    assert_string_equal(err.message, message);
    assert_int_equal(err.position, line);
    assert_int_equal(err.code, TS_ERR_FORMAT);
    assert_null(prompt);
    ts_prompts_close(p);
}

static void text_lists(void **state) {
    ts_prompts *p;

    (void)state;
    put("p.txt",
        "\xef\xbb\xbf"
        "first\n\nline\\none\\ttab\\\\back\\xother\\\r\n\r\n  spaces  \n\\\\n\nlast \xc3\xa9");
    p = open_list("p.txt", NULL);
    for (int pass = 0; pass < 2; pass++) {
        expect_text(p, 1, "first");
        expect_text(p, 3, "line\none\ttab\\back\\xother\\");
        expect_text(p, 5, "  spaces  ");
        expect_text(p, 6, "\\n");
        expect_text(p, 7, "last \xc3\xa9");
        assert_null(next(p));
        assert_null(next(p));
        assert_int_equal(ts_prompts_skipped(p), 2);
        assert_int_equal(ts_prompts_rewind(p, NULL), TS_OK);
        assert_int_equal(ts_prompts_skipped(p), 0);
    }
    ts_prompts_close(p);
    put("p.txt", "");
    p = open_list("p.txt", NULL);
    assert_null(next(p));
    ts_prompts_close(p);
    put("p.txt", "\xef\xbb\xbf");
    p = open_list("p.txt", NULL);
    assert_null(next(p));
    ts_prompts_close(p);
    ts_prompts_close(NULL);
}

static void json_lines(void **state) {
    const ts_prompt *q;
    ts_prompts *p;

    (void)state;
    put("p.jsonl", "\xef\xbb\xbf{\"prompt\": \"a\\nb \\ud83d\\ude00\", \"label\": \"x\", "
                   "\"other\": [1, {}]}\r\n"
                   "  \t\n"
                   "{\"prompt\": \"\"}\n"
                   "{\"messages\": [{\"role\": \"system\", \"content\": \"\"}, {\"role\": "
                   "\"user\", \"content\": "
                   "\"hi\", \"name\": 3}], \"prompt\": null, \"label\": null}\n"
                   "{\"token_ids\": [0, 5, 2147483647], \"label\": -12}\n"
                   "{\"token_ids\": []}\n{\"messages\": []}\n"
                   "{\"prompt\": \"last\"}");
    p = open_list("p.jsonl", NULL);
    q = next(p);
    assert_string_equal(q->text, "a\nb \xf0\x9f\x98\x80");
    assert_string_equal(q->label, "x");
    q = next(p);
    assert_int_equal(q->line, 4);
    assert_null(q->text);
    assert_null(q->label);
    assert_int_equal(q->n_messages, 2);
    assert_string_equal(q->messages[0].role, "system");
    assert_string_equal(q->messages[0].content, "");
    assert_string_equal(q->messages[1].content, "hi");
    q = next(p);
    assert_int_equal(q->n_token_ids, 3);
    assert_int_equal(q->token_ids[2], INT32_MAX);
    assert_int_equal(q->n_messages, 0);
    assert_string_equal(q->label, "-12");
    expect_text(p, 8, "last");
    assert_null(next(p));
    assert_int_equal(ts_prompts_skipped(p), 4);
    ts_prompts_close(p);
}

static void columns(void **state) {
    ts_prompts *p;
    ts_error err;

    (void)state;
    put("p.json-lines", "{\"text\": \"yes\", \"prompt\": 5}\n");
    p = open_list("p.json-lines", "text");
    expect_text(p, 1, "yes");
    ts_prompts_close(p);
    assert_int_equal(ts_prompts_open("p.json-lines", "messages", &p, &err), TS_ERR_ARG);
    assert_string_equal(err.message, "expected the name of a text column, got 'messages'");
    assert_int_equal(ts_prompts_open("p.json-lines", "", &p, &err), TS_ERR_ARG);
    put("p.txt", "x\n");
    assert_int_equal(ts_prompts_open("p.txt", "text", &p, &err), TS_ERR_ARG);
    assert_string_equal(err.message, "column 'text' needs a JSON Lines list (.jsonl), got 'p.txt'");
    p = open_list("p.txt", "prompt");
    ts_prompts_close(p);
    assert_int_equal(ts_prompts_open("-", NULL, &p, &err), TS_ERR_IO);
    assert_int_equal(ts_prompts_open("none", NULL, &p, &err), TS_ERR_IO);
    assert_string_equal(err.message, "cannot open 'none': No such file or directory");
    assert_int_equal(ts_prompts_open(".", NULL, &p, &err), TS_ERR_IO);
    assert_string_equal(err.message, "cannot read '.': expected a regular file, it is a folder");
    assert_null(p);
}

static void bad_bytes(void **state) {
    (void)state;
    expect_error("p.txt", "ok\nab\0c\n", 8, 2, "p.txt:2:3: expected text, got a NUL byte");
    expect_error("p.txt", "\xef\xbb\xbf\xc3\xa9\xff", 6, 1,
                 "p.txt:1:2: expected UTF-8, got byte 0xff");
    expect_error("p.txt", "a\xed\xa0\x80\0", 5, 1, "p.txt:1:2: expected UTF-8, got byte 0xed");
    expect_error("p.jsonl", "{\"prompt\": \"\xc3\"}", 15, 1,
                 "p.jsonl:1:13: expected UTF-8, got byte 0xc3");
    expect_error("p.jsonl", "{\"prompt\": \"\0\"}", 15, 1,
                 "p.jsonl:1:13: expected text, got a NUL byte");
}

static void bad_json(void **state) {
    static const char *cases[][2] = {
        {"{\"prompt\": \"a\"\n", "p.jsonl:1:14: '}' expected near end of file"},
        {"\n{\"prompt\": nope}\n", "p.jsonl:2:15: invalid token near 'nope'"},
        {"{\"prompt\": \"a\"} {}\n", "p.jsonl:1:17: end of file expected near '{'"},
        {"{\"prompt\": \"a\", \"prompt\": \"b\"}\n",
         "p.jsonl:1:24: duplicate object key near '\"prompt\"'"},
        {"{\"prompt\": \"\\u0000\"}\n", "p.jsonl:1:19: a NUL character (\\u0000) in a string"},
        {"{\"prompt\": \"\\ud800\"}\n",
         "p.jsonl:1:19: invalid Unicode '\\uD800' near '\"\\ud800\"'"},
        {"[1]\n", "p.jsonl:1: expected an object, got an array"},
        {"\"x\"\n", "p.jsonl:1: expected an object, got a string"},
        {"{\"x\": 1}\n",
         "p.jsonl:1: expected one of 'prompt', 'messages' and 'token_ids', got none"},
        {"{\"prompt\": null}\n",
         "p.jsonl:1: expected one of 'prompt', 'messages' and 'token_ids', got none"},
        {"{\"prompt\": \"a\", \"token_ids\": [1]}\n",
         "p.jsonl:1: expected one of 'prompt', 'messages' and 'token_ids', got several"},
        {"{\"prompt\": 5}\n", "p.jsonl:1: expected a string 'prompt', got a whole number"},
        {"{\"prompt\": \"a\", \"label\": [1]}\n",
         "p.jsonl:1: expected a string 'label', got an array"},
        {"{\"token_ids\": \"1\"}\n", "p.jsonl:1: expected an array 'token_ids', got a string"},
        {"{\"token_ids\": [1, 2.0]}\n",
         "p.jsonl:1: token_ids[1]: expected a whole number, got a real number"},
        {"{\"token_ids\": [1, null]}\n",
         "p.jsonl:1: token_ids[1]: expected a whole number, got null"},
        {"{\"token_ids\": [true]}\n",
         "p.jsonl:1: token_ids[0]: expected a whole number, got a boolean"},
        {"{\"token_ids\": [-1]}\n", "p.jsonl:1: token_ids[0]: expected a token id from 0, got -1"},
        {"{\"token_ids\": [2147483648]}\n",
         "p.jsonl:1: token_ids[0]: expected a token id from 0, got 2147483648"},
        {"{\"messages\": {}}\n", "p.jsonl:1: expected an array of messages, got an object"},
        {"{\"messages\": [\"x\"]}\n", "p.jsonl:1: messages[0]: expected an object, got a string"},
        {"{\"messages\": [{\"content\": \"x\"}]}\n",
         "p.jsonl:1: messages[0]: expected a string 'role', got none"},
        {"{\"messages\": [{\"role\": \"\", \"content\": \"x\"}]}\n",
         "p.jsonl:1: messages[0]: expected a role, got ''"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": null}]}\n",
         "p.jsonl:1: messages[0]: expected a string 'content', got null"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_error("p.jsonl", cases[i][0], strlen(cases[i][0]), cases[i][0][0] == '\n' ? 2 : 1,
                     cases[i][1]);
}

static void json_nested_too_deep(void **state) {
    char *text = malloc(1 << 20);

    (void)state;
    memset(text, '[', 1 << 20);
    expect_error("p.jsonl", text, 1 << 20, 1,
                 "p.jsonl:1:2049: maximum parsing depth reached near '['");
    free(text);
}

/* A line of 64 MiB, and block edges in every place of a short one. */
static void long_lines(void **state) {
    const size_t n = (size_t)64 << 20;
    char *text = malloc(n + 32);
    const ts_prompt *q;
    ts_prompts *p;

    (void)state;
    assert_non_null(text);
    memcpy(text, "{\"prompt\":\"", 11);
    memset(text + 11, 'x', n);
    memcpy(text + 11 + n, "\"}\r\n", 4);
    tmp_write("p.jsonl", text, n + 15);
    p = open_list("p.jsonl", NULL);
    q = next(p);
    assert_int_equal(q->text_length, n);
    assert_null(next(p));
    ts_prompts_close(p);
    for (size_t shift = 65530; shift < 65542; shift++) {
        memset(text, 'y', shift);
        memcpy(text + shift, "\r\nz\n", 4);
        tmp_write("p.txt", text, shift + 4);
        p = open_list("p.txt", NULL);
        q = next(p);
        assert_int_equal(q->text_length, shift);
        expect_text(p, 2, "z");
        assert_null(next(p));
        ts_prompts_close(p);
    }
    free(text);
}

static void expect_messages_error(const char *text, const char *message) {
    ts_prompt *m;
    ts_error err = {.message = ""};

    put("m.json", text);
    assert_int_equal(ts_messages_read("m.json", &m, &err), TS_ERR_FORMAT);
    assert_string_equal(err.message, message);
    assert_null(m);
}

static void messages_file(void **state) {
    ts_prompt *m;
    ts_error err;

    (void)state;
    put("m.json", "\xef\xbb\xbf[\r\n  {\"role\": \"user\",\n   \"content\": \"caf\xc3\xa9\"}\n]\n");
    assert_int_equal(ts_messages_read("m.json", &m, &err), TS_OK);
    assert_int_equal(m->n_messages, 1);
    assert_string_equal(m->messages[0].content, "caf\xc3\xa9");
    ts_messages_free(m);
    ts_messages_free(NULL);
    expect_messages_error("[\n{\"role\": }\n]", "m.json:2:10: unexpected token near '}'");
    expect_messages_error("", "m.json:1:1: unexpected token near end of file");
    expect_messages_error("[\n\"\xff\"]", "m.json:2:2: expected UTF-8, got byte 0xff");
    expect_messages_error("[]", "m.json: expected at least one message, got an empty array");
    expect_messages_error("{}", "m.json: expected an array of messages, got an object");
    expect_messages_error("[{\"role\": \"a\", \"content\": \"b\"}, {}]",
                          "m.json: messages[1]: expected a string 'role', got none");
    assert_int_equal(ts_messages_read("none.json", &m, &err), TS_ERR_IO);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmp_setup, tmp_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(text_lists), IN_FOLDER(json_lines),    IN_FOLDER(columns),
        IN_FOLDER(bad_bytes),  IN_FOLDER(bad_json),      IN_FOLDER(json_nested_too_deep),
        IN_FOLDER(long_lines), IN_FOLDER(messages_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
