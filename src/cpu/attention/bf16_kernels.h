// The matrix products of an attention block by instructions that multiply pairs of bf16 (AVX512_BF16): queries and
// weights are rounded to bf16, sums are fp32. Used by matmul_inl.h for bf16 pools when AttentionParams::products
// allows.
#pragma once

#include "cpu/attention/item.h"

namespace fovea::cpu {

// How many tokens of its stream ahead of its use the kernels for few rows fetch a row: some 128 cache lines of the four
// streams together, which covers the latency of memory. The CPU drops what it has no room for, so each is asked for
// a second time.
struct FetchAhead {
  explicit FetchAhead(int head_dim)
      : early_tokens(head_dim >= 256   ? 4
                     : head_dim >= 128 ? 8
                                       : kStreamTokens),
        late_tokens(early_tokens * 3 / 4) {}
  int early_tokens;
  int late_tokens;
};

#if defined(__x86_64__)
// By rows - 1; for head_dims that are multiples of 32. In bf16_row_logits.cc.
extern const RowLogitsFn kBf16RowLogits[kMaxRowsPerPass];
#endif

// Outputs in between are in a lane order of their own, so these three go together.
struct Bf16AttentionKernels {
  // Rounds each row of q [rows, head_dim] in place: element pairs as words in the first half of the row, and in the
  // second what rounding took away, rounded likewise: together they have twice the bits.
  void (*round_queries)(float* q, int rows, int head_dim) = nullptr;
  LogitsFn logits[kMaxRowsPerPass] = {};    // by rows - 1; q: either half of round_queries' rows
  OutputsFn outputs[kMaxRowsPerPass] = {};  // by rows - 1; rounds the weights
  PackValuesFn pack_values = nullptr;
  PackedOutputsFn packed_outputs[kMaxRowsPerPass] = {};
  RowOutputsFn row_outputs[kMaxRowsPerPass] = {};
  RowLogitsFn row_logits[kMaxRowsPerPass] = {};
  void (*finish_row)(const float* o, int head_dim, float divisor, float* row) = nullptr;
};

// Null where the CPU lacks the instruction. Other instruction sets compute in fp32 instead, which is more exact.
const Bf16AttentionKernels* bf16_attention_kernels();

}  // namespace fovea::cpu
