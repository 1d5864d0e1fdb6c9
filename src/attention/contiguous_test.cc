// Attention without pages through the public API on the CPU: causal patterns against causal attention, and what callers
// get wrong. Generated cases against the oracle are those of tests/gpu.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "fovea/attention.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;

AttentionOptions options(std::int32_t page_tokens) {
  AttentionOptions o;
  o.num_qo_heads = 4;
  o.num_kv_heads = 2;
  o.head_dim = 32;
  o.q_dtype = o.kv_dtype = DType::kF32;
  o.page_tokens = page_tokens;
  o.max_requests = 4;
  o.max_rows = 64;
  o.max_pages_per_request = 64;
  o.max_block_rows = 256;
  return o;
}

PagedKv kv_of(const TensorView& k, const TensorView& v) {
  PagedKv kv;
  kv.k = k;
  kv.v = v;
  return kv;
}

struct Tensors {
  std::vector<float> q, k, v, out, lse;
  Tensors(int rows, int tokens, std::uint64_t seed) : out(rows * 128, std::nanf("")), lse(rows * 4, std::nanf("")) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int i = 0; i < rows * 128; ++i) q.push_back(normal(random));
    for (int i = 0; i < tokens * 64; ++i) k.push_back(normal(random));
    for (int i = 0; i < tokens * 64; ++i) v.push_back(normal(random));
  }
  Status run(Attention& attention, int rows, int tokens) {
    PagedKv kv;
    kv.k = cpu_tensor(k.data(), DType::kF32, tokens, 2, 32);
    kv.v = cpu_tensor(v.data(), DType::kF32, tokens, 2, 32);
    return attention.run(cpu_tensor(q.data(), DType::kF32, rows, 4, 32), kv,
                         cpu_tensor(out.data(), DType::kF32, rows, 4, 32),
                         cpu_tensor(lse.data(), DType::kF32, rows, 4));
  }
};

// A causal pattern of which every block is there is causal attention, whatever the sizes: also where many blocks hold
// the positions of one block row, and where queries begin inside of a block.
TEST(Contiguous, AFullCausalPatternIsCausalAttention) {
  constexpr int kRows = 37, kTokens = 53;
  for (const int page : {1, 4}) {
    for (const int block_rows : {1, 5, 16, 40}) {
      for (const int width : {1, 3}) {
        auto sparse = Attention::create(options(page)), ragged = Attention::create(options(page));
        ASSERT_TRUE(sparse.ok() && ragged.ok());
        Tensors a(kRows, kTokens, 1), b(kRows, kTokens, 1);
        BlockSparseBatch batch;
        batch.num_rows = kRows;
        batch.num_tokens = kTokens;
        batch.block_rows = block_rows;
        batch.block_tokens = width * page;
        batch.mask = AttentionMask::kCausal;
        const int columns = (kTokens + batch.block_tokens - 1) / batch.block_tokens;
        std::vector<std::int32_t> indptr = {0}, indices;
        for (int row = 0; row < kRows; row += block_rows) {
          for (int column = 0; column < columns; ++column) indices.push_back(column);
          indptr.push_back(static_cast<std::int32_t>(indices.size()));
        }
        batch.indptr = indptr.data();
        batch.indices = indices.data();
        ASSERT_TRUE(sparse->plan_blocks(batch).ok());
        ASSERT_TRUE(a.run(*sparse, kRows, kTokens).ok());
        const std::int32_t q_len = kRows, kv_len = kTokens, begin = 0;
        const Status planned =
            ragged->plan_ragged({.num_requests = 1, .q_lens = &q_len, .kv_lens = &kv_len, .kv_begins = &begin});
        ASSERT_TRUE(planned.ok()) << planned.to_string();
        ASSERT_TRUE(b.run(*ragged, kRows, kTokens).ok());
        for (std::size_t i = 0; i < a.out.size(); ++i) ASSERT_NEAR(a.out[i], b.out[i], 2e-5) << i;
        for (std::size_t i = 0; i < a.lse.size(); ++i) ASSERT_NEAR(a.lse[i], b.lse[i], 2e-5) << i;
      }
    }
  }
}

