// Append against a plain copy, conversions against the oracle's own, and merging against one attention over both parts.
#include "cpu/append.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "cpu/attention/convert.h"
#include "testing/attention_case.h"

namespace fovea::cpu {
namespace {

TEST(AppendTest, ConversionsAgreeWithTheirDefinition) {
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
