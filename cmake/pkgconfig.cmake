# Writes turbospark.pc. Paths are relative to the file itself, so that a staged install serves too.
# llama.cpp's own flags are public: who hangs a probe on a context calls both libraries.

file(RELATIVE_PATH ts_pc_to_prefix "/x/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/x")
string(REGEX REPLACE "/$" "" ts_pc_to_prefix "${ts_pc_to_prefix}")
set(TS_PC_PREFIX "\${pcfiledir}/${ts_pc_to_prefix}")

if(TS_LLAMA_PRIVATE)
    set(TS_PC_LLAMA_CFLAGS "-I\${libdir}/turbospark/llama/include")
    set(ts_pc_dir "\${libdir}/turbospark/llama/lib")
    set(TS_PC_LLAMA_LIBS "-L${ts_pc_dir} -Wl,-rpath,${ts_pc_dir} -lllama -lggml -lggml-base")
else()
    get_filename_component(ts_pc_include "${TS_LLAMA_LIBDIR}/../include" ABSOLUTE)
    set(TS_PC_LLAMA_CFLAGS "-I${ts_pc_include}")
    set(TS_PC_LLAMA_LIBS "-L${TS_LLAMA_LIBDIR}")
    if(NOT "${TS_LLAMA_LIBDIR}" IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
        string(APPEND TS_PC_LLAMA_LIBS " -Wl,--disable-new-dtags -Wl,-rpath,${TS_LLAMA_LIBDIR}")
    endif()
    string(APPEND TS_PC_LLAMA_LIBS " -lllama -lggml -lggml-base")
endif()
configure_file(cmake/turbospark.pc.in turbospark.pc @ONLY)
