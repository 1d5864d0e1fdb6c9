// Runs a random case through the planner and the executor, and judges it by the oracle. Used by the attention tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/pause_test_util.h"
#include "core/plan/planner.h"
#include "cpu/attention/attention.h"
#include "cpu/attention/bf16_kernels.h"
#include "cpu/simd.h"
#include "testing/attention_case.h"
#include "testing/attention_oracle.h"

namespace fovea::cpu {

struct RunSpec {
  VariantId variant = VariantId::kPlain;
  DType out_dtype = DType::kF32;
  int num_workers = 2;
  int tile_rows = 128;
  bool share_prefixes = true;
  bool batch_invariant = false;
};

// Products that the cases run with, set by the fixture; the bar follows them.
inline AttentionProducts& tested_products() {
  static AttentionProducts products = AttentionProducts::kF32;
  return products;
}

struct Mode {
  std::string_view simd;
  AttentionProducts products;
};

// Every instruction set with products in fp32, and the best one with products of bf16 where it has them.
inline std::vector<Mode> modes() {
  std::vector<Mode> modes;
  for (const std::string_view simd : simd_targets()) modes.push_back({simd, AttentionProducts::kF32});
  if (bf16_attention_kernels() != nullptr) modes.push_back({simd_targets().front(), AttentionProducts::kBF16});
  return modes;
}

class EveryTarget : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(set_simd_cap(GetParam().simd).ok());
    tested_products() = GetParam().products;
  }
  void TearDown() override {
    ASSERT_TRUE(set_simd_cap("").ok());
    tested_products() = AttentionProducts::kF32;
  }
};

inline std::string mode_name(const ::testing::TestParamInfo<Mode>& info) {
  return std::string(info.param.simd) + (info.param.products == AttentionProducts::kBF16 ? "_bf16" : "");
}

// Parameters of every shipped variant for a case, to the executor and to the oracle.
struct VariantSetup {
  std::vector<float> sinks, slopes;
  AttentionParams params;
  testing::OracleVariant oracle;
};

inline VariantSetup variant_setup(const testing::AttentionCase& c, VariantId id) {
  VariantSetup s;
  s.params.products = tested_products();
  s.params.sm_scale = 1.0f / std::sqrt(static_cast<float>(c.spec.head_dim));
  s.oracle.sm_scale = s.params.sm_scale;
  for (int h = 0; h < c.num_qo_heads(); ++h) {
    s.sinks.push_back(static_cast<float>(h % 5) - 1.5f);
    s.slopes.push_back(std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(c.num_qo_heads())));
  }
  if (id == VariantId::kSoftcap || id == VariantId::kSoftcapSinks) s.params.softcap = s.oracle.softcap = 2.0f;
  if (id == VariantId::kSinks || id == VariantId::kSoftcapSinks) s.oracle.sinks = s.sinks;
  if (id == VariantId::kAlibi) s.oracle.alibi_slopes = s.slopes;
  if (id == VariantId::kSigmoid) {
    s.oracle.sigmoid = true;
    s.params.sigmoid_bias = -3.0f;
    s.oracle.sigmoid_bias = -3.0;
  }
  return s;
}

inline Planner make_planner(const testing::AttentionCase& c, const RunSpec& run) {
  PlannerOptions options;
  options.num_qo_heads = c.num_qo_heads();
  options.num_kv_heads = c.spec.kv_heads;
  options.head_dim = c.spec.head_dim;
  options.kv_element_bits = dtype_bits(c.spec.kv_dtype);
  options.page_tokens = c.spec.page_tokens;
  options.num_workers = run.num_workers;
  options.tile_rows = run.tile_rows;
  options.share_prefixes = run.share_prefixes;
  options.batch_invariant = run.batch_invariant;
  options.limits.max_requests = std::max(1, c.num_requests());
  options.limits.max_rows = std::max(1, c.num_rows);
  options.limits.max_pages_per_request = c.page_table_stride;
  Result<Planner> planner = Planner::create(options);
  EXPECT_TRUE(planner.ok()) << planner.status().to_string();
  AttentionBatch batch;
  batch.num_requests = c.num_requests();
  batch.q_lens = c.spec.q_lens.data();
  batch.kv_lens = c.spec.kv_lens.data();
  batch.page_table = c.page_table.data();
  batch.page_table_stride = c.page_table_stride;
  batch.mask = c.spec.mask;
  batch.window_left = c.spec.window_left;
  if (c.spec.mask == abi::MaskKind::kBits) {
    batch.mask_offsets = c.mask_offsets.data();
    batch.mask_strides = c.mask_strides.data();
    batch.mask_tails = c.spec.mask_tail > 0 ? c.mask_tails.data() : nullptr;
    batch.mask_bits = c.mask_bits.data();
  }
  const Status planned = planner->plan(batch);
  EXPECT_TRUE(planned.ok()) << planned.to_string();
  return std::move(planner).value();
}

