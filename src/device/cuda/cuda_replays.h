// Graphs of what a CUDA device was asked to enqueue again and again (Device::replay). A key that comes first is
// enqueued as it is, which loads kernels and chooses algorithms; the second time it is captured. Owned by the device.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>

#include "cuda/graph.h"
#include "cuda/stream.h"
#include "device/device.h"
#include "fovea/status.h"

namespace fovea {

class CudaReplays {
 public:
  CudaReplays(cuda::Device device, cuda::StreamHandle stream) : device_(std::move(device)), stream_(stream) {}

  Status run(std::uint64_t key, const std::function<Status()>& enqueue);
  // Graphs that there are, and by how much the device's free memory shrank while they were captured.
  DeviceGraphs graphs() const { return taken_; }

 private:
  // More keys than that are enqueued each time: a graph of a large model takes some megabytes.
  static constexpr std::size_t kMostGraphs = 512;

  cuda::Device device_;
  cuda::StreamHandle stream_;
  std::unordered_map<std::uint64_t, cuda::Graph> graphs_;  // empty: the key came once
  DeviceGraphs taken_;
  bool off_ = false;  // a capture failed
};

}  // namespace fovea
