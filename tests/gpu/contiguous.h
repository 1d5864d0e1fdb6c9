// Generated cases without pages, ragged ones and block-sparse ones, and how they are planned; see agreement.h. Used by
// tests/gpu and tests/emulator.
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/attention.h"
#include "testing/attention_case.h"

namespace fovea::gpu_test {

// The case's mask as bits, one request behind another, each from a whole byte on.
void mask_bits_of(const testing::AttentionCase& c, std::vector<std::int64_t>& offsets, std::vector<std::uint8_t>& bits);

// The ragged batch of a case; owns what it names and borrows the case.
struct RaggedLists {
  explicit RaggedLists(const testing::AttentionCase& c);
  RaggedBatch view;
  std::vector<std::int32_t> kv_begins;
  std::vector<std::int64_t> mask_offsets;
  std::vector<std::uint8_t> mask;
};

// A random block pattern over the only request of a case, by its seed: sizes that do and do not divide it, block rows
// without blocks, a pattern for all heads or one a KV head; blocks whole, causal or with bits of their own.
struct BlockLists {
  BlockLists(const testing::AttentionCase& c, std::int32_t page_tokens);
  bool sees(int row, int token, int kv_head) const;
  BlockSparseBatch view;
  std::vector<std::int32_t> indptr, indices;
  std::vector<std::uint8_t> mask;
};

// Lets the case see by its block pattern.
void set_blocks(testing::AttentionCase& c, std::int32_t page_tokens);

// Where the tokens that a plan counts from 0 begin: those of a block pattern are the request's.
std::int32_t first_token(const testing::AttentionCase& c);
// All tokens from there on as one page of entries, as the product has it.
abi::KvPoolView contiguous_pool(const testing::AttentionCase& c, std::int32_t entry_tokens);
// K and V as rank 3 tensors at other addresses, which are those of the case's first token in memory.
PagedKv contiguous_kv(const testing::AttentionCase& c, const TensorView& any, const void* k, const void* v);

}  // namespace fovea::gpu_test
