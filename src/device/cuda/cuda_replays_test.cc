// What is captured, kept and given up, on a driver without a GPU.
#include "device/cuda/cuda_replays.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "base/status.h"
#include "cuda/memory.h"
#include "cuda/testing/fake_driver.h"

namespace fovea {
namespace {

namespace fake = cuda::fake;

constexpr std::size_t kGraphBytes = 4096;
constexpr auto kMostKeys = static_cast<std::int64_t>(CudaReplays::kMostKeys);
constexpr auto kMostOfMany = static_cast<std::int64_t>(CudaReplays::kMostOfMany);

// Before anything asks for the driver.
const bool kPrepared = fake::name_driver_and_cache();

class CudaReplaysTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kPrepared);
    fake::state() = {};
    fake::state().graph_bytes = kGraphBytes;
    auto device = cuda::Device::open(0);
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    device_.emplace(*device);
    context_.emplace(*device_);
    auto stream = cuda::Stream::create(*device_);
    ASSERT_TRUE(stream.ok());
    stream_.emplace(std::move(*stream));
    replays_.emplace(*device_, stream_->handle());
  }
  void TearDown() override { fake::state().failures.clear(); }

  // The step copies the key's number to done_, whichever way it runs.
  void run(std::uint64_t launches, bool of_many) {
    std::uint64_t& number = numbers_[launches] = launches;
    done_ = 0;
    const Status status = replays_->run({launches, of_many}, [&] {
      ++enqueued_[launches];
      return cuda::copy_on_device(*device_, &done_, &number, sizeof number, stream_->handle());
    });
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_EQ(done_, launches);
  }
  void expect_graphs(std::int64_t count) {
    EXPECT_EQ(replays_->graphs().count, count);
    EXPECT_EQ(replays_->graphs().bytes, count * static_cast<std::int64_t>(kGraphBytes));
    EXPECT_EQ(fake::state().alive.graph_execs, count);
  }

  std::optional<cuda::Device> device_;
  std::optional<cuda::ScopedContext> context_;
  std::optional<cuda::Stream> stream_;
  std::optional<CudaReplays> replays_;
  std::map<std::uint64_t, std::uint64_t> numbers_;  // a map, whose values stay where graphs read them
  std::map<std::uint64_t, int> enqueued_;
  std::uint64_t done_ = 0;
};

TEST_F(CudaReplaysTest, TheSecondTimeIsCapturedAndOfManyTheThird) {
  for (int i = 0; i < 6; ++i) {
    run(1, false);
    run(2, true);
  }
  EXPECT_EQ(enqueued_[1], 2);
  EXPECT_EQ(enqueued_[2], 3);
  expect_graphs(2);
}

TEST_F(CudaReplaysTest, OfManyKeysTheLatestStay) {
  constexpr std::uint64_t kHot = 1, kKeys = 1000;
  for (std::uint64_t key = 2; key < kKeys; ++key) {
    for (int i = 0; i < 3; ++i) run(key, true);
    run(kHot, true);
    ASSERT_LE(replays_->graphs().count, kMostOfMany);
  }
  expect_graphs(kMostOfMany);
  EXPECT_EQ(enqueued_[kHot], 3);
  run(kKeys - 1, true);
  EXPECT_EQ(enqueued_[kKeys - 1], 3);
  run(2, true);  // went long ago
  EXPECT_EQ(enqueued_[2], 4);
  expect_graphs(kMostOfMany - 1);  // the least late one of all went for it
}

// However many came before: others find room, which they keep.
TEST_F(CudaReplaysTest, OthersTakeTheRoomOfMany) {
  const auto many = [&](std::uint64_t begin) {
    for (std::uint64_t key = begin; key < begin + 600; ++key) {
      for (int i = 0; i < 3; ++i) run(key, true);
    }
  };
  many(10'000);
  for (std::uint64_t key = 1; key <= CudaReplays::kMostKeys; ++key) {
    run(key, false);
    run(key, false);
  }
  expect_graphs(kMostKeys);
  many(20'000);
  for (std::uint64_t key = 1; key <= CudaReplays::kMostKeys + 1; ++key) {
    for (int i = 0; i < 3; ++i) run(key, false);
  }
  EXPECT_EQ(enqueued_[1], 2);
  EXPECT_EQ(enqueued_[CudaReplays::kMostKeys], 2);
  EXPECT_EQ(enqueued_[CudaReplays::kMostKeys + 1], 3);
  expect_graphs(kMostKeys);
}

TEST_F(CudaReplaysTest, ACaptureOfManyThatFailsEndsThemAlone) {
  for (int i = 0; i < 2; ++i) run(1, false);
  for (int i = 0; i < 3; ++i) run(2, true);
  for (int i = 0; i < 2; ++i) run(3, true);
  fake::state().failures["cuGraphInstantiateWithFlags"] = 2;
  run(3, true);
  fake::state().failures.clear();
  expect_graphs(1);
  for (int i = 0; i < 4; ++i) {
    run(1, false);
    run(2, true);
    run(4, false);
  }
  EXPECT_EQ(enqueued_[1], 2);
  EXPECT_EQ(enqueued_[2], 3 + 4);
  EXPECT_EQ(enqueued_[4], 2);
  expect_graphs(2);
}

}  // namespace
}  // namespace fovea
