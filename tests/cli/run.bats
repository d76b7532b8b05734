# What run and capture do around the work: streams, signals, exit codes, the environment.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
    ln -sf "$TS_MODEL" model.gguf
}

@test "stdout holds the text and nothing else, stderr nothing" {
    ts run -m model.gguf -p 'The capital of France is' -n 8 >out 2>err
    [ -s out ]
    [ ! -s err ]
    ts run -m model.gguf -p 'The capital of France is' -n 8 -v >verbose 2>err
    cmp out verbose
    grep -q 'decode passes in' err
    grep -q '^llama.cpp: ' err
}

@test "-n 0 prints nothing and succeeds" {
    ts run -m model.gguf -p 'The sky' -n 0 >out 2>err
    [ ! -s out ]
    [ ! -s err ]
}

@test "the logits hash repeats, and differs for another prompt" {
    ts run -m model.gguf -p 'The sky is' -n 4 --logits-hash 2>a >/dev/null
    ts run -m model.gguf -p 'The sky is' -n 4 --logits-hash 2>b >/dev/null
    ts run -m model.gguf -p 'The sea is' -n 4 --logits-hash 2>c >/dev/null
    grep -qxE 'logits fnv1a64 [0-9a-f]{16} over [0-9]+ passes' a
    cmp a b
    ! cmp -s a c
}

@test "a full disk under stdout is one line and exit 1" {
    [ -w /dev/full ] || skip "no /dev/full"
    code=0
    ts run -m model.gguf -p hi -n 4 >/dev/full 2>err || code=$?
    [ "$code" = 1 ]
    [ "$(cat err)" = "turbospark run: cannot write standard output: No space left on device" ]
    code=0
    ts nodes -m model.gguf >/dev/full 2>err || code=$?
    [ "$code" = 1 ]
    code=0
    ts --help >/dev/full 2>err || code=$?
    [ "$code" = 1 ]
}

@test "a reader that leaves stops the run: one line, exit 1, no signal" {
    {
        code=0
        ts run -m model.gguf -p 'Once upon a time' -n 2000 --ignore-eos 2>err || code=$?
        echo "$code" >code
    } | head -c 10 >/dev/null
    [ "$(cat code)" = 1 ]
    [ "$(cat err)" = "turbospark run: cannot write standard output: Broken pipe" ]
}

# Runs a long generation, sends the signal once text comes, waits for the end.
interrupt() { # SIGNAL, more options
    local signal=$1 pid code=0
    shift
    start_until '[ -s out ]' run -m model.gguf -p 'Once upon a time' -n 3000 --ignore-eos "$@"
    kill -s "$signal" "$pid"
    wait "$pid" || code=$?
    echo "$code" >code
}

@test "SIGINT and SIGTERM end a run at the next token, exit 1, text and capture kept" {
    for signal in INT TERM; do
        interrupt "$signal" --resid-capture cap.json
        [ "$(cat code)" = 1 ]
        [ "$(wc -l <err)" = 1 ]
        grep -q '^turbospark run: ' err
        [ -s out ]
        [ -s cap.json ]
        [ -s cap.f32 ]
        rm cap.*
    done
}

@test "-q keeps errors" {
    code=0
    ts run -m nowhere.gguf -p hi -q 2>err || code=$?
    [ "$code" = 1 ]
    [ "$(wc -l <err)" = 1 ]
}

@test "the variable and the flag capture the same bytes, and the flag wins" {
    TURBOSPARK_RESID_CAPTURE=$PWD/env.json ts run -m model.gguf -p 'The sky is' -n 2 >a 2>err
    [ ! -s err ]
    ts run -m model.gguf -p 'The sky is' -n 2 --resid-capture flag.json >b
    cmp a b
    cmp env.f32 flag.f32
    rm env.*
    TURBOSPARK_RESID_CAPTURE=$PWD/env.json ts run -m model.gguf -p 'The sky is' -n 2 --resid-capture flag.json >c
    cmp a c
    [ ! -e env.json ]
}

