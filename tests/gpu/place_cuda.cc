// A CUDA device as a place of the tests.
#include "tests/gpu/place_cuda.h"

#include <utility>

#include "base/status.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

namespace fovea::gpu_test {
namespace {

class CudaPlace : public Place {
 public:
  CudaPlace(cuda::Device device, cuda::Stream stream, cuda::Stream other)
      : device_(std::move(device)), stream_(std::move(stream)), other_(std::move(other)) {
    index_ = device_.index();
    name_ = "cuda:" + std::to_string(index_);
    kind_ = DeviceKind::kCuda;
  }

  Result<std::shared_ptr<void>> allocate(std::size_t bytes) override {
    const cuda::ScopedContext context(device_);
    FOVEA_ASSIGN_OR_RETURN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::create(device_, bytes));
    auto owner = std::make_shared<cuda::DeviceBuffer>(std::move(buffer));
    return std::shared_ptr<void>(owner, owner->data());
  }
  Status upload(void* to, const void* from, std::size_t bytes) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(device_, to, from, bytes, stream_.handle()));
    return stream_.synchronize();
  }
  Status download(void* to, const void* from, std::size_t bytes) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_host(device_, to, from, bytes, stream_.handle()));
    return stream_.synchronize();
  }
  Stream stream() override { return {stream_.handle()}; }
  Stream other_stream() override { return {other_.handle()}; }
  Status wait() override {
    const cuda::ScopedContext context(device_);
    return device_.synchronize();
  }
  Result<std::shared_ptr<void>> capture(const std::function<Status()>& enqueue) override {
    const cuda::ScopedContext context(device_);
    FOVEA_ASSIGN_OR_RETURN(cuda::Graph graph, cuda::Graph::capture(device_, stream_.handle(), enqueue));
    return std::shared_ptr<void>(std::make_shared<cuda::Graph>(std::move(graph)));
  }
  Status replay(void* graph) override {
    const cuda::ScopedContext context(device_);
    return static_cast<cuda::Graph*>(graph)->launch(stream_.handle());
  }

 private:
  cuda::Device device_;
  cuda::Stream stream_, other_;
};

}  // namespace

Result<std::unique_ptr<Place>> open_cuda_place(int index) {
  FOVEA_ASSIGN_OR_RETURN(cuda::Device device, cuda::Device::open(index));
  const cuda::ScopedContext context(device);
  FOVEA_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::create(device));
  FOVEA_ASSIGN_OR_RETURN(cuda::Stream other, cuda::Stream::create(device));
  return std::unique_ptr<Place>(std::make_unique<CudaPlace>(std::move(device), std::move(stream), std::move(other)));
}

}  // namespace fovea::gpu_test
