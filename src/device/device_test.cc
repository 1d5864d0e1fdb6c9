// The registry, and the CPU device's checks of what it is given.
#include "device/device.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/cgroup.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "cpu/ops/fp8_rows.h"
#include "cpu/simd.h"

namespace fovea {
namespace {

TEST(Device, RegistryNamesWhatThereIs) {
  const Status status = create_device("tpu", {}).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("cpu"), std::string::npos);
}

TEST(Device, AutoSaysWhatItTookWhereWarningsAreHeard) {
  const LogLevel before = log_level();
  std::vector<std::string> said;
  set_log_sink([&](LogLevel, std::string_view text) { said.emplace_back(text); });
  set_log_level(LogLevel::kWarning);
  EXPECT_TRUE(create_device("auto", {}).ok());
  set_log_level(LogLevel::kError);
  EXPECT_TRUE(create_device("auto", {}).ok());
  set_log_level(before);
  set_log_sink({});
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].rfind("device auto: ", 0), 0u) << said[0];
}

TEST(Device, OptionsAreChecked) {
  DeviceOptions options;
  options.num_threads = -1;
  EXPECT_EQ(create_device("cpu", options).status().code(), StatusCode::kInvalidArgument);
  options.num_threads = 2;
  options.simd = "mmx";
  EXPECT_EQ(create_device("cpu", options).status().code(), StatusCode::kInvalidArgument);
  options.simd = "scalar";
  auto device = create_device("cpu", options);
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  auto attention = (*device)->create_attention({});
  ASSERT_TRUE(attention.ok()) << attention.status().to_string();
  EXPECT_EQ((*attention)->planner().options().num_workers, 2);
  EXPECT_EQ(cpu::simd_target(), "scalar");
  ASSERT_TRUE(create_device("cpu", {}).ok());
  EXPECT_EQ(cpu::simd_target(), cpu::simd_targets().front());
}

TEST(Device, WarnsOfFarMoreThreadsThanCpus) {
  const LogLevel before = log_level();
  std::vector<std::string> said;
  set_log_level(LogLevel::kWarning);
  set_log_sink([&](LogLevel, std::string_view text) { said.emplace_back(text); });
  DeviceOptions options;
  options.num_threads = 4 * usable_cpus();
  EXPECT_TRUE(create_device("cpu", options).ok());
  EXPECT_TRUE(said.empty()) << said[0];
  ++options.num_threads;
  EXPECT_TRUE(create_device("cpu", options).ok());
  set_log_level(before);
  set_log_sink({});
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].rfind("num_threads is ", 0), 0u) << said[0];
}

class CpuDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { device_ = std::move(*create_device("cpu", {})); }
  TensorView floats(std::int64_t rows, std::int64_t columns) {
    memory_.emplace_back(static_cast<std::size_t>(rows * columns), 1.0f);
    return cpu_tensor(memory_.back().data(), DType::kF32, rows, columns);
  }
  std::unique_ptr<Device> device_;
  std::vector<std::vector<float>> memory_;
};

TEST_F(CpuDeviceTest, AllocatesZeroedAlignedMemory) {
  const auto memory = device_->allocate(1000);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->get()) % 64, 0u);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(static_cast<const char*>(memory->get())[i], 0);
  EXPECT_EQ(device_->allocate(std::size_t{1} << 60).status().code(), StatusCode::kResourceExhausted);
  EXPECT_GT(device_->memory_available(), 0u);
}

TEST_F(CpuDeviceTest, WhatLiesOnTheHostIsReadThere) {
  const std::vector<std::int32_t> ids = {3, 1, 2}, none;
  std::vector<const std::int32_t*> places;
  const std::span<const std::int32_t> arrays[] = {ids, none};
  ASSERT_TRUE(device_->upload(arrays, places).ok());
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(std::vector<std::int32_t>(places[0], places[0] + 3), ids);

  const auto memory = device_->allocate(64);
  ASSERT_TRUE(memory.ok());
  auto* const bytes = static_cast<std::byte*>(memory->get());
  const float numbers[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  const auto held = device_->hold(cpu_tensor(numbers, DType::kF32, 4));
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(device_->copy(bytes + 16, held->data, sizeof numbers).ok());
  const auto read = device_->read(device_->tensor(bytes + 16, DType::kF32, 2, 2));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(std::memcmp(*read, numbers, sizeof numbers), 0);
}

TEST_F(CpuDeviceTest, LinearChecksItsShapes) {
  const TensorView weight = floats(4, 8);
  const TensorView bias = cpu_tensor(floats(1, 4).data, DType::kF32, 4);
  auto linear = device_->create_linear({.parts = std::array{weight}, .biases = std::array{bias}});
  ASSERT_TRUE(linear.ok()) << linear.status().to_string();
  const TensorView y = floats(2, 4);
  ASSERT_TRUE((*linear)->forward(floats(2, 8), y).ok());
  for (int i = 0; i < 8; ++i) EXPECT_EQ(static_cast<const float*>(y.data)[i], 9.0f);
  const Status status = (*linear)->forward(floats(2, 7), y);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("[2, 7]"), std::string::npos) << status.message();
  EXPECT_FALSE((*linear)->forward(floats(3, 8), y).ok());
  EXPECT_FALSE(device_->create_linear({.parts = std::array{weight}, .biases = std::array{bias, bias}}).ok());
  EXPECT_FALSE(
      device_->create_linear({.parts = std::array{weight}, .biases = std::array{cpu_tensor(bias.data, DType::kF32, 3)}})
          .ok());
}