@test "run throws no unfinished capture away, its own it does" {
    printf '{"turbospark_partial": 1, "plan": "00"}' >cap.json.part.state
    code=0
    ts run -m model.gguf -p hi -n 1 --resid-capture cap.json >out 2>err || code=$?
    [ "$code" = 1 ] && [ ! -s out ]
    [ "$(cat err)" = "turbospark run: 'cap.json.part.state' is left of an unfinished capture: finish that with 'capture --resume', or remove it" ]
    code=0
    TURBOSPARK_RESID_CAPTURE=cap.json ts run -m model.gguf -p hi -n 1 >out 2>err || code=$?
    [ "$code" = 1 ] && [ -s out ] && [ -e cap.json.part.state ] && [ ! -e cap.json ]
    printf '{"turbospark_partial": 1, "plan": "run"}' >cap.json.part.state
    ts run -m model.gguf -p hi -n 1 --resid-capture cap.json >out
    [ -e cap.json ] && [ ! -e cap.json.part.state ]
}

@test "a folder nobody may write to is one line and exit 1" {
    # also as root: without the capabilities that make it see through modes
    drop=(setpriv --bounding-set -dac_override,-dac_read_search)
    "${drop[@]}" true 2>/dev/null || skip "no setpriv, or not root"
    mkdir there
    chmod 555 there
    printf 'hi\n' >list.txt
    for line in "capture -i list.txt -o" "run -p hi -n 1 --resid-capture"; do
        code=0
        "${drop[@]}" "$TS_CLI" $line there/out.json -m model.gguf >out 2>err || code=$?
        [ "$code" = 1 ]
        grep -q "there.*: Permission denied" err
        [ "$(wc -l <err)" = 1 ]
        [ ! -s out ]
    done
    chmod 755 there
}

@test "capture says the size first, then what it did; -q says nothing" {
    printf 'The sky is\nThe sea\n\nIt rains\n' >list.txt
    ts capture -m model.gguf -i list.txt -o out.json >out 2>err
    [ ! -s out ]
    head -n 1 err | grep -qE "^turbospark capture: 3 prompts, [0-9]+ tokens; 'out.json' will take [0-9.]+ "
    grep -q '3 rows of 3 prompts' err
    grep -q '1 empty line skipped' err
    ! grep -q $'\r' err
    ts capture -m model.gguf -i list.txt -o quiet.json -q 2>err
    [ ! -s err ]
    cmp out.f32 quiet.f32
    ts capture -m model.gguf -i list.txt -o bar.json --progress 2>err
    grep -q '100 %' err
}

@test "capture keeps an existing file unless told, and takes the format from the name" {
    printf 'The sky is\n' >list.txt
    ts capture -m model.gguf -i list.txt -o out.json -q
    cp out.f32 before
    code=0
    ts capture -m model.gguf -i list.txt -o out.json 2>err || code=$?
    [ "$code" = 1 ]
    [ "$(wc -l <err)" = 1 ]
    cmp before out.f32
    ts capture -m model.gguf -i list.txt -o out.json --overwrite -q
    cmp before out.f32
    ts capture -m model.gguf -i list.txt -o out.safetensors -q
    ts inspect out.safetensors | grep -qi safetensors
}

@test "nodes and inspect print JSON that a parser reads" {
    ts nodes -m model.gguf --json | python3 -c '
import json, sys
d = json.load(sys.stdin)
resid = [s for s in d["sites"] if s["site"] == "resid"]
assert d["architecture"] == "llama" and d["blocks"] == len(resid) == 30
assert [s["block"] for s in resid] == list(range(30))
assert all(s["width"] == 576 and s["how"] == "redirected" for s in resid)'
    printf 'The sky is\n' >list.txt
    ts capture -m model.gguf -i list.txt -o out.json -q
    ts inspect --json out.json | python3 -c 'import json, sys; json.load(sys.stdin)'
    ts inspect out.json out.meta >out
    [ -s out ]
}

@test "nodes --site keeps one kind" {
    ts nodes -m model.gguf --site head >out
    [ "$(wc -l <out)" = 2 ]
    ! grep -vE '^(SITE|head) ' out
}

