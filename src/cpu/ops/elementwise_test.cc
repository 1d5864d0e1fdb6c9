// The operators between matrix products against fp64, on every SIMD target, over ragged sizes and strides.
#include "cpu/ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "cpu/simd.h"

namespace fovea::cpu {
namespace {

std::vector<float> random_floats(std::size_t n, std::uint64_t seed, float scale = 1.0f) {
  PhiloxRng rng(seed);
  std::vector<float> values(n);
  for (float& value : values) value = scale * rng.next_normal();
  return values;
}

class Elementwise : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(set_simd_cap(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(set_simd_cap("").ok()); }
  ThreadPool pool_{2};
};

TEST_P(Elementwise, RmsNormOfHeadsWithResidualAndOffset) {
  for (const std::int64_t dim : {1, 7, 16, 33, 128, 1000}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const std::int64_t rows = 37, heads = 3, stride = heads * dim + 5;
      auto x = random_floats(static_cast<std::size_t>(rows * stride), 1);
      auto residual = random_floats(x.size(), 2);
      std::vector<float> out(x.size(), 99.0f);
      auto weight = random_floats(static_cast<std::size_t>(dim), 3);
      std::vector<std::uint16_t> halves(weight.size());
      for (std::size_t i = 0; i < weight.size(); ++i) {
        if (dtype == DType::kF16) weight[i] = f16_to_float(halves[i] = float_to_f16(weight[i]));
        if (dtype == DType::kBF16) weight[i] = bf16_to_float(halves[i] = float_to_bf16(weight[i]));
      }
      const auto before = residual;
      const void* stored = dtype == DType::kF32 ? static_cast<const void*>(weight.data()) : halves.data();
      rms_norm({{x.data(), stride, dim},
                {residual.data(), stride, dim},
                {out.data(), stride, dim},
                rows,
                heads,
                dim,
                stored,
                dtype,
                1.0f,
                1e-5f},
               pool_);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t at = r * stride + h * dim;
          double squares = 0.0;
          for (std::int64_t i = 0; i < dim; ++i) {
            ASSERT_EQ(residual[at + i], before[at + i] + x[at + i]);
            squares += double{residual[at + i]} * residual[at + i];
          }
          const double scale = 1.0 / std::sqrt(squares / static_cast<double>(dim) + 1e-5);
          for (std::int64_t i = 0; i < dim; ++i) {
            const double expected = residual[at + i] * scale * (1.0 + weight[i]);
            ASSERT_NEAR(out[at + i], expected, 1e-6 * (1.0 + std::abs(expected))) << dim;
          }
        }
        for (std::int64_t i = heads * dim; i < stride; ++i) ASSERT_EQ(out[r * stride + i], 99.0f);
      }
    }
  }
}

TEST_P(Elementwise, GatedActivations) {
  const std::int64_t rows = 5, width = 77;
  auto gate_up = random_floats(static_cast<std::size_t>(rows * 2 * width), 4, 3.0f);
  gate_up[0] = 100.0f;
  gate_up[1] = -100.0f;
  gate_up[2] = 0.0f;
  gate_up[3] = -1e4f;
  for (const GateKind kind : {GateKind::kSilu, GateKind::kGeluTanh, GateKind::kGelu}) {
    std::vector<float> out(static_cast<std::size_t>(rows * width));
    gated_activation(kind, gate_up.data(), 2 * width, rows, width, out.data(), width, pool_);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < width; ++i) {
        const double x = gate_up[r * 2 * width + i], up = gate_up[r * 2 * width + width + i];
        const double act = kind == GateKind::kSilu ? x / (1.0 + std::exp(-x))
                           : kind == GateKind::kGeluTanh
                               ? 0.5 * x * (1.0 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
                               : 0.5 * x * (1.0 + std::erf(x * 0.7071067811865476));
        // A gate near zero is a difference of numbers near one, so its error is absolute.
        ASSERT_NEAR(out[r * width + i], act * up, 1e-6 * (1.0 + std::abs(x)) * (1.0 + std::abs(up))) << x;
      }
    }
  }
}

TEST_P(Elementwise, EmbedAddSoftcap) {
  const std::int64_t vocab = 11, dim = 45, rows = 6;
  const auto values = random_floats(static_cast<std::size_t>(vocab * dim), 5);
  std::vector<std::uint16_t> bf16(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) bf16[i] = float_to_bf16(values[i]);
  const std::int32_t ids[rows] = {3, 0, 10, 3, 7, 1};
  std::vector<float> out(static_cast<std::size_t>(rows * dim));
  embed(bf16.data(), DType::kBF16, dim, ids, rows, dim, 2.5f, out.data(), dim, pool_);
  for (std::int64_t i = 0; i < rows * dim; ++i) {
    ASSERT_EQ(out[i], bf16_to_float(bf16[static_cast<std::size_t>(ids[i / dim] * dim + i % dim)]) * 2.5f);
  }
  auto sum = out;
  add(sum.data(), dim, values.data(), dim, rows, dim, pool_);
  for (std::int64_t i = 0; i < rows * dim; ++i) ASSERT_EQ(sum[i], out[i] + values[i]);
  auto capped = random_floats(static_cast<std::size_t>(rows * dim), 6, 100.0f);
  const auto logits = capped;
  softcap(capped.data(), dim, rows, dim, 30.0f, pool_);
  for (std::int64_t i = 0; i < rows * dim; ++i) ASSERT_NEAR(capped[i], 30.0 * std::tanh(logits[i] / 30.0), 1e-5);
}

TEST_P(Elementwise, RotatePairsOfHalves) {
  const std::int64_t rows = 4, heads = 2, half = 19, dim = 64;  // dims from 2 * half on stay as they are
  auto x = random_floats(static_cast<std::size_t>(rows * heads * dim), 7);
  const auto table = random_floats(static_cast<std::size_t>(rows * 2 * half), 8);
  const auto before = x;
  rotate({x.data(), heads * dim, dim}, table.data(), rows, heads, half, pool_);
  for (std::int64_t i = 0; i < rows * heads * dim; ++i) {
    const std::int64_t row = i / (heads * dim), d = i % dim, base = i - d;
    const float* c = &table[static_cast<std::size_t>(row * 2 * half)];
    const double expected = d < half       ? double{before[i]} * c[d] - double{before[i + half]} * c[half + d]
                            : d < 2 * half ? double{before[i]} * c[d - half] + double{before[base + d - half]} * c[d]
                                           : before[i];
    ASSERT_NEAR(x[i], expected, 1e-5) << d;
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, Elementwise, ::testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fovea::cpu
