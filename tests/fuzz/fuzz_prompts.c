/* Prompt lists as text and as JSON Lines, and lists of messages; the first byte chooses. */
#include "fuzz/fuzz_file.h"

#include "store/prompts.h"

static void walk(const char *name) {
    const ts_prompt *p;
    ts_prompts *list;
    ts_error err = {0};
    int64_t n[2] = {0, 0};
    int rc = ts_prompts_open(name, NULL, &list, &err);

    fuzz_expect(rc, &err);
    if (rc != TS_OK)
        return;
    for (int time = 0; time < 2; time++) {
        bool got = true;

        while (rc == TS_OK && got) {
            rc = ts_prompts_next(list, &p, &got, &err);
            fuzz_expect(rc, &err);
            if (rc == TS_OK && got) {
                n[time]++;
                if (!!p->text + !!p->messages + !!p->token_ids != 1 || (p->text && strlen(p->text) != p->text_length))
                    abort();
            }
        }
        if (rc != TS_OK)
            break;
        if (ts_prompts_rewind(list, &err) != TS_OK)
            abort();
    }
    if (rc == TS_OK && n[0] != n[1])
        abort();
    ts_prompts_close(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"x.txt", "x.jsonl", "x.json"};
    const char *name;

    if (size == 0)
        return 0;
    name = names[data[0] % 3];
    fuzz_put(name, data + 1, size - 1);
    if (size == 1)
        return 0;
    if (data[0] % 3 == 2) {
        ts_prompt *messages = NULL;
        ts_error err = {0};

        fuzz_expect(ts_messages_read(name, &messages, &err), &err);
        ts_messages_free(messages);
    } else {
        walk(name);
    }
    return 0;
}
