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
