// A CUDA device for benchmarks: memory full of values, and the time of replayed graphs. Used by the files of this
// folder.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "cuda/memory.h"
#include "cuda/stream.h"
#include "fovea/status.h"

namespace fovea::app {

class CudaBench {
 public:
  // device: "cuda" or "cuda:N". kInvalidArgument for other names.
  static Result<CudaBench> open(const std::string& device, int repeats);

  const cuda::Device& device() const { return device_; }
  cuda::StreamHandle stream() const { return stream_.handle(); }
  int repeats() const { return repeats_; }

  // bytes of random 16-bit words (word & keep) | set: bf16 or e4m3 values of moderate size.
  Result<cuda::DeviceBuffer> random(std::size_t bytes, std::uint16_t keep, std::uint16_t set) const;

  // Of a call: in the first milliseconds after a rest, and after tenths of a second of the same, when what multiplies
  // matrices for long has drawn so much power that clocks are lower.
  struct BurstAndSoaked {
    double burst_us = 0.0, soaked_us = 0.0;
  };
  Result<BurstAndSoaked> burst_and_soaked_us(int calls, const std::function<Status(int call)>& enqueue) const;
  // Median microseconds of one of `calls` calls enqueued by enqueue(0 .. calls - 1), replayed as one graph.
  Result<double> replay_us(int calls, const std::function<Status(int call)>& enqueue) const;

 private:
  CudaBench(cuda::Device device, int repeats) : device_(std::move(device)), repeats_(repeats) {}
  cuda::Device device_;
  cuda::Stream stream_;
  int repeats_;
};

// What this GPU reaches, measured now.
struct CudaLimits {
  double read_bytes_per_second = 0.0;
  std::string reader;             // the fastest one
  double empty_node_us = 0.0;     // a node of a graph that does nothing
  double flops_per_second = 0.0;  // of matrix products of bf16; 0: not measured, on other GPUs than sm_90a
};
// Each reader of kernels/limits/read_limit.cuh in several shapes over 4 GB, and kernels/limits/matrix_limit.cuh.
// kInternal when a reader missed a byte.
Result<CudaLimits> measure_cuda_limits(const CudaBench& bench);

}  // namespace fovea::app
