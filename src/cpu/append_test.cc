// Append against a plain copy, conversions against the oracle's own, and quantization against its bounds.
#include "cpu/append.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "cpu/attention/convert.h"
#include "cpu/attention/quantized.h"
#include "cpu/quantize.h"
#include "testing/attention_case.h"

namespace fovea::cpu {
namespace {

TEST(AppendTest, ConversionsAgreeWithTheirDefinition) {
  for (std::uint32_t bits = 0; bits < 256; ++bits) {
    const float x = testing::float_of_e4m3(static_cast<std::uint8_t>(bits));
    if (!std::isnan(x)) {
      EXPECT_EQ(e4m3_of(x), bits);
    }
  }
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float x = float_of_f16(half);
    const float expected = testing::float_of_f16(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(x));
      EXPECT_TRUE(std::isnan(float_of_f16(f16_of(x))));
      continue;
    }
    ASSERT_EQ(x, expected) << bits;
    ASSERT_EQ(f16_of(x), half);
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float x =
        std::ldexp(static_cast<float>(static_cast<std::int32_t>(random())), static_cast<int>(random() % 60) - 60);
    ASSERT_EQ(f16_of(x), testing::f16_of(x)) << x;
    ASSERT_EQ(bf16_of(x), testing::bf16_of(x)) << x;
    ASSERT_EQ(e4m3_of(x), testing::e4m3_of(x)) << x;
  }
  for (const float x :
       {65504.0f, 65519.9f, 65520.0f, 1e30f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f, 0x1.ffcp-15f, 0x1.ffep-15f}) {
    EXPECT_EQ(f16_of(x), testing::f16_of(x)) << x;
  }
}

TEST(AppendTest, WritesExactlyTheNamedSlots) {
  constexpr int kPages = 5, kTokens = 4, kHeads = 3, kDim = 32, kRows = 7;
  const std::int32_t slots[kRows] = {19, 0, -1, 7, 6, 12, -5};
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> k(kRows * kHeads * kDim), v(k.size());
  for (float& x : k) x = normal(random);
  for (float& x : v) x = normal(random);
  ThreadPool threads(2);
  for (const bool heads_first : {false, true}) {
    for (const abi::KvDType dtype : {abi::KvDType::kF32, abi::KvDType::kF16, abi::KvDType::kBF16}) {
      const std::size_t size = kPages * kTokens * kHeads * kDim;
      const std::size_t bytes = dtype == abi::KvDType::kF32 ? 4 : 2;
      std::vector<std::uint8_t> pool_k(size * bytes, 0xab), pool_v(size * bytes, 0xcd);
      abi::KvPoolView pool{};
      pool.k = pool_k.data();
      pool.v = pool_v.data();
      pool.dtype = dtype;
      pool.num_pages = kPages;
      pool.page_tokens = pool.entry_tokens = kTokens;
      pool.entries_per_page = 1;
      pool.page_stride = kTokens * kHeads * kDim;
      pool.token_stride = heads_first ? kDim : kHeads * kDim;
      pool.head_stride = heads_first ? kTokens * kDim : kDim;
      std::vector<std::uint8_t> want_k = pool_k, want_v = pool_v;
      for (int i = 0; i < kRows; ++i) {
        if (slots[i] < 0) continue;
        for (int h = 0; h < kHeads; ++h) {
          for (int d = 0; d < kDim; ++d) {
            const std::size_t to = slots[i] / kTokens * pool.page_stride + slots[i] % kTokens * pool.token_stride +
                                   h * pool.head_stride + d;
            for (const bool keys : {true, false}) {
              const float x = (keys ? k : v)[(i * kHeads + h) * kDim + d];
              std::uint8_t* at = (keys ? want_k : want_v).data() + to * bytes;
              const std::uint16_t half = dtype == abi::KvDType::kF16 ? testing::f16_of(x) : testing::bf16_of(x);
              if (bytes == 4) {
                std::memcpy(at, &x, 4);
              } else {
                std::memcpy(at, &half, 2);
              }
            }
          }
        }
      }
      const Status status = append_kv(cpu_tensor(k.data(), DType::kF32, kRows, kHeads, kDim),
                                      cpu_tensor(v.data(), DType::kF32, kRows, kHeads, kDim), slots, pool, threads);
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(pool_k, want_k);
      EXPECT_EQ(pool_v, want_v);
    }
  }
}

