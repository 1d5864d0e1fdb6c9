// Random attention batches over paged KV, with everything that an executor must not trip over: pages in random physical
// order, NaN and infinity in page tails and unused pages, any layout. Used by the oracle's callers in tests and bench.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "abi/kv_pool.h"
#include "abi/plan.h"
#include "fovea/dtype.h"

namespace fovea::testing {

struct CaseSpec {
  std::vector<std::int32_t> q_lens;
  std::vector<std::int32_t> kv_lens;
  int kv_heads = 2;
  int group = 4;
  int head_dim = 64;
  int page_tokens = 16;
  DType kv_dtype = DType::kBF16;  // kF32, kF16, kBF16, kF8E4M3, kI8, kI4
  bool token_scales = false;      // kF8E4M3: a scale for each token and head, which kI8 and kI4 have anyway
  bool rotated = false;           // kI8, kI4: what is stored went through a Hadamard rotation
  float kv_offset = 0.0f;         // kI8, kI4: added to all elements of every other token
  // No pages: requests stand one behind the other in memory, with a few tokens of nobody between them. page_tokens is
  // 1 then, so that the page table names tokens.
  bool contiguous = false;
  bool heads_first = false;  // HND pages instead of NHD
  int pad_elements = 0;      // unused elements after each token's heads (NHD) or tokens (HND)
  abi::MaskKind mask = abi::MaskKind::kCausal;
  std::int32_t window_left = -1;
  int mask_tail = 0;         // kBits: bits cover the last so many tokens only; 0: all
  int shared_tokens = 0;     // leading tokens whose full pages all requests share
  bool q_bf16 = false;       // queries hold bf16 values
  bool q_f16 = false;        // queries hold f16 values
  bool poison = true;        // NaN and infinity wherever no token lives
  float logit_scale = 1.0f;  // queries are this large; 1: logits about N(0, 1) after 1/sqrt(head_dim)
  // Below 0: keys are independent. Else all keys of a head are one row plus this much noise, so that logits are nearly
  // equal however large they are.
  float key_spread = -1.0f;
  std::uint64_t seed = 1;
};

struct AttentionCase {
  CaseSpec spec;
  int num_rows = 0;
  int page_table_stride = 0;
  std::vector<std::int32_t> page_table;
  std::vector<std::byte> k, v;
  std::vector<abi::KvScale> k_scales, v_scales;  // [pages, heads, tokens]
  abi::KvPoolView pool{};
  std::vector<float> q;  // [num_rows, kv_heads * group, head_dim]
  std::vector<std::uint8_t> mask_bits;
  std::vector<std::uint64_t> mask_offsets;
  std::vector<std::uint32_t> mask_strides;
  std::vector<std::int32_t> mask_tails;
  std::function<bool(int row, int token, int kv_head)> blocks_see;  // instead of the mask, of one request

  int num_requests() const { return static_cast<int>(spec.q_lens.size()); }
  int num_qo_heads() const { return spec.kv_heads * spec.group; }
  // Element d of a token's key (or value): what is stored stands for it.
  double element(bool key, int request, int token, int kv_head, int d) const;
  // Whether query token `row` of a request sees KV token `token`, by the mask's definition, or by blocks_see.
  bool sees(int request, int row, int token, int kv_head = 0) const;
  std::string describe() const;

  AttentionCase() = default;
  AttentionCase(AttentionCase&&) = default;
  AttentionCase(const AttentionCase&) = delete;
};

AttentionCase make_case(const CaseSpec& spec);

// Storage conversions, rounding to nearest even.
std::uint16_t bf16_of(float x);
float float_of_bf16(std::uint16_t x);
std::uint16_t f16_of(float x);
float float_of_f16(std::uint16_t x);
// e4m3 without infinities: the largest value is 448, larger ones become it; infinity becomes NaN.
std::uint8_t e4m3_of(float x);
float float_of_e4m3(std::uint8_t x);

}  // namespace fovea::testing
