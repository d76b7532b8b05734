# scripts/gpu-proof: what is given wrong is one line that names it, before anything is built or made.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
    printf 'no library' >text
    mkdir -p programs
    cp "$TS_CLI" programs/turbospark
}

refused() { # TEXT NAME=VALUE...
    local text=$1 rc=0
    shift
    env -u BIN -u CUDA_BACKEND -u OUT -u STEPS -u MODEL -u ROUNDS -u THREADS OUT="$PWD/made" "$@" \
        timeout 20 "$TS_SOURCE_DIR/scripts/gpu-proof" >out 2>err </dev/null || rc=$?
    [ "$rc" = 1 ]
    [ ! -s out ]
    [ "$(cat err)" = "gpu-proof: $text" ]
    [ ! -e made ]
}

@test "gpu-proof refuses a backend that cannot be one" {
    refused "CUDA_BACKEND: '$PWD/none' is no file that can be read" CUDA_BACKEND="$PWD/none"
    refused "CUDA_BACKEND: '$PWD' is no file that can be read" CUDA_BACKEND="$PWD"
    refused "CUDA_BACKEND: '$PWD/text' is no shared library (ELF)" CUDA_BACKEND="$PWD/text"
    refused 'BIN and CUDA_BACKEND exclude each other: with BIN the backends are those beside the programs' \
        CUDA_BACKEND="$TS_CLI" BIN="$PWD/programs"
}

@test "gpu-proof names the program that is missing" {
    refused "BIN: no program 'turbospark' in '$PWD/none'" BIN="$PWD/none"
    refused "BIN: no program 'bench_gpu' in '$PWD/programs'" BIN="$PWD/programs"
}

@test "gpu-proof refuses steps, numbers, models and folders that cannot be" {
    refused "STEPS: expected 'checks' and 'tables', got 'foo'" STEPS='checks foo'
    refused "ROUNDS: expected a number from 1, got 'many'" ROUNDS=many
    refused "THREADS: expected a number from 1, got '0'" THREADS=0
    refused "MODEL: '$PWD/none.gguf' is no file" MODEL="$PWD/none.gguf"
    refused "OUT: cannot make a folder '$PWD/text' to write in" OUT="$PWD/text"
    refused "OUT: cannot make a folder '$PWD/text/deep' to write in" OUT="$PWD/text/deep"
}

@test "what gpu-proof runs holds on the processor too" {
    gpu="$TS_BUILD_DIR/bench/bench_gpu"
    mkdir scratch
    for words in 'check 4,64,128,4,2 0' 'check 4,64,128,4,2 half' 'check f32:3,64,128,4,2 all' 'check 3,64,128,4,2,8,2 all' 'compare f32:3,64,128,4,2'; do
        # shellcheck disable=SC2086
        "$gpu" $words scratch >>checks.jsonl # in one folder, as the script has it
    done
    [ "$(grep -c '"ok": true' checks.jsonl)" = "$(wc -l <checks.jsonl)" ]
    [ "$(wc -l <checks.jsonl)" -ge 80 ]
    cp "$gpu" programs/
    BIN=$PWD/programs OUT=$PWD/made SHAPES=6,64,128,4,2 STEPS=tables ROUNDS=1 THREADS=1 MODEL='' "$TS_SOURCE_DIR/scripts/gpu-proof" 2>err
    grep -q '| rows, asked |' made/gpu-proof.md
    python3 -c 'import json; assert len(json.load(open("made/gpu-proof.json"))["benches"]) == 2'
}
