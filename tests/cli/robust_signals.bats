# SIGINT and SIGTERM at any moment: exit 1 and one line; what was captured is there, marked partial and whole; a second
# signal ends the process at once with 130. Neither leaves a temporary; what a killed run left is removed by the next one with
# that output, which throws no unfinished work away unasked. Moments are random; a failing one is printed with its delay.

setup_file() {
    cd "$BATS_FILE_TMPDIR"
    "$TS_BUILD_DIR/tests/bin/tiny_gguf" llama tiny.gguf n_layer=4 n_embd=128 n_ff=256
    python3 "$TS_SOURCE_DIR/tests/cli/direction.py" dir.gguf width=128 blocks=1:3
    for i in $(seq 4000); do echo "prompt $i of many, all alike"; done >prompts.txt
    "$TS_BUILD_DIR/tests/bin/tiny_gguf" llama-moe moe.gguf n_layer=2 n_embd=32 n_ff=32
    head -n 40 prompts.txt >few.txt
    sed 's/prompt/other/' few.txt >other.txt
    head -n 400 prompts.txt >text.txt
}

setup() {
    load common
    cd "$BATS_FILE_TMPDIR"
}

seconds() { printf '0.%03d' $((RANDOM % $1)); }

# Starts WORDS, sends SIGNAL after DELAY, leaves the exit code in $code.
stop_after() { # DELAY SIGNAL WORDS
    local pid
    code=0
    # shellcheck disable=SC2086
    start_until true $3
    sleep "$1"
    kill -s "$2" "$pid" 2>/dev/null || true
    wait "$pid" || code=$?
    echo "$2 after $1 s: exit $code: $(cat err)"
    if leftovers; then return 1; fi
}

leftovers() { compgen -G '*.tmp-*' || compgen -G '*.lock' || compgen -G 'made*/*.tmp-*' || compgen -G 'made*/*.lock'; }

# Before it began to listen the signal ends the process as it does any other.
ended_well() {
    [ "$code" = 0 ] && return 0
    [ "$code" = 130 ] || [ "$code" = 143 ] && [ ! -s err ] && return 0
    [ "$code" = 1 ] && [ "$(grep -vc ': warning: ' err)" = 1 ] && grep -q 'interrupted' err
}

whole() { # FILE: a result that stands there is whole, and an interrupted one says so
    [ ! -e "$1" ] && return 0
    [ "${2:-}" != report ] || { python3 -m json.tool "$1" >/dev/null; return; }
    ts inspect "$1" >report
    [ "$code" = 0 ] || [ "${2:-}" = unmarked ] || grep -qiE 'partial.*yes' report
}

each_moment() { # FILE WORDS [report]
    local signal
    for i in $(seq 6); do
        for signal in INT TERM; do
            rm -rf made*
            stop_after "$(seconds 500)" "$signal" "$2"
            ended_well
            whole "$1" "${3:-}"
        done
    done
}

@test "run" {
    each_moment made.json 'run -m tiny.gguf -t 1 -c 4096 -f few.txt -n 1500 --ignore-eos --resid-capture made.json'
    each_moment made.json 'run -m tiny.gguf -t 1 -c 4096 -f few.txt -n 1500 --ignore-eos --ffn-hist made.json'
}
@test "capture" { each_moment made.json 'capture -q -m tiny.gguf -t 1 -ub 64 -i prompts.txt -o made.json'; }
@test "capture, safetensors" {
    each_moment made.safetensors 'capture -q -m tiny.gguf -t 1 -ub 64 -i prompts.txt -o made.safetensors'
}
@test "census" { each_moment made.json 'census -q -m tiny.gguf -t 1 -i prompts.txt -n 4 --ignore-eos -o made.json'; }
@test "census of experts" { each_moment made.json 'census -q -m moe.gguf -t 1 -i prompts.txt -n 3 --ignore-eos -o made.json'; }
@test "router" { each_moment made.json 'router -q -m moe.gguf -t 1 -i prompts.txt -n 3 --ignore-eos --trace -o made.json'; }
@test "extract" {
    each_moment made.gguf 'extract -q -m tiny.gguf -t 1 --exact --positive prompts.txt --negative other.txt -o made.gguf'
    [ ! -e made.gguf ]
}
@test "logits" { each_moment made 'logits -q -m tiny.gguf -t 1 -ub 64 --window 128 -f text.txt -o made'; }
@test "sweep: finished cells stay for --resume" {
    words='sweep -q -m tiny.gguf -t 1 --steering dir.gguf --modes add --scales=-2:2:0.5 -i few.txt -n 4 --json made.json'
    each_moment made.json "$words" report
    rm -rf made*
    for _ in $(seq 20); do
        stop_after 0.3 TERM "$words --resume"
        [ "$code" = 0 ] && break
        ended_well
    done
    # shellcheck disable=SC2086
    [ "$code" = 0 ] || ts $words --resume
    mv made.json resumed.json
    # shellcheck disable=SC2086
    ts $words >out
    cmp resumed.json made.json
}