@test "bench prints a table that says what decided, and raw samples" {
    ts bench -m model.gguf -n 4 -r 3 --json b.json >out 2>err
    [ ! -s err ]
    grep -q 'one round of off differs from itself by' out
    grep -q '95 % interval' out
    ! grep -nE '.{80}' out
    python3 -c '
import json
d = json.load(open("b.json"))
assert [len(a["tokens_per_s"]) for a in d["arms"]] == [3] * 5'
    printf 'The sky is\nThe sea\n' >list.txt
    ts bench -m model.gguf -r 1 --corpus list.txt >out
    grep -q 'of the tokens/s of no tap' out
}

@test "a model cut inside its header, and an unknown device, are one line" {
    head -c 1000000 "$TS_MODEL" >cut.gguf
    printf 'hi\n' >list.txt
    for line in 'run -p hi' nodes 'capture -i list.txt -o out.json' bench; do
        code=0
        ts $line -m cut.gguf >out 2>err || code=$?
        [ "$code" = 1 ]
        [ "$(wc -l <err)" = 1 ]
        [ ! -s out ]
        grep -q "'cut.gguf' .*cut short" err
    done
    code=0
    ts run -p hi -m model.gguf --device warp9 2>err || code=$?
    [ "$code" = 1 ]
    [ "$(wc -l <err)" = 1 ]
    grep -q "'warp9'.*CPU" err
}

@test "an interrupted capture is marked partial, and --resume ends with the same bytes" {
    for i in $(seq 90); do echo "Number $i: what does the quiet river look like in the morning?"; done >list.txt
    ts capture -m model.gguf -ub 64 -i list.txt -o whole.json -q
    start_until "grep -q ' [1-9][0-9]* %' err" capture -m model.gguf -ub 64 -i list.txt -o cut.json --progress
    kill -s INT "$pid"
    code=0
    wait "$pid" || code=$?
    [ "$code" = 1 ]
    grep -q '^turbospark capture: interrupted after .* partial' err
    grep -q '"partial": true' cut.meta
    ts inspect cut.json >/dev/null
    ts capture -m model.gguf -ub 64 -i list.txt -o cut.json --resume 2>err
    grep -q '; resuming$' err
    cmp whole.f32 cut.f32
    sed 's/cut\.f32/whole.f32/' cut.json | cmp whole.json -
    sed 's/cut\.f32/whole.f32/' cut.meta | cmp whole.meta -
}

@test "no file written beside a result replaces an input, and two results never share one" {
    printf 'The sky is' >q.f32
    run ts run -m model.gguf -n 1 -f q.f32 --resid-capture q.json
    [ "$status" = 1 ] && [ "$(cat q.f32)" = 'The sky is' ]
    ln -s q.f32 link.meta
    run ts run -m model.gguf -n 1 -f q.f32 --ffn-hist link.json
    [ "$status" = 1 ] && [ "$(cat q.f32)" = 'The sky is' ]
    printf 'The sky is\n' >c.json.part.gen
    run ts capture -m model.gguf -i c.json.part.gen -o c.json
    [ "$status" = 1 ] && [ "$(cat c.json.part.gen)" = 'The sky is' ]
    run ts run -m model.gguf -p a -n 1 --ffn-hist v.json --resid-capture v.xyz
    [ "$status" = 2 ] && [[ $output == *"would both write 'v.f32'"* ]]
    TURBOSPARK_FFN_HIST=same.json TURBOSPARK_RESID_CAPTURE=same.json run ts run -m model.gguf -p a -n 1
    [ "$status" = 2 ] && [ ! -e same.json ]
    [ "$(ls *.json 2>/dev/null | wc -l)" = 0 ]
}

@test "two results of one run never share a file, however its name is spelled" {
    mkdir -p d && ln -s d l
    for other in ./c.f32 d/../c.f32 "$PWD/c.f32" c.json.lock; do
        run ts run -m model.gguf -p hi -n 1 --resid-capture c.json --ffn-hist "$other"
        [ "$status" = 2 ]
        [[ "$output" == *"the residual capture and the FFN census would both write "* ]]
    done
    run ts run -m model.gguf -p hi -n 1 --resid-capture d/c.json --ffn-hist l/c.json
    [ "$status" = 2 ]
    run ts logits -m model.gguf -f list.txt -o dump --steering c.gguf --steering-trace ./dump
    [ "$status" = 2 ]
    [ ! -e c.json ]
}
