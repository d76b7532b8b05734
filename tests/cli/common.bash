# Shared by the bats files and by regenerate: the inputs, and how a case is run and printed.
# TS_CLI, TS_MODEL and TS_SOURCE_DIR come from the environment (ctest sets them).

ts() { "$TS_CLI" "$@"; }

# Starts the command with WORDS, $pid being its process, and waits a minute at most until READY holds. 'out' and 'err' are
# emptied first: what a child had not yet run to open would be the words of the command before.
start_until() { # READY WORDS...
    local ready=$1
    shift
    : >out
    : >err
    "$TS_CLI" "$@" >out 2>err </dev/null 3>&- &
    pid=$!
    for _ in $(seq 6000); do
        if eval "$ready" || ! kill -0 "$pid" 2>/dev/null; then return 0; fi
        sleep 0.01
    done
}

# Whether FILE, a checkpoint, was written again since it was first asked about.
renewed() {
    [ -s "$1" ] || return 1
    [ -e "$1.first" ] || cp "$1" "$1.first"
    ! cmp -s "$1" "$1.first"
}

direction() { python3 "$TS_SOURCE_DIR/tests/cli/direction.py" "$@"; }

# Small files with every kind of fault, in the current folder. Names are relative so that messages are
# the same everywhere.
make_inputs() {
    [ -x "$TS_CLI" ]
    ln -sf "$TS_MODEL" model.gguf
    cp "$TS_MODEL" copy.gguf # for cases that would lose it if they went wrong
    ln -sf copy.gguf link.gguf
    head -c 40000000 "$TS_MODEL" >cut-data.gguf
    echo 'this is no model' >text.gguf
    : >empty.gguf
    printf 'one prompt\nanother\n' >prompts.txt
    : >empty.txt
    printf 'a' >short.txt
    printf '\n\n' >blank.txt
    printf 'one\000two\n' >nul.txt
    printf 'one \377 two\n' >utf8.txt
    printf 'one\nb\300d\n' >utf8-list.txt
    for _ in $(seq 600); do printf 'one two three four five '; done >long.txt
    printf '{"prompt": "one"}\n{"prompt": }\n' >bad.jsonl
    printf '{"prompt": "one"}\n{"text": "two"}\n' >field.jsonl
    printf '{"token_ids": [1, 999999]}\n' >ids.jsonl
    printf '[{"role": "user", "content": "Hi"},\n {"role": "user" "content": 1}]\n' >bad-messages.json
    printf '[]\n' >no-messages.json
    printf '{"layers": 2}\n' >half.json
    direction direction.gguf
    direction declared.gguf turbospark.mode=ablate
    direction zero.gguf zero=7
    direction wide.gguf width=580
    direction deep.gguf blocks=1:30
    direction other.gguf turbospark.model_hash=0123456789abcdef0123456789abcdef
    direction projection.gguf glp.mode=project
    mkdir -p folder
}

# Runs the words of one case and prints all that a user gets.
show_case() {
    local code=0
    eval "ts $1" >case.out 2>case.err </dev/null || code=$?
    printf 'exit %s\n--- stdout\n' "$code"
    cat case.out
    printf -- '--- stderr\n'
    cat case.err
}

# Lines "name | words" of tests/cli/cases, comments and blank lines left out.
cases() { sed -n 's/^\([a-z0-9-]*\) *| *\(.*\)$/\1|\2/p' "$TS_SOURCE_DIR/tests/cli/cases"; }
