# kld on dumps made by hand: the table, the JSON object, what is refused. Of real dumps: tests/e2e/test_logits.c.
# TS_REGENERATE=1 writes tests/cli/kld/ anew.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
    dump a '5, 0, 2, 3' 0 "$(f32 1 2 0 -1) $(f32 0 0 3 0) $(f32 2 1 0 4)"
    dump b '5, 0, 2, 3' 0 "$(f32 1 2 1 -1) $(f32 0 4 3 0) $(f32 2 1 0 4)"
    dump c '5, 0, 2, 3' 0 "$(f32 1 2 0 -1) $(f32 0 0 3 0) $(f32 2 -inf 0 4)"
}

# Small whole numbers and -inf as little-endian f32 in hex.
f32() {
    for value in "$@"; do
        case $value in
        0) printf '00000000' ;; 1) printf '0000803f' ;; -1) printf '000080bf' ;; 2) printf '00000040' ;;
        3) printf '00004040' ;; 4) printf '00008040' ;; -inf) printf '000080ff' ;; nan) printf '0000c07f' ;;
        esac
    done
}

dump() { # FOLDER TOKENS FIRST_SCORED ROWS: rows of 4 logits, filled up with -inf to a vocabulary of 6
    local vocab=${VOCAB:-6} row padded= tokens=$2
    mkdir -p "$1"
    for row in $4; do
        while [ "${#row}" -lt $((vocab * 8)) ]; do row+=000080ff; done
        padded+=$row
    done
    printf "$(sed 's/../\\x&/g' <<<"$padded")" >"$1/logits.f32"
    printf '{"rows": %d, "vocab_size": %d, "token_ids": [%s], "first_scored_position": %d, "prompt_len": 0, "dtype": "f32"}\n' \
        "$(wc -w <<<"$4")" "$vocab" "$tokens" "$3" >"$1/meta.json"
}

golden() { # NAME: compares what stands in the file `got`
    local file=$TS_SOURCE_DIR/tests/cli/kld/$1
    [ -z "${TS_REGENERATE:-}" ] || cp got "$file"
    diff -u "$file" got
}

fails() { # PART WORDS...: exit 1, nothing on stdout, one line on stderr that holds PART
    local part=$1 code=0
    shift
    ts "$@" >out 2>err || code=$?
    [ "$code" = 1 ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$part" err || { cat out err; return 1; }
}

@test "the table, with a floor beside" {
    ts kld a b --floor a >got 2>err
    [ ! -s err ]
    golden floor.txt
    ! grep -nE '.{80}' got
}

@test "a dump against itself is exactly 0" {
    ts kld a a >got
    golden same.txt
    ts kld a/meta.json a/ | diff got -
}

@test "-inf on one side: no NaN, and it is said" {
    ts kld a c --json c.json >got
    golden outside.txt
    ts kld c a --json back.json >out
    ! grep -i nan got out c.json back.json
    python3 -c 'import json
a, b = json.load(open("c.json")), json.load(open("back.json"))
assert a["pair"]["kl_ab"] == b["pair"]["kl_ba"] and a["pair"]["rows_outside"] == 1'
}

@test "--json is one JSON object" {
    ts kld a b --floor a --json got >out
    golden pair.json
    python3 -c 'import json; json.load(open("got"))'
}

@test "dumps of other tokens, vocabularies, lengths, scored rows: the first difference is named" {
    rows="$(f32 1 2 0 -1) $(f32 0 0 3 0) $(f32 2 1 0 4)"
    dump tokens '5, 0, 1, 3' 0 "$rows"
    VOCAB=7 dump vocabulary '5, 0, 2, 3' 0 "$rows"
    dump length '5, 0, 2' 0 "$(f32 1 2 0 -1) $(f32 0 0 3 0)"
    dump scored '5, 0, 2, 3' 1 "$rows"
    dump none '5, 0, 2, 3' 3 "$rows"
    fails "token 2 is 2 in 'a', 1 in 'tokens'" kld a tokens
    fails "'a' has 6 logits a row, 'vocabulary' 7" kld a vocabulary
    fails "'a' has 3 rows, 'length' 2" kld a length
    fails "'a' from 0, 'scored' from 1" kld a scored
    fails "token 2 is 2 in 'a', 1 in 'tokens'" kld a b --floor tokens
    fails "'none' has nothing to compare: 3 rows, scored from 3" kld none none
}

@test "damaged dumps: one line with the file and what is wrong, and no JSON file" {
    cp -r b cut
    head -c -1 b/logits.f32 >cut/logits.f32
    fails "cut/logits.f32" kld a cut --json out.json
    dump nan '5, 0, 2, 3' 0 "$(f32 1 2 0 -1) $(f32 0 nan 3 0) $(f32 2 1 0 4)"
    fails "row 1: logit of token 1 is" kld a nan --json out.json
    dump one '5' 0 ""
    fails "one/meta.json" kld one one
    rm cut/logits.f32
    fails "cut/logits.f32" kld a cut
    [ ! -e out.json ]
}

@test "what is compared is not written over" {
    cp -r a before
    ln -s a/logits.f32 link.json
    fails "output 'a/meta.json' is the dump to compare" kld b a --json a/meta.json
    fails "output 'link.json' is the dump to compare" kld b b --floor a --json link.json
    diff -r before a
}

@test "a full disk under stdout is one line and exit 1" {
    [ -w /dev/full ] || skip "no /dev/full"
    code=0
    ts kld a b >/dev/full 2>err || code=$?
    [ "$code" = 1 ]
    [ "$(cat err)" = "turbospark kld: cannot write standard output: No space left on device" ]
}
