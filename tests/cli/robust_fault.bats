# Each allocation and system call of ours fails once, seen from outside: exit 1, one line, no temporary, no lock. Needs a
# build with TS_FAULT_INJECTION (make asan), where TS_FAULT_AT is the number of the call that fails; every STEP-th here
# (TS_FAULT_STEP=1: all), every system call in tests/e2e/test_fault.c.

setup_file() {
    cd "$BATS_FILE_TMPDIR"
    "$TS_BUILD_DIR/tests/bin/tiny_gguf" llama tiny.gguf n_layer=2 n_embd=32 n_ff=64
    python3 "$TS_SOURCE_DIR/tests/cli/direction.py" dir.gguf width=32 blocks=1:1
    printf 'one\ntwo two\nthree\n' >prompts.txt
    printf 'four\nfive five\n' >others.txt
    printf 'one two three four five six seven' >text.txt
    export M='-q -m tiny.gguf -t 1 -c 64'
    for name in la lb; do "$TS_CLI" logits $M -f text.txt -o $name; done
    "$TS_CLI" census $M -i prompts.txt -n 2 -o cen.json
    "$TS_CLI" capture $M -i prompts.txt -o pos.json
    "$TS_CLI" capture $M -i others.txt -o neg.json
}

setup() {
    load common
    cd "$BATS_FILE_TMPDIR"
    ! TS_FAULT_AT=1 "$TS_CLI" merge -q cen.json -o probe.json 2>/dev/null || skip "built without TS_FAULT_INJECTION"
}

# One after the other until a few in a row were never reached.
each_fails() { # WORDS
    local at code good=0
    for ((at = 1; good < 5; at += ${TS_FAULT_STEP:-11})); do
        rm -rf out.* second.* folder
        code=0
        # shellcheck disable=SC2086
        TS_FAULT_AT=$at timeout 60 "$TS_CLI" $1 >printed 2>err </dev/null || code=$?
        if [ "$code" = 0 ]; then
            good=$((good + 1))
            continue
        fi
        good=0
        echo "turbospark $1, call $at: exit $code: $(cat err)"
        [ "$code" = 1 ]
        [ "$(wc -l <err)" = 1 ]
        if find . | grep -E '\.tmp-|\.lock$'; then return 1; fi
    done
    [ "$at" -gt 50 ]
}

@test "run with its instruments" { each_fails "run $M -p hi -n 2 --resid-capture out.json --ffn-hist second.json"; }
@test "run, steered and traced" {
    each_fails "run $M -p hi -n 2 --steering dir.gguf --steering-mode ablate --steering-trace out.json"
}
@test "capture" { each_fails "capture $M -i prompts.txt -o out.json"; }
@test "capture, safetensors" { each_fails "capture $M -i prompts.txt -o out.safetensors"; }
@test "census with its trace" { each_fails "census $M -i prompts.txt -n 2 -o out.json --trace"; }
@test "census, zeroing" { each_fails "census $M --text text.txt --zero 10 --json out.json"; }
@test "logits" { each_fails "logits $M -f text.txt -o folder"; }
@test "kld" { each_fails "kld la lb -q --json out.json"; }
@test "extract" { each_fails "extract -q --positive pos.json --negative neg.json -o out.gguf --json out.json"; }
@test "sweep" { each_fails "sweep $M --steering dir.gguf --modes add --scales 0,1 -i prompts.txt -n 2 --json out.json"; }
@test "merge" { each_fails "merge -q cen.json -o out.json"; }
