// The kernels of decode's products in the emulator: against sums in double precision, without races, and with the same
// bits in whatever order warps run and copies land.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/fp8.h"
#include "base/half.h"
#include "testing/simt/launch.h"
#include "tests/emulator/linear_cases.h"

extern "C" {
void simt_products(const void* const* params);
void simt_products_far(const void* const* params);
void simt_products_fp8(const void* const* params);
void simt_products_fp8_far(const void* const* params);
void simt_products_halves(const void* const* params);
void simt_batch(const void* const* params);
void simt_batch_wide(const void* const* params);
void simt_batch_shared(const void* const* params);
void simt_batch_streamed(const void* const* params);
void simt_batch_streamed_norm(const void* const* params);
void simt_batch_few(const void* const* params);
}

namespace fovea::emulator_test {
namespace {

struct Named {
  const char* name;
  simt::Kernel kernel;
};
void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }

// What both kinds of kernels have.
struct Common {
  abi::KvDType dtype;
  bool fp8, norm;
  abi::LinearActivation activation;
  std::uint32_t tokens, split, groups, threads, smem_bytes;
};
Common common_of(const jit::LinearKernelSpec& s) {
  return {s.dtype,
          s.fp8,
          s.norm,
          s.activation,
          s.tokens,
          s.split,
          1,
          abi::kLinearWarps * 32,
          abi::linear_smem_bytes(s.ring, s.tokens / 8, s.split, s.norm)};
}
Common common_of(const jit::BatchLinearKernelSpec& s) {
  return {s.dtype,
          false,
          s.norm,
          s.activation,
          s.batch.tokens,
          s.batch.split,
          abi::kBatchGroups,
          abi::kBatchThreads,
          abi::batch_smem_bytes(s.batch)};
}

class LinearEmulation : public ::testing::TestWithParam<Named> {
 protected:
  const LinearCase& c_ = *find_linear_case(GetParam().name);
  const Common spec_ = std::visit([](const auto& s) { return common_of(s); }, c_.spec);
  const bool gated_ = spec_.activation != abi::LinearActivation::kNone;
  const std::uint32_t columns_ = c_.rows / (gated_ ? 2 : 1);

  float number(std::uint16_t bits) const {
    return spec_.dtype == abi::KvDType::kF16 ? f16_to_float(bits) : bf16_to_float(bits);
  }
  std::uint16_t rounded(float x) const {
    return spec_.dtype == abi::KvDType::kF16 ? float_to_f16(x) : float_to_bf16(x);
  }
  std::vector<std::uint16_t> numbers(std::mt19937& rng, std::size_t count, float low, float high) const {
    std::uniform_real_distribution<float> value(low, high);
    std::vector<std::uint16_t> bits(count);
    for (std::uint16_t& b : bits) b = rounded(value(rng));
    return bits;
  }

  void fill(std::uint32_t tokens) {
    std::mt19937 rng(tokens);
    const float size = 1.0f / std::sqrt(static_cast<float>(c_.k));
    const std::size_t count = std::size_t{c_.k} * c_.rows;
    wide_ = numbers(rng, spec_.fp8 ? 0 : count, -2 * size, 2 * size);
    codes_.resize(spec_.fp8 ? count : 0);
    for (std::uint8_t& code : codes_) code = static_cast<std::uint8_t>(rng() % 0x40 | rng() % 2 << 7);
    scales_.assign(c_.rows, size);
    x_ = numbers(rng, std::size_t{tokens} * c_.k, -1.0f, 1.0f);
    norm_ = numbers(rng, c_.k, 0.5f, 1.5f);
    bias_ = numbers(rng, c_.rows, -1.0f, 1.0f);
    residual_ = numbers(rng, std::size_t{tokens} * columns_, -1.0f, 1.0f);
  }