struct Row {
  std::vector<float> x;
  const char* what;
};

// Rows of every awkward kind, 64 elements each.
std::vector<Row> awkward_rows() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<Row> rows = {{std::vector<float>(64, 0.0f), "zeros"},    {std::vector<float>(64, -3.7f), "a constant"},
                           {std::vector<float>(64, 1e30f), "huge"},    {std::vector<float>(64, 1e-30f), "tiny"},
                           {std::vector<float>(64, kInf), "infinity"}, {std::vector<float>(64, std::nanf("")), "NaN"}};
  for (const float size : {1e-6f, 1e-3f, 1.0f, 100.0f, 3e4f}) {
    for (const float mean : {0.0f, 1.0f, 50.0f}) {
      Row row{std::vector<float>(64), "random"};
      for (float& x : row.x) x = size * (normal(random) + mean);
      rows.push_back(row);
      row.x[7] = 20.0f * size;
      row.what = "an outlier";
      rows.push_back(row);
      row.x[3] = std::nanf(""), row.x[60] = -kInf;
      row.what = "NaN and infinity";
      rows.push_back(row);
    }
  }
  return rows;
}

float clean(float x) { return std::isnan(x) ? 0.0f : std::min(std::max(x, -65504.0f), 65504.0f); }

TEST(QuantizeTest, StaysWithinHalfAStepOfTheTruth) {
  for (const abi::KvDType dtype : {abi::KvDType::kI8, abi::KvDType::kI4, abi::KvDType::kF8E4M3}) {
    for (const Row& row : awkward_rows()) {
      std::vector<float> x = row.x, back(64);
      std::uint8_t stored[64];
      const abi::KvScale scale = quantize_row(dtype, x.data(), 64, stored);
      dequantize_row(dtype, stored, scale, 64, back.data());
      const float step = testing::float_of_f16(scale.scale);
      const float zero = testing::float_of_f16(scale.zero);
      float min = 65504.0f, max = -65504.0f;
      for (const float y : row.x) min = std::min(min, clean(y)), max = std::max(max, clean(y));
      for (int d = 0; d < 64; ++d) {
        const float truth = clean(row.x[d]);
        // Half a unit in the last place of zero, as a half, moves the ends out of what can be stored.
        float allowed = 0.5f * step + std::max(std::abs(zero) * 0x1p-11f, 0x1p-25f) + 1e-6f * std::abs(truth);
        if (dtype == abi::KvDType::kF8E4M3)
          allowed = std::max(std::abs(truth) * 0x1.01p-4f, step * 0x1p-10f) + 0x1p-24f;
        ASSERT_NEAR(back[d], truth, allowed) << row.what << ", type " << static_cast<int>(dtype) << ", element " << d;
      }
      if (dtype == abi::KvDType::kF8E4M3) continue;
      const float levels = dtype == abi::KvDType::kI8 ? 255.0f : 15.0f;
      EXPECT_LE(step, (max - min) / levels * (1.0f + 0x1p-7f) + 0x1p-21f) << row.what;
    }
  }
}

