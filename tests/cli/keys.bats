# Model files of strangers whose keys or vocabulary llama.cpp trusts: one line that names file and key, exit 1, no abort.

setup() {
    load common
    cd "$BATS_TEST_TMPDIR"
}

tiny() { "$TS_BUILD_DIR/tests/bin/tiny_gguf" "$@"; }

# change FILE KEY NUMBER: another value of a 32-bit number.  words FILE FROM TO...: other texts, together of the same length.
change() {
    python3 - "$@" <<'PY'
import struct, sys
path, key, value = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3])
data = bytearray(open(path, "rb").read())
at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key)
assert struct.unpack_from("<I", data, at)[0] == 4
struct.pack_into("<I", data, at + 4, value)
open(path, "wb").write(data)
PY
}
words() {
    python3 - "$@" <<'PY'
import struct, sys
path, pairs = sys.argv[1], [word.encode() for word in sys.argv[2:]]
data = open(path, "rb").read()
size = len(data)
for was, now in zip(pairs[::2], pairs[1::2]):
    assert struct.pack("<Q", len(was)) + was in data
    data = data.replace(struct.pack("<Q", len(was)) + was, struct.pack("<Q", len(now)) + now, 1)
assert len(data) == size
open(path, "wb").write(data)
PY
}

fails() { # LINE WORDS...: exit 1, nothing on stdout, on stderr that line alone, the command before it
    local line=$1 code=0
    shift
    ts "$@" >out 2>err || code=$?
    [ "$code" = 1 ] && [ ! -s out ] && [ "$(grep -v ': warning: ' err)" = "turbospark $1: $line" ] || { echo "exit $code"; cat out err; return 1; }
}

@test "impossible counts of experts, blocks and heads" {
    tiny llama-moe moe.gguf
    cp moe.gguf a.gguf
    change a.gguf llama.expert_used_count 9
    fails "model 'a.gguf': 'llama.expert_used_count' is 9, expected 1 to 8, as there are so many experts" run -m a.gguf -p a -n 1
    fails "model 'a.gguf': 'llama.expert_used_count' is 9, expected 1 to 8, as there are so many experts" nodes -m a.gguf
    change a.gguf llama.expert_used_count 0
    fails "model 'a.gguf': 'llama.expert_used_count' is 0, expected 1 to 8, as there are so many experts" run -m a.gguf -p a -n 1
    cp moe.gguf b.gguf
    change b.gguf llama.expert_count 5000
    fails "model 'b.gguf': 'llama.expert_count' is 5000, expected at most 1024" run -m b.gguf -p a -n 1
    change b.gguf llama.expert_count 0
    fails "model 'b.gguf': 'llama.expert_used_count' is 2, expected 0, as there are no experts" run -m b.gguf -p a -n 1
    cp moe.gguf c.gguf
    change c.gguf llama.block_count 600
    fails "model 'c.gguf': 'llama.block_count' is 600, expected 1 to 512" run -m c.gguf -p a -n 1
    cp moe.gguf d.gguf
    change d.gguf llama.attention.head_count 3
    change d.gguf llama.attention.head_count_kv 2
    fails "model 'd.gguf': 'llama.attention.head_count_kv' is 2, expected a number that divides the 3 heads of block 0" run -m d.gguf -p a -n 1
}

@test "what only one architecture divides by, and what would never end" {
    tiny qwen35 a.gguf
    cp a.gguf b.gguf
    change a.gguf qwen35.full_attention_interval 0
    fails "model 'a.gguf': 'qwen35.full_attention_interval' is 0, expected 1 or more" run -m a.gguf -p a -n 1
    change b.gguf qwen35.rope.dimension_count 0
    fails "model 'b.gguf': architecture 'qwen35' has a 'rope.dimension_count' of 0, expected a positive number" run -m b.gguf -p a -n 1
}

@test "any other check of llama.cpp's that fails: its words, and the model's name" {
    tiny qwen35 a.gguf
    change a.gguf qwen35.rope.dimension_count 600
    code=0
    ts run -m a.gguf -p a -n 1 >out 2>err || code=$?
    [ "$code" = 1 ]
    [ ! -s out ]
    grep -qxE "turbospark run: model 'a.gguf' fails a check of llama.cpp, which ends the process: [a-z-]+\.cpp:[0-9]+: GGML_ASSERT\(.*\) failed" err
    [ "$(wc -l <err)" = 1 ]
}

@test "a vocabulary with a token twice, without a tokenizer, or without the bytes of a text" {
    tiny llama good.gguf
    cp good.gguf a.gguf
    words a.gguf tok_7 tok_3
    fails "model 'a.gguf': 'tokenizer.ggml.tokens' has 'tok_3' twice, as tokens 3 and 7" run -m a.gguf -p a -n 1
    cp good.gguf b.gguf
    words b.gguf test none
    fails "model 'b.gguf' has no tokenizer ('tokenizer.ggml.model' says so): it cannot generate text" run -m b.gguf -p a -n 1
    cp good.gguf c.gguf
    words c.gguf test llama 'tiny llama' 'tiny llam'
    fails "model 'c.gguf' cannot tokenize '▁': its vocabulary has neither that character nor '<0xE2>'" run -m c.gguf -p a -n 1
    printf '{"token_ids": [1, 2, 3]}\n' >ids.jsonl
    ts capture -m c.gguf -i ids.jsonl -o ids.json -q
}

@test "a synthetic model of too many experts" {
    code=0
    ts bench --synthetic 2,64,128,4,2,2000,8 >out 2>err || code=$?
    [ "$code" = 2 ]
    [ "$(cat err)" = "turbospark bench: --synthetic: expected at most 1024 experts, got 2000; try 'turbospark bench --help'" ]
}
