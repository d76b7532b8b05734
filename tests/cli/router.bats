# What router does around the work: messages, files, signals, other models, the way to analyze, merge, inspect and the CSV.
# Wrong command lines and wrong input stand in tests/cli/cases.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
    tiny qwen3moe moe.gguf
    ln -sf "$TS_MODEL" model.gguf
    printf '%s\n%s\n\n%s\n' "$(digits 9)" "$(digits 4)" "$(digits 14)" >list.txt
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

router() { ts router -m moe.gguf -i list.txt -t 1 --ignore-eos "$@"; }

@test "router says what it will do and did; -q says nothing; twice the same bytes" {
    router -o out.json -n 5 --trace >out 2>err
    [ ! -s out ]
    head -n 1 err | grep -qxE 'turbospark router: 3 prompts, at most 39 tokens'
    grep -qE 'the trace will take at most [0-9.]+ (B|KiB) of memory' err
    grep -qE '4 blocks of 8 experts, 2 a token: 264 slots counted; 39 tokens in ' err
    grep -q '1 empty line skipped' err
    grep -qx "turbospark router: wrote 'out.json'" err
    [ "$(ls)" = "$(printf '%s\n' err list.txt model.gguf moe.gguf out out.json out.meta)" ]
    router -o quiet.json -n 5 --trace -q >out 2>err
    [ ! -s out ]
    [ ! -s err ]
    cmp out.json quiet.json
    grep -q '"rows":\[39,39,39,15\],"rows_prefill":\[24,24,24,0\],"rows_decode":\[15,15,15,15\]' out.json
}

@test "prompts only: -n 0" {
    router -o out.json -n 0 -q
    grep -q '"rows":\[27,27,27,3\],"rows_prefill":\[24,24,24,0\]' out.json
    ! grep -q '"trace"' out.json
}

@test "run counts the same, by flag and by environment, and its text stays" {
    head -n 1 list.txt >one.txt
    ts router -m moe.gguf -i one.txt -t 1 --ignore-eos -o corpus.json -n 5 --trace -q
    ts run -m moe.gguf -f one.txt -t 1 --ignore-eos -n 5 >plain
    ts run -m moe.gguf -f one.txt -t 1 --ignore-eos -n 5 --router-hist flag.json --router-trace >text 2>err
    [ ! -s err ]
    cmp plain text
    cmp corpus.json flag.json
    TURBOSPARK_ROUTER_HIST=$PWD/env.json TURBOSPARK_ROUTER_TRACE=1 ts run -m moe.gguf -f one.txt -t 1 --ignore-eos -n 5 >text
    cmp plain text
    cmp corpus.json env.json
    TURBOSPARK_ROUTER_HIST=$PWD/env.json ts run -m moe.gguf -f one.txt -t 1 --ignore-eos -n 5 >text
    ! grep -q '"trace"' env.json
}

@test "a model without experts is refused by name; by environment it costs one line, exit 0" {
    fails "architecture 'llama' has no experts: no ffn_down_exps in its graph" router -m model.gguf -i list.txt -o out.json -q
    fails "architecture 'llama' has no experts" run -m model.gguf -p hi -n 2 --router-hist out.json
    ts run -m model.gguf -p hi -n 2 >plain
    TURBOSPARK_ROUTER_HIST=$PWD/out.json ts run -m model.gguf -p hi -n 2 >text 2>err
    cmp plain text
    [ "$(wc -l <err)" = 1 ]
    grep -q "router-hist: architecture 'llama' has no experts.*; ignored" err
    [ ! -e out.json ]
    [ ! -e out.json.part.router ]
}

@test "leading dense blocks are empty rows" {
    tiny deepseek deep.gguf
    ts router -m deep.gguf -i list.txt -t 1 -o deep.json -n 2 --trace -q --ignore-eos
    grep -q '^{"num_layers":4,"num_experts":8,"top_k":2,"counts":\[\[\],\[' deep.json
    grep -q '"trace":\[\[\],\[' deep.json
    ts analyze deep.json >table
    grep -q "routing census of 'tiny deepseek' (deepseek), 3 of 4 blocks with experts" table
}

@test "existing files are kept unless told; a resume needs the same census" {
    router -o out.json -n 2 -q --csv out.csv
    cp out.json before
    fails "'out.json' exists already" router -m moe.gguf -i list.txt -o out.json
    fails "'out.json' exists already" router -m moe.gguf -i list.txt -o out.json --resume
    # one that is whole has nothing to resume, and that is no error
    router -o out.json -n 2 --csv out.csv --resume >out 2>err
    [ ! -s out ]
    [ "$(cat err)" = "turbospark router: warning: 'out.json' is complete already: nothing to resume" ]
    cmp before out.json
    rm out.json out.meta
    fails "'out.csv' exists already" router -m moe.gguf -i list.txt -o out.json --csv out.csv
    [ ! -e out.json ]
    router -o out.json -n 2 -q --csv out.csv --overwrite
    cmp before out.json
    cp "$TS_MODEL" side.meta
    fails "side.meta" router -m side.meta -i list.txt -o side.json --overwrite
    cmp "$TS_MODEL" side.meta
}

