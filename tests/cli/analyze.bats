# analyze and merge on censuses as the runtime this replaces writes them (census.awk makes them). Files with .detail,
# golden texts of them, and traces are tested in tests/unit/test_analyze.c.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
    census passes=11 hot=32 recurs=0.75 >a.json
    census passes=5 hot=40 recurs=0.5 shift=128 >b.json
}

census() { # NAME=VALUE...
    local args=(-v blocks=3 -v width=5120 -v recurs=0.5) pair
    for pair in "$@"; do args+=(-v "$pair"); done
    awk "${args[@]}" -f "$TS_SOURCE_DIR/tests/cli/analyze/census.awk"
}

golden() { # NAME: compares what stands in the file `got`
    local file=$TS_SOURCE_DIR/tests/cli/analyze/$1
    [ -z "${TS_REGENERATE:-}" ] || cp got "$file"
    diff -u "$file" got
}

fails() { # PART WORDS...: exit 1, nothing on stdout, one line on stderr that holds PART
    local part=$1 code=0
    shift
    ts "$@" >out 2>err || code=$?
    [ "$code" = 1 ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$part" err || { cat out err; return 1; }
}

@test "tables and verdict of one file" {
    ts analyze a.json >got
    golden one.txt
    ! grep -nE '.{80}' got
}

@test "two files are summed, and compared with a third" {
    ts analyze a.json b.json --against b.json --diffable >got
    golden against.txt
    ! grep -nE '.{80}' got
}

@test "--json is one JSON object" {
    ts analyze --json a.json --against b.json --against a.json >got
    golden one.json
    python3 -c 'import json, sys; json.load(open("got"))'
}

@test "the verdict names its numbers and thresholds, on either side of them" {
    census passes=9 hot=32 recurs=0.25 >low.json
    ts analyze low.json | grep -qx 'verdict: undecided'
    ts analyze low.json | grep -qx -- '- high overlap would change it'
    census passes=9 hot=2560 recurs=0.75 >wide.json
    ts analyze wide.json >out
    grep -qx 'verdict: undecided' out
    grep -qx -- '- n95 is 47.5 % of the width (mean; plausible: up to 15 %, a dead end: from' out
    census passes=9 hot=3000 recurs=0.75 >spread.json
    ts analyze spread.json | grep -qx 'verdict: a dead end'
}

@test "what varies is left out with --diffable" {
    mkdir -p elsewhere
    cp a.json elsewhere/x.json
    cmp <(ts analyze a.json --diffable) <(ts analyze elsewhere/x.json --diffable)
    cmp <(ts analyze a.json --diffable --json) <(ts analyze elsewhere/x.json --diffable --json)
    ! cmp -s <(ts analyze a.json) <(ts analyze elsewhere/x.json)
}

@test "merge adds up, and what it writes analyzes as its parts do" {
    ts merge -o sum.json a.json b.json >out 2>err
    [ ! -s out ]
    [ "$(cat err)" = "turbospark merge: added up 2 files into 'sum.json'" ]
    grep -q '"decode_passes":16,' sum.json
    cmp <(ts analyze a.json b.json --diffable) <(ts analyze sum.json --diffable)
    ts merge -q -o again.json b.json a.json 2>err
    [ ! -s err ]
    cmp sum.json again.json
    fails "sum.json" merge -o sum.json a.json
    ts merge -q -o sum.json a.json --overwrite
    cmp sum.json a.json
}

@test "merge never writes over what it reads" {
    cp a.json before
    ln -s a.json link.json
    fails "one of the files to merge" merge -o a.json a.json b.json --overwrite
    fails "one of the files to merge" merge -o link.json a.json b.json --overwrite
    cmp a.json before
}

@test "a file of another shape is named, with the difference" {
    census width=4096 passes=3 hot=9 >narrow.json
    census blocks=4 passes=3 hot=9 >deep.json
    fails "'narrow.json' cannot be added to 'a.json'" analyze a.json narrow.json
    fails "'deep.json' cannot be added to 'a.json'" merge -o out.json a.json deep.json
    fails "3 and 4 blocks" analyze a.json --against deep.json
    [ ! -e out.json ]
}

@test "wrong files: one line with the file and what is wrong" {
    for share in 1 3 10 50 90 99; do
        head -c $(($(wc -c <a.json) * share / 100)) a.json >cut.json
        fails "cut.json" analyze cut.json
    done
    head -c -1 a.json >cut.json
    fails "cut.json" analyze cut.json
    sed 's/"decode_passes":11/"decode_passes":12/' a.json >edited.json
    fails "edited.json" analyze edited.json
    sed 's/"mass":\[\[[^,]*/"mass":[[NaN/' a.json >nan.json
    fails "nan.json" analyze nan.json
    sed 's/"mass":\[\[[^,]*/"mass":[[1.00000e999/' a.json >huge.json
    fails "huge.json" analyze huge.json
    sed 's/"mass":\[\[[^,]*/"mass":[[-1.00000e0/' a.json >negative.json
    fails "negative.json" analyze negative.json
    echo '{"num_layers": 3' >broken.json
    fails "broken.json" analyze broken.json
    echo '{}' >other.json
    fails "not an FFN census" analyze other.json
    fails "no trace to replay" analyze --cache a.json
    fails "nowhere.json" analyze a.json nowhere.json
    fails "nowhere.json" analyze a.json --against nowhere.json
}

@test "options for other files are refused" {
    printf '{"num_layers":1,"num_experts":2,"top_k":1,"counts":[[2,1]]}' >routed.json
    printf 'layer,expert\n0,1\n0,0\n' >routed.csv
    fails "--cache replays the neurons of FFN censuses: 'routed.json' is a routing census" analyze routed.json --cache
    fails "--csv-top-k is for 'layer,expert' CSV files: 'routed.json' is none" analyze routed.json --csv-top-k 1
    fails "--csv-experts is for 'layer,expert' CSV files: 'a.json' is none" analyze a.json --csv-experts 4
    fails "--csv-top-k is for 'layer,expert' CSV files: 'a.json' is none" analyze a.json --csv-top-k 2
    ts analyze routed.csv --csv-top-k 1 --csv-experts 2 >out
    ts analyze routed.json --against routed.csv --csv-top-k 1 >out
}

@test "files of other kinds are named, also when another program wrote their JSON anew" {
    ts analyze a.json --json >report.json
    fails "'report.json' is a report, made by --json: expected an FFN census" analyze report.json
    fails "'report.json' is a report, made by --json: expected a capture, census" inspect report.json
    printf '{"plan": "00", "cells": 3}\n{"mode": "add"}\n' >sweep.json.part.jsonl
    fails "'sweep.json.part.jsonl' is the state of an unfinished sweep" inspect sweep.json.part.jsonl
    echo words >text
    fails "'text' is of an unknown kind: expected an FFN or a routing census, or a CSV of lines 'layer,expert'" analyze text
    printf '{"format_version":1,"kind":"experts","model":"","num_layers":0,"layers":[]}' >x.experts
    mkdir anew
    for file in x.experts a.json; do
        ts inspect $file >plain 2>&1 || true
        [ "$(wc -c <plain)" -gt 60 ]
        for how in --indent=4 --sort-keys --tab; do
            python3 -m json.tool $how $file anew/$file
            (cd anew && ts inspect $file) >again 2>&1 || true
            cmp plain again
        done
    done
}

@test "one of a kind is one word" {
    ts merge -o sum.json a.json 2>err
    [ "$(cat err)" = "turbospark merge: added up 1 file into 'sum.json'" ]
    ts merge -o both.json a.json b.json 2>err
    [ "$(cat err)" = "turbospark merge: added up 2 files into 'both.json'" ]
    census blocks=1 passes=1 hot=9 >one.json
    ts analyze one.json >out
    grep -q ', 1 block, ' out
    grep -qx "  'one.json': 1 pass" out
}

@test "a reader that leaves, a full disk: one line, exit 1" {
    [ -w /dev/full ] || skip "no /dev/full"
    code=0
    ts analyze a.json >/dev/full 2>err || code=$?
    [ "$code" = 1 ]
    [ "$(cat err)" = "turbospark analyze: cannot write standard output: No space left on device" ]
}
