# extract on small captures that Python writes, and from prompt lists with the model. The arithmetic is tested against
# NumPy in tests/oracle/test_direction.py, the API in tests/e2e/test_extract.c.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
    make=$TS_SOURCE_DIR/tests/cli/extract/captures.py
    python3 "$make" pair p.json rows=6 shift=1 seed=1
    python3 "$make" pair n.json rows=6 seed=2
}

extract() { ts extract --positive p.json --negative n.json -o d.gguf "$@"; }

golden() { # NAME: compares what stands in the file `got`
    local file=$TS_SOURCE_DIR/tests/cli/extract/$1
    [ -z "${TS_REGENERATE:-}" ] || cp got "$file"
    diff -u "$file" got
}

fails() { # PART WORDS...: exit 1, nothing on stdout, the last line on stderr holds PART, no output
    local part=$1 code=0
    shift
    rm -f d.gguf d.json
    ts extract "$@" -o d.gguf >out 2>err || code=$?
    [ "$code" = 1 ] && [ ! -s out ] && [ ! -e d.gguf ] && [ "$(grep -vc warning: err)" = 1 ] &&
        tail -n 1 err | grep -qF -- "$part" || { echo "exit $code"; cat out err; return 1; }
}

usage() { # PART WORDS...: exit 2, one line
    local part=$1 code=0
    shift
    ts extract "$@" >out 2>err || code=$?
    [ "$code" = 2 ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$part" err || { cat out err; return 1; }
}

# Prints the directions of a control vector: the last N rows of 8 floats.
rows_of() { python3 "$make" rows "$1"; }

@test "the table, and what else is said" {
    extract >got 2>err
    golden table.txt
    ! grep -nE '.{80}' got
    grep -qx "turbospark extract: block 0 is left out of 'd.gguf': the format cannot name it" err
    grep -qx "turbospark extract: wrote 'd.gguf': 2 directions of 8 values, mean of 6 positive and 6 negative snapshots, mode add" err
    extract --overwrite -q 2>err >/dev/null
    [ ! -s err ]
}

@test "the JSON holds the same figures" {
    extract -q --json got --method lda --shrinkage 0.25 >table
    golden figures.json
    python3 - <<'END'
import json
got = json.load(open("got"))
table = [line.split() for line in open("table")][1:]
assert len(table) == len(got["blocks"]) == 3
for cells, b in zip(table, got["blocks"]):
    assert int(cells[0]) == b["block"] and b["written"] == (b["block"] > 0)
    assert abs(float(cells[2]) - b["separation"]) <= 0.005 and abs(float(cells[5]) - b["auc"]) <= 5e-4
assert got["shrinkage"] == 0.25 and got["blocks"][0]["cos_previous"] is None
END
}

@test "the control vector is what inspect says" {
    extract -q --method svd --mode clamp >/dev/null
    ts inspect d.gguf >out
    for line in 'n directions  *2' 'width  *8' 'turbospark.extraction svd' 'turbospark.mode clamp' 'turbospark.layer_base 1'; do
        grep -q "$line" out
    done
}

@test "a difference of means, by hand" {
    extract -q >/dev/null
    python3 "$make" means p.json n.json >want
    rows_of d.gguf >got
    diff want got
}

@test "folders, several files and safetensors give what one file gives" {
    extract -q >/dev/null
    mkdir pos neg
    python3 "$make" split p.json pos pair
    python3 "$make" split n.json neg safetensors
    ts extract -q --positive pos --negative neg/ -o folders.gguf >/dev/null
    cmp d.gguf folders.gguf
    ts extract -q --positive pos/0.json --positive pos/1.json --positive pos/2.json --positive pos/3.json \
        --positive pos/4.json --positive pos/5.json --negative n.json -o files.gguf >/dev/null
    cmp d.gguf files.gguf
    touch pos/notes.txt
    mkdir pos/sub.json.d
    ts extract -q --positive pos --negative n.json -o again.gguf >/dev/null
    cmp d.gguf again.gguf
}

@test "more files than may be open" {
    mkdir pos
    python3 "$make" pair many.json rows=300 shift=1 seed=3
    python3 "$make" split many.json pos pair
    ts extract -q --positive many.json --negative n.json -o one.gguf >/dev/null
    ulimit -n 128
    ts extract -q --positive pos --negative n.json -o d.gguf >/dev/null
    # by name, so in another order: equal but for rounding
    python3 - "$make" <<'END'
import subprocess, sys
a, b = (subprocess.run(["python3", sys.argv[1], "rows", f], capture_output=True, text=True).stdout.split() for f in ("one.gguf", "d.gguf"))
assert len(a) == len(b) == 16 and all(abs(float(x) - float(y)) < 1e-5 for x, y in zip(a, b))
END
}

@test "of a file with token_ids and hidden_states the last token is taken" {
    mkdir vp vn
    python3 "$make" vllm p.json vp
    python3 "$make" vllm n.json vn
    ts extract -q --positive vp --negative vn -o v.gguf >/dev/null
    extract -q >/dev/null
    cmp d.gguf v.gguf
    ts extract --positive vp --negative vn -o v2.gguf 2>err >/dev/null
    grep -q "warning: 'vp/0.safetensors' does not say which blocks its layers are: taken as 0 to 2" err
    ts extract --positive vp --negative vn -o v2.gguf --overwrite --layer-ids 2,14,27 2>err >out
    ! grep -q 'which blocks' err
    [ "$(awk 'NR > 1 { print $1 }' out | paste -sd,)" = 2,14,27 ]
    fails "has 3 layers, block numbers were given for 2" --positive vp --negative vn --layer-ids 1,2
    fails "expected ascending numbers" --positive vp --negative vn --layer-ids 1,3,2
    usage "--layer-ids" --positive vp --negative vn -o v2.gguf --layer-ids 1,,2
}

@test "blocks of a band" {
    extract -q >/dev/null
    rows_of d.gguf | tail -n 1 >want
    ts extract -q --positive p.json --negative n.json -o band.gguf --layers 2 >out
    [ "$(wc -l <out)" = 2 ]
    ts inspect band.gguf | grep -q 'n directions  *1'
    python3 "$make" rows band.gguf 1 >got
    diff want got
    fails "blocks 1:3: 'p.json' holds blocks 0 to 2" --positive p.json --negative n.json --layers 1:3
    fails "only block 0 is left" --positive p.json --negative n.json --layers 0:0
}

@test "a control direction is taken out" {
    python3 "$make" pair c.json rows=6 shift=1 seed=9
    ts extract -q --positive c.json --negative n.json -o c.gguf >/dev/null
    extract -q --orthogonal-to c.gguf >/dev/null
    python3 - "$make" <<'END'
import subprocess, sys
a, b = ([[float(w) for w in line.split()] for line in subprocess.run(["python3", sys.argv[1], "rows", f], capture_output=True, text=True).stdout.splitlines()]
        for f in ("c.gguf", "d.gguf"))
for x, y in zip(a, b):
    norm = lambda v: sum(t * t for t in v) ** 0.5
    assert abs(sum(s * t for s, t in zip(x, y))) < 1e-6 * norm(x) * norm(y)
END
    ts inspect d.gguf | grep -q "turbospark.extraction mean, orthogonal to 'c.gguf'"
    ts extract -q --positive c.json --negative n.json --layers 2 -o c2.gguf >/dev/null
    ts extract --positive p.json --negative n.json --orthogonal-to c2.gguf -o d2.gguf 2>err >/dev/null
    grep -q "warning: 'c2.gguf' has directions for 1 of 2 blocks: the others are left as they are" err
    fails "the control direction takes all of it" --positive c.json --negative n.json --orthogonal-to c.gguf
    ln -sf "$TS_MODEL" model.gguf
    fails "it is a model of architecture" --positive p.json --negative n.json --orthogonal-to model.gguf
    python3 "$make" pair wp.json rows=4 hidden=12 seed=3
    python3 "$make" pair wn.json rows=4 hidden=12 seed=4
    fails "width" --positive wp.json --negative wn.json --orthogonal-to c.gguf
}

@test "sets that do not fit together: both files and the difference" {
    python3 "$make" pair wide.json rows=6 hidden=12
    fails "differ in width: 'p.json' has 8 values a row, 'wide.json' has 12" --positive p.json --negative wide.json
    python3 "$make" pair deep.json rows=6 layers=4
    fails "differ in layers: 'p.json' has 3, 'deep.json' has 4" --positive p.json --negative deep.json
    mkdir mixed
    cp n.json n.f32 wide.json wide.f32 mixed
    fails "'mixed/wide.json' has 12" --positive p.json --negative mixed
    python3 "$make" safetensors n.json other.safetensors ids=1,2,3
    fails "layer 0 of 'p.json' is block 0, of 'other.safetensors' block 1" --positive p.json --negative other.safetensors
    python3 "$make" pair short.json rows=5
    fails "'pca' needs pairs: 'p.json' has 6 snapshots, 'short.json' has 5" --positive p.json --negative short.json --method pca
    ts extract -q --positive p.json --negative short.json -o ok.gguf --method svd >/dev/null
}

@test "captures of another model or tokenizer" {
    python3 "$make" meta p.json hash=11111111111111111111111111111111
    python3 "$make" meta n.json hash=22222222222222222222222222222222
    fails "'p.json' has '11111111111111111111111111111111', 'n.json' has '22222222222222222222222222222222'" --positive p.json --negative n.json
    python3 "$make" meta n.json hash=11111111111111111111111111111111 architecture=qwen2
    fails "different models: 'p.json' has 'llama', 'n.json' has 'qwen2'" --positive p.json --negative n.json
    python3 "$make" meta n.json description='llama 1B Q8_0'
    fails "different models: 'p.json' has 'llama tiny', 'n.json' has 'llama 1B Q8_0'" --positive p.json --negative n.json
    python3 "$make" meta n.json hash=11111111111111111111111111111111 bos=true
    fails "different tokenizers: 'p.json' has 'no BOS', 'n.json' has 'BOS added'" --positive p.json --negative n.json
    python3 "$make" meta n.json hash=11111111111111111111111111111111 template=chatml steering='add x 2'
    extract 2>err >/dev/null
    grep -q "warning: captures differ in chat template: 'p.json' has 'none', 'n.json' has 'chatml'" err
    grep -q "warning: 'n.json' was captured under steering: add x 2" err
    ts inspect d.gguf | grep -q 'turbospark.model_hash 11111111111111111111111111111111'
    ts inspect d.gguf | grep -q 'controlvector.model_hint llama'
}

@test "without provenance a line says that no model is refused" {
    extract 2>err >/dev/null
    [ "$(grep -c "warning: the captures do not say which model they are of: 'd.gguf' will not refuse another" err)" = 1 ]
    ! ts inspect d.gguf | grep -q model_hash
}

@test "too little, and the same twice" {
    python3 "$make" pair one.json rows=1
    fails "'one.json' has 1 snapshot, expected at least 2" --positive p.json --negative one.json
    fails "'one.json' has 1 snapshot, expected at least 2" --positive one.json --negative n.json
    cp p.json same.json
    fails "the direction is zero: 'p.json' and 'same.json' do not differ" --positive p.json --negative same.json
    fails "'p.json' is in both sets" --positive p.json --negative p.json
}

@test "rows that are not finite are named, or dropped when asked" {
    python3 "$make" pair nan.json rows=6 seed=2 nan=4:2:5
    fails "'nan.json': snapshot 4 is not finite in block 2" --positive p.json --negative nan.json
    mkdir many
    python3 "$make" split n.json many pair
    rm many/4.json many/4.f32
    python3 "$make" pair many/4.json rows=1 inf=0:1:0
    fails "'many/4.json': snapshot 0 is not finite in block 1" --positive p.json --negative many
    ts extract --positive p.json --negative nan.json -o d.gguf --drop-nonfinite 2>err >out
    [ "$(awk 'NR > 1 { print $NF }' out | paste -sd' ')" = '6+6 6+6 6+5' ]
    grep -q '1 row was left out' err
    ts extract -q --positive p.json --negative nan.json -o d.gguf --overwrite --drop-nonfinite --method pca >out
    [ "$(awk 'NR > 1 { print $NF }' out | paste -sd' ')" = '6+6 6+6 5+5' ]
}

@test "what is no capture is named" {
    ln -sf "$TS_MODEL" model.gguf
    fails "'model.gguf' is a GGUF file, a model or a control vector: expected captures" --positive model.gguf --negative n.json
    extract -q >/dev/null
    mv d.gguf cv.gguf
    fails "'cv.gguf' is a GGUF file" --positive p.json --negative cv.gguf
    printf 'one\ntwo\n' >prompts.txt
    fails "to capture a list of prompts a model is needed" --positive prompts.txt --negative n.json
    python3 "$make" meta p.json
    fails "'p.meta' stands beside a capture" --positive p.meta --negative n.json
    rm p.meta
    fails "nowhere.json" --positive nowhere.json --negative n.json
    mkdir empty
    fails "'empty' holds no captures" --positive p.json --negative empty
    head -c 100 n.f32 >cut && mv cut n.f32
    fails "n.f32" --positive p.json --negative n.json
}

@test "outputs: none is overwritten unasked, none is an input" {
    extract -q >/dev/null
    cp d.gguf before
    code=0
    extract 2>err >out || code=$?
    [ "$code" = 1 ]
    grep -q "'d.gguf' exists" err
    cmp d.gguf before
    extract -q --overwrite >/dev/null
    cmp d.gguf before
    cp n.f32 before
    for target in n.json n.f32; do
        ! ts extract --positive p.json --negative n.json -o "$target" --overwrite 2>err >out
        grep -q "'$target' is" err
    done
    ! extract --json p.f32 --overwrite 2>err >out
    grep -q "output 'p.f32' is an input" err
    ! extract --json d.gguf --overwrite 2>err >out
    grep -q "both the output and the JSON" err
    cmp n.f32 before
    fails "nowhere" --positive p.json --negative n.json --json nowhere/x.json
}

@test "options that need another" {
    usage "a positive set is needed" --negative n.json -o d.gguf
    usage "a negative set is needed" --positive p.json -o d.gguf
    usage "an output is needed" --positive p.json --negative n.json
    usage "'--shrinkage' needs '--method lda'" --positive p.json --negative n.json -o d.gguf --shrinkage 0.1
    usage "from 0.001 to 1" --positive p.json --negative n.json -o d.gguf --method lda --shrinkage 0
    for option in --chat '--positions -2' --exact --special '--column x' '-c 512' '-ngl 0' '--device none' '--tap ask'; do
        usage "'${option%% *}' needs a model" --positive p.json --negative n.json -o d.gguf $option
    done
}

@test "the result does not depend on threads" {
    for method in mean pca svd lda; do
        ts extract -q --positive p.json --negative n.json -o a.gguf --overwrite --method $method -t 1 >a
        ts extract -q --positive p.json --negative n.json -o b.gguf --overwrite --method $method -t 3 >b
        cmp a.gguf b.gguf
        cmp a b
    done
}

@test "prompt lists: one command equals capture and extract, and leaves nothing else" {
    mkdir work
    cd work
    head -n 8 "$TS_SOURCE_DIR/examples/positive.txt" >p.txt
    head -n 8 "$TS_SOURCE_DIR/examples/negative.txt" >n.txt
    ts extract -q -m "$TS_MODEL" --positive p.txt --negative n.txt -o one.gguf --json one.json >one
    [ "$(ls -A | sort | paste -sd' ')" = 'n.txt one one.gguf one.json p.txt' ]
    ts capture -q -m "$TS_MODEL" -i p.txt -o pos.json
    ts capture -q -m "$TS_MODEL" -i n.txt -o neg.safetensors
    ts extract -q --positive pos.json --negative neg.safetensors -o two.gguf >two
    cmp one.gguf two.gguf
    cmp one two
    ts extract -q -m "$TS_MODEL" --positive p.txt --negative neg.safetensors -o three.gguf >/dev/null
    cmp one.gguf three.gguf
}
