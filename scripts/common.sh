# Shared by the scripts of this folder: places, messages, checked downloads. Sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
stamps=build/stamps
model=models/SmolLM2-135M-Instruct.Q4_1.gguf

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit 1; }

jobs() { nproc 2>/dev/null || echo 2; }

# One set-up at a time: a second one waits for the first, and for a build the first left running.
lock_setup() {
    mkdir -p "$stamps" build/downloads models
    command -v flock >/dev/null || return 0
    exec 9>build/setup.lock
    flock -n 9 && return 0
    say "another set-up is at work in this folder; waiting for it"
    flock 9
}

# checked FILE [NAME]: does FILE have the hash that scripts/sources.sha512 keeps for NAME?
checked() {
    local file=$1 name=${2:-${1##*/}} want got
    want=$(awk -v n="$name" '$2 == n { print $1 }' scripts/sources.sha512)
    [ -n "$want" ] || die "no hash for '$name' in 'scripts/sources.sha512'"
    [ -f "$file" ] || return 1
    got=$(sha512sum <"$file")
    [ "${got%% *}" = "$want" ]
}

# download NAME COMMAND...: runs COMMAND in an empty folder where it leaves NAME; keeps NAME in
# build/downloads only once its hash is right. Already there and right: nothing is fetched.
download() {
    local name=$1 part=build/downloads/$1.part try
    shift
    checked "build/downloads/$name" && return 0
    for try in 1 2 3; do
        say "fetching '$name'$([ "$try" = 1 ] || echo " (try $try of 3)")"
        rm -rf "$part"
        mkdir -p "$part"
        if (cd "$part" && "$@" </dev/null 9>&-) && [ -f "$part/$name" ]; then
            checked "$part/$name" ||
                die "downloaded '$name' has sha512 $(sha512sum <"$part/$name" | cut -c1-16)..., not the one in 'scripts/sources.sha512'; it was left in '$part'"
            mv -f "$part/$name" "build/downloads/$name"
            rm -rf "$part"
            return 0
        fi
    done
    die "cannot fetch '$name': '$*' failed three times; run set-up again to continue"
}
