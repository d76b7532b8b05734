# logits: what stands in the folder, streams, overwriting, interruption. Its rows are tested in tests/e2e/test_logits.c.

setup_file() {
    load common
    cd "$BATS_FILE_TMPDIR"
    ln -sf "$TS_MODEL" model.gguf
    printf 'The lighthouse at the end of the harbour was built of grey stone, and for more than a century its keeper climbed.\n' >text.txt
    ts logits -m model.gguf -f text.txt -o dump -t 1 -ub 16 >out 2>err
}

setup() {
    load common
    cd "$BATS_FILE_TMPDIR"
}

member() { sed -n "s/^  \"$2\": \(.*[^,]\),*$/\1/p" "$1/meta.json"; } # FOLDER KEY

@test "a dump is two files, stdout is empty, stderr says what came of it" {
    [ ! -s out ]
    [ "$(ls -A dump | tr '\n' ' ')" = "logits.f16 meta.json " ]
    rows=$(member dump rows)
    [ "$rows" -gt 20 ]
    [ "$(wc -c <dump/logits.f16)" = $((rows * 49152 * 2)) ]
    [ "$(wc -l <err)" = 3 ]
    grep -qx "turbospark logits: $rows tokens to compute; 'dump' will take [0-9.]* MiB" err
    grep -qx "turbospark logits: $rows rows of $((rows + 1)) tokens in 1 window, scored from row 0; [0-9.]* s" err
    grep -qx "turbospark logits: wrote 'dump'" err
}

@test "meta.json begins with the five keys that others read, and is JSON" {
    [ "$(sed -n '2,6s/^  "\([a-z_]*\)".*/\1/p' dump/meta.json | tr '\n' ' ')" = \
        "rows vocab_size token_ids first_scored_position prompt_len " ]
    [ "$(member dump dtype)" = '"f16"' ]
    [ "$(member dump windows)" = 1 ]
    python3 -c 'import json
m = json.load(open("dump/meta.json"))
assert len(m["token_ids"]) == m["rows"] + 1 and m["kind"] == "logits" and m["model"]["shards"][0]["xxh3_128"]'
}

@test "windows: rows stay tokens - 1, the first scored row is window - stride" {
    ts logits -q -m model.gguf -f text.txt -o windows --window 12 --stride 5 -t 1 2>err
    [ ! -s err ]
    [ "$(member windows rows)" = "$(member dump rows)" ]
    [ "$(member windows token_ids)" = "$(member dump token_ids)" ]
    [ "$(member windows first_scored_position)" = 7 ]
    [ "$(member windows window) $(member windows stride)" = "12 5" ]
    [ "$(member windows windows)" = $((1 + ($(member dump rows) - 12 + 4) / 5)) ]
    [ "$(wc -c <windows/logits.f16)" = "$(wc -c <dump/logits.f16)" ]
    ts logits -q -m model.gguf -f text.txt -o halves --window 12 -t 1
    [ "$(member halves stride)" = 6 ]
}

@test "a dump is not written over, except with --overwrite" {
    cp -r dump kept
    code=0
    ts logits -m model.gguf -f text.txt -o kept --dtype f32 2>err || code=$?
    [ "$code" = 1 ]
    [ "$(cat err)" = "turbospark logits: 'kept' holds a dump already: remove it, or replace it with --overwrite" ]
    diff -r dump kept
    ts logits -q -m model.gguf -f text.txt -o kept --dtype f32 --overwrite
    [ "$(ls -A kept | tr '\n' ' ')" = "logits.f32 meta.json " ]
}

@test "what is read is not written over" {
    mkdir mine
    cp text.txt mine/meta.json
    code=0
    ts logits -m model.gguf -f mine/meta.json -o mine --overwrite 2>err || code=$?
    [ "$code" = 1 ]
    [ "$(cat err)" = "turbospark logits: output 'mine/meta.json' is the text" ]
    cmp text.txt mine/meta.json
}

@test "SIGINT and SIGTERM leave the rows so far, marked partial: one line, exit 1" {
    for _ in $(seq 300); do cat text.txt; done >long.txt
    for signal in INT TERM; do
        code=0
        start_until '[ -d stopped ]' logits -m model.gguf -f long.txt -o stopped --window 64 --stride 8
        [ -d stopped ]
        sleep 1
        kill -s "$signal" "$pid"
        wait "$pid" || code=$?
        [ "$code" = 1 ]
        tail -n +2 err | grep -qxE "turbospark logits: interrupted after [0-9]+ of [0-9]+ rows: 'stopped' holds them, marked partial"
        ts inspect stopped | grep -q 'partial.*interrupted'
        rm -r stopped
    done
}

@test "steered logits: scale 0 is no steering, to the byte; meta.json says what was in force; the trace is whole" {
    direction d.gguf length=30
    ts logits -q -m model.gguf -f text.txt -o zero -t 1 -ub 16 --steering d.gguf --steering-mode clamp --steering-scale 0
    cmp dump/logits.f16 zero/logits.f16
    ts logits -m model.gguf -f text.txt -o steered -t 1 -ub 16 --steering d.gguf --steering-mode ablate \
        --steering-layers 3:4 --steering-trace c.jsonl 2>err
    grep -qx "turbospark logits: steering: ablate at scale 1 on 2 of 30 blocks ('d.gguf')" err
    [ "$(member steered steering)" = "\"ablate at scale 1 on 2 of 30 blocks ('d.gguf')\"" ]
    [ "$(wc -l <c.jsonl)" = $(($(member steered rows) * 2)) ]
    ! cmp -s dump/logits.f16 steered/logits.f16
    ts kld dump steered >out 2>&1
    code=0
    ts logits -m model.gguf -f text.txt -o none --steering d.gguf --steering-mode ablate --steering-from decode 2>err || code=$?
    [ "$code" = 2 ]
    [ "$(cat err)" = "turbospark logits: '--steering-from decode' edits nothing here: the text is all prompt; try 'turbospark logits --help'" ]
    code=0
    ts logits -m model.gguf -f text.txt -o none --steering d.gguf --steering-mode ablate --steering-trace none/meta.json 2>err || code=$?
    [ "$code" = 1 ] || [ "$code" = 2 ]
    [ ! -e none ]
}
