// A SIMT emulator: kernels of src/kernels run on the host, lane by lane, in random order, over the source that a device
// runs (rewrite.h says what is changed in it: how assembly is reached). Tests launch kernels by it and learn what a
// device would only show now and then: races, missing waits and fences, reads beyond what there is, hangs.
//
// Lanes are fibers of one thread. A warp runs until its lanes wait; copies land as late as their waits allow, in random
// order. The same seed gives the same run. Several threads may each run a launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simt {

// When asynchronous copies land: when nobody can go on without them, at once, or at random times.
enum class Landing : std::uint8_t { kLate, kAtOnce, kRandom };

// Global memory that the kernel may read, and write if it says so; everything else fails the launch.
struct Buffer {
  std::string name;
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool writable = false;
};

// Calls the kernel with its parameters; rewritten sources define one for each of their kernels.
using Kernel = void (*)(const void* const* params);

struct Launch {
  Kernel kernel = nullptr;
  std::uint32_t grid = 1;     // CTAs, all of which run at the same time
  std::uint32_t cluster = 1;  // CTAs
  std::uint32_t block = 32;
  std::uint32_t shared_bytes = 0;
  std::uint64_t seed = 1;
  Landing landing = Landing::kLate;
  int fault = 0;               // what ::simt::planted() says yes to
  std::uint64_t clocks = 1;    // that pass from one look at the clock to the next
  bool checks_proxies = true;  // shared memory that plain stores wrote must be fenced before wgmma and TMA see it
  std::vector<Buffer> buffers;
  std::vector<const void*> params;
};

struct Outcome {
  std::string error;  // empty: the launch ended and nothing was found
  std::uint64_t switches = 0;
  std::uint64_t accesses = 0;
};

Outcome run(const Launch& launch);

// A tensor map as the emulator reads it, in the 128 bytes that a kernel's parameter has for it.
struct TensorMapSpec {
  void* address = nullptr;
  std::uint32_t element_bytes = 2;
  std::uint32_t rank = 0;
  std::uint64_t dims[5] = {};
  std::uint64_t strides[5] = {};  // bytes; [0] is not read
  std::uint32_t box[5] = {};
  std::uint32_t swizzle_bytes = 0;  // 0, 32, 64, 128
};
struct TensorMap {
  alignas(64) std::uint64_t words[16];
};
TensorMap encode(const TensorMapSpec& spec);

}  // namespace simt
