# The rules every folder's CMakeLists.txt uses: one library a folder, one test binary a folder, the same flags everywhere.

find_program(FOVEA_CCACHE ccache)
if(FOVEA_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${FOVEA_CCACHE})
endif()
find_program(FOVEA_LLD ld.lld)
if(FOVEA_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# -ffp-contract=off: the same source must give the same bits whatever the compiler; kernels ask for FMA by name.
# -Wno-restrict, -Wno-maybe-uninitialized: g++ 12 reports them for plain std::string concatenation (its bug 105651) and
# for Result<std::string>.
add_compile_options(-Wall -Wextra -Wno-unused-parameter -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-restrict -Wno-maybe-uninitialized)
endif()
if(FOVEA_SANITIZE)
  add_compile_options(-fsanitize=${FOVEA_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${FOVEA_SANITIZE})
  # What these see in each access, AddressSanitizer sees where it matters; they double the time of g++. The fuzz targets,
  # which clang compiles, keep them.
  if(FOVEA_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fno-sanitize=null,alignment,object-size,vptr,nonnull-attribute,returns-nonnull-attribute)
  endif()
endif()
if(FOVEA_BUILD_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link -fno-sanitize-recover=all)
endif()

# fovea_library(NAME [DEPS library...] [TEST_DEPS library...] [EXCLUDE folder...])
# Library fovea_NAME from every .cc below the folder; *_test.cc become the binary NAME_test, *_gpu_test.cc the binary
# NAME_gpu_test, *_main.cc are left alone.
# EXCLUDE names sub-folders that are libraries of their own.
function(fovea_library name)
  cmake_parse_arguments(arg "" "" "DEPS;TEST_DEPS;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  foreach(folder ${arg_EXCLUDE})
    list(FILTER sources EXCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}/${folder}/")
  endforeach()
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(gpu_tests ${tests})
  list(FILTER tests EXCLUDE REGEX "_gpu_test\\.cc$")
  list(FILTER gpu_tests INCLUDE REGEX "_gpu_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|main)\\.cc$")
  if(sources)
    add_library(fovea_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(fovea_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(fovea_${name} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
    $<INSTALL_INTERFACE:include>)
  target_link_libraries(fovea_${name} ${scope} ${arg_DEPS})
  set_property(GLOBAL APPEND PROPERTY FOVEA_LIBRARIES fovea_${name})
  if(tests AND FOVEA_BUILD_TESTS)
    fovea_test(${name}_test SOURCES ${tests} DEPS fovea_${name} ${arg_TEST_DEPS})
  endif()
  if(gpu_tests AND FOVEA_BUILD_TESTS)
    fovea_gpu_test(${name}_gpu_test SOURCES ${gpu_tests} DEPS fovea_${name} ${arg_TEST_DEPS})
  endif()
endfunction()

# fovea_embed(TABLE PREFIX ROOT file...): files become part of a library, by the assembler. Appends rows {file below ROOT,
# begin, end} (const char*) to the caller's TABLE and what they need to its `code` and `embedded`.
function(fovea_embed arg_table arg_prefix arg_root)
  set(arg_rows "")
  foreach(arg_file ${ARGN})
    string(MAKE_C_IDENTIFIER ${arg_prefix}_${arg_file} symbol)
    string(APPEND code
      "asm(\".section .rodata\\n.balign 64\\n${symbol}:\\n.incbin \\\"${arg_root}/${arg_file}\\\"\\n${symbol}_end:\\n.byte 0\\n.text\\n\");\n"
      "extern \"C\" const char ${symbol}[], ${symbol}_end[];\n")
    string(APPEND arg_rows "    {\"${arg_file}\", ${symbol}, ${symbol}_end},\n")
    list(APPEND embedded ${arg_root}/${arg_file})
  endforeach()
  set(${arg_table} "${${arg_table}}${arg_rows}" PARENT_SCOPE)
  set(code "${code}" PARENT_SCOPE)
  set(embedded "${embedded}" PARENT_SCOPE)
endfunction()

# fovea_embedded_source(TARGET NAME): the caller's `code` as a source of the target, compiled again when a file changes.
function(fovea_embedded_source target name)
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name} CONTENT "${code}")
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${name})
  set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/${name} PROPERTIES OBJECT_DEPENDS "${embedded}")
endfunction()

# fovea_test(NAME SOURCES file... DEPS library...): one gtest binary, one ctest entry.
function(fovea_test name)
  fovea_test_binary(${name} ${PROJECT_BINARY_DIR}/tests ${ARGN})
  add_test(NAME ${name} COMMAND ${name})
endfunction()

# fovea_gpu_test(NAME SOURCES file... DEPS library...): one gtest binary that needs a GPU: built everywhere, run by
# `make gpu-test` only. Its tests skip themselves where no device is found.
function(fovea_gpu_test name)
  fovea_test_binary(${name} ${PROJECT_BINARY_DIR}/gpu-tests ${ARGN})
  if(NOT TARGET gpu_tests)
    add_custom_target(gpu_tests)
  endif()
  add_dependencies(gpu_tests ${name})
endfunction()

function(fovea_test_binary name folder)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${name} PRIVATE FOVEA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${folder})
  target_compile_options(${name} PRIVATE -O1)  # a test runs once: the compiler's time counts
endfunction()
