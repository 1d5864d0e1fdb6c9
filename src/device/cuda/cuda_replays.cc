// Records and launches graphs.
#include "device/cuda/cuda_replays.h"

#include <algorithm>

#include "base/log.h"
#include "base/status.h"

namespace fovea {
namespace {

// Enqueued so often, a key is captured. Capturing takes about as long as enqueuing once more: of many keys, one that
// came twice is expected to come again, and one that came once is not.
constexpr int times_before_capture(bool of_many) { return of_many ? 2 : 1; }

}  // namespace

Status CudaReplays::run(const ReplayKey& key, const std::function<Status()>& enqueue) {
  if (off_[key.of_many]) return enqueue();
  auto known = kept_.find(key.launches);
  if (known == kept_.end()) {
    if (!make_room(key.of_many)) return enqueue();
    known = kept_.try_emplace(key.launches).first;
    known->second.of_many = key.of_many;
    of_many_ += key.of_many ? 1 : 0;
  }
  Kept& kept = known->second;
  kept.latest = ++runs_;
  if (!kept.graph && kept.times_enqueued < times_before_capture(kept.of_many)) {
    FOVEA_RETURN_IF_ERROR(enqueue());
    ++kept.times_enqueued;
    return ok_status();
  }
  if (!kept.graph) {
    if (const Status captured = capture(kept, enqueue); !captured.ok()) {
      log_warning("steps {}are launched kernel by kernel from now on, for capturing one failed: {}",
                  kept.of_many ? "of rarer sizes " : "", captured.message());
      forget(kept.of_many);
      return enqueue();
    }
  }
  return kept.graph.launch(stream_);
}

// A graph that goes while it runs ends first (cuGraphExecDestroy).
bool CudaReplays::make_room(bool of_many) {
  if (kept_.size() < kMostKeys && (!of_many || of_many_ < kMostOfMany)) return true;
  const auto oldest = std::min_element(kept_.begin(), kept_.end(), [](const auto& a, const auto& b) {
    if (a.second.of_many != b.second.of_many) return a.second.of_many;
    return a.second.latest < b.second.latest;
  });
  if (!oldest->second.of_many) return false;
  if (oldest->second.graph) --taken_.count;
  taken_.bytes -= oldest->second.bytes;
  kept_.erase(oldest);
  --of_many_;
  return true;
}

Status CudaReplays::capture(Kept& kept, const std::function<Status()>& enqueue) {
  const Result<std::size_t> before = device_.memory_available();
  FOVEA_ASSIGN_OR_RETURN(kept.graph, cuda::Graph::capture(device_, stream_, enqueue));
  const Result<std::size_t> after = device_.memory_available();
  if (before.ok() && after.ok()) kept.bytes = static_cast<std::int64_t>(*before - std::min(*before, *after));
  ++taken_.count;
  taken_.bytes += kept.bytes;
  log_debug("graph {} of at most {}; all take {} KiB", taken_.count, kMostKeys, taken_.bytes >> 10);
  return ok_status();
}

// All keys of a kind, of which none is captured any more.
void CudaReplays::forget(bool of_many) {
  off_[of_many] = true;
  std::erase_if(kept_, [&](const auto& entry) {
    const Kept& kept = entry.second;
    if (kept.of_many != of_many) return false;
    if (kept.graph) --taken_.count;
    taken_.bytes -= kept.bytes;
    return true;
  });
  if (of_many) of_many_ = 0;
}

}  // namespace fovea
