# What needs no golden text: versions, agreement of --help and man pages, values that look like options.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
    ln -sf "$TS_MODEL" model.gguf
}

version_in_header() {
    sed -n 's/^#define TS_VERSION_[A-Z]* \([0-9]*\)$/\1/p' "$TS_SOURCE_DIR/include/turbospark/turbospark.h" |
        paste -sd.
}

@test "--version prints ours, the engine's, ggml's and the devices" {
    run ts --version
    [ "$status" = 0 ]
    [ "${lines[0]}" = "turbospark $(version_in_header)" ]
    [[ "${lines[1]}" =~ ^llama.cpp\ [^\ ] ]]
    [[ "${lines[2]}" =~ ^ggml\ [0-9] ]]
    [[ "${lines[3]}" =~ ^device\ .*,\ (cpu|gpu|igpu|accel),\ [0-9]+\ of\ [0-9]+\ MiB\ free$ ]]
}

@test "--version keeps stderr empty" {
    ts --version 2>err >/dev/null
    [ ! -s err ]
}

# The names at the start of an option's line in --help, and in a man page. "-" alone and values fall away.
names() { tr ', ' '\n\n' | grep -E '^--?[a-z]' | sort -u; }
help_options() { ts "$1" --help | sed -n '/^  /s/^ *\(-[^ ].*\)$/\1/p' | sed 's/   *.*//' | names; }
man_options() { # PAGE [the section it starts at]
    sed -n "/^# ${2:-OPTIONS}/,/^# FI/p" "$TS_SOURCE_DIR/man/$1.1.scd" | grep '^\*-' | tr -d '*\\' | names
}

@test "each option of --help stands in the man page, and the other way round" {
    common=$(man_options turbospark 'COMMON OPTIONS')
    for command in run nodes capture census analyze merge extract logits kld sweep inspect bench; do
        [ "$(help_options "$command" | wc -l)" -gt 4 ]
        case $command in analyze | merge | kld | inspect) common= ;; esac
        diff <(help_options "$command") <({ man_options "turbospark-$command"; echo "$common"; } | names) ||
            { echo "$command"; false; }
        common=$(man_options turbospark 'COMMON OPTIONS')
    done
}

