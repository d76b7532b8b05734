# What census does around the work: messages, files, signals, other models, the way to analyze. Wrong command lines and
# wrong input stand in tests/cli/cases.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
    ln -sf "$TS_MODEL" model.gguf
    printf 'The sky is\nThe sea\n\nIt rains\n' >list.txt
}

tiny() { "$TS_BUILD_DIR/tests/bin/tiny_gguf" "$@"; }

# A text for the tiny models, whose tokenizer makes one token of five bytes.
digits() { for i in $(seq "$1"); do printf '%05d' $((i * 7919 % 100000)); done; }

fails() { # PART WORDS...: exit 1, nothing on stdout, one line on stderr that holds PART
    local part=$1 code=0
    shift
    ts "$@" >out 2>err || code=$?
    [ "$code" = 1 ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$part" err || { cat out err; return 1; }
}

@test "census says what it will do and did; -q says nothing; the files are what analyze reads" {
    ts census -m model.gguf -i list.txt -o out.json -n 3 -t 1 --ignore-eos --trace >out 2>err
    [ ! -s out ]
    head -n 1 err | grep -qxE 'turbospark census: 3 prompts, at most [0-9]+ tokens'
    grep -qE 'the trace will take at most [0-9.]+ KiB' err
    grep -qE '9 passes counted, [0-9]+ prompt tokens before them, 6 pairs; ' err
    grep -q '1 empty line skipped' err
    grep -qx "turbospark census: wrote 'out.json'" err
    [ "$(ls)" = "$(printf '%s\n' err list.txt model.gguf out out.detail out.json out.meta out.trace)" ]
    ts analyze --cache out.json >table
    grep -q '^verdict: ' table
    grep -q '^control: with room for every neuron, all but first uses hit' table
    ts census -m model.gguf -i list.txt -o quiet.json -n 3 -t 1 --ignore-eos -q >out 2>err
    [ ! -s out ]
    [ ! -s err ]
    cmp out.json quiet.json
}

@test "a JSON Lines list, a chat, a column" {
    printf '{"text": "The sky is", "label": "a"}\n{"token_ids": [1, 2, 3]}\n' >list.jsonl
    ts census -m model.gguf -i list.jsonl --column text -o out.json -n 2 -t 1 --ignore-eos -q
    grep -q '"decode_passes":4,' out.json
    ts census -m model.gguf -i list.txt --chat -o chat.json -n 1 -t 1 -q
    grep -q '"decode_passes":3,' chat.json
}

@test "existing files are kept unless told" {
    ts census -m model.gguf -i list.txt -o out.json -n 1 -t 1 -q --trace
    cp out.json before
    fails "'out.json' exists already" census -m model.gguf -i list.txt -o out.json -n 1 -t 1
    fails "'out.json' exists already" census -m model.gguf -i list.txt -o out.json -n 2 -t 1 --resume
    # one that is whole has nothing to resume, and that is no error
    ts census -m model.gguf -i list.txt -o out.json -n 1 -t 1 --trace --resume >out 2>err
    [ ! -s out ]
    [ "$(cat err)" = "turbospark census: warning: 'out.json' is complete already: nothing to resume" ]
    cmp before out.json
    mv out.trace gone.trace
    fails "'out.json' exists already" census -m model.gguf -i list.txt -o out.json -n 1 -t 1 --trace --resume
    mv gone.trace out.trace
    rm out.json out.detail out.meta
    fails "'out.trace' exists already" census -m model.gguf -i list.txt -o out.json -n 1 -t 1 --trace
    [ ! -e out.json ]
    ts census -m model.gguf -i list.txt -o out.json -n 1 -t 1 -q --trace --overwrite
    cmp before out.json
    # nor is a model in the place of what stands beside it replaced
    cp "$TS_MODEL" side.detail
    code=0
    ts census -m side.detail -i list.txt -o side.json -n 1 --overwrite 2>err || code=$?
    [ "$code" = 1 ]
    [ "$(wc -l <err)" = 1 ]
    cmp "$TS_MODEL" side.detail
}

@test "a trace that would not fit the disk is refused before it starts, with the size" {
    free=$(df --output=avail -k . | tail -n 1)
    lines=$((free / 2600 + 10)) # 250 passes of 30 blocks of 192 bytes a prompt: 1.4 MB
    [ "$lines" -lt 1000000 ] || skip "too much room"
    yes a | head -n "$lines" >many.txt
    fails "the trace 'out.trace' would take " census -m model.gguf -i many.txt -o out.json -n 480 --trace --trace-percent 20 -q
    grep -qE 'would take [0-9.]+ MiB, [0-9.]+ MiB are free there' err
    [ ! -e out.json.part.census ]
    [ ! -e out.json.part.trace ]
}

@test "a mixture of experts: the neurons inside its experts, beside the dense FFNs it has" {
    digits 20 >tokens.txt
    tiny qwen3moe moe.gguf
    ts census -m moe.gguf -i tokens.txt -o out.json -n 5 -t 1 --ignore-eos -q
    grep -q '"num_layers":4,"inter":0,"decode_passes":5,' out.json
    head -c 200 out.experts | grep -q '"kind":"experts".*"decode_passes":5,"num_layers":4'
    [ "$(ls out.*)" = "$(printf '%s\n' out.detail out.experts out.json out.meta)" ]
    ts analyze out.json >table
    grep -q '^inside the experts, 5 passes' table
    [ "$(grep -cE '^ +[0-3] +8 +192 +[1-8] ' table)" = 4 ]
    ts analyze out.json --json | grep -q '"experts": {"decode_passes": 5'
    ts inspect out.json | grep -q "expert rows  *40"
    ts merge -o sum.json out.json out.json -q
    ts analyze sum.json | grep -q '^inside the experts, 10 passes'
    ts census -m moe.gguf --text tokens.txt -o text.json -t 1 -q
    head -c 200 text.experts | grep -q '"decode_passes":20,'
    tiny deepseek mixed.gguf
    ts census -m mixed.gguf -i tokens.txt -o mixed.json -n 5 -t 1 --ignore-eos -q
    ts analyze mixed.json >table
    grep -q '^verdict: ' table
    grep -q '^inside the experts, 5 passes' table
    fails "'out.experts' is the expert census beside an FFN census (give its .json)" analyze out.experts
}

@test "an expert census is of its census, or an error; none of an earlier one stays" {
    digits 20 >tokens.txt
    tiny qwen3moe moe.gguf
    ts census -m moe.gguf -i tokens.txt -o a.json -n 5 -t 1 --ignore-eos -q
    ts census -m moe.gguf -i tokens.txt -o b.json -n 3 -t 1 --ignore-eos -q
    rm a.json a.meta a.detail
    fails "'a.experts' exists already" census -m moe.gguf -i tokens.txt -o a.json
    cp b.json c.json
    cp b.detail c.detail
    cp a.experts c.experts
    sed 's/"b\./"c./' b.meta >c.meta
    fails "'c.meta': 'c.experts' was changed: expected " analyze c.json
    rm c.experts
    fails "'c.meta': 'c.experts' is missing" analyze c.json
    cp a.experts c.experts
    sed -i '/^  "experts": /d' c.meta # as before it was listed
    fails "holds 5 passes, the census 3" analyze c.json
    sed -i '/^  "experts": /d' b.meta
    sed 's/"rows":\[/"rows":[9/' a.experts >b.experts
    fails "'b.experts': layer 0: rows adds up to " analyze b.json
    tiny qwen3 dense.gguf
    ts census -m dense.gguf -i tokens.txt -o a.json -n 2 -t 1 --ignore-eos -q --overwrite
    [ ! -e a.experts ]
}

@test "what needs a dense FFN names what a mixture of experts has instead" {
    digits 20 >tokens.txt
    tiny qwen3moe moe.gguf
    fails "architecture 'qwen3moe' has no dense FFN, it has experts in 4 blocks: 'turbospark census' and 'turbospark router' count them" \
        census -m moe.gguf --text tokens.txt --zero 50
    fails "architecture 'qwen3moe' has no dense FFN whose neurons a trace could name" census -m moe.gguf -i tokens.txt -o out.json --trace -q
    tiny mamba mamba.gguf
    fails "architecture 'mamba' has no dense FFN (no ffn_down in its graph)" census -m mamba.gguf -i tokens.txt -o out.json
    [ ! -e out.json ]
    [ ! -e out.json.part.census ]
}

@test "by environment a model that cannot serve costs one line: the text comes, exit 0" {
    for arch in qwen3moe mamba; do
        tiny "$arch" tiny.gguf
        ts run -m tiny.gguf -p 0123456789 -n 4 --ignore-eos >plain 2>err
        [ -s plain ]
        [ ! -s err ]
        TURBOSPARK_FFN_HIST=$PWD/out.json ts run -m tiny.gguf -p 0123456789 -n 4 --ignore-eos >text 2>err
        cmp plain text
        [ "$(wc -l <err)" = 1 ]
        grep -q "has no dense FFN.*; ignored$" err
        [ ! -e out.json ]
    done
}

@test "by environment the census of a generation is written beside the text" {
    ts run -m model.gguf -p 'The sky is' -n 4 -t 1 >plain
    TURBOSPARK_FFN_HIST=$PWD/out.json ts run -m model.gguf -p 'The sky is' -n 4 -t 1 >text 2>err
    cmp plain text
    grep -q '"decode_passes":4,' out.json
    [ -s out.detail ]
    [ -s out.meta ]
    printf 'The sky is\n' >one.txt
    ts census -m model.gguf -i one.txt -o one.json -n 4 -t 1 -q
    cmp out.json one.json
    code=0 # a write that fails is told after the text
    TURBOSPARK_FFN_HIST=$PWD/nowhere/out.json ts run -m model.gguf -p 'The sky is' -n 4 -t 1 >text 2>err || code=$?
    [ "$code" = 1 ]
    cmp plain text
    grep -q "nowhere" err
}

@test "a NaN is one warning that names it, and JSON stays JSON" {
    tiny llama nan.gguf nan_block=2
    digits 30 >tokens.txt
    ts census -m nan.gguf --text tokens.txt -o out.json >out 2>err
    [ "$(grep -c warning err)" = 1 ]
    grep -q 'not finite, first in block 1, neuron 7' err
    python3 -c '
import json
d = json.load(open("out.json"))
assert [h[63] for h in d["hist_count"]] == [0, 30, 30 * 192, 30 * 192]
assert all(m[63] == 0 for m in d["hist_mass"])
json.load(open("out.detail"))
json.load(open("out.meta"))'
    fails "nan" census -m nan.gguf --text tokens.txt --zero 0,50
}

@test "SIGINT and SIGTERM: one line, exit 1, marked partial; --resume ends with the same bytes" {
    digits 30000 >tokens.txt
    tiny llama tiny.gguf
    ts census -m tiny.gguf --text tokens.txt -o whole.json -c 64 -t 1 -q
    for signal in INT TERM; do
        start_until "grep -q ' [1-9][0-9]* %' err" \
            census -m tiny.gguf --text tokens.txt -o cut.json -c 64 -t 1 --progress
        kill -s "$signal" "$pid" || true
        code=0
        wait "$pid" || code=$?
        if [ "$code" = 0 ]; then skip "it was done before the signal"; fi
        [ "$code" = 1 ]
        [ ! -s out ]
        tail -n 1 err | grep -qE "^turbospark census: interrupted after [0-9]+ of 30000 tokens: 'cut.json' holds what was counted, marked partial; resume goes on at token [0-9]+$"
        [ "$(tail -n 1 err | sed 's/.* at token //')" -gt 64 ]
        grep -q '"partial": true' cut.meta
        ts analyze cut.json >/dev/null
        ts census -m tiny.gguf --text tokens.txt -o cut.json -c 64 -t 1 --resume 2>err
        head -n 1 err | grep -q '; resuming$'
        cmp whole.json cut.json
        cmp <(sed 's/whole\.json//' whole.detail) <(sed 's/cut\.json//' cut.detail)
        rm cut.*
    done
}

@test "zeroing prints a table that fits, and the same as JSON" {
    digits 100 >tokens.txt
    tiny nemotron tiny.gguf dead_of_8=4
    ts census -m tiny.gguf --text tokens.txt --zero 0,50,75,100 --zero-below 1 --json table.json >out 2>err
    [ "$(wc -l <out)" = 6 ]
    ! grep -nE '.{80}' out
    grep -q '^0 % .* 50.00 % .* same bits$' out
    grep -q '^50 % .* 50.00 % .* same bits$' out # half of the neurons never fire
    grep -q '^75 % .* 75.00 % .* differ$' out
    grep -q '^< 1 .* 50.00 % .* same bits$' out
    grep -qE 'perplexity of the untouched model: [0-9.]+ over 99 tokens' err
    python3 -c '
import json
rows = json.load(open("table.json"))
assert [r.get("percent") for r in rows] == [0, 50, 75, 100, None] and rows[4]["below"] == 1
assert [r["identical"] for r in rows] == [True, True, False, False, True]
assert [r["zeroed"] for r in rows] == [0.5, 0.5, 0.75, 1, 0.5]
assert all(r["n_scored"] == 99 and r["perplexity_base"] == rows[0]["perplexity_base"] for r in rows)'
    ls | grep -q part && false
    code=0 # what fails leaves no table behind
    ts census -m tiny.gguf --text nowhere.txt --zero 50 --json none.json 2>err || code=$?
    [ "$code" = 1 ]
    [ ! -e none.json ]
    [ ! -e none.json.part ]
}

@test "the text that is shipped is one" {
    [ "$(wc -w <"$TS_SOURCE_DIR/examples/prose.txt")" -gt 1500 ]
    head -c 3000 "$TS_SOURCE_DIR/examples/prose.txt" >start.txt
    ts census -m model.gguf --text start.txt -o out.json -t 1 -q
    ts analyze out.json | grep -q '^verdict: '
}
