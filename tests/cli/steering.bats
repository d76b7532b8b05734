# What run says and does around steering, on the real model: the line at the start, the warning, the spellings of
# llama.cpp, the layouts of others, the trace, files beside it. What an edit does to a row stands in tests/e2e.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
    ln -sf "$TS_MODEL" model.gguf
}

tiny() { "$TS_BUILD_DIR/tests/bin/tiny_gguf" "$@"; }

steer() { ts run -m model.gguf -t 1 -c 256 -n 4 --ignore-eos --logits-hash -p 'The sky is' "$@"; }
hash() { steer "$@" 2>err.hash | cat >out.hash && sed -n 's/^logits fnv1a64 \([0-9a-f]*\) .*/\1/p' err.hash; }

# The line of what is in force, without the command's name.
in_force() { sed -n 's/^turbospark run: steering: //p' "$1"; }

@test "one line says what is in force: mode, scale, blocks of how many; -q says nothing" {
    direction d.gguf length=8
    steer --steering d.gguf --steering-mode ablate --steering-scale 0.37 --steering-layers 3:20 >out 2>err
    [ "$(in_force err)" = "ablate at scale 0.37 on 18 of 30 blocks ('d.gguf')" ]
    [ "$(wc -l <err)" = 2 ] # and the hash
    steer --steering d.gguf --steering-mode clamp --steering-target -2 --steering-gate 0.5 --steering-from decode >out 2>err
    [ "$(in_force err)" = "clamp to -2 at scale 1 on 29 of 30 blocks where |c| >= 0.5, decode only ('d.gguf')" ]
    steer --steering d.gguf --steering-mode add >out 2>err
    [ "$(in_force err)" = "add at scale 1 on 29 of 30 blocks, by llama.cpp's adapter ('d.gguf')" ]
    ts run -m model.gguf -t 1 -c 256 -n 2 -p hi -q --steering d.gguf --steering-mode add >out 2>err
    [ ! -s err ]
}

@test "two scales give different texts and hashes, 0 those of no steering, in every mode" {
    direction d.gguf length=90
    off=$(hash)
    cp out.hash off
    for mode in ablate add clamp renorm; do
        target=()
        [ $mode != clamp ] || target=(--steering-target 90)
        [ "$(hash --steering d.gguf --steering-mode $mode --steering-scale 0 "${target[@]}")" = "$off" ]
        cmp out.hash off
        a=$(hash --steering d.gguf --steering-mode $mode --steering-scale 0.37 "${target[@]}")
        cp out.hash a
        b=$(hash --steering d.gguf --steering-mode $mode --steering-scale 2 "${target[@]}")
        [ -n "$a" ] && [ "$a" != "$off" ] && [ "$b" != "$off" ] && [ "$a" != "$b" ]
        case $mode in add | clamp) ! cmp -s a out.hash ;; esac
    done
}

@test "add by llama.cpp's adapter and by the edit are the same text and trace the same c" {
    direction d.gguf length=30
    steer --steering d.gguf --steering-mode add >a 2>err
    grep -q adapter err
    steer --steering d.gguf --steering-mode add --steering-trace c.jsonl >b 2>err
    ! grep -q adapter err
    cmp a b
}

@test "llama.cpp's spellings: the range as one word or two, before or after, for all control vectors, the last one" {
    direction d.gguf length=30
    direction e.gguf length=30 seed=2
    want=$(hash --steering d.gguf --steering-mode add --steering-layers 3:9)
    [ -n "$want" ]
    [ "$(hash --control-vector d.gguf --control-vector-layer-range 3:9)" = "$want" ]
    [ "$(hash --control-vector d.gguf --control-vector-layer-range 3 9)" = "$want" ]
    [ "$(hash --control-vector-layer-range 3 9 --control-vector-scaled d.gguf:1)" = "$want" ]
    [ "$(hash --control-vector-layer-range 1 2 --control-vector-scaled d.gguf 1 --control-vector-layer-range 3 9)" = "$want" ]
    want=$(hash --steering d.gguf --steering-mode add --steering-layers 3:9 \
        --steering e.gguf --steering-mode add --steering-layers 3:9 --steering-scale -0.5)
    [ "$(hash --control-vector d.gguf --control-vector-layer-range 3 9 --control-vector-scaled e.gguf:-0.5)" = "$want" ]
    [ "$(hash --control-vector d.gguf --control-vector-scaled e.gguf -0.5 --control-vector-layer-range 3 9)" = "$want" ]
    steer --control-vector d.gguf --steering e.gguf --steering-mode ablate --control-vector-layer-range 3 9 >out 2>err
    in_force err | grep -q "^add at scale 1 on 7 of .*; ablate at scale 1 on 29 of "
}

