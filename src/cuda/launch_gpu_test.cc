// Launches as a device sees them (clusters, programmatic ones), graphs that change in place, and matrix
// products, on a GPU. Kernels come through jit/.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "base/half.h"
#include "cuda/cublaslt.h"
#include "cuda/graph.h"
#include "cuda/matmul.h"
#include "cuda/memory.h"
#include "cuda/module.h"
#include "cuda/stream.h"
#include "jit/compiler.h"

namespace fovea::cuda {
namespace {

constexpr std::uint32_t kCtas = 64;
constexpr std::uint32_t kThreads = 128;
constexpr std::uint32_t kWords = kCtas * kThreads;
constexpr const char* kText = R"(
extern "C" __global__ void cluster_ranks(unsigned* out) {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  out[blockIdx.x * blockDim.x + threadIdx.x] = rank;
}
// Waits for the kernel ahead of it before it reads what that one wrote.
extern "C" __global__ void add(unsigned* words, unsigned value) {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  words[blockIdx.x * blockDim.x + threadIdx.x] += value;
}
)";

class LaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = Device::open(0);
    if (!device.ok()) GTEST_SKIP() << device.status().to_string();
    if (device->info().major < 9) GTEST_SKIP() << device->info().name << " has no clusters";
    device_ = std::move(*device);
    context_.emplace(*device_);
    ASSERT_TRUE(context_->status().ok());
    auto stream = Stream::create(*device_);
    auto words = DeviceBuffer::create(*device_, kWords * 4, true);
    ASSERT_TRUE(stream.ok() && words.ok());
    stream_ = std::move(*stream);
    words_ = std::move(*words);
  }

  void load(const char* name) {
    const auto cubin = jit::Compiler::shared().get({"cuda_launch_test", kText, device_->info().arch(), {}});
    if (!cubin.ok() && cubin.status().code() == StatusCode::kUnavailable) GTEST_SKIP() << cubin.status().to_string();
    ASSERT_TRUE(cubin.ok()) << cubin.status().to_string();
    const auto module = Module::load(*device_, (*cubin)->bytes);
    ASSERT_TRUE(module.ok()) << module.status().to_string();
    const auto function = module->function(name);
    ASSERT_TRUE(function.ok()) << function.status().to_string();
    function_ = *function;
  }

  LaunchConfig config() const {
    LaunchConfig c;
    c.grid[0] = kCtas;
    c.block[0] = kThreads;
    c.stream = stream_.handle();
    return c;
  }
  Status launch_add(const LaunchConfig& c, std::uint32_t value) const {
    void* words = words_.data();
    void* const args[] = {&words, &value};
    return launch(function_, c, args);
  }
  std::vector<std::uint32_t> words() const {
    std::vector<std::uint32_t> host(kWords);
    EXPECT_TRUE(copy_to_host(*device_, host.data(), words_.data(), kWords * 4, stream_.handle()).ok());
    EXPECT_TRUE(stream_.synchronize().ok());
    return host;
  }

  std::optional<Device> device_;
  std::optional<ScopedContext> context_;
  Stream stream_;
  DeviceBuffer words_;
  Function function_;
};

TEST_F(LaunchTest, ClustersHaveTheSizeThatWasAskedFor) {
  load("cluster_ranks");
  if (function_.handle() == nullptr) return;
  LaunchConfig c = config();
  c.cluster[0] = 4;
  void* words_address = words_.data();
  void* const args[] = {&words_address};
  const Status status = launch(function_, c, args);
  ASSERT_TRUE(status.ok()) << status.to_string();
  const std::vector<std::uint32_t> found = words();
  for (std::uint32_t i = 0; i < kWords; ++i) ASSERT_EQ(found[i], i / kThreads % 4) << i;
  c.cluster[0] = 7;  // does not divide the grid
  EXPECT_FALSE(launch(function_, c, args).ok());
}