// Weights that are made e4m3 at load, and the same codes with the same scales, multiply to the same bits.
TEST_F(CpuDeviceTest, LinearOfFp8) {
  const std::int64_t rows = 12, in = 33, out = 50;
  std::vector<float> w(out * in), x(rows * in), scales(out), y[2];
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i * 31 % 97) * 0.1f - 5.0f;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 17 % 89) * 0.05f - 2.0f;
  std::vector<std::uint8_t> codes(w.size());
  ThreadPool pool(1);
  const TensorView wide = cpu_tensor(w.data(), DType::kF32, out, in);
  cpu::quantize_rows(wide, codes.data(), scales.data(), pool);
  const TensorView narrow = cpu_tensor(codes.data(), DType::kF8E4M3, out, in);
  const TensorView by = cpu_tensor(scales.data(), DType::kF32, out);
  LinearWeights at_load, stored;
  at_load.parts = {&wide, 1};
  at_load.to_fp8 = true;
  stored.parts = {&narrow, 1};
  stored.scales = {&by, 1};
  for (const LinearWeights* weights : {&at_load, &stored}) {
    auto linear = device_->create_linear(*weights);
    ASSERT_TRUE(linear.ok()) << linear.status().to_string();
    std::vector<float>& to = y[weights == &stored];
    to.resize(rows * out);
    ASSERT_TRUE(
        (*linear)
            ->forward(cpu_tensor(x.data(), DType::kF32, rows, in), cpu_tensor(to.data(), DType::kF32, rows, out))
            .ok());
  }
  EXPECT_EQ(y[0], y[1]);
  stored.scales = {};
  EXPECT_NE(device_->create_linear(stored).status().message().find("expected one each"), std::string::npos);
  const TensorView few = cpu_tensor(scales.data(), DType::kF32, out - 1);
  stored.scales = {&few, 1};
  EXPECT_NE(device_->create_linear(stored).status().message().find("expected f32 [50]"), std::string::npos);
}

TEST_F(CpuDeviceTest, OperatorsRefuseOtherShapesAndTypes) {
  const TensorView x = floats(2, 8);
  TensorView half = x;
  half.dtype = DType::kBF16;
  const TensorView weight = cpu_tensor(floats(1, 8).data, DType::kF32, 8);
  const std::int32_t ids[2] = {0, 1};
  EXPECT_TRUE(device_->rms_norm(x, weight, 0.0f, 1e-5f, {}, x).ok());
  EXPECT_FALSE(device_->rms_norm(half, weight, 0.0f, 1e-5f, {}, x).ok());
  EXPECT_FALSE(device_->rms_norm(x, weight, 0.0f, 1e-5f, floats(1, 8), x).ok());
  EXPECT_FALSE(device_->rms_norm(x, cpu_tensor(x.data, DType::kF32, 7), 0.0f, 1e-5f, {}, x).ok());
  EXPECT_FALSE(device_->embed(floats(4, 7), ids, 1.0f, x).ok());
  EXPECT_FALSE(device_->gated_activation(Activation::kSilu, x, floats(2, 5)).ok());
  EXPECT_FALSE(device_->add(x, floats(2, 7)).ok());
  EXPECT_FALSE(device_->softcap(x, 0.0f).ok());
  RopeConfig rope;
  rope.rotary_dim = 6;
  QkvHeads heads;
  heads.qkv = cpu_tensor(floats(2, 12).data, DType::kF32, 2, 3, 4);
  heads.num_qo_heads = heads.num_kv_heads = 1;
  heads.positions = ids;
  heads.rope = &rope;
  EXPECT_FALSE(device_->rope_append(heads, {}).ok());
  rope.rotary_dim = 4;
  EXPECT_TRUE(device_->rope_append(heads, {}).ok());
  const KvTarget beyond{1, 2, ids, {}};
  EXPECT_FALSE(device_->rope_append(heads, {&beyond, 1}).ok());
  heads.num_kv_heads = 2;
  EXPECT_FALSE(device_->rope_append(heads, {}).ok());
}

}  // namespace
}  // namespace fovea