// A causal pattern with gaps is the same as one whose blocks say so bit by bit: rows see nothing behind the gap that
// their positions fall into.
TEST(Contiguous, CausalPatternsWithGapsAreThoseOfBits) {
  std::mt19937 random(5);
  for (int n = 0; n < 60; ++n) {
    const int tokens = 20 + static_cast<int>(random() % 34), rows = 1 + static_cast<int>(random() % 37) % tokens;
    BlockSparseBatch batch;
    batch.num_rows = rows;
    batch.num_tokens = tokens;
    batch.block_rows = std::array{1, 5, 33}[random() % 3];
    batch.block_tokens = std::array{1, 3, 8}[random() % 3];
    const int columns = (tokens + batch.block_tokens - 1) / batch.block_tokens;
    std::vector<std::int32_t> indptr = {0}, indices;
    for (int line = 0; line * batch.block_rows < rows; ++line) {
      for (int column = 0; column < columns; ++column) {
        if (random() % 2 != 0) indices.push_back(column);
      }
      indptr.push_back(static_cast<std::int32_t>(indices.size()));
    }
    std::vector<std::uint8_t> bits(indices.size() * 33 + 1);
    for (std::size_t line = 0; line + 1 < indptr.size(); ++line) {
      for (std::int32_t i = indptr[line]; i < indptr[line + 1]; ++i) {
        for (int r = 0; r < batch.block_rows; ++r) {
          for (int t = 0; t < batch.block_tokens; ++t) {
            const int row = static_cast<int>(line) * batch.block_rows + r;
            const int token = indices[static_cast<std::size_t>(i)] * batch.block_tokens + t;
            const int bit = (i * batch.block_rows + r) * batch.block_tokens + t;
            if (token <= tokens - rows + row) bits[static_cast<std::size_t>(bit / 8)] |= 1 << bit % 8;
          }
        }
      }
    }
    batch.indptr = indptr.data();
    batch.indices = indices.data();
    batch.mask_bits = bits.data();
    batch.mask_bytes = static_cast<std::int64_t>(bits.size());
    Tensors by_mask[2] = {Tensors(rows, tokens, 1), Tensors(rows, tokens, 1)};
    for (const AttentionMask mask : {AttentionMask::kCausal, AttentionMask::kBits}) {
      auto attention = Attention::create(options(1));
      ASSERT_TRUE(attention.ok());
      batch.mask = mask;
      const Status planned = attention->plan_blocks(batch);
      ASSERT_TRUE(planned.ok()) << planned.to_string();
      ASSERT_TRUE(by_mask[mask == AttentionMask::kBits].run(*attention, rows, tokens).ok());
    }
    for (std::size_t i = 0; i < by_mask[0].out.size(); ++i) {
      ASSERT_NEAR(by_mask[0].out[i], by_mask[1].out[i], 2e-5) << "case " << n << ", " << i;
    }
  }
}

