// Memory, streams, events and graphs: what they ask the driver for, and what they leave when it fails.
#include <vector>

#include "cuda/fake_test_util.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

namespace fovea::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ObjectsTest : public FakeCudaTest {};

TEST_F(ObjectsTest, CopiesThereAndBack) {
  constexpr std::size_t kBytes = 1000;
  const auto a = DeviceBuffer::create(*device_, kBytes, true);
  const auto b = DeviceBuffer::create(*device_, kBytes);
  const auto host = PinnedBuffer::create(*device_, kBytes);
  ASSERT_TRUE(a.ok() && b.ok() && host.ok());
  EXPECT_EQ(a->size_bytes(), kBytes);
  EXPECT_EQ(*device_->memory_available(), (std::size_t{1} << 24) - 2 * kBytes);
  const std::vector<std::byte> sevens(kBytes / 2, std::byte{7});
  EXPECT_TRUE(copy_to_device(*device_, a->data(), sevens.data(), sevens.size(), nullptr).ok());
  EXPECT_TRUE(copy_on_device(*device_, b->data(), a->data(), kBytes, nullptr).ok());
  EXPECT_TRUE(set_bytes(*device_, b->as<std::byte>() + kBytes - 1, 9, 1, nullptr).ok());
  EXPECT_TRUE(copy_to_host(*device_, host->data(), b->data(), kBytes, nullptr).ok());
  std::vector<std::byte> expected(kBytes, std::byte{0});
  std::fill_n(expected.begin(), kBytes / 2, std::byte{7});
  expected.back() = std::byte{9};
  EXPECT_EQ(std::vector<std::byte>(host->data(), host->data() + kBytes), expected);
}

TEST_F(ObjectsTest, NothingOfZeroBytes) {
  const auto device_buffer = DeviceBuffer::create(*device_, 0, true);
  const auto pinned = PinnedBuffer::create(*device_, 0);
  ASSERT_TRUE(device_buffer.ok() && pinned.ok());
  EXPECT_EQ(device_buffer->data(), nullptr);
  EXPECT_EQ(pinned->data(), nullptr);
  EXPECT_TRUE(copy_to_device(*device_, nullptr, nullptr, 0, nullptr).ok());
  EXPECT_EQ(fake::state().calls["cuMemAlloc_v2"] + fake::state().calls["cuMemcpyHtoDAsync_v2"], 0);
}

TEST_F(ObjectsTest, OutOfMemorySaysHowMuchWasAskedFor) {
  const Status device_memory = DeviceBuffer::create(*device_, std::size_t{1} << 40).status();
  EXPECT_EQ(device_memory.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(device_memory.message(), AllOf(HasSubstr("1099511627776 bytes"), HasSubstr("cuda:0")));
  fail("cuMemHostAlloc", kCuOutOfMemory);
  const Status pinned = PinnedBuffer::create(*device_, 4096).status();
  EXPECT_EQ(pinned.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(pinned.message(), HasSubstr("4096 bytes"));
}

TEST_F(ObjectsTest, MemoryThatCannotBeZeroedIsFreed) {
  fail("cuMemsetD8Async", 700);
  EXPECT_EQ(DeviceBuffer::create(*device_, 64, true).status().code(), StatusCode::kInternal);
  EXPECT_EQ(fake::state().alive.device_buffers, 0);
}

TEST_F(ObjectsTest, OwnersMoveAndFreeWithoutACurrentContext) {
  auto first = DeviceBuffer::create(*device_, 64);
  auto second = DeviceBuffer::create(*device_, 64);
  ASSERT_TRUE(first.ok() && second.ok());
  *first = std::move(*second);
  EXPECT_EQ(fake::state().alive.device_buffers, 1);
  context_.reset();
  *first = DeviceBuffer();
  EXPECT_EQ(fake::state().alive.device_buffers, 0);
}

TEST_F(ObjectsTest, EventsMeasureAndOrder) {
  const auto stream = Stream::create(*device_);
  const auto begin = Event::create(*device_, true);
  const auto end = Event::create(*device_, true);
  ASSERT_TRUE(stream.ok() && begin.ok() && end.ok());
  EXPECT_FALSE(begin->elapsed_ms(*end).ok());  // not recorded yet
  EXPECT_TRUE(begin->record(stream->handle()).ok());
  EXPECT_TRUE(end->record(stream->handle()).ok());
  EXPECT_TRUE(end->synchronize().ok());
  EXPECT_EQ(*begin->elapsed_ms(*end), 0.5f);
  fail("cuEventSynchronize", 700);
  EXPECT_EQ(end->synchronize().code(), StatusCode::kInternal);
  fail("cuStreamCreate", 2);
  EXPECT_EQ(Stream::create(*device_).status().code(), StatusCode::kResourceExhausted);
}

class GraphTest : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    auto stream = Stream::create(*device_);
    auto buffer = DeviceBuffer::create(*device_, 4, true);
    ASSERT_TRUE(stream.ok() && buffer.ok());
    stream_ = std::move(*stream);
    buffer_ = std::move(*buffer);
  }
  void TearDown() override {
    fake::state().failures.clear();
    stream_ = {};
    buffer_ = {};
    FakeCudaTest::TearDown();
  }

  // Sets byte i to `value` + i for the first `bytes`.
  std::function<Status()> work(int bytes, unsigned char value) {
    return [this, bytes, value] {
      for (int i = 0; i < bytes; ++i) {
        const Status set = set_bytes(*device_, buffer_.as<unsigned char>() + i, static_cast<unsigned char>(value + i),
                                     1, stream_.handle());
        if (!set.ok()) return set;
      }
      return ok_status();
    };
  }
  std::vector<int> bytes() const {
    const auto* p = buffer_.as<unsigned char>();
    return {p[0], p[1], p[2], p[3]};
  }

  Stream stream_;
  DeviceBuffer buffer_;
};

