# llama.cpp's source and how it is built: for setup, gpu-proof and valgrind. Sourced after common.sh, never run.

llama_release=0.5.0
llama_tree=build/src/llama.cpp-$llama_release
npm_package=node-llama-cpp@3.22.1
npm_file=node-llama-cpp-3.22.1.tgz

# The file under prefix $1 that describes a llama.cpp: its CMake package, else its pkg-config file.
llama_config() {
    local f
    for f in "$1"/lib/cmake/llama/llama-config.cmake "$1"/lib64/cmake/llama/llama-config.cmake \
        "$1"/lib/*/cmake/llama/llama-config.cmake "$1"/lib/pkgconfig/llama.pc \
        "$1"/lib64/pkgconfig/llama.pc "$1"/lib/*/pkgconfig/llama.pc; do
        [ -f "$f" ] || continue
        echo "$f"
        return
    done
}

# The version of the llama.cpp under prefix $1; nothing when there is none.
llama_version() {
    local f
    f=$(llama_config "$1")
    [ -z "$f" ] || sed -n -e 's/^set(LLAMA_VERSION *"\{0,1\}\([^)"]*\).*/\1/p' -e 's/^Version: *//p' "$f"
}

llama_source() {
    [ -f "$llama_tree/CMakeLists.txt" ] && return 0
    download "$npm_file" env npm_config_update_notifier=false npm_config_fund=false \
        npm pack --ignore-scripts --silent "$npm_package"
    say "unpacking llama.cpp $llama_release"
    rm -rf build/src/part
    mkdir -p build/src/part
    tar -xzf "build/downloads/$npm_file" -C build/src/part package/llama/gitRelease.bundle
    git -c advice.detachedHead=false clone -q build/src/part/package/llama/gitRelease.bundle build/src/part/llama.cpp
    mv build/src/part/llama.cpp "$llama_tree"
    rm -rf build/src/part
}

# build_llama NAME FLAG...: builds the source into build/src/NAME.build, installs under build/NAME. make continues
# where an interrupted build stopped; the install appears whole, by one rename.
build_llama() {
    local name=$1 tree=build/src/$1.build stage=build/src/$1.stage
    shift
    # In the install tree each library finds its siblings by $ORIGIN, so no one needs LD_LIBRARY_PATH.
    cmake -S "$llama_tree" -B "$tree" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        "-DCMAKE_INSTALL_PREFIX=$root/build/$name" -DCMAKE_INSTALL_LIBDIR=lib \
        '-DCMAKE_INSTALL_RPATH=$ORIGIN;$ORIGIN/../lib' \
        -DLLAMA_BUILD_IS_DEV=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
        -DLLAMA_BUILD_APP=OFF -DLLAMA_CURL=OFF -DGGML_CCACHE=OFF \
        -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_RPC=ON -DGGML_RPC_RDMA=OFF "$@" && # RPC: tests take it for two devices
        cmake --build "$tree" -j "$(jobs)" &&
        rm -rf "$stage" &&
        DESTDIR=$root/$stage cmake --install "$tree" &&
        cp "$llama_tree/LICENSE" "$stage$root/build/$name/" &&
        rm -rf "build/$name" &&
        mv "$stage$root/build/$name" "build/$name" &&
        rm -rf "$stage"
}