@test "a second signal ends the process at once" {
    for words in 'run -m tiny.gguf -t 1 -c 4096 -f few.txt -n 3000 --ignore-eos --resid-capture made.json' \
        'capture -q -m tiny.gguf -t 1 -ub 64 -i prompts.txt -o made.json' \
        'census -q -m tiny.gguf -t 1 -i prompts.txt -n 4 --ignore-eos -o made.json' \
        'run -m moe.gguf -t 1 -c 4096 -f few.txt -n 3000 --ignore-eos --router-hist made.json' \
        'run -m tiny.gguf -t 1 -c 4096 -f few.txt -n 3000 --ignore-eos --steering dir.gguf --steering-mode add --steering-trace made.json' \
        'router -q -m moe.gguf -t 1 -i prompts.txt -n 4 --ignore-eos --trace -o made.json' \
        'sweep -q -m tiny.gguf -t 1 --steering dir.gguf --modes add --scales=-2:2:0.5 -i few.txt -n 400 --ignore-eos --json made.json' \
        'logits -q -m tiny.gguf -t 1 -ub 64 --window 128 -f text.txt -o made'; do
        rm -rf made*
        code=0
        # shellcheck disable=SC2086
        start_until "compgen -G 'made*' >/dev/null" $words
        kill -STOP "$pid" # both are pending when it goes on
        kill -INT "$pid"
        kill -TERM "$pid"
        kill -CONT "$pid"
        wait "$pid" || code=$?
        echo "$words: exit $code: $(cat err)"
        [ "$code" = 130 ]
        if leftovers; then return 1; fi
        whole made.json unmarked
        whole made/meta.json unmarked
    done
}

@test "capture: rows without a checkpoint are not thrown away unasked" {
    rm -rf made*
    head -c 4096 /dev/zero >made.json.part
    words='capture -m tiny.gguf -t 1 -i few.txt -o made.json'
    code=0
    # shellcheck disable=SC2086
    "$TS_CLI" $words 2>err || code=$?
    [ "$code" = 1 ] && grep -q "'made.json.part' is left of an unfinished run" err && [ -s made.json.part ]
    # shellcheck disable=SC2086
    "$TS_CLI" $words --resume 2>err
    grep -q "'made.json.part' has no checkpoint yet: starting over" err
    ts inspect made.json >report
    rm -rf made*
}

# Kills WORDS once FILE is there and some more was done.
kill_with() { # FILE WORDS
    local pid
    # shellcheck disable=SC2086
    start_until "[ -s '$1' ]" $2
    sleep "$(seconds 400)"
    kill -KILL "$pid"
    wait "$pid" || true
    [ -s "$1" ]
}

@test "unfinished work is not thrown away unasked, and temporaries of the dead go" {
    while IFS='|' read -r state words; do
        # shellcheck disable=SC2086
        ts $words >out
        mkdir -p finished && mv made.* finished/
        kill_with "$state" "$words"
        touch made.json.tmp-1-0 made.meta.tmp-77-3 "$state.tmp-1-0" # as if killed while it wrote
        cp "$state" before
        code=0
        # shellcheck disable=SC2086
        "$TS_CLI" $words >out 2>err || code=$?
        echo "$words: exit $code: $(cat err)"
        [ "$code" = 1 ]
        [ "$(cat err)" = "turbospark ${words%% *}: '$state' is left of an unfinished run: go on with --resume, or start over with --overwrite" ]
        cmp "$state" before
        # shellcheck disable=SC2086
        ts $words --resume >out
        if leftovers; then return 1; fi
        for file in finished/*; do cmp "$file" "${file#finished/}"; done
        rm -f made.* finished/*

        kill_with "$state" "$words"
        # shellcheck disable=SC2086
        ts $words --overwrite >out
        [ ! -e "$state" ]
        rm -f made.*
    done <<END
made.json.part.state|capture -q -m tiny.gguf -t 1 --exact -i prompts.txt -o made.json
made.json.part.census|census -q -m tiny.gguf -t 1 -i prompts.txt -n 3 --ignore-eos -o made.json --trace
made.json.part.census|census -q -m moe.gguf -t 1 -i prompts.txt -n 3 --ignore-eos -o made.json
made.json.part.router|router -q -m moe.gguf -t 1 -i prompts.txt -n 3 --ignore-eos -o made.json
made.json.part.jsonl|sweep -q -m tiny.gguf -t 1 --steering dir.gguf --modes add --scales=-2:2:0.5 -i few.txt -n 16 --json made.json
END
}

@test "a census whose unfinished trace is gone says so" {
    words='census -q -m tiny.gguf -t 1 -i prompts.txt --ignore-eos -o made.json --trace -n 8'
    # shellcheck disable=SC2086
    start_until 'renewed made.json.part.census' $words
    kill -TERM "$pid"
    wait "$pid" || true
    [ -s made.json.part.trace ]
    mv made.json.part.trace aside
    code=0
    # shellcheck disable=SC2086
    "$TS_CLI" $words --resume >out 2>err || code=$?
    [ "$code" = 1 ]
    [ "$(cat err)" = "turbospark census: 'made.json.part.trace' is gone, without which the census cannot go on; start over with --overwrite" ]
    mv aside made.json.part.trace
    # shellcheck disable=SC2086
    ts $words --resume
    rm -f made.*
}

@test "extract: the folder of captures that a killed one left goes" {
    words='extract -q -m tiny.gguf -t 1 --exact --positive prompts.txt --negative other.txt -o made.gguf'
    # shellcheck disable=SC2086
    start_until "compgen -G 'made.gguf.tmp-*/*.part' >/dev/null" $words
    kill -KILL "$pid"
    wait "$pid" || true
    compgen -G 'made.gguf.tmp-*/*.part'
    # shellcheck disable=SC2086
    ts $words >out
    if leftovers; then return 1; fi
}
