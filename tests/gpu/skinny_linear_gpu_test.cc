// Decode's matrix products on a GPU against sums in double precision: random sizes, both types, everything that is
// fused; the same bits whatever runs before and behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/fp8.h"
#include "base/half.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "device/cuda/batch_linear.h"
#include "device/cuda/skinny_linear.h"

namespace fovea {
namespace {

using cuda::DeviceBuffer;

struct Numbers {
  DType dtype;
  std::vector<std::uint16_t> bits;
  double operator[](std::size_t i) const {
    return dtype == DType::kF16 ? f16_to_float(bits[i]) : bf16_to_float(bits[i]);
  }
};

Numbers random_numbers(std::mt19937& rng, DType dtype, std::size_t count, float low, float high) {
  Numbers n{dtype, std::vector<std::uint16_t>(count)};
  std::uniform_real_distribution<float> value(low, high);
  for (std::uint16_t& b : n.bits) b = dtype == DType::kF16 ? float_to_f16(value(rng)) : float_to_bf16(value(rng));
  return n;
}

struct Case {
  std::int64_t in, out, rows;
  DType dtype = DType::kBF16;
  bool f32 = false, norm = false, bias = false, residual = false;
  bool fp8 = false;
  abi::LinearActivation activation = abi::LinearActivation::kNone;
  bool batch = false;  // by BatchLinear, not SkinnyLinear
};

double activate(abi::LinearActivation kind, double x) {
  switch (kind) {
    case abi::LinearActivation::kSilu: return x / (1.0 + std::exp(-x));
    case abi::LinearActivation::kGelu: return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    case abi::LinearActivation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case abi::LinearActivation::kNone: break;
  }
  return x;
}

class SkinnyLinearGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<cuda::Device> device = cuda::Device::open(0);
    if (!device.ok()) GTEST_SKIP() << device.status().to_string();
    if (device->info().major != 9) GTEST_SKIP() << "small products need sm_90a";
    device_.emplace(*device);
    context_.emplace(*device_);
    Result<cuda::Stream> stream = cuda::Stream::create(*device_);
    ASSERT_TRUE(stream.ok());
    stream_ = std::move(*stream);
  }

  template <typename T>
  DeviceBuffer upload(const std::vector<T>& numbers) {
    if (numbers.empty()) return {};
    const std::size_t bytes = numbers.size() * sizeof(T);
    Result<DeviceBuffer> buffer = DeviceBuffer::create(*device_, bytes);
    EXPECT_TRUE(buffer.ok());
    EXPECT_TRUE(cuda::copy_to_device(*device_, buffer->data(), numbers.data(), bytes, stream_.handle()).ok());
    return std::move(*buffer);
  }

  static ProductSpec spec_of(const Case& c) {
    ProductSpec spec{.in = c.in, .out = c.out, .dtype = c.dtype, .fp8 = c.fp8, .most_rows = c.batch ? 64 : 16};
    spec.norm = c.norm;
    spec.norm_plus_one = true;
    spec.norm_eps = 1e-5f;
    spec.activation = c.activation;
    return spec;
  }

  using Forward = std::function<Status(const ProductCall&)>;
  Result<Forward> make(const Case& c, const void* weights, const float* scales) const {
    const auto forward = [this](const auto& linear) -> Result<Forward> {
      if (!linear.ok()) return linear.status();
      return Forward([this, linear](const ProductCall& call) { return linear->forward(call, stream_.handle()); });
    };
    return c.batch ? forward(BatchLinear::create(*device_, spec_of(c), weights))
                   : forward(SkinnyLinear::create(*device_, spec_of(c), weights, scales));
  }

