# Third-party libraries, all from the distribution's packages (tools/setup.sh installs them). Also installed, and included
# by foveaConfig.cmake: static libraries need the same ones where they are linked.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
if(NOT TARGET fovea_dnnl)
  add_library(fovea_dnnl INTERFACE IMPORTED GLOBAL)
endif()
if(FOVEA_ONEDNN)
  # Debian's dnnl-config.cmake asks for OpenCL development files that the CPU engine does not need.
  find_library(FOVEA_DNNL dnnl REQUIRED)
  find_path(FOVEA_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
  # gomp: oneDNN runs on OpenMP, which must be told not to start threads beside ours (cpu/ops/matmul_dnnl.cc).
  target_link_libraries(fovea_dnnl INTERFACE ${FOVEA_DNNL} gomp)
endif()
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET GLOBAL libhwy)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET GLOBAL libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET GLOBAL libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
# The server (Asio, Beast: headers only; TLS) and the command line.
find_package(Boost 1.81 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET GLOBAL tomlplusplus)
if(FOVEA_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
