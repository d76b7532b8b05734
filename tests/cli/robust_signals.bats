# SIGINT and SIGTERM at any moment: exit 1 and one line; what was captured is there, marked partial and whole; a second
# signal ends the process at once with 130. Moments are random; a failing one is printed with its delay.

setup_file() {
    cd "$BATS_FILE_TMPDIR"
    "$TS_BUILD_DIR/tests/bin/tiny_gguf" llama tiny.gguf n_layer=4 n_embd=128 n_ff=256
    python3 "$TS_SOURCE_DIR/tests/cli/direction.py" dir.gguf width=128 blocks=1:3
    for i in $(seq 4000); do echo "prompt $i of many, all alike"; done >prompts.txt
    head -n 40 prompts.txt >few.txt
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
    "$TS_CLI" $3 >out 2>err </dev/null &
    pid=$!
    sleep "$1"
    kill -s "$2" "$pid" 2>/dev/null || true
    wait "$pid" || code=$?
    echo "$2 after $1 s: exit $code: $(cat err)"
    if compgen -G '*.tmp-*' || compgen -G '*.lock' || compgen -G 'made*/*.tmp-*'; then return 1; fi
}

# Before it began to listen the signal ends the process as it does any other.
ended_well() {
    [ "$code" = 0 ] && return 0
    [ "$code" = 130 ] || [ "$code" = 143 ] && [ ! -s err ] && return 0
    [ "$code" = 1 ] && [ "$(grep -vc ': warning: ' err)" = 1 ] && grep -q 'interrupted' err
}

whole() { # FILE: a result that stands there is whole, and an interrupted one says so
    [ ! -e "$1" ] && return 0
    ts inspect "$1" >report
    [ "$code" = 0 ] || [ "${2:-}" = unmarked ] || grep -qiE 'partial.*yes' report
}

each_moment() { # FILE WORDS
    local signal
    for i in $(seq 6); do
        for signal in INT TERM; do
            rm -rf made*
            stop_after "$(seconds 500)" "$signal" "$2"
            ended_well
            whole "$1"
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
@test "logits" { each_moment made 'logits -q -m tiny.gguf -t 1 -ub 64 --window 128 -f text.txt -o made'; }
@test "sweep: finished cells stay for --resume" {
    words='sweep -q -m tiny.gguf -t 1 --steering dir.gguf --modes add --scales=-2:2:0.5 -i few.txt -n 4 --json made.json'
    each_moment made.json "$words"
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
        'sweep -q -m tiny.gguf -t 1 --steering dir.gguf --modes add --scales=-2:2:0.5 -i few.txt -n 400 --ignore-eos --json made.json' \
        'logits -q -m tiny.gguf -t 1 -ub 64 --window 128 -f text.txt -o made'; do
        rm -rf made*
        code=0
        # shellcheck disable=SC2086
        "$TS_CLI" $words >out 2>err </dev/null &
        pid=$!
        for _ in $(seq 200); do [ -n "$(compgen -G 'made*')" ] && break; sleep 0.01; done
        kill -STOP "$pid" # both are pending when it goes on
        kill -INT "$pid"
        kill -TERM "$pid"
        kill -CONT "$pid"
        wait "$pid" || code=$?
        echo "$words: exit $code: $(cat err)"
        [ "$code" = 130 ]
        whole made.json unmarked
        whole made/meta.json unmarked
    done
}