@test "SIGTERM writes what was counted, marked partial; resume ends with the bytes of an undisturbed run" {
    for i in $(seq 400); do digits $((i % 20 + 3)); echo; done >list.txt
    router -o whole.json -n 20 --trace -q
    start_until '[ -e out.json.part.router ]' router -m moe.gguf -i list.txt -t 1 --ignore-eos -o out.json -n 20 --trace -q
    sleep 0.3
    kill -TERM $pid
    code=0
    wait $pid || code=$?
    if [ "$code" = 0 ]; then skip "too fast to be stopped"; fi
    [ "$code" = 1 ]
    if [ -e out.json ]; then
        grep -q "interrupted after [0-9]* of 400 prompts: 'out.json' holds what was counted, marked partial; resume goes on at prompt [0-9]*$" err
        ts inspect out.json | grep -q 'partial  *yes'
    fi
    router -o out.json -n 20 --trace -q --resume
    cmp out.json whole.json
    sed 's/"whole.json"/"out.json"/' whole.meta | cmp - out.meta
    [ ! -e out.json.part.router ]
}

@test "merge adds up, analyze sums the same; the CSV says the same as the trace" {
    router -o a.json -n 5 -q --csv a.csv
    head -n 2 list.txt >other.txt
    ts router -m moe.gguf -i other.txt -t 1 --ignore-eos -o b.json -n 7 -q --trace
    ts merge -o sum.json a.json b.json -q
    ts analyze a.json b.json --diffable >two
    ts analyze sum.json --diffable >one
    cmp one two
    grep -q '^5 generations; rows of all blocks: 105 prefill, 116 decode$' one
    grep -q '"sources": \[' sum.meta
    head -n 1 a.csv | grep -qx layer,expert
    [ "$(wc -l <a.csv)" = 265 ]
    ts analyze a.csv --csv-experts 8 --json >csv
    ts analyze a.json --json >json
    # what does not depend on generations is the same
    for key in n95 n99 unused gini entropy split_half; do
        [ "$(grep -o "\"$key\": {[^}]*}" csv)" = "$(grep -o "\"$key\": {[^}]*}" json)" ]
    done
    grep -q '"bounded": false' csv
    ts inspect a.json sum.json a.csv a.meta >report
    grep -q "^routing census 'a.json'" report
    grep -q 'generations  *5' report
}

@test "two groups are compared; other models and shapes are refused by name" {
    router -o a.json -n 5 -q
    ts analyze a.json --against a.json | grep -qE '^ MEAN +1\.000 +0\.[0-9]+$'
    tiny qwen3moe more.gguf n_expert=12
    ts router -m more.gguf -i list.txt -t 1 -o more.json -n 2 -q
    fails "cannot be added to 'a.json'" analyze a.json more.json
    fails "cannot compare 'more.json' with 'a.json': its model file" analyze a.json --against more.json
    fails "'list.txt' is of an unknown kind" analyze a.json list.txt
    printf '{"num_layers":1,"num_experts":2,"top_k":1,"counts":[[1,1]]}' >plain.json
    fails "it has 1 layer, expected 4" merge -o sum.json a.json plain.json
    [ ! -e sum.json ]
}

@test "damaged files: one line with file and what" {
    router -o a.json -n 2 -q --trace
    rm a.meta
    head -c 300 a.json >cut.json
    fails "'cut.json': byte 300: the file ends too early" analyze cut.json
    fails "'cut.json'" inspect cut.json
    sed 's/"counts":\[\[/"counts":[[9/' a.json >sum.json
    fails "'sum.json': layer 0: expert 0 has " analyze sum.json
    sed 's/"counts":\[\[/"counts":[[NaN,/' a.json >nan.json
    fails "'nan.json': byte " analyze nan.json
    printf 'layer,expert\n0,1\n0;2\n' >bad.csv
    fails "'bad.csv': line 3: expected 'layer,expert', two whole numbers, got '0;2'" analyze bad.csv
    printf '0,1\n0,1,2\n' >wide.csv
    fails "'wide.csv': line 2: expected 'layer,expert', two columns, got '0,1,2'" analyze wide.csv
    printf '0,1,2\n' >wide.csv
    fails "'wide.csv': line 1: expected 'layer,expert', two columns, got '0,1,2'" analyze wide.csv
    printf '0,1\n2048,2\n' >limit.csv
    fails "'limit.csv': line 2: layer 2048, expected 0 to 2047" inspect limit.csv
    printf '0,1\n0,2\0\n' >nul.csv
    fails "'nul.csv': line 2: a NUL byte, expected text" merge -o out.json nul.csv
    printf '0,1\n0,2\n0,0\n0,1\n' >run.csv
    fails "'run.csv': at least 4 lines of one layer stand together, more than its 3 experts: say how many a token gets (--csv-top-k)" analyze run.csv
    printf '{"num_layers":1,"num_experts":2,"top_k":3,"counts":[[2,1]]}' >k.json
    fails "'k.json': top_k is 3, expected at most num_experts, 2" analyze k.json
    printf '\xef\xbb\xbflayer,expert\r\n0,1\r\n0,2\r\n' >sheet.csv
    ts inspect sheet.csv >report
    ts analyze sheet.csv --csv-top-k 1 >out
}

@test "an expert listed twice for a token is two slots, and reported, also from a file of others" {
    printf '%s\n' 0,1 0,1 1,2 1,2 0,3 0,4 1,5 1,5 >twice.csv
    ts analyze twice.csv --csv-top-k 2 >out 2>err
    grep -q '^3 slots repeat an expert of their token$' out
    printf '{"num_layers": 1, "num_experts": 2, "top_k": 2, "counts": [[6, 0]], "trace": [[0, 0, 0, 0, 0, 0]]}' >plain.json
    ts analyze plain.json >out
    grep -q '^3 slots repeat an expert of their token$' out
    printf '{"num_layers": 1, "num_experts": 2, "top_k": 1, "counts": [[1, 0]], "format_version": 2}' >newer.json
    run ts analyze newer.json
    [ "$status" = 1 ]
    [[ "$output" == *"'newer.json': format_version is 2, expected 1" ]]
}
