// The kernels of the ladder in the emulator: against attention in double precision, without races, and with the same
// bits in whatever order warps run and copies land.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "abi/ladder_args.h"
#include "base/half.h"
#include "jit/ladder_spec.h"
#include "testing/simt/launch.h"

extern "C" {
void simt_ladder0(const void* const* params);
void simt_ladder1(const void* const* params);
void simt_ladder2(const void* const* params);
void simt_ladder3(const void* const* params);
void simt_ladder4(const void* const* params);
}

namespace fovea::emulator_test {
namespace {

constexpr simt::Kernel kKernels[] = {simt_ladder0, simt_ladder1, simt_ladder2, simt_ladder3, simt_ladder4};
constexpr std::uint32_t kDim = abi::kLadderHeadDim, kHeads = 2, kGroup = 2;

class Ladder : public ::testing::TestWithParam<std::size_t> {
 protected:
  const jit::LadderKernel& kernel_ = jit::ladder_kernels()[GetParam()];

  void fill(std::uint32_t tokens) {
    std::mt19937 random(tokens);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    tokens_ = tokens;
    for (auto* const x : {&q_, &k_, &v_}) {
      x->resize(std::size_t{tokens} * kDim * (x == &q_ ? kHeads : kHeads / kGroup));
      for (std::uint16_t& bits : *x) bits = float_to_bf16(normal(random));
    }
    for (std::size_t i = 0; i < kDim; ++i) k_[tokens / 2 * kDim + i] = float_to_bf16(8.0f);  // logits of up to 100
  }

  simt::TensorMap map(const std::vector<std::uint16_t>& tensor, std::uint32_t heads) const {
    simt::TensorMapSpec spec;
    spec.address = const_cast<std::uint16_t*>(tensor.data());
    spec.rank = 5;
    const std::uint64_t row = std::uint64_t{heads} * kDim * 2;
    const std::uint64_t dims[] = {abi::kLadderPanelDims, heads, 2, tokens_, 1},
                        strides[] = {2, kDim * 2, 128, row, row};
    const std::uint32_t box[] = {abi::kLadderPanelDims, 1, 1, abi::kLadderBoxTokens, 1};
    for (int i = 0; i < 5; ++i) spec.dims[i] = dims[i], spec.strides[i] = strides[i], spec.box[i] = box[i];
    spec.swizzle_bytes = 128;
    return simt::encode(spec);
  }

  std::vector<std::uint16_t> run(std::uint64_t seed, simt::Landing landing) const {
    std::vector<std::uint16_t> out(q_.size());
    const abi::LadderArgs args{q_.data(), k_.data(), v_.data(), out.data(), tokens_, kHeads, kGroup, scale()};
    const struct alignas(64) {
      simt::TensorMap q, k, v;
    } maps{map(q_, kHeads), map(k_, kHeads / kGroup), map(v_, kHeads / kGroup)};
    static_assert(sizeof(maps) == sizeof(abi::LadderMaps));
    simt::Launch launch;
    launch.kernel = kKernels[GetParam()];
    launch.grid = kernel_.ctas(tokens_, kHeads);
    launch.block = kernel_.threads;
    launch.shared_bytes = kernel_.smem_bytes;
    launch.seed = seed;
    launch.landing = landing;
    launch.params = {&args, &maps};
    launch.buffers = {{"q", q_.data(), q_.size() * 2},
                      {"k", k_.data(), k_.size() * 2},
                      {"v", v_.data(), v_.size() * 2},
                      {"out", out.data(), out.size() * 2, true}};
    EXPECT_EQ(simt::run(launch).error, "") << kernel_.name << ", seed " << seed;
    return out;
  }

  static float scale() { return 1.4426950408889634f / std::sqrt(static_cast<float>(kDim)); }

  void expect_right(const std::vector<std::uint16_t>& out) const {
    for (std::uint32_t row = 0; row < tokens_; ++row) {
      for (std::uint32_t head = 0; head < kHeads; ++head) {
        const std::size_t at = (std::size_t{row} * kHeads + head) * kDim;
        std::vector<double> logits(row + 1), o(kDim);
        double most = -INFINITY, sum = 0.0;
        for (std::uint32_t token = 0; token <= row; ++token) {
          for (std::uint32_t d = 0; d < kDim; ++d) {
            logits[token] += bf16_to_float(q_[at + d]) * bf16_to_float(k_[std::size_t{token} * kDim + d]);
          }
          logits[token] *= scale();
          most = std::max(most, logits[token]);
        }
        for (std::uint32_t token = 0; token <= row; ++token) {
          const double weight = std::exp2(logits[token] - most);
          sum += weight;
          for (std::uint32_t d = 0; d < kDim; ++d) o[d] += weight * bf16_to_float(v_[std::size_t{token} * kDim + d]);
        }
        // Weights and outputs are rounded to bf16: 2^-9 each.
        for (std::uint32_t d = 0; d < kDim; ++d) {
          const double expected = o[d] / sum;
          ASSERT_NEAR(bf16_to_float(out[at + d]), expected, 0.01 * (1.0 + std::abs(expected)))
              << kernel_.name << ", row " << row << ", head " << head << ", dim " << d;
        }
      }
    }
  }

  std::uint32_t tokens_ = 0;
  std::vector<std::uint16_t> q_, k_, v_;
};

TEST_P(Ladder, IsRightAndHasItsBitsInEveryOrder) {
  for (const std::uint32_t tokens : {1u, 64u, 129u, 300u}) {
    fill(tokens);
    const std::vector<std::uint16_t> expected = run(1, simt::Landing::kLate);
    if (HasFailure()) return;
    expect_right(expected);
    if (HasFailure()) return;
    std::uint64_t seed = 2;
    for (const simt::Landing landing : {simt::Landing::kAtOnce, simt::Landing::kRandom}) {
      EXPECT_EQ(run(seed++, landing), expected) << kernel_.name << ", " << tokens << " tokens";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Ladder, ::testing::Range(std::size_t{0}, std::size(kKernels)));

TEST(LadderKernels, AreAllRun) { EXPECT_EQ(jit::ladder_kernels().size(), std::size(kKernels)); }

}  // namespace
}  // namespace fovea::emulator_test
