// A device as the tests of this folder see it: memory, copies and a stream, the same for "cpu" and "cuda:N", so that
// the tests themselves run where there is no GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea::gpu_test {

class Place {
 public:
  // "cpu" or "cuda:N". kUnavailable or kNotFound with the driver's words where there is no such device.
  static Result<std::unique_ptr<Place>> open(const std::string& device);
  virtual ~Place() = default;

  virtual Result<std::shared_ptr<void>> allocate(std::size_t bytes) = 0;
  // Both wait until the copy is done.
  virtual Status upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual Status download(void* to, const void* from, std::size_t bytes) = 0;
  virtual Stream stream() = 0;
  // A second stream that runs beside the first; the same one on the CPU.
  virtual Stream other_stream() = 0;
  // Until both streams are empty.
  virtual Status wait() = 0;
  // Captures what `enqueue` puts into stream() and returns what launches it again there. kUnsupported on the CPU.
  virtual Result<std::shared_ptr<void>> capture(const std::function<Status()>& enqueue) = 0;
  virtual Status replay(void* graph) = 0;

  const std::string& name() const { return name_; }
  DeviceKind kind() const { return kind_; }

  // A row-major view of memory on this device.
  template <typename... Dims>
  TensorView view(const void* data, DType dtype, Dims... dims) const {
    TensorView view = cpu_tensor(data, dtype, dims...);
    view.device = kind_;
    view.device_index = index_;
    return view;
  }

 protected:
  std::string name_;
  DeviceKind kind_ = DeviceKind::kCpu;
  std::int32_t index_ = 0;
};

// Memory of a place with the contents of a vector.
template <typename T>
Result<std::shared_ptr<void>> upload(Place& place, const std::vector<T>& values) {
  auto memory = place.allocate(values.empty() ? 1 : values.size() * sizeof(T));
  if (!memory.ok() || values.empty()) return memory;
  const Status copied = place.upload(memory->get(), values.data(), values.size() * sizeof(T));
  if (!copied.ok()) return copied;
  return memory;
}

}  // namespace fovea::gpu_test