  // y, which stands in the residual's place.
  std::vector<std::uint16_t> run(std::uint32_t tokens, std::uint64_t seed, simt::Landing landing) const {
    std::vector<std::uint16_t> y = residual_;
    abi::LinearArgs args{};
    args.shape.w = spec_.fp8 ? static_cast<const void*>(codes_.data()) : wide_.data();
    args.shape.pairs = c_.rows / 2;
    args.shape.half = gated_ ? c_.rows / 2 : 1;
    args.shape.k = c_.k;
    args.shape.split = spec_.split;
    args.shape.clusters = 2 * spec_.groups;
    args.shape.slice = abi::linear_weight_slice(spec_.fp8);
    args.x = x_.data();
    args.y = y.data();
    args.residual = gated_ ? nullptr : y.data();
    args.bias = bias_.data();
    args.scales = spec_.fp8 ? scales_.data() : nullptr;
    args.norm = spec_.norm ? norm_.data() : nullptr;
    args.x_stride = c_.k;
    args.y_stride = columns_;
    args.tokens = tokens;
    args.norm_eps = 1e-5f;
    args.early = 3;
    simt::Launch launch;
    launch.kernel = GetParam().kernel;
    launch.grid = 2 * spec_.split;
    launch.cluster = spec_.split;
    launch.block = spec_.threads;
    launch.shared_bytes = spec_.smem_bytes;
    launch.seed = seed;
    launch.landing = landing;
    launch.params = {&args};
    launch.buffers = {{"w", args.shape.w, spec_.fp8 ? codes_.size() : wide_.size() * 2},
                      {"x", x_.data(), x_.size() * 2},
                      {"norm", norm_.data(), norm_.size() * 2},
                      {"bias", bias_.data(), bias_.size() * 2},
                      {"scales", scales_.data(), scales_.size() * sizeof(float)},
                      {"y", y.data(), y.size() * 2, true}};
    EXPECT_EQ(simt::run(launch).error, "") << "seed " << seed;
    return y;
  }

  void expect_right(std::uint32_t tokens, const std::vector<std::uint16_t>& actual) const {
    for (std::uint32_t t = 0; t < tokens; ++t) {
      double squares = 0.0;
      std::vector<double> x(c_.k);
      for (std::uint32_t k = 0; k < c_.k; ++k) {
        const float v = number(x_[std::size_t{t} * c_.k + k]);
        squares += v * v;
        x[k] = spec_.norm ? number(rounded(v * number(norm_[k]))) : v;
      }
      const double factor = spec_.norm ? 1.0 / std::sqrt(squares / c_.k + 1e-5) : 1.0;
      const auto dot = [&](std::size_t row) {
        double sum = 0.0;
        for (std::uint32_t k = 0; k < c_.k; ++k) {
          const std::size_t at = row * c_.k + k;
          sum += x[k] * (spec_.fp8 ? e4m3_to_float(codes_[at]) * scales_[row] : number(wide_[at]));
        }
        return sum * factor + number(bias_[row]);
      };
      for (std::uint32_t column = 0; column < columns_; ++column) {
        const std::size_t at = std::size_t{t} * columns_ + column;
        double expected = dot(column);
        if (gated_) {
          expected = expected / (1.0 + std::exp(-expected)) * dot(column + columns_);
        } else {
          expected += number(residual_[at]);
        }
        ASSERT_NEAR(number(actual[at]), expected, 0.01 * (1.0 + std::abs(expected))) << t << ", " << column;
      }
    }
  }

  std::vector<std::uint16_t> wide_, x_, norm_, bias_, residual_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
};

TEST_P(LinearEmulation, IsRightAndHasItsBitsInEveryOrder) {
  for (const std::uint32_t tokens : {c_.is_batch() ? spec_.tokens / 2 + 1 : 1u, spec_.tokens}) {
    fill(tokens);
    const std::vector<std::uint16_t> expected = run(tokens, 1, simt::Landing::kLate);
    if (HasFailure()) return;
    expect_right(tokens, expected);
    std::uint64_t seed = 2;
    for (const simt::Landing landing : {simt::Landing::kAtOnce, simt::Landing::kRandom}) {
      EXPECT_EQ(run(tokens, seed++, landing), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, LinearEmulation,
                         ::testing::Values(Named{"products", simt_products}, Named{"products_far", simt_products_far},
                                           Named{"products_fp8", simt_products_fp8},
                                           Named{"products_fp8_far", simt_products_fp8_far},
                                           Named{"products_halves", simt_products_halves}, Named{"batch", simt_batch},
                                           Named{"batch_wide", simt_batch_wide},
                                           Named{"batch_shared", simt_batch_shared}, Named{"batch_few", simt_batch_few},
                                           Named{"batch_streamed", simt_batch_streamed},
                                           Named{"batch_streamed_norm", simt_batch_streamed_norm}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fovea::emulator_test
