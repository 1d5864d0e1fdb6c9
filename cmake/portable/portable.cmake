# The third-party libraries of a release (preset `portable`): static, under the names that cmake/fovea_dependencies.cmake
# finds in ordinary builds, and with the same definitions, so that the compiler cache serves Fovea's own objects to both.
# What Debian has no archive of is compiled from the sources that tools/release/fetch.sh brings. Included by CMakeLists.txt.
#
# The linker sees the C library of Debian 11 (FOVEA_OLD_ROOT): what it binds is what glibc 2.31 has. Objects were compiled
# against newer headers and refer to a few symbols that it lacks; cmake/portable/glibc.cc is those.
set(FOVEA_OLD_ROOT ${PROJECT_SOURCE_DIR}/build/third_party/glibc-2.31)
set(sources ${PROJECT_SOURCE_DIR}/build/third_party)
foreach(folder glibc-2.31 fmtlib-9.1.0+ds1 spdlog-1.10.0 highway-1.0.3)
  if(NOT EXISTS ${sources}/${folder})
    message(FATAL_ERROR "${sources}/${folder} is not there; run tools/release/fetch.sh")
  endif()
endforeach()

find_package(Threads REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(Boost 1.81 REQUIRED)
set(OPENSSL_USE_STATIC_LIBS TRUE)
find_package(OpenSSL 3.0 REQUIRED)
find_package(PkgConfig REQUIRED)
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET GLOBAL libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET GLOBAL libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
pkg_check_modules(tomlplusplus_headers REQUIRED tomlplusplus)
foreach(needed bsd md tinfo)  # by libedit
  find_library(FOVEA_STATIC_${needed} ${needed} REQUIRED)
  list(APPEND FOVEA_LIBEDIT_NEEDS ${FOVEA_STATIC_${needed}})
endforeach()

# portable_library(NAME TARGET DEFINITIONS... SOURCES...): a static library that stands for TARGET.
function(portable_library name target)
  cmake_parse_arguments(arg "" "" "DEFINITIONS;SOURCES" ${ARGN})
  add_library(portable_${name} STATIC ${arg_SOURCES})
  target_compile_definitions(portable_${name} PUBLIC ${arg_DEFINITIONS})
  target_compile_options(portable_${name} PRIVATE -w)
  add_library(${target} ALIAS portable_${name})
endfunction()

portable_library(fmt fmt::fmt DEFINITIONS FMT_SHARED
  SOURCES ${sources}/fmtlib-9.1.0+ds1/src/format.cc ${sources}/fmtlib-9.1.0+ds1/src/os.cc)
set(spdlog ${sources}/spdlog-1.10.0/src)
portable_library(spdlog spdlog::spdlog DEFINITIONS SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL SPDLOG_SHARED_LIB
  SOURCES ${spdlog}/spdlog.cpp ${spdlog}/stdout_sinks.cpp ${spdlog}/color_sinks.cpp ${spdlog}/file_sinks.cpp
  ${spdlog}/async.cpp ${spdlog}/cfg.cpp)
target_compile_definitions(portable_spdlog PRIVATE spdlog_EXPORTS)
target_link_libraries(portable_spdlog PUBLIC fmt::fmt Threads::Threads)
set(highway ${sources}/highway-1.0.3/hwy)
portable_library(hwy PkgConfig::hwy DEFINITIONS HWY_SHARED_DEFINE
  SOURCES ${highway}/aligned_allocator.cc ${highway}/per_target.cc ${highway}/print.cc ${highway}/targets.cc)
target_include_directories(portable_hwy PRIVATE ${sources}/highway-1.0.3)
portable_library(tomlplusplus PkgConfig::tomlplusplus DEFINITIONS TOML_HEADER_ONLY=0 TOML_SHARED_LIB=1
  SOURCES ${PROJECT_SOURCE_DIR}/cmake/portable/toml.cc)

# Debian has no archive of oneDNN and building it takes longer than all else: large products run on our own kernels.
set(FOVEA_ONEDNN OFF)
add_library(fovea_dnnl INTERFACE)

add_library(portable_glibc STATIC ${PROJECT_SOURCE_DIR}/cmake/portable/glibc.cc)
link_libraries(portable_glibc)
# -B: its start files too, because those of newer libraries leave constructors to a newer __libc_start_main.
add_link_options(--sysroot=${FOVEA_OLD_ROOT} -B${FOVEA_OLD_ROOT}/usr/lib/x86_64-linux-gnu -L${FOVEA_OLD_ROOT}/usr/lib/x86_64-linux-gnu
  -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL -Wl,-z,defs)
set(CMAKE_CXX_STANDARD_LIBRARIES "-lpthread -ldl -lrt -lm")
