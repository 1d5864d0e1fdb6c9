// A CUDA driver without a GPU: a library with the functions that cuda/ looks up, for tests of what goes wrong. Device
// memory is host memory, streams run what they are given at once, or as late as they may (State::late), and kernels are
// "fill" and what a test defines.
// FOVEA_LIBCUDA names it (library_path()), and FOVEA_CUBLASLT may, for it has a cuBLASLt too. Used by this folder's
// tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "cuda/driver_api.h"

namespace fovea::cuda::fake {

// Objects that exist; all zero when nothing leaked.
struct Alive {
  int contexts = 0;  // retained
  int device_buffers = 0;
  int pinned_buffers = 0;
  int streams = 0;
  int events = 0;
  int modules = 0;
  int graphs = 0;
  int graph_execs = 0;
  int cublas_handles = 0;  // and descriptors

  bool operator==(const Alive&) const = default;
};

// What the last launch asked for. A dimension of 0: the launch had no such attribute.
struct Launch {
  std::uint32_t grid[3] = {};
  std::uint32_t block[3] = {};
  std::uint32_t smem_bytes = 0;
  std::uint32_t cluster[3] = {};
  bool programmatic = false;
};

// A kernel of a test: called by a launch with the parameters, which are the launch's for that long. What it returns is
// done when the stream comes to it.
using Kernel = std::function<std::function<void()>(void** parameters)>;

struct State {
  int version = 13000;
  int num_devices = 1;
  std::size_t memory_bytes = std::size_t{1} << 24;  // more cannot be allocated
  std::size_t graph_bytes = 0;                      // that each executable graph takes of it
  std::map<std::string, int> failures;              // what a function answers, instead of doing anything
  std::map<std::string, std::pair<int, int>> once;  // ..., and to which call of it alone, counted as `calls` are
  int lost =
      0;  // what a context answers to everything; set by `once` to what it answers where that is a kernel's fault
  std::map<std::string, int> calls;       // how often a function was called
  std::map<std::string, Kernel> kernels;  // besides "fill"
  bool any_kernel = false;                // every name is a kernel's; those of no test do nothing
  bool late = false;                      // streams begin when somebody waits for what they were given
  std::uint64_t algorithm = 0;            // of the last product: how many were asked for before it
  Alive alive;
  Launch launch;
};

State& state();
// Counts a call of the function, and says what it should answer; 0: what it has to.
int count_call(const std::string& name);
// Work of other libraries: done now, or when the graph runs that the stream records.
void enqueue_work(void* stream, std::function<void()> work);
// Where this library is.
std::string library_path();
// For programs that load this library by itself: State::once of FAKE_CUDA_FAULT, "cuEventSynchronize:50:700", and with
// ":1" behind it of rank 1 of --tp alone.
void take_faults_from_environment();
// Names the library in FOVEA_LIBCUDA, and in FOVEA_CACHE_DIR a folder beside it. False where the environment is full.
bool name_driver_and_cache();

inline constexpr int kMultiprocessors = 132;

}  // namespace fovea::cuda::fake