struct RunResult {
  std::vector<double> out;
  std::vector<float> lse;
  int parts = 0;
};

inline ThreadPool& test_threads() {
  static ThreadPool threads(2);
  return threads;
}

// asks_a_part: left each time that it has asked so often, and taken up again; 0: never.
inline RunResult run_plan(const testing::AttentionCase& c, const abi::PlanView& plan, const AttentionParams& params,
                          const AttentionKernels& kernels, DType out_dtype, ThreadPool& threads, int asks_a_part = 0) {
  static AttentionWorkspace workspace;
  const std::size_t size = c.q.size();
  std::vector<float> out_f32(size, std::nanf(""));
  std::vector<std::uint16_t> q_bf16(size), out_bf16(size, 0x7fc0);
  for (std::size_t i = 0; i < size; ++i) q_bf16[i] = testing::bf16_of(c.q[i]);
  const void* q = c.spec.q_bf16 ? static_cast<const void*>(q_bf16.data()) : c.q.data();
  void* out = out_dtype == DType::kBF16 ? static_cast<void*>(out_bf16.data()) : out_f32.data();
  RunResult result;
  result.lse.assign(size / static_cast<std::size_t>(c.spec.head_dim), std::nanf(""));
  const TensorView q_view =
      cpu_tensor(q, c.spec.q_bf16 ? DType::kBF16 : DType::kF32, c.num_rows, c.num_qo_heads(), c.spec.head_dim);
  const TensorView out_view = cpu_tensor(out, out_dtype, c.num_rows, c.num_qo_heads(), c.spec.head_dim);
  for (bool done = asks_a_part == 0, goes_on = false; !done; goes_on = true) {
    const Result<bool> part = run_attention_part(plan, params, kernels, q_view, &c.pool, 1, out_view, result.lse.data(),
                                                 workspace, threads, PauseAfter(asks_a_part), goes_on);
    EXPECT_TRUE(part.ok()) << part.status().to_string();
    done = !part.ok() || *part;
    ++result.parts;
  }
  if (asks_a_part == 0) {
    const Status status =
        run_attention(plan, params, kernels, q_view, &c.pool, 1, out_view, result.lse.data(), workspace, threads);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  result.out.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    result.out[i] = out_dtype == DType::kBF16 ? testing::float_of_bf16(out_bf16[i]) : out_f32[i];
  }
  return result;
}

// Collects results of a test and holds them to the bar; checks when it goes out of scope.
class Judge {
 public:
  ~Judge() {
    EXPECT_EQ(out_.check(), "") << "fp32 outputs of all cases together";
    EXPECT_EQ(lse_.check(), "") << "log-sum-exp of all cases together";
  }

  // Plans and runs a case. Returns the result for further comparisons.
  RunResult run(const testing::AttentionCase& c, const RunSpec& run) {
    const VariantSetup setup = variant_setup(c, run.variant);
    AttentionParams params = setup.params;
    params.sinks = setup.sinks.data();
    params.alibi_slopes = setup.slopes.data();
    const Planner planner = make_planner(c, run);
    RunResult result =
        run_plan(c, planner.view(), params, attention_kernels(run.variant), run.out_dtype, test_threads());
    const std::string where = c.describe() + ", variant " + variant_name(run.variant) + ", workers " +
                              std::to_string(run.num_workers) + (run.share_prefixes ? ", shared" : "") +
                              (run.batch_invariant ? ", invariant" : "");
    judge(c, setup.oracle, run.out_dtype, result, where);
    return result;
  }

  void judge(const testing::AttentionCase& c, const testing::OracleVariant& variant, DType out_dtype,
             const RunResult& result, const std::string& where) {
    const bool bf16 = tested_products() == AttentionProducts::kBF16 && c.spec.kv_dtype != DType::kF32 &&
                      c.spec.kv_dtype != DType::kF16;
    const testing::OracleResult truth = testing::oracle_attention(c, variant);
    const testing::OracleResult cost = testing::float_attention(c, variant, out_dtype, bf16);
    if (out_dtype == DType::kF32) {
      out_.add(truth.out, cost.out, result.out);
    } else {
      EXPECT_EQ(testing::check_error_bar(truth.out, cost.out, result.out), "") << where;
    }
    lse_.add(truth.lse, cost.lse, std::vector<double>(result.lse.begin(), result.lse.end()));
    // A wrong answer shows case by case too: NaN, infinity and missing rows are errors of any size.
    for (std::size_t i = 0; i < result.out.size(); ++i) {
      ASSERT_EQ(std::isfinite(truth.out[i]), std::isfinite(result.out[i])) << "output " << i << ": " << where;
      ASSERT_NEAR(truth.out[i], result.out[i], 0.05 + 0.01 * std::abs(truth.out[i])) << "output " << i << ": " << where;
    }
  }

 private:
  testing::ErrorPool out_, lse_;
};

}  // namespace fovea::cpu