@test "each command stands in turbospark(1) and has its page" {
    for command in $(ts --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
        grep -q "turbospark-$command\*(1)" "$TS_SOURCE_DIR/man/turbospark.1.scd"
        [ -f "$TS_SOURCE_DIR/man/turbospark-$command.1.scd" ]
    done
}

@test "no line of help is wider than 79 columns" {
    for command in '' run nodes capture census analyze merge extract logits kld sweep inspect bench; do
        ! ts $command --help | tail -n +2 | grep -nE '.{80}'
    done
}

@test "the spellings of an option are one option" {
    ts run -m model.gguf -p 'The sky is' -n 4 -t 1 -ub 64 -fa off -ctk f16 >a
    ts run --model=model.gguf --prompt 'The sky is' -n4 --threads=2 -ub=64 --flash-attn=off --cache-type-k=f16 >b
    ts run --model model.gguf -p='The sky is' --predict=9 --predict 4 -t1 --ubatch-size 64 -fa=off -ctk=f16 >c
    [ -s a ]
    cmp a b
    cmp a c
}

@test "a value that looks like an option, or means something to popt, is a value" {
    for prompt in '-n' '--help' '--' '-' 'a!#:+b' '=x' 'a=b'; do
        ts run -m model.gguf -p "$prompt" -n 3 >a
        printf '%s' "$prompt" >prompt.txt
        ts run -m model.gguf -f prompt.txt -n 3 >b
        cmp a b
    done
}

@test "a prompt file is read without one newline at its end" {
    ts run -m model.gguf -p 'The sky is' -n 3 >a
    printf 'The sky is\n' >prompt.txt
    ts run -m model.gguf -f prompt.txt -n 3 >b
    printf 'The sky is\r\n' >prompt.txt
    ts run -m model.gguf -f prompt.txt -n 3 >c
    cmp a b
    cmp a c
}

fails() { # CODE LINE WORDS...: that status, nothing on stdout, that line alone on stderr
    local wanted=$1 line=$2 code=0
    shift 2
    ts "$@" >out 2>err || code=$?
    [ "$code" = "$wanted" ] && [ ! -s out ] && [ "$(cat err)" = "turbospark $1: $line" ] || { echo "exit $code"; cat out err; return 1; }
}
misused() { # LINE WORDS...
    fails 2 "$1; try 'turbospark $2 --help'" "${@:2}"
}

@test "more threads than cores is a warning" {
    "$TS_BUILD_DIR/tests/bin/tiny_gguf" llama tiny.gguf
    n=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
    ts nodes -m tiny.gguf -t $n >out 2>err
    [ ! -s err ]
    ts nodes -m tiny.gguf -t $((n + 1)) >more 2>err
    cmp out more
    grep -q "^turbospark nodes: warning: threads: $((n + 1)) on $n cores: " err
    [ "$(wc -l <err)" = 1 ]
    ts bench --synthetic 2,64,96,2,1 -n 2 -r 1 -t $((n + 1)) >out 2>err # several sessions of one model
    [ "$(grep -c 'warning: threads' err)" = 1 ]
}

@test "an option that would do nothing is refused" {
    printf 'one\n' >list.txt
    printf '{"prompt": "one"}\n{"token_ids": [1, 2]}\n' >list.jsonl
    misused "'-s' needs '--temp' above 0" run -m model.gguf -p hi -s 3
    misused "'--temp' needs '-n' above 0" run -m model.gguf -p hi -n 0 --temp 1
    misused "'--ignore-eos' needs '-n' above 0" run -m model.gguf -p hi -n 0 --ignore-eos
    for n in 0 1; do
        misused "'--steering-from decode' needs '-n' above 1: the prompt decides the first token" \
            run -m model.gguf -p hi -n $n --steering d.gguf --steering-from decode
    done
    misused "'--steering-from decode' needs '-n' above 1: the prompt decides the first token" \
        sweep -m model.gguf --steering d.gguf -i list.txt -n 1 --steering-from decode
    misused "'--random' needs a scale other than 0" sweep -m model.gguf --steering text.gguf -i list.txt --scales 0 --random 2
    misused "'--tap' needs something to tap: an instrument or '--steering'" run -m model.gguf -p hi --tap ask
    misused "'--tap' needs something to tap: '--steering FILE'" logits -m model.gguf -f list.txt -o out.d --tap ask
    misused "'--tap' is what bench compares: it takes none" bench -m model.gguf --tap ask
    misused "'--corpus' and '--each-pass' exclude each other" bench -m model.gguf --corpus list.txt --each-pass
    misused "'-s' needs '--random N'" sweep -m model.gguf -i list.txt --steering d.gguf -s 3
    misused "'--steering-target' needs mode 'clamp', '--modes' has 'add,ablate'" sweep -m model.gguf -i list.txt --steering d.gguf --modes add,ablate --steering-target 2
    for command in nodes capture census router logits extract bench; do
        misused "option '-s': unknown option" "$command" -s 3
    done
    for words in 'capture' 'router' 'census'; do
        fails 1 "chat template 'chatml' is of no use: 'list.txt' has no messages, and plain prompts are not wrapped (--chat)" \
            $words -m model.gguf -i list.txt -o out.json --chat-template chatml
    done
    fails 1 "chat template 'chatml' is of no use: 'list.jsonl' has no messages, and plain prompts are not wrapped (--chat)" \
        capture -m model.gguf -i list.jsonl -o out.json --chat-template chatml
    [ "$(ls)" = "$(printf '%s\n' err list.jsonl list.txt model.gguf out)" ]
    printf '{"messages": [{"role": "user", "content": "one"}]}\n' >chat.jsonl
    ts capture -m model.gguf -i chat.jsonl -o out.json --chat-template chatml --layers 0:0 --format safetensors -q
}

@test "a variable that would do nothing is warned of" {
    "$TS_BUILD_DIR/tests/bin/tiny_gguf" qwen3moe moe.gguf
    TURBOSPARK_ROUTER_TRACE=1 ts run -m moe.gguf -p hi -n 1 >out 2>err
    [ "$(cat err)" = "turbospark run: warning: TURBOSPARK_ROUTER_TRACE does nothing without a routing census (TURBOSPARK_ROUTER_HIST)" ]
    TURBOSPARK_ROUTER_TRACE=yes TURBOSPARK_ROUTER_HIST=$PWD/r.json ts run -m moe.gguf -p hi -n 1 >out 2>err
    [ "$(cat err)" = "turbospark run: warning: TURBOSPARK_ROUTER_TRACE: expected 1, got 'yes': no trace is kept" ]
    ! grep -q '"trace"' r.json
    for value in '' 0; do
        TURBOSPARK_ROUTER_TRACE=$value ts run -m moe.gguf -p hi -n 1 >out 2>err
        [ ! -s err ]
    done
    TURBOSPARK_ROUTER_TRACE=1 ts run -m moe.gguf -p hi -n 1 --router-hist r.json >out 2>err
    [ ! -s err ]
    grep -q '"trace"' r.json
}
