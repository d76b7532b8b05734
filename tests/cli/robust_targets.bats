# Where a result cannot stand: each command says so in one line that names the path as it was given, before it computes,
# and leaves nothing behind. On a tiny model, since only the files matter.

setup_file() {
    cd "$BATS_FILE_TMPDIR"
    "$TS_BUILD_DIR/tests/bin/tiny_gguf" llama tiny.gguf n_layer=3 n_embd=32 n_ff=64
    "$TS_BUILD_DIR/tests/bin/tiny_gguf" llama-moe moe.gguf n_layer=2 n_embd=32 n_ff=32
    python3 "$TS_SOURCE_DIR/tests/cli/direction.py" dir.gguf width=32 blocks=1:2
    printf 'one\ntwo two\nthree\n' >prompts.txt
    printf 'one two three four five six seven' >text.txt
    "$TS_CLI" logits -m tiny.gguf -t 1 -f text.txt -o la -q
    "$TS_CLI" logits -m tiny.gguf -t 1 -f text.txt -o lb -q
    "$TS_CLI" census -m tiny.gguf -t 1 -i prompts.txt -n 2 -o cen.json -q
    "$TS_CLI" capture -m tiny.gguf -t 1 -i prompts.txt -o pos.json -q
    printf 'four\nfive five\n' >neg.txt
    "$TS_CLI" capture -m tiny.gguf -t 1 -i neg.txt -o neg.json -q
}

setup() {
    load common
    cd "$BATS_FILE_TMPDIR"
}

# Every way to name an output; @ is the output.
ways() {
    cat <<END
run -m tiny.gguf -t 1 -p hi -n 2 --resid-capture @
run -m tiny.gguf -t 1 -p hi -n 2 --ffn-hist @
run -m tiny.gguf -t 1 -p hi -n 2 --steering dir.gguf --steering-mode add --steering-trace @
run -m moe.gguf -t 1 -p hi -n 2 --router-hist @
router -m moe.gguf -t 1 -i prompts.txt -n 2 -o @
router -m moe.gguf -t 1 -i prompts.txt -n 2 -o unwritten.json --csv @
capture -m tiny.gguf -t 1 -i prompts.txt -o @
capture -m tiny.gguf -t 1 -i prompts.txt --format safetensors -o @
census -m tiny.gguf -t 1 -i prompts.txt -n 2 -o @ --trace
census -m tiny.gguf -t 1 --text text.txt --zero 10 --json @
kld la lb --json @
extract --positive pos.json --negative neg.json -o @
extract --positive pos.json --negative neg.json -o unwritten.gguf --json @
sweep -m tiny.gguf -t 1 --steering dir.gguf --modes add --scales 0,1 -i prompts.txt -n 2 --json @
merge cen.json -o @
bench -m tiny.gguf -t 1 -r 1 -n 2 --json @
END
}

listing() { find . ! -name out ! -name err | sort; }

# Fails at once: one line naming '$1', nothing on stdout, nothing left.
refused() { # TARGET WORDS, where @ is the target
    local code=0 before words i
    before=$(listing)
    read -ra words <<<"$2"
    for i in "${!words[@]}"; do [ "${words[$i]}" != @ ] || words[i]=$1; done
    timeout 60 "$TS_CLI" "${words[@]}" >out 2>err </dev/null || code=$?
    echo "turbospark ${2//@/$1}: exit $code: $(cat err)"
    [ "$code" = 1 ] || [ "$code" = 2 ]
    [ ! -s out ]
    [ "$(wc -l <err)" = 1 ]
    grep -qF "'$1'" err || grep -qF "'${1%.*}" err
    if grep -qE '\.(tmp|lock)' err; then return 1; fi
    [ "$(listing)" = "$before" ]
}

refused_by_all() { # TARGET
    while read -r words; do refused "$1" "$words"; done < <(ways)
}