TEST_F(LaunchTest, ProgrammaticLaunchesKeepTheirOrder) {
  load("add");
  if (function_.handle() == nullptr) return;
  LaunchConfig c = config();
  c.programmatic_serialization = true;
  for (std::uint32_t i = 1; i <= 100; ++i) ASSERT_TRUE(launch_add(c, i).ok());
  EXPECT_EQ(words(), std::vector<std::uint32_t>(kWords, 5050));
  // The same in a graph.
  const auto graph = Graph::capture(*device_, stream_.handle(), [&] {
    for (std::uint32_t i = 1; i <= 10; ++i) {
      if (Status s = launch_add(c, i); !s.ok()) return s;
    }
    return Status();
  });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(graph->launch(stream_.handle()).ok());
  EXPECT_EQ(words(), std::vector<std::uint32_t>(kWords, 5050 + 550));
}

TEST_F(LaunchTest, GraphsChangeInPlace) {
  load("add");
  if (function_.handle() == nullptr) return;
  auto graph = Graph::capture(*device_, stream_.handle(), [&] { return launch_add(config(), 1); });
  ASSERT_TRUE(graph.ok());
  ASSERT_TRUE(graph->launch(stream_.handle()).ok());
  ASSERT_TRUE(stream_.synchronize().ok());
  const Status changed = graph->update(stream_.handle(), [&] { return launch_add(config(), 20); });
  ASSERT_TRUE(changed.ok()) << changed.to_string();
  ASSERT_TRUE(graph->launch(stream_.handle()).ok());
  ASSERT_TRUE(stream_.synchronize().ok());
  const Status other = graph->update(stream_.handle(), [&] {
    const Status first = launch_add(config(), 300);
    return first.ok() ? launch_add(config(), 4000) : first;
  });
  ASSERT_TRUE(other.ok()) << other.to_string();
  ASSERT_TRUE(graph->launch(stream_.handle()).ok());
  EXPECT_EQ(words(), std::vector<std::uint32_t>(kWords, 4321));
}

// In fp32, against fp64 over the same bf16 values: what is left is the order of the sum.
TEST_F(LaunchTest, MatrixProducts) {
  const auto library = CublasLt::load();
  if (!library.ok()) GTEST_SKIP() << library.status().to_string();
  auto matmul = Matmul::create(*device_);
  ASSERT_TRUE(matmul.ok()) << matmul.status().to_string();
  for (const std::int64_t rows : {1, 7, 64}) {
    const std::int64_t in = 512, out = 192;
    const MatmulSpec spec = {rows, in, out, in + 8, in + 16, out + 4, MatmulType::kBF16, MatmulType::kF32};
    std::vector<std::uint16_t> x(rows * spec.x_stride), w(out * spec.w_stride);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = float_to_bf16(std::sin(static_cast<float>(i)));
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = float_to_bf16(std::cos(static_cast<float>(3 * i)));
    std::vector<float> y(rows * spec.y_stride);
    const auto dx = DeviceBuffer::create(*device_, x.size() * 2), dw = DeviceBuffer::create(*device_, w.size() * 2);
    const auto dy = DeviceBuffer::create(*device_, y.size() * 4, true);
    ASSERT_TRUE(dx.ok() && dw.ok() && dy.ok());
    ASSERT_TRUE(copy_to_device(*device_, dx->data(), x.data(), x.size() * 2, stream_.handle()).ok());
    ASSERT_TRUE(copy_to_device(*device_, dw->data(), w.data(), w.size() * 2, stream_.handle()).ok());
    const Status status = matmul->run(spec, dx->data(), dw->data(), dy->data(), stream_.handle());
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_TRUE(copy_to_host(*device_, y.data(), dy->data(), y.size() * 4, stream_.handle()).ok());
    ASSERT_TRUE(stream_.synchronize().ok());
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < spec.y_stride; ++c) {
        double sum = 0.0, size = 0.0;
        for (std::int64_t k = 0; c < out && k < in; ++k) {
          const double term = double{bf16_to_float(x[r * spec.x_stride + k])} * bf16_to_float(w[c * spec.w_stride + k]);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(y[r * spec.y_stride + c], sum, size * 0x1p-18) << rows << " rows: " << r << ", " << c;
      }
    }
  }
}

}  // namespace
}  // namespace fovea::cuda
