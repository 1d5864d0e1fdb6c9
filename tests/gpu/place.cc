// The CPU as a place; see place.h.
#include "tests/gpu/place.h"

#include <cstdlib>
#include <cstring>

#include "base/status.h"
#include "tests/gpu/place_cuda.h"

namespace fovea::gpu_test {
namespace {

class CpuPlace : public Place {
 public:
  CpuPlace() { name_ = "cpu"; }

  Result<std::shared_ptr<void>> allocate(std::size_t bytes) override {
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == nullptr) return resource_exhausted("no memory for {} bytes", bytes);
    return std::shared_ptr<void>(memory, std::free);
  }
  Status upload(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return ok_status();
  }
  Status download(void* to, const void* from, std::size_t bytes) override { return upload(to, from, bytes); }
  Stream stream() override { return {}; }
  Stream other_stream() override { return {}; }
  Status wait() override { return ok_status(); }
  Result<std::shared_ptr<void>> capture(const std::function<Status()>&) override {
    return make_status(StatusCode::kUnsupported, "the CPU has no graphs");
  }
  Status replay(void*) override { return make_status(StatusCode::kUnsupported, "the CPU has no graphs"); }
};

}  // namespace

Result<std::unique_ptr<Place>> Place::open(const std::string& device) {
  if (device == "cpu") return std::unique_ptr<Place>(std::make_unique<CpuPlace>());
  if (device == "cuda") return open_cuda_place(0);
  if (device.starts_with("cuda:")) return open_cuda_place(std::atoi(device.c_str() + 5));
  return make_status(StatusCode::kNotFound, "no device \"{}\", expected cpu or cuda:N", device);
}

}  // namespace fovea::gpu_test