  // Their kernels are compiled on all cores first: one after the other takes longer than all that they compute.
  void check_all(const std::vector<Case>& cases) {
    std::atomic<std::size_t> next{0};
    const float scale = 1.0f;  // only told from none
    const auto compile = [&] {
      const cuda::ScopedContext context(*device_);
      for (std::size_t i = next++; i < cases.size(); i = next++) {
        (void)make(cases[i], nullptr, cases[i].fp8 ? &scale : nullptr);
      }
    };
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t) threads.emplace_back(compile);
    for (std::thread& thread : threads) thread.join();
    for (const Case& c : cases) {
      if (!HasFatalFailure()) check(c);
    }
  }

  // Runs it `times` times and returns y's bytes, which must be the same each time.
  void check(const Case& c) {
    SCOPED_TRACE(::testing::Message() << c.in << " in, " << c.out << " out, " << c.rows << " rows, "
                                      << dtype_name(c.dtype) << (c.fp8 ? " x fp8" : "") << (c.f32 ? " to f32" : "")
                                      << (c.norm ? ", norm" : "") << (c.bias ? ", bias" : "")
                                      << (c.residual ? ", residual" : "") << ", activation "
                                      << static_cast<int>(c.activation));
    const bool gated = c.activation != abi::LinearActivation::kNone;
    const std::int64_t columns = gated ? c.out / 2 : c.out, x_stride = c.in + 8 * (c.rows % 3),
                       y_stride = columns + 2 * (c.rows % 4);
    std::mt19937 rng(static_cast<unsigned>(c.in * 31 + c.out * 7 + c.rows));
    const float size = 1.0f / std::sqrt(static_cast<float>(c.in));
    const Numbers wide = random_numbers(rng, c.dtype, c.fp8 ? 0 : c.in * c.out, -2 * size, 2 * size);
    // All e4m3 numbers but NaN, the subnormal ones among them.
    std::vector<std::uint8_t> codes(c.fp8 ? c.in * c.out : 0);
    std::vector<float> scales(c.fp8 ? c.out : 0);
    for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(rng() % 127 | rng() % 2 << 7);
    for (float& scale : scales) scale = size * 0.01f * static_cast<float>(1 + rng() % 7);
    const auto w = [&](std::int64_t row, std::int64_t k) {
      return c.fp8 ? double{e4m3_to_float(codes[row * c.in + k])} * scales[row] : wide[row * c.in + k];
    };
    const Numbers x = random_numbers(rng, c.dtype, c.rows * x_stride, -1.0f, 2.0f);
    const Numbers norm = random_numbers(rng, c.dtype, c.in, -0.5f, 0.5f);
    const Numbers bias = random_numbers(rng, c.dtype, c.out, -1.0f, 1.0f);
    const Numbers residual = random_numbers(rng, c.dtype, c.rows * y_stride, -1.0f, 1.0f);
    const DeviceBuffer dw = c.fp8 ? upload(codes) : upload(wide.bits), dscales = upload(scales), dx = upload(x.bits),
                       dnorm = upload(norm.bits), dbias = upload(bias.bits);
    const Result<Forward> forward = make(c, dw.data(), dscales.as<float>());
    ASSERT_TRUE(forward.ok()) << forward.status().to_string();

    const std::size_t y_bytes = c.rows * y_stride * (c.f32 ? 4 : 2);
    std::vector<std::byte> first, y(y_bytes);
    DeviceBuffer dy = upload(residual.bits);
    if (c.f32) dy = std::move(*DeviceBuffer::filled(*device_, y_bytes, 0));
    for (int time = 0; time < 3; ++time) {
      if (!c.f32) {
        ASSERT_TRUE(cuda::copy_to_device(*device_, dy.data(), residual.bits.data(), y_bytes, stream_.handle()).ok());
      }
      const ProductCall call{.x = dx.data(),
                             .x_stride = x_stride,
                             .y = dy.data(),
                             .y_stride = y_stride,
                             .rows = c.rows,
                             .f32_out = c.f32,
                             .bias = c.bias ? dbias.data() : nullptr,
                             .residual = c.residual ? dy.data() : nullptr,
                             .norm = c.norm ? dnorm.data() : nullptr};
      const Status status = (*forward)(call);
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_TRUE(cuda::copy_to_host(*device_, y.data(), dy.data(), y_bytes, stream_.handle()).ok());
      ASSERT_TRUE(stream_.synchronize().ok());
      if (time == 0) first = y;
      ASSERT_EQ(y, first) << "the same product has other bits";
    }
    for (std::int64_t r = 0; r < c.rows; ++r) {
      double squares = 0.0;
      for (std::int64_t k = 0; k < c.in; ++k) squares += x[r * x_stride + k] * x[r * x_stride + k];
      const double factor = c.norm ? 1.0 / std::sqrt(squares / static_cast<double>(c.in) + 1e-5) : 1.0;
      double bound = 0.0;  // of an error: roundings of the terms and of the result
      const auto dot = [&](std::int64_t row) {
        double sum = 0.0, terms = 0.0;
        for (std::int64_t k = 0; k < c.in; ++k) {
          const double term = x[r * x_stride + k] * (c.norm ? norm[k] + 1.0 : 1.0) * factor * w(row, k);
          sum += term;
          terms += term * term;
        }
        // Rounding of each x * norm is random; sums are fp32.
        bound = std::max(bound, std::sqrt(terms) * (c.norm ? 0.02 : 1e-4));
        return sum + (c.bias ? bias[row] : 0.0);
      };
      for (std::int64_t i = 0; i < y_stride; ++i) {
        const std::size_t at = r * y_stride + i;
        const double actual = c.f32 ? reinterpret_cast<const float*>(y.data())[at]
                                    : Numbers{c.dtype, {reinterpret_cast<const std::uint16_t*>(y.data())[at]}}[0];
        if (i >= columns) {
          ASSERT_EQ(actual, c.f32 ? 0.0 : residual[at]) << "written between rows";
          continue;
        }
        bound = 0.0;
        double expected = 0.0;
        if (gated) {
          const double gate = dot(i), up = dot(i + columns);
          expected = activate(c.activation, gate) * up;
          bound *= 2.0 * (std::abs(up) + std::abs(gate) + 1.0);
        } else {
          expected = dot(i) + (c.residual ? residual[at] : 0.0);
        }
        const double rounding = c.f32 ? 1e-5 : c.dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
        ASSERT_NEAR(actual, expected, bound + rounding * std::abs(expected) + 1e-6) << r << ", " << i;
      }
    }
    ++cases_;
  }

  void TearDown() override {
    if (cases_ > 0) std::printf("%d cases\n", cases_);
  }

  std::optional<cuda::Device> device_;
  std::optional<cuda::ScopedContext> context_;
  cuda::Stream stream_;
  int cases_ = 0;
};