// What append leaves in the pool is quantize_row() of each row, rotated first where the pool is; others stay as they
// are.
TEST(QuantizeTest, AppendWritesRowsAndTheirScales) {
  constexpr int kPages = 5, kTokens = 4, kHeads = 3, kDim = 32, kRows = 7;
  const std::int32_t slots[kRows] = {19, 0, -1, 7, 6, 12, -5};
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> k(kRows * kHeads * kDim), v(k.size());
  for (float& x : k) x = normal(random);
  for (float& x : v) x = normal(random);
  ThreadPool threads(2);
  for (const bool rotated : {false, true}) {
    for (const abi::KvDType dtype : {abi::KvDType::kI8, abi::KvDType::kI4, abi::KvDType::kF8E4M3}) {
      if (rotated && dtype == abi::KvDType::kF8E4M3) continue;
      const int row_bytes = dtype == abi::KvDType::kI4 ? kDim / 2 : kDim;
      std::vector<std::uint8_t> pool_k(kPages * kTokens * kHeads * row_bytes, 0xab), pool_v = pool_k;
      std::vector<abi::KvScale> k_scales(kPages * kHeads * kTokens, {1, 2}), v_scales = k_scales;
      abi::KvPoolView pool{};
      pool.k = pool_k.data(), pool.v = pool_v.data();
      pool.dtype = dtype;
      pool.granularity = abi::ScaleGranularity::kTokenHead;
      pool.rotated = rotated;
      pool.num_pages = kPages;
      pool.page_tokens = pool.entry_tokens = kTokens;
      pool.entries_per_page = 1;
      pool.page_stride = kTokens * kHeads * kDim;
      pool.token_stride = kDim;
      pool.head_stride = kTokens * kDim;
      pool.k_scale = k_scales.data(), pool.v_scale = v_scales.data();
      pool.scale_page_stride = kHeads * kTokens;
      pool.scale_head_stride = kTokens;
      auto want_k = pool_k, want_v = pool_v;
      auto want_k_scales = k_scales, want_v_scales = v_scales;
      for (int i = 0; i < kRows; ++i) {
        for (int h = 0; h < kHeads && slots[i] >= 0; ++h) {
          const int at = (slots[i] / kTokens * kHeads + h) * kTokens + slots[i] % kTokens;
          for (const bool keys : {true, false}) {
            const float* from = (keys ? k : v).data() + (i * kHeads + h) * kDim;
            std::vector<float> x(from, from + kDim), back(kDim);
            if (rotated) hadamard(x.data(), kDim);
            std::uint8_t* to = (keys ? want_k : want_v).data() + at * row_bytes;
            const abi::KvScale scale = quantize_row(dtype, x.data(), kDim, to);
            (keys ? want_k_scales : want_v_scales)[at] = scale;
            dequantize_row(dtype, to, scale, kDim, back.data());
            if (rotated) hadamard(back.data(), kDim);
            for (int d = 0; d < kDim; ++d) ASSERT_NEAR(back[d], from[d], dtype == abi::KvDType::kI4 ? 0.6f : 0.15f);
          }
        }
      }
      const Status status = append_kv(cpu_tensor(k.data(), DType::kF32, kRows, kHeads, kDim),
                                      cpu_tensor(v.data(), DType::kF32, kRows, kHeads, kDim), slots, pool, threads);
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(pool_k, want_k);
      EXPECT_EQ(pool_v, want_v);
      EXPECT_EQ(std::memcmp(k_scales.data(), want_k_scales.data(), k_scales.size() * sizeof(abi::KvScale)), 0);
      EXPECT_EQ(std::memcmp(v_scales.data(), want_v_scales.data(), v_scales.size() * sizeof(abi::KvScale)), 0);
    }
  }
}

TEST(QuantizeTest, PoolsThatDoNotFitTheirTypeAreRefused) {
  std::vector<std::uint32_t> memory(64);
  abi::KvPoolView pool{};
  pool.dtype = abi::KvDType::kI4;
  EXPECT_EQ(check_kv_scales(pool, 64).code(), StatusCode::kInvalidArgument);  // no scales
  pool.granularity = abi::ScaleGranularity::kTokenHead;
  EXPECT_EQ(check_kv_scales(pool, 64).code(), StatusCode::kInvalidArgument);  // nor memory for them
  pool.k_scale = pool.v_scale = memory.data();
  EXPECT_TRUE(check_kv_scales(pool, 64).ok());
  pool.rotated = 1;
  EXPECT_EQ(check_kv_scales(pool, 96).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(check_kv_scales(pool, 128).ok());
  pool.token_stride = 65;
  EXPECT_EQ(check_kv_scales(pool, 64).code(), StatusCode::kInvalidArgument);
  pool = {};
  pool.dtype = abi::KvDType::kBF16;
  pool.granularity = abi::ScaleGranularity::kHead;
  EXPECT_EQ(check_kv_scales(pool, 64).code(), StatusCode::kInvalidArgument);
}

TEST(AppendTest, RefusesSlotsOutsideThePool) {
  std::vector<float> rows(2 * 16), memory(4 * 16, 1.0f);
  abi::KvPoolView pool{};
  pool.k = pool.v = memory.data();
  pool.num_pages = 2;
  pool.page_tokens = pool.entry_tokens = 2;
  pool.entries_per_page = 1;
  pool.page_stride = 32;
  pool.token_stride = pool.head_stride = 16;
  const std::int32_t slots[] = {0, 4};
  ThreadPool threads(1);
  const TensorView view = cpu_tensor(rows.data(), DType::kF32, 2, 1, 16);
  EXPECT_EQ(append_kv(view, view, slots, pool, threads).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(memory, std::vector<float>(64, 1.0f));
}

}  // namespace
}  // namespace fovea::cpu
