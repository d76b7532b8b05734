# Models of a shape in `bench`, the arms that read every pass, what a table may say, and what a killed one leaves.

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

@test "bench needs a model of one kind, and takes no --tap" {
    wrong "a model is needed: '-m FILE' or '--synthetic SHAPE'" bench
    wrong "'--tap' is what bench compares: it takes none" bench --synthetic 3,64,96,2,1 --tap redirect
    wrong "'--tap' is what bench compares: it takes none" bench --synthetic 3,64,96,2,1 --tap ask
}

@test "fewer than six rounds have no 95 % interval and tell no difference" {
    ts bench --synthetic 3,64,96,2,1 -t 1 -n 3 -r 5 >out
    grep -q '^arm .* whole range$' out
    [ "$(grep -c '95 % interval' out)" = 1 ] # "fewer than 6 rounds have no"
    [ "$(grep -c ' costs .* %: no difference that can be told$' out)" = 3 ]
    [ "$(grep -c ' costs ' out)" = 3 ]
    ts bench --synthetic 3,64,96,2,1 -t 1 -n 3 -r 6 >out
    grep -q '^arm .* 95 % interval$' out
    [ "$(grep -c 'whole range' out)" = 0 ]
}

@test "an interval of eight rounds is their whole range, one of nine leaves an end out on each side" {
    local rounds
    for rounds in 8 9; do
        ts bench --synthetic 3,64,96,2,1 -t 1 -n 3 -r $rounds --json b.json >out
        python3 - b.json <<'PY'
import json, math, sys
b = json.load(open(sys.argv[1]))
off = b["arms"][0]["tokens_per_s"]
for arm in b["arms"]:
    costs = sorted(100 * (o / t - 1) for o, t in zip(off, arm["tokens_per_s"]))
    n, rank, c = len(costs), len(costs) == 9, arm["cost_percent"]
    near = lambda a, b: abs(a - b) <= 1e-3 * (1 + abs(b))
    assert near(c["low"], costs[rank]) and near(c["high"], costs[n - 1 - rank]), (arm["name"], c, costs)
PY
    done
}

@test "the middle third of two blocks is left out, since a direction file cannot name block 0" {
    direction d.gguf width=64 blocks=1:1
    ts bench --synthetic 2,64,96,2,1 -t 1 -n 3 -r 1 --steering d.gguf >out 2>err
    grep -qx "turbospark bench: 'ablate, a third' is left out: the middle third of 2 blocks is block 0, which a direction file cannot name" err
    grep -q '^ablate, all blocks' out
    [ "$(grep -c '^ablate, a third' out)" = 0 ]
}

@test "what a killed bench --corpus left is removed by the next one, and nothing else" {
    mkdir tmp
    export TMPDIR=$PWD/tmp
    printf '{"token_ids": [1, 2, 3]}\n' >ids.jsonl
    start_until '[ -e "tmp/turbospark-bench-$pid/bench.meta" ]' \
        bench --synthetic 3,64,96,2,1 -t 1 -r 100000 --corpus ids.jsonl
    kill -KILL $pid
    wait $pid || true
    [ -e "tmp/turbospark-bench-$pid" ]
    mkdir tmp/turbospark-bench-$$ tmp/turbospark-bench-${pid}x elsewhere # of a process that lives; of none
    touch tmp/turbospark-bench-$$/bench.json elsewhere/bench.json
    ln -s ../elsewhere tmp/turbospark-bench-999999999
    ts bench --synthetic 3,64,96,2,1 -t 1 -r 1 --corpus ids.jsonl >out 2>err
    [ ! -s err ]
    [ ! -e "tmp/turbospark-bench-$pid" ]
    [ -e tmp/turbospark-bench-$$/bench.json ]
    [ -e elsewhere/bench.json ]
    [ "$(ls tmp | wc -l)" = 3 ]
}

@test "a synthetic model larger than the machine is refused with its size" {
    run ts bench --synthetic 1,1000000,1000000,1000,1000 -n 2 -r 1
    [ "$status" = 1 ]
    [[ "$output" == "turbospark bench: a synthetic model of "*" MiB does not fit the "*" MiB of this machine" ]]
}
