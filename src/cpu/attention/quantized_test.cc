// Attention over quantized pools against the oracle, which reads what the stored numbers stand for, on every SIMD
// target.
#include "cpu/attention/quantized.h"

#include <algorithm>
#include <cmath>

#include "cpu/attention/attention_test_util.h"

namespace fovea::cpu {
namespace {

using testing::AttentionCase;
using testing::CaseSpec;
using testing::make_case;

struct Format {
  DType dtype;
  bool token_scales = false;
  bool rotated = false;
};
constexpr Format kFormats[] = {
    {DType::kF8E4M3}, {DType::kF8E4M3, true}, {DType::kI8}, {DType::kI4}, {DType::kI4, false, true}};

void set_format(CaseSpec& spec, const Format& format) {
  spec.kv_dtype = format.dtype;
  spec.token_scales = format.token_scales;
  spec.rotated = format.rotated && (spec.head_dim & (spec.head_dim - 1)) == 0;
}

class QuantizedTest : public EveryTarget {};

TEST_P(QuantizedTest, EveryFormatAndHeadDim) {
  Judge judge;
  CaseSpec spec;
  spec.q_lens = {1, 9};
  spec.kv_lens = {77, 33};
  for (const int head_dim : {16, 32, 48, 64, 80, 96, 128, 144, 256}) {
    spec.head_dim = head_dim;
    spec.group = 1 + head_dim / 16 % 8;
    spec.heads_first = head_dim % 32 == 0;  // both ways through the kernels for few rows
    spec.seed = static_cast<std::uint64_t>(head_dim);
    for (const Format& format : kFormats) {
      set_format(spec, format);
      judge.run(make_case(spec), RunSpec{});
    }
  }
}

TEST_P(QuantizedTest, EveryPageSizeGroupAndLayout) {
  Judge judge;
  CaseSpec spec;
  for (const int page : {1, 2, 5, 16, 24, 64}) {
    spec.page_tokens = page;
    spec.kv_lens = {0, 1, std::max(1, page - 1), page, page + 1, 5 * page + 2, 130};
    spec.q_lens.assign(spec.kv_lens.size(), 1);
    spec.q_lens.front() = 0;
    spec.q_lens.back() = 6;
    spec.group = 1 + page % 8;
    for (const bool heads_first : {false, true}) {
      spec.heads_first = heads_first;
      spec.pad_elements = page % 2 == 0 ? 0 : 6;
      spec.seed = static_cast<std::uint64_t>(page);
      for (const Format& format : kFormats) {
        set_format(spec, format);
        RunSpec run;
        run.num_workers = page % 5 + 1;
        judge.run(make_case(spec), run);
      }
    }
  }
}

// Means of tokens far from zero, which cancel between scale and zero; shared and split runs.
TEST_P(QuantizedTest, OffsetsMasksAndVariants) {
  for (int id = 0; id < kNumVariants; ++id) {
    Judge judge;
    CaseSpec spec;
    spec.q_lens = {1, 1, 20, 3};
    spec.kv_lens = {300, 150, 140, 3};
    spec.shared_tokens = 96;
    spec.kv_offset = 1.0f;
    int round = 0;
    for (const abi::MaskKind mask : {abi::MaskKind::kCausal, abi::MaskKind::kWindow, abi::MaskKind::kBits}) {
      spec.mask = mask;
      spec.window_left = 37;
      for (const Format& format : kFormats) {
        set_format(spec, format);
        spec.logit_scale = round % 2 == 0 ? 1.0f : 2.0f;
        spec.seed = static_cast<std::uint64_t>(++round);
        RunSpec run;
        run.variant = static_cast<VariantId>(id);
        run.num_workers = round % 4 + 1;
        run.share_prefixes = round % 2 == 0;
        judge.run(make_case(spec), run);
      }
    }
  }
}

TEST_P(QuantizedTest, Bf16QueriesAndOutputs) {
  Judge judge;
  CaseSpec spec;
  spec.q_lens = {1, 60, 1, 17};
  spec.kv_lens = {300, 90, 41, 17};
  spec.head_dim = 128;
  spec.q_bf16 = true;
  for (const Format& format : kFormats) {
    set_format(spec, format);
    RunSpec run;
    run.out_dtype = DType::kBF16;
    judge.run(make_case(spec), run);
  }
}

// The rotation takes queries of bf16 to numbers that bf16 does not hold; products of bf16 pairs lose none of their bits
// for that, in tiles of few rows and of many: log-sum-exps, which no rounded weight touches, are those of fp32.
TEST_P(QuantizedTest, RotatedQueriesOfBf16KeepTheirBits) {
  for (const DType dtype : {DType::kI8, DType::kI4}) {
    for (const int head_dim : {16, 32, 128}) {
      CaseSpec spec;
      spec.q_lens = {1, 24};
      spec.kv_lens = {77, 30};
      spec.kv_heads = 1;
      spec.head_dim = head_dim;
      spec.logit_scale = 6.0f;
      spec.q_bf16 = true;
      set_format(spec, {dtype, false, true});
      const AttentionCase c = make_case(spec);
      const VariantSetup setup = variant_setup(c, VariantId::kPlain);
      const Planner planner = make_planner(c, RunSpec{});
      const RunResult result =
          run_plan(c, planner.view(), setup.params, attention_kernels(VariantId::kPlain), DType::kF32, test_threads());
      const testing::OracleResult truth = testing::oracle_attention(c, setup.oracle);
      for (std::size_t i = 0; i < truth.lse.size(); ++i) {
        ASSERT_NEAR(result.lse[i], truth.lse[i], 1e-3) << "row " << i << " of " << c.describe();
      }
    }
  }
}

// A scale that is NaN where only later rows look.
TEST_P(QuantizedTest, ScalesThatARowDoesNotSeeNeverLeak) {
  for (const Format& format : kFormats) {
    CaseSpec spec;
    spec.q_lens = {48};
    spec.kv_lens = {100};
    set_format(spec, format);
    if (format.dtype == DType::kF8E4M3 && !format.token_scales) continue;
    const AttentionCase clean = make_case(spec);
    AttentionCase dirty = make_case(spec);
    const int bad = 80;  // the position of query token 28
    for (int h = 0; h < spec.kv_heads; ++h) {
      const std::int64_t at =
          clean.page_table[bad / 16] * clean.pool.scale_page_stride + h * clean.pool.scale_head_stride + bad % 16;
      dirty.k_scales[at] = {0x7e00, 0x7c00};
      dirty.v_scales[at] = {0x7c00, 0x7e00};
    }
    const VariantSetup setup = variant_setup(clean, VariantId::kPlain);
    const Planner planner = make_planner(clean, RunSpec{});
    const AttentionKernels kernels = attention_kernels(VariantId::kPlain);
    const RunResult a = run_plan(clean, planner.view(), setup.params, kernels, DType::kF32, test_threads());
    const RunResult b = run_plan(dirty, planner.view(), setup.params, kernels, DType::kF32, test_threads());
    const std::size_t row = static_cast<std::size_t>(clean.num_qo_heads()) * spec.head_dim;
    for (std::size_t i = 0; i < 28 * row; ++i) ASSERT_EQ(a.out[i], b.out[i]) << i;
    EXPECT_TRUE(std::isnan(b.out[28 * row]));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, QuantizedTest, ::testing::ValuesIn(modes()), mode_name);

TEST(HadamardTest, IsItsOwnInverseAndKeepsLengths) {
  for (const int count : {1, 2, 16, 64, 128, 256}) {
    std::vector<float> x(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) x[i] = std::sin(static_cast<float>(i * i)) + 0.25f;
    std::vector<float> y = x;
    hadamard(y.data(), count);
    double before = 0.0, after = 0.0;
    for (int i = 0; i < count; ++i) before += double{x[i]} * x[i], after += double{y[i]} * y[i];
    EXPECT_NEAR(before, after, 1e-5 * before);
    hadamard(y.data(), count);
    for (int i = 0; i < count; ++i) EXPECT_NEAR(x[i], y[i], 2e-6f);
  }
}

}  // namespace
}  // namespace fovea::cpu