@test "folders, FIFOs, devices, dangling links and loops are no targets" {
    mkdir -p sub/folder.json
    mkfifo sub/fifo.json
    ln -s folder.json sub/linked.json
    ln -s /dev/full sub/full.json
    ln -s /dev/null sub/null.json
    ln -s nowhere sub/dangling.json
    ln -s loop.json sub/loop.json
    for name in folder fifo linked full null dangling loop; do refused_by_all "sub/$name.json"; done
    [ -p sub/fifo.json ] && [ -L sub/full.json ]
}

@test "a capture does not take the place of a link" {
    printf '{}' >leads.json
    ln -s leads.json link.json
    cp -P link.json link.safetensors
    for out in link.json link.safetensors; do
        code=0
        "$TS_CLI" capture -q -m tiny.gguf -t 1 -c 64 -i prompts.txt --overwrite -o "$out" 2>err || code=$?
        [ "$code" = 1 ]
        grep -q "'$out': it is a link" err
        [ -L "$out" ]
    done
    [ "$(cat leads.json)" = '{}' ]
}

@test "standard output and an empty path are no targets" {
    refused_by_all ''
    refused_by_all -
    words='logits -m tiny.gguf -t 1 -q -f text.txt -o'
    for target in '' -; do
        code=0
        # shellcheck disable=SC2086
        "$TS_CLI" $words "$target" >out 2>err || code=$?
        [ "$code" = 1 ] && [ "$(wc -l <err)" = 1 ] && grep -q "'$target'" err
    done
    [ ! -e ./- ]
}

@test "folders that are none, that nobody can write into, and names too long" {
    : >plain
    for target in nowhere/x.json plain/x.json /proc/x.json "$(printf 'x%.0s' $(seq 260)).json"; do
        refused_by_all "$target"
    done
}

@test "a folder without permission, and a read-only file system" {
    if [ "$(id -u)" = 0 ]; then
        mkdir -p ro
        mount -t tmpfs -o ro tmpfs ro 2>/dev/null || skip "as root, and no file system can be mounted"
        code=0
        (refused_by_all ro/x.json) || code=$?
        umount ro
        [ "$code" = 0 ]
    else
        mkdir -p ro
        chmod 500 ro
        refused_by_all ro/x.json
    fi
}

@test "an output that replaces without being asked replaces no other kind of file" {
    for words in 'run -m tiny.gguf -t 1 -p hi -n 2 --steering dir.gguf --steering-mode add --steering-trace' \
        'census -m tiny.gguf -t 1 --text text.txt --zero 10 --json' 'kld la lb --json' 'bench -m tiny.gguf -t 1 -r 1 -n 2 --json'; do
        echo 'my notes' >notes.json
        refused notes.json "$words notes.json"
        grep -q "'notes.json' exists and is not JSON: it is not replaced" err
        [ "$(cat notes.json)" = 'my notes' ]
        printf '  {"old": 1}\n' >notes.json # an earlier result is
        # shellcheck disable=SC2086
        "$TS_CLI" $words notes.json >out 2>err
        if grep -q '"old"' notes.json; then return 1; fi
        rm -f notes.*
    done
}

