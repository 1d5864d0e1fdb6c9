// The oracle against a case worked by hand, and the error bar against results that are too far off.
#include "testing/attention_oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fovea::testing {
namespace {

// Two tokens whose logits are 0 and ln 3: weights 1/4 and 3/4.
AttentionCase two_tokens() {
  CaseSpec spec;
  spec.q_lens = {1};
  spec.kv_lens = {2};
  spec.kv_heads = spec.group = 1;
  spec.head_dim = 16;
  spec.kv_dtype = DType::kF32;
  AttentionCase c = make_case(spec);
  auto* k = reinterpret_cast<float*>(c.k.data()) + c.page_table[0] * c.pool.page_stride;
  auto* v = reinterpret_cast<float*>(c.v.data()) + c.page_table[0] * c.pool.page_stride;
  for (int d = 0; d < 16; ++d) {
    c.q[d] = d == 3 ? 1.0f : 0.0f;
    k[d] = 0.0f;
    k[16 + d] = d == 3 ? std::log(3.0f) : 5.0f;
    v[d] = 4.0f;
    v[16 + d] = 8.0f;
  }
  return c;
}

TEST(AttentionOracleTest, KnowsTwoTokens) {
  const AttentionCase c = two_tokens();
  OracleVariant variant;
  OracleResult plain = oracle_attention(c, variant);
  EXPECT_NEAR(plain.out[5], 7.0, 1e-6);
  EXPECT_NEAR(plain.lse[0], 2.0, 1e-6);
  variant.sinks = {std::log(4.0f)};  // as much weight again
  const OracleResult sink = oracle_attention(c, variant);
  EXPECT_NEAR(sink.out[5], 3.5, 1e-6);
  EXPECT_NEAR(sink.lse[0], 3.0, 1e-6);
  variant.sinks.clear();
  variant.sigmoid = true;
  EXPECT_NEAR(oracle_attention(c, variant).out[5], 0.5 * 4.0 + 0.75 * 8.0, 1e-6);
}

TEST(AttentionOracleTest, SeesByTheMask) {
  CaseSpec spec;
  spec.q_lens = {4};
  spec.kv_lens = {10};
  AttentionCase c = make_case(spec);
  EXPECT_TRUE(c.sees(0, 0, 6));
  EXPECT_FALSE(c.sees(0, 0, 7));
  EXPECT_TRUE(c.sees(0, 3, 9));
  c.spec.mask = abi::MaskKind::kWindow;
  c.spec.window_left = 2;
  EXPECT_TRUE(c.sees(0, 0, 4));
  EXPECT_FALSE(c.sees(0, 0, 3));
}

TEST(AttentionCaseTest, ConvertsEveryE4M3Value) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = float_of_e4m3(static_cast<std::uint8_t>(bits));
    if (std::isnan(value)) {
      EXPECT_EQ(bits & 0x7f, 0x7f);
      continue;
    }
    EXPECT_EQ(e4m3_of(value), bits);
  }
  EXPECT_EQ(float_of_e4m3(0x38), 1.0f);
  EXPECT_EQ(float_of_e4m3(0x7e), 448.0f);
  EXPECT_EQ(float_of_e4m3(0x01), 0.001953125f);
  EXPECT_EQ(e4m3_of(1.0625f), 0x38);  // halfway: to even
  EXPECT_EQ(e4m3_of(1e9f), 0x7e);
  EXPECT_EQ(e4m3_of(std::numeric_limits<float>::quiet_NaN()), 0x7f);
}

// What cheaper arithmetic would give must not pass: weights or queries rounded to bf16, a denominator off by 1 in 1e5.
TEST(ErrorBarTest, FailsWhenArithmeticIsCheaper) {
  CaseSpec spec;
  spec.q_lens = {40};
  spec.kv_lens = {90};
  const AttentionCase c = make_case(spec);
  OracleVariant variant;
  variant.sm_scale = 0.125;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const OracleResult truth = oracle_attention(c, variant);
    const OracleResult cost = float_attention(c, variant, dtype);
    EXPECT_EQ(check_error_bar(truth.out, cost.out, cost.out), "");
    AttentionCase rounded = make_case(spec);
    for (float& x : rounded.q) x = float_of_bf16(bf16_of(x));
    EXPECT_NE(check_error_bar(truth.out, cost.out, float_attention(rounded, variant, dtype).out), "");
    OracleVariant scaled = variant;
    scaled.sm_scale *= 1.01;
    EXPECT_NE(check_error_bar(truth.out, cost.out, float_attention(c, scaled, dtype).out), "");
  }
  const OracleResult truth = oracle_attention(c, variant);
  const OracleResult cost = float_attention(c, variant, DType::kF32);
  std::vector<double> off = cost.out;
  for (double& x : off) x *= 1.00001;
  EXPECT_NE(check_error_bar(truth.out, cost.out, off), "");
  std::vector<double> missing = cost.out;
  missing[7] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(check_error_bar(truth.out, cost.out, missing), "");
  missing.pop_back();
  EXPECT_NE(check_error_bar(truth.out, cost.out, missing), "");
}

}  // namespace
}  // namespace fovea::testing
