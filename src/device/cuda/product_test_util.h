// What the tests of both kernels of decode's products share: a driver without a GPU that runs a function of the host in
// the kernel's place, and a product against its definition. Used by batch_linear_test.cc and skinny_linear_test.cc.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/half.h"
#include "cuda/testing/fake_driver.h"
#include "device/cuda/product.h"

namespace fovea {

// y from the sums of all rows of w, by token: as they are, or each times that of its gate's row.
inline void write_products(const abi::LinearArgs& a, const std::vector<std::vector<double>>& sums) {
  auto* y = static_cast<std::uint16_t*>(a.y);
  for (std::uint32_t t = 0; t < a.tokens; ++t) {
    for (std::uint32_t i = 0; i < 2 * a.shape.pairs; ++i) {
      if (a.shape.half == 1) {
        y[t * a.y_stride + i] = float_to_bf16(static_cast<float>(sums[t][i]));
      } else if (i % 2 == 0) {
        y[t * a.y_stride + i / 2] = float_to_bf16(static_cast<float>(sums[t][i] * sums[t][i + 1]));
      }
    }
  }
}

class ProductTest : public ::testing::Test {
 protected:
  ProductTest(std::string kernel, void (*multiply)(const abi::LinearArgs&))
      : kernel_(std::move(kernel)), multiply_(multiply) {}

  void SetUp() override {
    cuda::fake::state() = {};
    cuda::fake::state().kernels[kernel_] = [this](void** parameters) {
      std::memcpy(&args_, parameters[0], sizeof args_);
      return [multiply = multiply_, args = args_] { multiply(args); };
    };
    Result<cuda::Device> device = cuda::Device::open(0);
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    device_.emplace(*device);
    context_.emplace(*device_);
    weights_.assign(std::size_t{1} << 20, 0);
  }
  void TearDown() override {
    context_.reset();
    device_.reset();
    cuda::fake::state().kernels.clear();
  }

  // Aligned as device memory is.
  std::uint16_t* weights() {
    auto at = reinterpret_cast<std::uintptr_t>(weights_.data());
    return weights_.data() + ((64 - at % 64) % 64) / 2;
  }
  // Small integers, so that sums are exact.
  static float weight(std::int64_t i, std::int64_t in) { return static_cast<float>((i * 7 + i / in) % 5 - 2); }

  // y against the definition. scales: of the rows of weight().
  template <class Linear>
  void expect_product(const Linear& linear, std::int64_t in, std::int64_t rows, bool gated,
                      const std::vector<float>& scales) {
    const std::int64_t columns = linear.columns(), x_stride = in + 8, y_stride = columns + 2;
    alignas(16) static std::uint16_t x[64 * 9000];
    ASSERT_LE(rows * x_stride, std::int64_t{64} * 9000);
    std::vector<std::uint16_t> y(rows * y_stride, 7);
    for (std::int64_t i = 0; i < rows * x_stride; ++i) x[i] = float_to_bf16(static_cast<float>(i % 3 - 1));
    const Status status =
        linear.forward({.x = x, .x_stride = x_stride, .y = y.data(), .y_stride = y_stride, .rows = rows}, nullptr);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto dot = [&](std::int64_t row) {
        double sum = 0.0;
        for (std::int64_t k = 0; k < in; ++k) {
          sum += bf16_to_float(x[r * x_stride + k]) * weight(row * in + k, in) * scales[row];
        }
        return sum;
      };
      for (std::int64_t c = 0; c < columns; ++c) {
        const double expected = gated ? dot(c) * dot(c + columns) : dot(c);
        ASSERT_EQ(y[r * y_stride + c], float_to_bf16(static_cast<float>(expected))) << r << ", " << c;
      }
      for (std::int64_t c = columns; c < y_stride; ++c) ASSERT_EQ(y[r * y_stride + c], 7);
    }
  }

  std::optional<cuda::Device> device_;
  std::optional<cuda::ScopedContext> context_;
  std::vector<std::uint16_t> weights_;
  abi::LinearArgs args_{};

 private:
  std::string kernel_;
  void (*multiply_)(const abi::LinearArgs&);
};

}  // namespace fovea
