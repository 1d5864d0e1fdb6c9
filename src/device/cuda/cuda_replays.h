// Graphs of what a CUDA device was asked to enqueue again and again (Device::replay). A key that comes first is
// enqueued as it is, which loads kernels and chooses algorithms; the second time it is captured, or the third where it
// is one of many. Owned by the device.
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
  // More keys than that are enqueued each time: a graph of a large model takes some megabytes.
  static constexpr std::size_t kMostKeys = 512;
  // Of them, ReplayKey::of_many: the one that came least lately gives way to a new one of any kind.
  static constexpr std::size_t kMostOfMany = 256;

  CudaReplays(cuda::Device device, cuda::StreamHandle stream) : device_(std::move(device)), stream_(stream) {}

  Status run(const ReplayKey& key, const std::function<Status()>& enqueue);
  // Graphs that there are, and by how much the device's free memory shrank while they were captured.
  DeviceGraphs graphs() const { return taken_; }

 private:
  struct Kept {
    cuda::Graph graph;  // empty: enqueued so far
    std::int64_t bytes = 0;
    int times_enqueued = 0;
    std::uint64_t latest = 0;  // run
    bool of_many = false;
  };

  bool make_room(bool of_many);
  Status capture(Kept& kept, const std::function<Status()>& enqueue);
  void forget(bool of_many);

  cuda::Device device_;
  cuda::StreamHandle stream_;
  std::unordered_map<std::uint64_t, Kept> kept_;
  std::size_t of_many_ = 0;  // of kept_
  std::uint64_t runs_ = 0;
  DeviceGraphs taken_;
  bool off_[2] = {};  // by of_many: a capture failed
};

}  // namespace fovea
