#!/usr/bin/env bash
# Installs into a staging folder and into a prefix, builds examples/embed.c against each, as a user would
# (pkg-config, CMake package; shared and static library), and runs it and the installed command on the
# model. The build tree's own libraries are out of reach: each program is asked which ones it loads.
set -euo pipefail
source=$TS_SOURCE_DIR/examples/embed.c
[ -f "$source" ] || { echo "no 'examples/embed.c'"; exit 77; }
[ -f "$TS_MODEL" ] || { echo "no model '$TS_MODEL': run 'make setup'"; exit 77; }
unset MAKEFLAGS MAKELEVEL MFLAGS LD_LIBRARY_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "install: $*"; exit 1; }

# runs PROGRAM LIBRARIES-FROM ARG...: it must load libturbospark (if at all) from there, and succeed.
runs() {
    local program=$1 from=$2
    shift 2
    ldd "$program" | sed 's:/bin/\.\./:/:g' >"$work/ldd"
    ! grep -q 'not found' "$work/ldd" || { cat "$work/ldd"; fail "'$program' lacks a library"; }
    ! grep libturbospark "$work/ldd" | grep -qv "$from" || { cat "$work/ldd"; fail "'$program' does not load the installed library"; }
    if [ -d "$from/turbospark/llama" ]; then
        ! grep libllama "$work/ldd" | grep -qv "$from" || { cat "$work/ldd"; fail "'$program' does not load the installed llama.cpp"; }
    fi
    "$program" "$@" >"$work/out" || { cat "$work/out"; fail "'$program' failed with $?"; }
    [ -s "$work/out" ] || fail "'$program' printed nothing"
}

# 1. make install DESTDIR=: a staged tree, used through pkg-config.
make -s -C "$TS_SOURCE_DIR" install BUILD="$TS_BUILD_DIR" DESTDIR="$work/stage" >"$work/log" 2>&1 ||
    { cat "$work/log"; fail "make install failed"; }
pc=$(find "$work/stage" -name turbospark.pc)
[ -n "$pc" ] || fail "no turbospark.pc was installed"
libdir=$(realpath "$(dirname "$pc")/..")
export PKG_CONFIG_PATH=${pc%/*}
read -r -a flags <<<"$(pkg-config --cflags --libs turbospark)"
"${CC:-cc}" -std=c11 -Wall -Wextra -o "$work/embed-pc" "$source" "${flags[@]}" -lm
LD_LIBRARY_PATH=$libdir runs "$work/embed-pc" "$libdir" "$TS_MODEL"
cp "$work/out" "$work/expected"

read -r -a cflags <<<"$(pkg-config --cflags turbospark)"
read -r -a libs <<<"$(pkg-config --static --libs turbospark)"
"${CC:-cc}" -std=c11 "${cflags[@]}" -o "$work/embed-static" "$source" "${libs[@]/-lturbospark/-l:libturbospark.a}"
runs "$work/embed-static" "$libdir" "$TS_MODEL"
! grep -q libturbospark "$work/ldd" || fail "the static program loads the shared library"
cmp "$work/out" "$work/expected" || fail "the static library gives another output"

# 2. a prefix, used through the CMake package from a project in C alone.
cmake --install "$TS_BUILD_DIR" --prefix "$work/prefix" >"$work/log"
mkdir "$work/user"
cp "$source" "$work/user/embed.c"
cat >"$work/user/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(turbospark 0.1 REQUIRED)
add_executable(shared embed.c)
target_link_libraries(shared PRIVATE turbospark::turbospark m)
add_executable(static embed.c)
target_link_libraries(static PRIVATE turbospark::turbospark_static m)
CMAKE
{ cmake -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$work/prefix" &&
    cmake --build "$work/user/build"; } >"$work/log" 2>&1 || { cat "$work/log"; fail "the CMake package does not serve"; }
so=$(find "$work/prefix" -name libturbospark.so)
for kind in shared static; do
    runs "$work/user/build/$kind" "${so%/*}" "$TS_MODEL"
    cmp "$work/out" "$work/expected" || fail "the $kind library of the CMake package gives another output"
done

# 3. the installed command and its man pages.
if [ -x "$work/prefix/bin/turbospark" ]; then
    runs "$work/prefix/bin/turbospark" "${so%/*}" --version
    runs "$work/stage/usr/local/bin/turbospark" "$libdir" --version
fi
for page in "$TS_SOURCE_DIR"/man/*.scd; do
    [ -f "$page" ] || continue
    page=$(basename "$page" .scd)
    find "$work/prefix" -name "$page" | grep -q . || fail "man page '$page' was not installed"
done
echo "installed tree: pkg-config, static, CMake package and command all run"
