// Memory, copies, events and graphs on a device.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "cuda/tensor_map.h"

namespace fovea::cuda {
namespace {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = Device::open(0);
    if (!device.ok()) GTEST_SKIP() << device.status().to_string();
    device_ = std::move(*device);
    context_.emplace(*device_);
    ASSERT_TRUE(context_->status().ok());
    auto stream = Stream::create(*device_);
    ASSERT_TRUE(stream.ok()) << stream.status().to_string();
    stream_ = std::move(*stream);
  }

  std::optional<Device> device_;
  std::optional<ScopedContext> context_;
  Stream stream_;
};

TEST_F(CudaTest, DeviceInfo) {
  const DeviceInfo& info = device_->info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.major, 7);
  EXPECT_GT(info.num_sms, 0);
  EXPECT_GT(info.memory_bytes, std::int64_t{1} << 30);
  EXPECT_GT(*device_->memory_available(), 0u);
}

TEST_F(CudaTest, CopiesThereAndBackInAGraphToo) {
  constexpr std::size_t kBytes = 1 << 16;
  auto a = DeviceBuffer::create(*device_, kBytes, true);
  auto b = DeviceBuffer::create(*device_, kBytes);
  auto host = PinnedBuffer::create(*device_, kBytes);
  ASSERT_TRUE(a.ok() && b.ok() && host.ok());
  std::vector<std::byte> expected(kBytes, std::byte{7});
  ASSERT_TRUE(copy_to_device(*device_, a->data(), expected.data(), kBytes / 2, stream_.handle()).ok());
  std::fill(expected.begin() + kBytes / 2, expected.end(), std::byte{0});
  const auto graph = Graph::capture(*device_, stream_.handle(), [&]() -> Status {
    if (Status s = copy_on_device(*device_, b->data(), a->data(), kBytes, stream_.handle()); !s.ok()) return s;
    return copy_to_host(*device_, host->data(), b->data(), kBytes, stream_.handle());
  });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  const auto begin = Event::create(*device_, true), end = Event::create(*device_, true);
  ASSERT_TRUE(begin->record(stream_.handle()).ok());
  ASSERT_TRUE(graph->launch(stream_.handle()).ok());
  ASSERT_TRUE(end->record(stream_.handle()).ok());
  ASSERT_TRUE(end->synchronize().ok());
  EXPECT_GT(*begin->elapsed_ms(*end), 0.0f);
  EXPECT_EQ(std::vector<std::byte>(host->data(), host->data() + kBytes), expected);
}

TEST_F(CudaTest, AFailureInACaptureEndsIt) {
  const auto graph = Graph::capture(*device_, stream_.handle(), [] { return Status(StatusCode::kCancelled, "no"); });
  EXPECT_EQ(graph.status().code(), StatusCode::kCancelled);
  EXPECT_FALSE(*is_capturing(*device_, stream_.handle()));
  EXPECT_TRUE(stream_.synchronize().ok());
}

TEST_F(CudaTest, MemoryThatIsNotThere) {
  const auto huge = DeviceBuffer::create(*device_, std::size_t{1} << 50);
  EXPECT_EQ(huge.status().code(), StatusCode::kResourceExhausted);
}

TEST_F(CudaTest, TensorMaps) {
  auto memory = DeviceBuffer::create(*device_, 1 << 16);
  ASSERT_TRUE(memory.ok());
  TensorMapSpec spec;
  spec.address = memory->data();
  spec.rank = 2;
  spec.dims[0] = 64;
  spec.dims[1] = 128;
  spec.strides[1] = 128;
  spec.box[0] = 64;
  spec.box[1] = 16;
  spec.swizzle = Swizzle::k128;
  EXPECT_TRUE(encode_tensor_map(device_->driver(), spec).ok());
  spec.strides[1] = 120;  // no multiple of 16
  EXPECT_EQ(encode_tensor_map(device_->driver(), spec).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fovea::cuda
