// The registry, and the CPU backend's checks of what it is given.
#include "device/device.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "cpu/simd.h"

namespace fovea {
namespace {

TEST(Backend, RegistryNamesWhatThereIs) {
  const Status status = create_backend("tpu", {}).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("cpu"), std::string::npos);
}

TEST(Backend, OptionsAreChecked) {
  BackendOptions options;
  options.num_threads = -1;
  EXPECT_EQ(create_backend("cpu", options).status().code(), StatusCode::kInvalidArgument);
  options.num_threads = 2;
  options.simd = "mmx";
  EXPECT_EQ(create_backend("cpu", options).status().code(), StatusCode::kInvalidArgument);
  options.simd = "scalar";
  auto backend = create_backend("cpu", options);
  ASSERT_TRUE(backend.ok()) << backend.status().to_string();
  EXPECT_EQ((*backend)->num_threads(), 2);
  EXPECT_EQ(cpu::simd_target(), "scalar");
  ASSERT_TRUE(create_backend("cpu", {}).ok());
  EXPECT_EQ(cpu::simd_target(), cpu::simd_targets().front());
}

class CpuBackendTest : public ::testing::Test {
 protected:
  void SetUp() override { backend_ = std::move(*create_backend("cpu", {})); }
  TensorView floats(std::int64_t rows, std::int64_t columns) {
    memory_.emplace_back(static_cast<std::size_t>(rows * columns), 1.0f);
    return cpu_tensor(memory_.back().data(), DType::kF32, rows, columns);
  }
  std::unique_ptr<Backend> backend_;
  std::vector<std::vector<float>> memory_;
};

TEST_F(CpuBackendTest, AllocatesZeroedAlignedMemory) {
  const auto memory = backend_->allocate(1000);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->get()) % 64, 0u);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(static_cast<const char*>(memory->get())[i], 0);
  EXPECT_EQ(backend_->allocate(std::size_t{1} << 60).status().code(), StatusCode::kResourceExhausted);
  EXPECT_GT(backend_->memory_available(), 0u);
}

TEST_F(CpuBackendTest, LinearChecksItsShapes) {
  const TensorView weight = floats(4, 8);
  const TensorView bias = cpu_tensor(floats(1, 4).data, DType::kF32, 4);
  auto linear = backend_->create_linear(std::array{weight}, std::array{bias});
  ASSERT_TRUE(linear.ok()) << linear.status().to_string();
  const TensorView y = floats(2, 4);
  ASSERT_TRUE((*linear)->forward(floats(2, 8), y).ok());
  for (int i = 0; i < 8; ++i) EXPECT_EQ(static_cast<const float*>(y.data)[i], 9.0f);
  const Status status = (*linear)->forward(floats(2, 7), y);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("[2, 7]"), std::string::npos) << status.message();
  EXPECT_FALSE((*linear)->forward(floats(3, 8), y).ok());
  EXPECT_FALSE(backend_->create_linear(std::array{weight}, std::array{bias, bias}).ok());
  EXPECT_FALSE(backend_->create_linear(std::array{weight}, std::array{cpu_tensor(bias.data, DType::kF32, 3)}).ok());
}

TEST_F(CpuBackendTest, OperatorsRefuseOtherShapesAndTypes) {
  const TensorView x = floats(2, 8);
  TensorView half = x;
  half.dtype = DType::kBF16;
  const TensorView weight = cpu_tensor(floats(1, 8).data, DType::kF32, 8);
  const std::int32_t ids[2] = {0, 1};
  EXPECT_TRUE(backend_->rms_norm(x, weight, 0.0f, 1e-5f, {}, x).ok());
  EXPECT_FALSE(backend_->rms_norm(half, weight, 0.0f, 1e-5f, {}, x).ok());
  EXPECT_FALSE(backend_->rms_norm(x, weight, 0.0f, 1e-5f, floats(1, 8), x).ok());
  EXPECT_FALSE(backend_->rms_norm(x, cpu_tensor(x.data, DType::kF32, 7), 0.0f, 1e-5f, {}, x).ok());
  EXPECT_FALSE(backend_->embed(floats(4, 7), ids, 1.0f, x).ok());
  EXPECT_FALSE(backend_->gated_activation(Activation::kSilu, x, floats(2, 5)).ok());
  EXPECT_FALSE(backend_->add(x, floats(2, 7)).ok());
  EXPECT_FALSE(backend_->softcap(x, 0.0f).ok());
  RopeConfig rope;
  rope.rotary_dim = 6;
  const TensorView heads = cpu_tensor(x.data, DType::kF32, 2, 2, 4);
  EXPECT_FALSE(backend_->rope(heads, ids, rope).ok());
  rope.rotary_dim = 4;
  EXPECT_TRUE(backend_->rope(heads, ids, rope).ok());
}

}  // namespace
}  // namespace fovea