std::vector<Case> random_cases(bool batch) {
  std::mt19937 rng(batch ? 8 : 7);
  const auto up_to = [&](std::int64_t n) { return static_cast<std::int64_t>(rng() % n) + 1; };
  std::vector<Case> cases;
  for (int i = 0; i < 100; ++i) {
    const bool fp8 = !batch && i >= 60;
    Case c{.in = (fp8 ? 64 : 32) * up_to(i % 4 == 0 ? (fp8 ? 225 : 450) : (fp8 ? 65 : 130)),
           .out = 8 * up_to(i % 5 == 0 ? 300 : 60),
           .rows = up_to(batch ? 64
                         : fp8 ? 8
                               : 16),
           .fp8 = fp8,
           .batch = batch};
    if (batch) c.in = std::max<std::int64_t>(c.in, 256);
    c.dtype = i % 3 == 2 ? DType::kF16 : DType::kBF16;
    c.norm = c.dtype == DType::kBF16 && i % 2 == 0;
    c.bias = i % 7 < 3;
    if (i % 6 == 1) {
      c.activation = static_cast<abi::LinearActivation>(1 + i / 6 % 3);
    } else if (i % 6 == 3) {
      c.f32 = true;
    } else {
      c.residual = i % 6 != 5;
    }
    cases.push_back(c);
  }
  return cases;
}

TEST_F(SkinnyLinearGpuTest, RandomSizes) { check_all(random_cases(false)); }
TEST_F(SkinnyLinearGpuTest, RandomSizesOfBatches) { check_all(random_cases(true)); }

TEST_F(SkinnyLinearGpuTest, SizesOfModelsAndBatches) {
  check_all({
      {.in = 4096, .out = 6144, .rows = 64, .norm = true, .batch = true},
      {.in = 14336, .out = 4096, .rows = 50, .residual = true, .batch = true},
      {.in = 4096, .out = 4096, .rows = 9, .residual = true, .batch = true},
      {.in = 4096, .out = 28672, .rows = 32, .norm = true, .activation = abi::LinearActivation::kSilu, .batch = true},
      {.in = 2048, .out = 16384, .rows = 64, .norm = true, .bias = true, .batch = true},
      {.in = 8192, .out = 2048, .rows = 17, .f32 = true, .batch = true},
      {.in = 14336, .out = 4096, .rows = 8, .residual = true, .batch = true},
  });
}

TEST_F(SkinnyLinearGpuTest, SizesOfModels) {
  check_all({
      {.in = 4096, .out = 6144, .rows = 1, .norm = true},
      {.in = 14336, .out = 4096, .rows = 8, .residual = true},
      {.in = 14336, .out = 1024, .rows = 16, .residual = true},
      {.in = 2048, .out = 16384, .rows = 4, .norm = true, .activation = abi::LinearActivation::kSilu},
      {.in = 8192, .out = 2048, .rows = 5, .norm = true, .bias = true},
      {.in = 28672, .out = 264, .rows = 7},
      {.in = 4096, .out = 6144, .rows = 1, .norm = true, .fp8 = true},
      {.in = 14336, .out = 4096, .rows = 8, .residual = true, .fp8 = true},
      {.in = 4096, .out = 28672, .rows = 4, .norm = true, .fp8 = true, .activation = abi::LinearActivation::kSilu},
  });
}

}  // namespace
}  // namespace fovea
