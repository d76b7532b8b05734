# turbospark nodes: sites that have no name of their own, that are not there, and blocks that are run several times.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
}

tiny() { "$TS_BUILD_DIR/tests/bin/tiny_gguf" "$@"; }

@test "a node without a name of its own is read where its weight is used" {
    tiny rwkv7 rwkv7.gguf
    ts nodes -m rwkv7.gguf --site ffn >out
    [ "$(grep -c "asked: its node has no name of its own: read where 'blk\.[0-3]\.channel_mix_value\.weight' is used" out)" = 4 ]
    printf '%05d ' $(seq 100 199) >text.txt
    ts census -m rwkv7.gguf --text text.txt -o census.json 2>err
    python3 -c '
import json
census = json.load(open("census.json"))
assert census["num_layers"] == 4, census["num_layers"]'
}

@test "and cannot be edited" {
    tiny rwkv7 rwkv7.gguf
    printf '%05d ' $(seq 100 199) >text.txt
    code=0
    ts census -m rwkv7.gguf --text text.txt --zero 50 >out 2>err || code=$?
    [ "$code" = 1 ]
    [ ! -s out ]
    [ "$(wc -l <err)" = 1 ]
    grep -q "ffn of block 0 ('.*') cannot be edited: it has no name of its own and is read where it is used" err
}

@test "several residual streams are refused by name, for every block" {
    tiny deepseek4 streams.gguf
    ts nodes -m streams.gguf --site resid >out
    [ "$(grep -c 'refused: hyper-connections: several residual streams, no single one' out)" = 4 ]
    [ "$(awk '$2 == 1 { print $3, $4 }' out)" = "- -" ]
    ts nodes -m streams.gguf --site resid --json | python3 -c '
import json, sys
sites = json.load(sys.stdin)["sites"]
assert sorted(s["block"] for s in sites) == [0, 1, 2, 3] and all(s["how"] == "refused" for s in sites)'
    code=0
    ts run -m streams.gguf -p 12345 -n 1 --resid-capture resid.json >out 2>err || code=$?
    [ "$code" = 1 ]
    grep -q "'deepseek4' has no resid site in block 0: hyper-connections: several residual streams" err
}

@test "a model that loops over its blocks has each of them" {
    tiny nanbeige/looped looped.gguf
    ts nodes -m looped.gguf --site ffn >out
    [ "$(awk 'NR > 1 { print $2 }' out | paste -sd' ')" = "0 1 2 3 4 5" ]
    [ "$(grep -c redirected out)" = 6 ]
}