@test "one file twice at one scale is twice; a prompt that ends like the value stays whole" {
    direction d.gguf length=20
    want=$(hash --control-vector-scaled d.gguf:2)
    [ "$(hash --control-vector-scaled d.gguf:1 --control-vector-scaled d.gguf:1)" = "$want" ]
    ts run -m model.gguf -t 1 -c 256 -n 0 -p 'see d.gguf:1' --control-vector-scaled d.gguf:1 --resid-capture a.json
    ts run -m model.gguf -t 1 -c 256 -n 0 -p 'see d.gguf:1' --steering d.gguf --steering-mode add --resid-capture b.json
    cmp a.f32 b.f32
}

@test "files in the layouts of others load, and a foreign model hint warns" {
    direction repeng.gguf u32=1 controlvector.model_hint=llama
    direction generator.gguf controlvector.model_hint=llama
    direction jukofyork.gguf u32=1 controlvector.model_hint=LlamaForCausalLM general.name=set
    for file in repeng generator jukofyork; do
        steer --control-vector $file.gguf >out 2>err
        [ "$(in_force err)" = "add at scale 1 on 29 of 30 blocks, by llama.cpp's adapter ('$file.gguf')" ]
    done
    grep -q "^turbospark run: warning: 'jukofyork.gguf' was made for 'LlamaForCausalLM', the model is 'llama'" err
}

@test "ablating everywhere what the stream is made of warns, naming a band; a band does not" {
    ts run -m model.gguf -t 1 -c 256 -n 0 -p 'The keeper lit the lamp and' --resid-capture row.json
    direction d.gguf rows=row.f32
    steer --steering d.gguf --steering-mode ablate >out 2>err
    grep -E "^turbospark run: warning: steering: ablating .* removes [0-9]+ % of the stream" err
    steer --steering d.gguf --steering-mode ablate --steering-layers 10:14 >out 2>err
    ! grep -q warning err
    direction random.gguf
    steer --steering random.gguf --steering-mode ablate >out 2>err
    ! grep -q warning err
}

@test "the trace has a line a token and block, of generated tokens too, and comes at the end" {
    direction d.gguf
    steer --steering d.gguf --steering-mode ablate --steering-layers 10:12 --steering-trace c.jsonl >out 2>err
    [ "$(wc -l <c.jsonl)" = 18 ] # 3 blocks, 3 tokens of the prompt and 3 after it
    [ "$(sed -n 's/.*"position": \([0-9]*\),.*/\1/p' c.jsonl | sort -n | uniq -c | tr -s ' \n' ' ')" = " 3 0 3 1 3 2 3 3 3 4 3 5 " ]
    head -n 1 c.jsonl | grep -qxE '\{"file": "d.gguf", "block": 10, "position": 0, "token": [0-9]+, "c": [-0-9.e]+, "edited": true\}'
    steer --steering d.gguf --steering-mode ablate --steering-from decode --steering-trace c.jsonl >out 2>err
    [ "$(sed -n 's/.*"position": \([0-9]*\),.*/\1/p' c.jsonl | sort -n | head -n 1)" = 3 ]
    [ "$(ls -d c.jsonl*)" = c.jsonl ]
}

@test "a capture under steering has edited rows, and says so" {
    direction d.gguf length=30
    steer --resid-capture off.json >/dev/null 2>&1
    steer --resid-capture on.json --steering d.gguf --steering-mode add --steering-layers 12:12 >/dev/null 2>&1
    grep -q "\"steering\": \"add at scale 1 on 1 of 30 blocks, by llama.cpp's adapter ('d.gguf')\"" on.meta
    row=$((576 * 4))
    cmp <(head -c $((12 * row)) off.f32) <(head -c $((12 * row)) on.f32)
    ! cmp -s <(tail -c $((18 * row)) off.f32) <(tail -c $((18 * row)) on.f32)
    ts inspect on.json >out
}

@test "a model without the site is refused by name, before any text" {
    tiny deepseek4 tiny.gguf
    direction d.gguf width=128 blocks=1:2
    code=0
    ts run -m tiny.gguf -p 0000100002 -n 2 --steering d.gguf --steering-mode ablate >out 2>err || code=$?
    cat err
    [ "$code" = 1 ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ]
    grep -q "architecture 'deepseek4' has no resid site in block" err
}

@test "bench shows the arms of steering" {
    direction d.gguf
    ts bench -m model.gguf -t 1 -c 64 -n 2 -r 1 --steering d.gguf --json out.json >out 2>err
    for arm in off 'off again' 'resid, redirected' 'resid, asked' 'ffn census' 'add, all blocks' 'ablate, all blocks' 'ablate, a third'; do
        grep -qE "^$arm +[0-9.]+ " out
        grep -qF "\"name\": \"$arm\"" out.json
    done
    [ "$(awk '{ print length }' out | sort -n | tail -n 1)" -lt 80 ]
}
