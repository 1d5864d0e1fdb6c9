// A GPU for the tests of this folder: kernels compiled for it, memory that host and device share, launches that wait.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/module.h"
#include "cuda/stream.h"
#include "jit/compiler.h"

namespace fovea::kernel_test {

// Page-locked memory, which the device reads and writes in place: cases need no copies. Starts over when nothing is
// held.
class SharedMemory : public std::pmr::memory_resource {
 public:
  explicit SharedMemory(cuda::PinnedBuffer buffer) : buffer_(std::move(buffer)) {}

 private:
  void* do_allocate(std::size_t bytes, std::size_t) override {
    const std::size_t at = used_;
    used_ += (bytes + 63) / 64 * 64;
    if (used_ > buffer_.size_bytes()) throw std::bad_alloc();
    ++held_;
    return buffer_.data() + at;
  }
  void do_deallocate(void*, std::size_t, std::size_t) override {
    if (--held_ == 0) used_ = 0;
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  cuda::PinnedBuffer buffer_;
  std::size_t used_ = 0;
  int held_ = 0;
};

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<cuda::Device> device = cuda::Device::open(0);
    if (!device.ok()) GTEST_SKIP() << device.status().to_string();
    device_.emplace(*device);
    context_.emplace(*device_);
    Result<cuda::Stream> stream = cuda::Stream::create(*device_);
    Result<cuda::PinnedBuffer> buffer = cuda::PinnedBuffer::create(*device_, std::size_t{64} << 20);
    ASSERT_TRUE(stream.ok() && buffer.ok());
    stream_ = std::move(*stream);
    memory_ = std::make_unique<SharedMemory>(std::move(*buffer));
    std::pmr::set_default_resource(memory_.get());
  }
  void TearDown() override { std::pmr::set_default_resource(nullptr); }

  // The kernel of that name; fails the test and returns one that cannot be launched if there is none.
  cuda::Function kernel(const Result<jit::KernelSource>& source, const std::string& name) {
    cuda::Function function;
    const Status status = [&]() -> Status {
      if (!source.ok()) return source.status();
      FOVEA_ASSIGN_OR_RETURN(const jit::CubinPtr cubin, jit::Compiler::shared().get(*source));
      FOVEA_ASSIGN_OR_RETURN(const cuda::Module module, cuda::Module::load(*device_, cubin->bytes));
      FOVEA_ASSIGN_OR_RETURN(function, module.function(name));
      return ok_status();
    }();
    EXPECT_TRUE(status.ok()) << status.to_string();
    return function;
  }

  void enqueue(const cuda::Function& function, std::uint64_t ctas, std::uint32_t threads, std::vector<void*> args,
               std::uint32_t smem_bytes = 0, std::uint32_t cluster = 1) {
    if (ctas == 0 || function.handle() == nullptr) return;
    cuda::LaunchConfig config;
    config.grid[0] = static_cast<std::uint32_t>(ctas);
    config.block[0] = threads;
    config.smem_bytes = smem_bytes;
    config.cluster[0] = cluster;
    config.stream = stream_.handle();
    const Status status = cuda::launch(function, config, args);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  void wait() {
    const Status status = stream_.synchronize();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  // Microseconds of one of `count` launches, after a first one.
  template <typename Launch>
  double microseconds(int count, Launch&& launch) {
    Result<cuda::Event> begin = cuda::Event::create(*device_, true), end = cuda::Event::create(*device_, true);
    if (!begin.ok() || !end.ok()) return 0.0;
    launch();
    EXPECT_TRUE(begin->record(stream_.handle()).ok());
    for (int i = 0; i < count; ++i) launch();
    EXPECT_TRUE(end->record(stream_.handle()).ok());
    wait();
    const Result<float> elapsed = begin->elapsed_ms(*end);
    EXPECT_TRUE(elapsed.ok());
    return elapsed.ok() ? 1e3 * *elapsed / count : 0.0;
  }

  std::optional<cuda::Device> device_;
  std::optional<cuda::ScopedContext> context_;
  cuda::Stream stream_;
  std::unique_ptr<SharedMemory> memory_;
};

}  // namespace fovea::kernel_test
