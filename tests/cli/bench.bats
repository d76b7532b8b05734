# Models of a shape in `bench`, and the arms that read every pass.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
}

# Standard error and exit code of a wrong line.
wrong() {
    local text=$1 rc=0
    shift
    ts "$@" >out 2>err || rc=$?
    [ "$rc" = 2 ]
    [ ! -s out ]
    [ "$(cat err)" = "turbospark bench: $text; try 'turbospark bench --help'" ]
}

@test "bench makes a model of the shape, also with experts, and counts every pass" {
    ts bench --synthetic 3,64,96,2,1 -t 1 -n 3 -r 2 --each-pass --json b.json >out 2>err
    [ ! -s err ]
    grep -q '^decode: llama .* Q8_0, 13 prompt tokens, 3 generated, 2 rounds$' out
    for arm in off 'off again' 'resid, redirected' 'ffn census' 'declining callback' 'rows each pass' 'rows, asked' 'ffn census, asked'; do
        grep -q "^$arm  " out
    done
    grep -q '"name": "declining callback"' b.json
    printf '{"token_ids": [1, 2, 3]}\n{"token_ids": [4, 5]}\n' >ids.jsonl
    ts bench --synthetic 3,64,96,2,1,4,2 -t 1 -r 1 --corpus ids.jsonl >out
    grep -q '^corpus: .*2 prompts, 5 tokens' out
}

@test "a shape that cannot be is one line" {
    bad() { wrong "--synthetic: $2" bench --synthetic "$1"; }
    expected='expected 135M, 3B, 8B or L,E,FF,H,HKV[,EXPERTS,USED], got'
    bad 7B "$expected '7B'"
    bad 3,64,96,2 "$expected '3,64,96,2'"
    bad 3,64,96,2,1,4 "$expected '3,64,96,2,1,4'"
    bad 3,64,96,2,1,4,2,9 "$expected '3,64,96,2,1,4,2,9'"
    bad 3,x,96,2,1 "$expected '3,x,96,2,1'"
    bad 3,64,96,3,1 'a width of 64 is no even number for each of 3 heads'
    bad 3,64,96,4,3 '4 heads do not share 3 key-value heads evenly'
    bad 3,64,96,2,1,4,5 '5 of 4 experts cannot be used'
}

@test "a shape stands in place of a model and of text" {
    wrong "'-m' and '--synthetic' exclude each other" bench --synthetic 3B -m model.gguf
    wrong "'--synthetic' and '-p' exclude each other: the model reads no text" bench --synthetic 3B -p hello
}

@test "an arm that the model has no site for is left out, and said so" {
    ts bench --synthetic 2,128,256,4,2,8,2 -t 1 -n 3 -r 1 >out 2>err
    [ "$(wc -l <err)" = 1 ]
    grep -q "^turbospark bench: 'ffn census' is left out: architecture 'llama' has no dense FFN" err
    grep -q '^resid, redirected' out
    ! grep -q 'ffn census' out
}

@test "a synthetic model larger than the machine is refused with its size" {
    run ts bench --synthetic 1,1000000,1000000,1000,1000 -n 2 -r 1
    [ "$status" = 1 ]
    [[ "$output" == "turbospark bench: a synthetic model of "*" MiB does not fit the "*" MiB of this machine" ]]
}
