# Language, warnings and sanitizers of every target; ts_flags is private to the build and never exported.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_FLAGS_RELEASE "-O2 -g")
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

option(TS_WERROR "warnings are errors: for CI, since every compiler finds its own" OFF)
option(TS_FUZZ "build the fuzz targets for libFuzzer (clang)" OFF)
option(TS_FAULT_INJECTION "let tests fail each allocation and system call in turn" OFF)
set(TS_SANITIZE "" CACHE STRING "sanitizers, as -fsanitize= takes them: address,undefined or thread")

add_library(ts_flags INTERFACE)
target_compile_definitions(ts_flags INTERFACE _POSIX_C_SOURCE=200809L
    $<$<BOOL:${TS_FAULT_INJECTION}>:TS_FAULT_INJECTION>)
target_compile_options(ts_flags INTERFACE
    -Wall -Wextra -Wshadow -Wundef -Wmissing-prototypes -Wconversion $<$<BOOL:${TS_WERROR}>:-Werror>)
if(TS_SANITIZE)
    target_compile_options(ts_flags INTERFACE
        -fsanitize=${TS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(ts_flags INTERFACE -fsanitize=${TS_SANITIZE})
endif()
if(TS_FUZZ)
    target_compile_options(ts_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# ts_need(VAR header library package): a plain C library, found or named.
function(ts_need var header library package)
    find_path(TS_${var}_INCLUDE ${header})
    find_library(TS_${var}_LIBRARY ${library})
    mark_as_advanced(TS_${var}_INCLUDE TS_${var}_LIBRARY)
    if(NOT TS_${var}_INCLUDE OR NOT TS_${var}_LIBRARY)
        message(FATAL_ERROR "'${library}' (${header}) not found: run 'make setup', or install ${package}")
    endif()
endfunction()
