# The sweep command around its cells: table, marks, JSON, a kill and what resumes, an interruption. The figures stand in
# tests/e2e/test_sweep.c, wrong lines in tests/cli/cases.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
    ln -sf "$TS_MODEL" model.gguf
    direction d.gguf length=20 turbospark.mode=add
    printf 'The sky is\nOnce upon a time\n' >list.txt
}

sweep() { ts sweep -m model.gguf -t 1 --steering d.gguf -i list.txt -n 4 "$@"; }

fails() { # PART WORDS...: exit 1, nothing on stdout, one line on stderr that holds PART
    local part=$1 code=0
    shift
    sweep "$@" >out 2>err || code=$?
    [ "$code" = 1 ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$part" err || { cat out err; return 1; }
}

@test "a table of all cells under 80 columns, the rule below, and the same in JSON" {
    for _ in $(seq 30); do printf 'The old ferry left the harbour with eleven passengers and a crate of hens. '; done >anchor.txt
    sweep --scales -1:1:1 --bands all,10:12 --modes add,clamp --steering-target 4 --random 2 --score-positive ' blue' \
        --score-negative ' red' --anchor anchor.txt --json out.json >out 2>err
    ! grep -nE '.{80}' out
    [ "$(grep -cE '^(add|clamp) +(all|10:12) +-?[01] ' out)" = 12 ]
    [ "$(grep -cE ' 0\.0e\+00 +0 .*=$' out)" = 4 ] # the controls
    grep -qE '^MODE +BAND +SCALE +PPL +DIST +DIV +KL MAX +DC +SCORE +RANDOM +SD$' out
    grep -q '^usable (\*): from 0 outward, until the perplexity first exceeds the anchor' out
    [ "$(grep -cE '^(add|clamp), (all|10:12): ' out)" = 4 ]
    grep -q '^turbospark sweep: 28 cells, at most 224 tokens to generate$' err
    [ ! -e out.json.part.jsonl ]
    python3 - <<'PY'
import json
d = json.load(open("out.json"))
assert d["kind"] == "sweep" and len(d["cells"]) == 28 and len(d["bands"]) == 4 and d["anchor"]["given"]
assert d["prompts"] == ["The sky is", "Once upon a time"] and d["model"]["architecture"] == "llama"
for c in d["cells"]:
    assert len(c["texts"]) == 2 and c["tokens"] == 8 and (c["scale"] == 0) == (c["kl_max"] == 0) == c["no_effect"]
    assert (c["random_sd"] is None) == (c["arm"] > 0 or c["scale"] == 0)
    assert abs(c["score"] - (c["score_positive"] - c["score_negative"])) < 1e-12
PY
}

@test "without an anchor it says so; no score, no column; --texts prints the texts; -q says nothing" {
    sweep --scales 0,1 --texts -q >out 2>err
    [ ! -s err ]
    grep -q '^no anchor given' out
    ! grep -q SCORE out
    grep -q '^add, all, 1:$' out
}

@test "a direction too small to matter is said to have no measurable effect" {
    direction d.gguf length=1e-7 turbospark.mode=add
    sweep --scales -1,1 >out 2>err
    grep -q '^add, all: no measurable effect (KL under 1e-4 at each scale)$' out
    [ "$(grep -c '=$' out)" = 2 ]
}

@test "empty lines of the list are told of" {
    printf 'one\n\ntwo\n' >gaps.txt
    ts sweep -m model.gguf -t 1 --steering d.gguf -i gaps.txt -n 1 --scales 0 >out 2>err
    grep -qx 'turbospark sweep: 1 empty line skipped' err
}

@test "a killed sweep resumes to the same bytes" {
    line=(--scales -2:2:0.5 --parallel 4 --json out.json)
    sweep "${line[@]}" >whole.txt 2>err
    mv out.json whole.json
    start_until '[ -f out.json.part.jsonl ] && [ "$(wc -l <out.json.part.jsonl)" -ge 4 ]' \
        sweep -m model.gguf -t 1 --steering d.gguf -i list.txt -n 4 "${line[@]}"
    kill -s KILL "$pid"
    wait "$pid" || true
    [ ! -e out.json ]
    sweep "${line[@]}" --resume >again.txt 2>err
    grep -q '; resuming$' err
    cmp whole.json out.json
    cmp whole.txt again.txt
    [ ! -e out.json.part.jsonl ]
}

@test "an interrupted sweep is one line, keeps its cells, and is refused to another sweep" {
    start_until '[ -f out.json.part.jsonl ] && [ "$(wc -l <out.json.part.jsonl)" -ge 2 ]' \
        sweep -m model.gguf -t 1 --steering d.gguf -i list.txt -n 4 --scales -2:2:0.1 --json out.json -q
    kill -s INT "$pid"
    code=0
    wait "$pid" || code=$?
    [ "$code" = 1 ]
    [ ! -s out ]
    grep -qE "^turbospark sweep: interrupted after [0-9]+ of 41 cells: 'out.json.part.jsonl' holds them; resume goes on from there$" err
    fails 'it belongs to another sweep' --scales -2:2:0.1 --json out.json --resume --parallel 3 -q
    printf '{}\n' >out.json.part.jsonl
    fails "out.json.part.jsonl" --scales -2:2:0.1 --json out.json --resume -q
    printf 'no JSON\n' >out.json.part.jsonl
    fails "out.json.part.jsonl" --scales -2:2:0.1 --json out.json --resume -q
}
