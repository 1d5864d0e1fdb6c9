// When a CUDA stream got to places of its work, on the host's steady clock: Device::mark_time(). Owned by the device.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "cuda/stream.h"
#include "fovea/status.h"

namespace fovea {

class CudaTimeMarks {
 public:
  CudaTimeMarks(cuda::Device device, cuda::StreamHandle stream) : device_(std::move(device)), stream_(stream) {}

  Status mark(std::size_t index);
  std::optional<double> seconds(std::size_t index) const;

 private:
  // An event whose place on the host's clock is known; the stream is empty then.
  Status set_origin();

  cuda::Device device_;
  cuda::StreamHandle stream_;
  std::optional<cuda::Event> origin_;
  double origin_seconds_ = 0.0;
  std::vector<std::optional<cuda::Event>> marks_;  // none: never set
};

}  // namespace fovea
