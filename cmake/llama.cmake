# Finds llama.cpp and wraps it in the target ts_llama.
#
# Where: LLAMA_DIR (cache or environment), else what scripts/setup chose (build/stamps/llama-prefix),
# else the system. Refuses releases before TS_LLAMA_MIN. Sets TS_LLAMA_PREFIX, TS_LLAMA_LIBDIR and
# TS_LLAMA_PRIVATE: whether it is the copy that set-up built, which no one else on the machine knows.

set(TS_LLAMA_MIN 0.5.0)
set(LLAMA_DIR "$ENV{LLAMA_DIR}" CACHE PATH "prefix of the llama.cpp to use; empty: set-up's choice, else the system's")

set(ts_choice "${PROJECT_SOURCE_DIR}/build/stamps/llama-prefix")
set(TS_LLAMA_PREFIX "${LLAMA_DIR}")
if(NOT TS_LLAMA_PREFIX AND EXISTS "${ts_choice}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${ts_choice}")
    file(STRINGS "${ts_choice}" TS_LLAMA_PREFIX LIMIT_COUNT 1)
endif()
if(TS_LLAMA_PREFIX)
    get_filename_component(TS_LLAMA_PREFIX "${TS_LLAMA_PREFIX}" ABSOLUTE BASE_DIR "${PROJECT_SOURCE_DIR}")
endif()

# A change of prefix must not find the old one again through the cache.
if(NOT "${TS_LLAMA_PREFIX}" STREQUAL "$CACHE{TS_LLAMA_PREFIX_BEFORE}")
    get_cmake_property(ts_cached CACHE_VARIABLES)
    foreach(v ${ts_cached})
        if(v MATCHES "^(llama|ggml)_DIR$|^llama_LIBRARY$|^GGML_.*LIBRARY$|^TS_LLAMA_PC")
            unset(${v} CACHE)
        endif()
    endforeach()
    set(TS_LLAMA_PREFIX_BEFORE "${TS_LLAMA_PREFIX}" CACHE INTERNAL "")
endif()

add_library(ts_llama INTERFACE)
if(TS_LLAMA_PREFIX)
    list(PREPEND CMAKE_PREFIX_PATH "${TS_LLAMA_PREFIX}")
endif()
find_package(llama CONFIG QUIET)
if(llama_FOUND)
    set(ts_llama_version "${LLAMA_VERSION}")
    set(TS_LLAMA_LIBDIR "${LLAMA_LIB_DIR}")
    target_link_libraries(ts_llama INTERFACE llama ggml::ggml ggml::ggml-base)
    set(TS_LLAMA_FROM_CMAKE TRUE)
else()
    find_package(PkgConfig QUIET)
    if(PKG_CONFIG_FOUND)
        pkg_check_modules(TS_LLAMA_PC QUIET IMPORTED_TARGET llama)
    endif()
    if(TS_LLAMA_PC_FOUND)
        set(ts_llama_version "${TS_LLAMA_PC_VERSION}")
        pkg_get_variable(TS_LLAMA_LIBDIR llama libdir)
        target_link_libraries(ts_llama INTERFACE PkgConfig::TS_LLAMA_PC)
    endif()
    set(TS_LLAMA_FROM_CMAKE FALSE)
endif()

if(NOT ts_llama_version)
    message(FATAL_ERROR "no llama.cpp ${TS_LLAMA_MIN} found in '${TS_LLAMA_PREFIX}' or on the system: run 'make setup', or give -DLLAMA_DIR=<prefix>")
endif()
string(REGEX MATCH "^[0-9.]+" ts_llama_number "${ts_llama_version}")
if(ts_llama_number VERSION_LESS TS_LLAMA_MIN)
    message(FATAL_ERROR "llama.cpp in '${TS_LLAMA_LIBDIR}' is ${ts_llama_version}; expected ${TS_LLAMA_MIN} or newer: run 'make setup', or give -DLLAMA_DIR=<prefix>")
endif()
message(STATUS "llama.cpp ${ts_llama_version} in ${TS_LLAMA_LIBDIR}")

cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${TS_LLAMA_LIBDIR}" NORMALIZE TS_LLAMA_PRIVATE)

# llama.cpp's own install gives its libraries no run path: they find their siblings through that of the
# program only where it is the old, inherited kind, and the linker finds them only where ours name them.
# The copy that set-up builds has run paths and needs none of it.
set(TS_LLAMA_LINK_OPTIONS "")
if(NOT TS_LLAMA_PRIVATE AND NOT "${TS_LLAMA_LIBDIR}" IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
    set(TS_LLAMA_LINK_OPTIONS -Wl,--no-as-needed -Wl,--disable-new-dtags)
endif()
target_link_options(ts_llama INTERFACE ${TS_LLAMA_LINK_OPTIONS})
