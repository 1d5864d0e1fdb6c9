// Records and launches graphs.
#include "device/cuda/cuda_replays.h"

#include <algorithm>

#include "base/log.h"
#include "base/status.h"

namespace fovea {

Status CudaReplays::run(std::uint64_t key, const std::function<Status()>& enqueue) {
  if (off_) return enqueue();
  const auto known = graphs_.find(key);
  if (known == graphs_.end()) {
    FOVEA_RETURN_IF_ERROR(enqueue());
    if (graphs_.size() < kMostGraphs) graphs_.try_emplace(key);
    return ok_status();
  }
  if (!known->second) {
    const Result<std::size_t> before = device_.memory_available();
    Result<cuda::Graph> made = cuda::Graph::capture(device_, stream_, enqueue);
    if (!made.ok()) {
      log_warning("steps are launched kernel by kernel from now on, for capturing one failed: {}",
                  made.status().message());
      off_ = true;
      graphs_.clear();
      taken_ = {};
      return enqueue();
    }
    known->second = std::move(*made);
    const Result<std::size_t> after = device_.memory_available();
    ++taken_.count;
    if (before.ok() && after.ok()) taken_.bytes += static_cast<std::int64_t>(*before - std::min(*before, *after));
    log_debug("graph {} of at most {}; all take {} KiB", taken_.count, kMostGraphs, taken_.bytes >> 10);
  }
  return known->second.launch(stream_);
}

}  // namespace fovea
