#!/bin/sh
# The shared library exports the functions of the public header, all of them and nothing else.
set -eu
header=$TS_SOURCE_DIR/include/turbospark/turbospark.h
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Comments out, one declaration a line, then the name before the first parenthesis.
sed 's://.*$::' "$header" | tr '\n' ' ' | sed 's:/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/: :g' | tr ';' '\n' |
    sed -n 's/.*TS_API \([^(]*[ *]\)\(ts_[a-z0-9_]*\)(.*/\2/p' | sort >"$work/declared"
nm -D --defined-only "$TS_BUILD_DIR/lib/libturbospark.so" |
    awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$work/exported"

[ -s "$work/declared" ] || { echo "no TS_API function found in '$header'"; exit 1; }
diff "$work/declared" "$work/exported" >"$work/diff" || {
    echo "declared in the header (<) and exported by the library (>) differ:"
    cat "$work/diff"
    exit 1
}
echo "$(wc -l <"$work/exported") functions exported, all declared"