TEST(Contiguous, RaggedBatchesThatMakeNoSenseAreRefusedByName) {
  auto attention = Attention::create(options(4));
  ASSERT_TRUE(attention.ok());
  std::vector<std::int32_t> q = {2, 1}, kv = {5, 9}, begins = {3, 8};
  RaggedBatch good{.num_requests = 2, .q_lens = q.data(), .kv_lens = kv.data(), .kv_begins = begins.data()};
  const auto expect = [&](const RaggedBatch& batch, StatusCode code, const char* words) {
    const Status status = attention->plan_ragged(batch);
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  RaggedBatch bad = good;
  bad.num_requests = 5;
  expect(bad, StatusCode::kOutOfRange, "max_requests");
  bad = good;
  bad.kv_begins = nullptr;
  expect(bad, StatusCode::kInvalidArgument, "kv_begins");
  begins[1] = -1;
  expect(good, StatusCode::kInvalidArgument, "begins at token -1");
  begins[1] = 0x7ffffffa;
  expect(good, StatusCode::kOutOfRange, "2^31");
  begins[1] = 8;
  kv[1] = 254;  // 64 units of 4, from the start of one
  EXPECT_TRUE(attention->plan_ragged(good).ok());
  begins[1] = 11;
  expect(good, StatusCode::kOutOfRange, "max_pages_per_request");
  begins[1] = 8;
  kv[1] = 9;
  bad = good;
  bad.mask = AttentionMask::kBits;
  expect(bad, StatusCode::kInvalidArgument, "mask_bits");
  bad.mask = AttentionMask::kWindow;
  expect(bad, StatusCode::kInvalidArgument, "window_left");
  // Fewer tokens than planned, pages where there are none, and none where there are.
  ASSERT_TRUE(attention->plan_ragged(good).ok());
  Tensors t(3, 20, 1);
  EXPECT_TRUE(t.run(*attention, 3, 17).ok());
  EXPECT_THAT(t.run(*attention, 3, 16).message(), HasSubstr("17 tokens or more"));
  EXPECT_EQ(attention->grow(kv).code(), StatusCode::kUnsupported);
  const PagedKv paged =
      kv_of(cpu_tensor(t.k.data(), DType::kF32, 5, 4, 2, 32), cpu_tensor(t.v.data(), DType::kF32, 5, 4, 2, 32));
  const auto run = [&](const PagedKv& kv_given) {
    return attention->run(cpu_tensor(t.q.data(), DType::kF32, 3, 4, 32), kv_given,
                          cpu_tensor(t.out.data(), DType::kF32, 3, 4, 32), {});
  };
  EXPECT_THAT(run(paged).message(), HasSubstr("no pages"));
  const std::vector<std::int32_t> pages = {0, 1, 2, 3, 4, 0};
  q = {2, 1};
  kv = {5, 9};
  ASSERT_TRUE(attention
                  ->plan({.num_requests = 2,
                          .q_lens = q.data(),
                          .kv_lens = kv.data(),
                          .page_indices = pages.data(),
                          .page_stride = 3})
                  .ok());
  EXPECT_TRUE(run(paged).ok());
  EXPECT_EQ(t.run(*attention, 3, 17).code(), StatusCode::kInvalidArgument);
}

TEST(Contiguous, PatternsThatMakeNoSenseAreRefusedByName) {
  auto attention = Attention::create(options(4));
  ASSERT_TRUE(attention.ok());
  std::vector<std::int32_t> indptr = {0, 2, 3}, indices = {0, 2, 1};
  BlockSparseBatch batch;
  batch.num_rows = 10;
  batch.num_tokens = 22;
  batch.block_rows = 5;
  batch.block_tokens = 8;
  batch.indptr = indptr.data();
  batch.indices = indices.data();
  ASSERT_TRUE(attention->plan_blocks(batch).ok());
  const auto expect = [&](StatusCode code, const char* words) {
    const Status status = attention->plan_blocks(batch);
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(words));
    Tensors t(10, 22, 1);
    EXPECT_EQ(t.run(*attention, 10, 22).code(), StatusCode::kInvalidArgument);  // there is no plan
  };
  indices[1] = 3;
  expect(StatusCode::kInvalidArgument, "block row 0 names column 3");
  indices[1] = 0;
  expect(StatusCode::kInvalidArgument, "ascending");
  indices[1] = 2;
  indptr[1] = 4;
  expect(StatusCode::kInvalidArgument, "indptr falls");
  indptr[1] = 2;
  batch.block_tokens = 6;
  expect(StatusCode::kInvalidArgument, "multiple of page_tokens");
  batch.block_tokens = 8;
  batch.block_rows = 0;
  expect(StatusCode::kInvalidArgument, "1 x 1");
  batch.block_rows = 5;
  batch.mask = AttentionMask::kWindow;
  expect(StatusCode::kUnsupported, "mask");
  batch.mask = AttentionMask::kBits;
  expect(StatusCode::kInvalidArgument, "mask_bits has 0 bytes, expected 15");
  batch.mask = AttentionMask::kNone;
  batch.num_rows = 65;
  expect(StatusCode::kOutOfRange, "max_rows");
  batch.num_rows = 10;
  batch.indptr = nullptr;
  expect(StatusCode::kInvalidArgument, "indptr");
  // More block rows than were declared.
  AttentionOptions few = options(1);
  few.max_block_rows = 0;
  auto small = Attention::create(few);
  ASSERT_TRUE(small.ok());
  std::vector<std::int32_t> none(65, 0);
  batch.indptr = none.data();
  batch.num_rows = 64;
  batch.block_rows = 1;
  const Status status = small->plan_blocks(batch);
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("max_block_rows"));
}

TEST(Contiguous, OptionsThatNeedPagesAreRefused) {
  AttentionOptions o = options(4);
  o.batch_invariant = true;
  auto invariant = Attention::create(o);
  ASSERT_TRUE(invariant.ok());
  EXPECT_EQ(invariant->plan_ragged({}).code(), StatusCode::kUnsupported);
  EXPECT_EQ(invariant->plan_blocks({}).code(), StatusCode::kUnsupported);
  o = options(4);
  o.kv_dtype = DType::kI8;
  auto integers = Attention::create(o);
  ASSERT_TRUE(integers.ok());
  EXPECT_THAT(integers->plan_ragged({}).message(), HasSubstr("int8"));
  const std::vector<float> slopes(4, 0.1f);
  o = options(4);
  o.alibi_slopes = cpu_tensor(slopes.data(), DType::kF32, 4);
  auto sloped = Attention::create(o);
  ASSERT_TRUE(sloped.ok());
  EXPECT_EQ(sloped->plan_blocks({}).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(sloped->plan_ragged({}).ok());
}

}  // namespace
}  // namespace fovea