@test "a run replaces what such a run made, and nothing else" {
    for words in 'moe.gguf -t 1 -p hi -n 2 --router-hist' 'tiny.gguf -t 1 -p hi -n 2 --resid-capture' 'tiny.gguf -t 1 -p hi -n 2 --ffn-hist'; do
        rm -f notes.*
        echo 'my notes' >notes.json
        refused notes.json "run -m $words notes.json"
        grep -q "'notes.json' exists and is not JSON: it is not replaced" err
        printf '  {"old": 1}\n' >notes.json
        refused notes.json "run -m $words notes.json"
        grep -q "'notes.json' exists and was not made by a run like this: it is not replaced" err
        rm notes.json
        echo 'my notes' >notes.meta
        refused notes.meta "run -m $words notes.json"
        grep -q "'notes.meta' exists and is of no earlier run: it is not replaced" err
        rm notes.meta
        mkfifo notes.meta # which nobody writes to
        refused notes.meta "run -m $words notes.json"
        rm notes.meta
        : >notes.json # as mktemp leaves it
        for _ in 1 2; do
            # shellcheck disable=SC2086
            "$TS_CLI" run -m $words notes.json >out 2>err
        done
        grep -q '"plan": "run"' notes.meta
        rm notes.json # what stood beside it is still such a run's
        # shellcheck disable=SC2086
        "$TS_CLI" run -m $words notes.json >out 2>err
    done
    # nor do they replace each other's, nor a corpus'
    refused notes.json 'run -m tiny.gguf -t 1 -p hi -n 2 --resid-capture notes.json'
    for words in 'capture --resid-capture' 'census --ffn-hist'; do
        "$TS_CLI" "${words% *}" -m tiny.gguf -t 1 -q -i prompts.txt -o "${words% *}.json"
        refused "${words% *}.json" "kld la lb --json ${words% *}.json"
        grep -qE "exists and is (the header of a residual capture|an FFN census): it is not replaced" err
        refused "${words% *}.json" "run -m tiny.gguf -t 1 -p hi -n 2 ${words#* } ${words% *}.json"
    done
}

@test "two captures at once do not share a .f32" {
    exec 9>x.f32.lock
    flock -n 9
    refused x.f32 'capture -m tiny.gguf -t 1 -i prompts.txt -o x.json'
    grep -q "cannot write 'x.f32': another run is writing it" err
    exec 9>&-
}

@test "a file beside a result, or one it writes on the way, is no input" {
    cp prompts.txt own.f32
    refused own.json 'capture -m tiny.gguf -t 1 -i own.f32 -o own.json --overwrite'
    mv own.f32 own.json.part
    refused own.json 'capture -m tiny.gguf -t 1 -i own.json.part -o own.json'
    mv own.json.part own.detail
    refused own.json 'census -m tiny.gguf -t 1 -i own.detail -n 2 -o own.json'
    rm own.detail
    cp cen.json two.json && cp cen.meta two.meta && cp cen.detail two.detail
    refused two.x 'merge two.json -o two.x --overwrite'
    cmp two.detail cen.detail
    cp tiny.gguf out.f32
    refused out.json 'run -m out.f32 -t 1 -p hi -n 2 --resid-capture out.json'
    cmp tiny.gguf out.f32
}

@test "a second run on one output refuses while the first works" {
    run_slow() { "$TS_CLI" "$@" >out1 2>err1 </dev/null & slow=$!; }
    for words in 'run -m tiny.gguf -t 1 -p hi -n 400 --ignore-eos --ffn-hist both.json' \
        'run -m tiny.gguf -t 1 -p hi -n 400 --ignore-eos --resid-capture both.json' \
        'census -m tiny.gguf -t 1 -i prompts.txt -n 300 --ignore-eos -o both.json' \
        'router -m moe.gguf -t 1 -i prompts.txt -n 300 --ignore-eos -o both.json' \
        'sweep -m tiny.gguf -t 1 --steering dir.gguf --modes add --scales 0,1 -i prompts.txt -n 300 --ignore-eos --json both.json'; do
        for _ in $(seq 10); do # it may be over before it is stopped
            # shellcheck disable=SC2086
            run_slow $words
            for _ in $(seq 200); do [ -e both.json.lock ] && break; sleep 0.01; done
            sleep 0.02 # from the file to its lock
            kill -STOP "$slow" || true
            [ ! -e both.json.lock ] || break
            kill -CONT "$slow" || true
            wait "$slow"
            rm -f both.*
        done
        code=0
        # shellcheck disable=SC2086
        "$TS_CLI" $words >out 2>err || code=$?
        kill -CONT "$slow"
        wait "$slow"
        [ "$code" = 1 ]
        grep -q "cannot write 'both.json': another run is writing it" err
        [ -s both.json ]
        [ ! -e both.json.lock ]
        rm -f both.*
    done
}
