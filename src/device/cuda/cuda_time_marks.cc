// Events counted from one whose time on the host is known.
#include "device/cuda/cuda_time_marks.h"

#include <chrono>

#include "base/status.h"

namespace fovea {

Status CudaTimeMarks::set_origin() {
  FOVEA_RETURN_IF_ERROR(cuda::synchronize(device_, stream_));
  FOVEA_ASSIGN_OR_RETURN(origin_, cuda::Event::create(device_, true));
  FOVEA_RETURN_IF_ERROR(origin_->record(stream_));
  FOVEA_RETURN_IF_ERROR(origin_->synchronize());
  origin_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return ok_status();
}

Status CudaTimeMarks::mark(std::size_t index) {
  if (!origin_.has_value()) FOVEA_RETURN_IF_ERROR(set_origin());
  if (index >= marks_.size()) marks_.resize(index + 1);
  if (!marks_[index].has_value()) {
    FOVEA_ASSIGN_OR_RETURN(marks_[index], cuda::Event::create(device_, true));
  }
  return marks_[index]->record(stream_);
}

std::optional<double> CudaTimeMarks::seconds(std::size_t index) const {
  if (index >= marks_.size() || !marks_[index].has_value()) return std::nullopt;
  const Result<float> elapsed = origin_->elapsed_ms(*marks_[index]);
  if (!elapsed.ok()) return std::nullopt;  // it is not there yet
  return origin_seconds_ + 1e-3 * static_cast<double>(*elapsed);
}

}  // namespace fovea
