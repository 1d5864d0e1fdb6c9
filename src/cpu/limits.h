// What this machine can do at most: read memory, multiply and add. Measured, for the benchmarks' share of the limit.
#pragma once

#include <cstdint>
#include <string>

#include "base/thread_pool.h"

namespace fovea::cpu {

struct ReadLimit {
  double bytes_per_second = 0.0;
  std::string reader;  // the fastest of those tried
};

// Reads `bytes` of memory with all threads, `repeats` times by each of several readers, each byte once a pass.
ReadLimit measure_read(const void* data, std::int64_t bytes, int repeats, ThreadPool& threads);

// fp32 multiply-adds a second times two, all threads, operands in registers, on the instruction set in use.
double measure_fma_flops(ThreadPool& threads);

}  // namespace fovea::cpu