TEST_F(GraphTest, RecordsAndReplays) {
  const auto graph = Graph::capture(*device_, stream_.handle(), work(2, 5));
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ(bytes(), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_TRUE(graph->launch(stream_.handle()).ok());
  EXPECT_EQ(bytes(), (std::vector<int>{5, 6, 0, 0}));
  fail("cuGraphLaunch", 2);
  EXPECT_EQ(graph->launch(stream_.handle()).code(), StatusCode::kResourceExhausted);
}

TEST_F(GraphTest, ChangesInPlaceWhereItCan) {
  auto graph = Graph::capture(*device_, stream_.handle(), work(2, 5));
  ASSERT_TRUE(graph.ok());
  ASSERT_TRUE(graph->update(stream_.handle(), work(2, 8)).ok());
  EXPECT_EQ(fake::state().calls["cuGraphInstantiateWithFlags"], 1);
  EXPECT_TRUE(graph->launch(stream_.handle()).ok());
  EXPECT_EQ(bytes(), (std::vector<int>{8, 9, 0, 0}));
  ASSERT_TRUE(graph->update(stream_.handle(), work(4, 1)).ok());  // other nodes: made anew
  EXPECT_EQ(fake::state().calls["cuGraphInstantiateWithFlags"], 2);
  EXPECT_TRUE(graph->launch(stream_.handle()).ok());
  EXPECT_EQ(bytes(), (std::vector<int>{1, 2, 3, 4}));
}

TEST_F(GraphTest, AFailureInACaptureEndsItAndLeavesTheGraphAsItWas) {
  auto graph = Graph::capture(*device_, stream_.handle(), work(1, 5));
  ASSERT_TRUE(graph.ok());
  const auto refuse = [] { return Status(StatusCode::kCancelled, "no"); };
  EXPECT_EQ(Graph::capture(*device_, stream_.handle(), refuse).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(graph->update(stream_.handle(), refuse).code(), StatusCode::kCancelled);
  fail("cuMemsetD8Async", 2);  // spoils the capture too: the cause is what is told
  EXPECT_EQ(graph->update(stream_.handle(), work(1, 6)).code(), StatusCode::kResourceExhausted);
  fake::state().failures.clear();
  for (const char* function : {"cuStreamBeginCapture_v2", "cuGraphExecUpdate_v2"}) {
    fake::state().failures = {{function, 2}};
    EXPECT_EQ(graph->update(stream_.handle(), work(1, 6)).code(), StatusCode::kResourceExhausted) << function;
  }
  fake::state().failures = {{"cuGraphInstantiateWithFlags", 2}};
  EXPECT_FALSE(graph->update(stream_.handle(), work(3, 6)).ok());
  fake::state().failures.clear();
  EXPECT_FALSE(*is_capturing(*device_, stream_.handle()));
  EXPECT_EQ(fake::state().alive.graphs, 0);
  EXPECT_TRUE(graph->launch(stream_.handle()).ok());
  EXPECT_EQ(bytes(), (std::vector<int>{5, 0, 0, 0}));
}

TEST_F(GraphTest, WhatCannotBeCapturedOrLaunched) {
  EXPECT_EQ(Graph::capture(*device_, nullptr, work(1, 1)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Graph().launch(stream_.handle()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Graph().update(stream_.handle(), work(1, 1)).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fovea::cuda
