// The arguments of the kernels of the ladder (kernels/ladder, docs/kernels/prefill.md): causal attention of one
// sequence, head dim 128, bf16, K and V contiguous. Filled by `fovea bench attention --suite ladder` and the emulator's
// tests. Compiles under g++ and NVRTC.
#pragma once

#include "abi/attention_args.h"

namespace fovea::abi {

inline constexpr uint32_t kLadderHeadDim = 128;

// q, out: [tokens, heads, 128]; k, v: [tokens, heads / group, 128].
struct LadderArgs {
  const uint16_t* q;
  const uint16_t* k;
  const uint16_t* v;
  uint16_t* out;
  uint32_t tokens;
  uint32_t heads;
  uint32_t group;  // query heads a KV head
  float scale;     // of logits, times log2(e)
};

// For the kernels that copy by TMA: tensors of {64 dims, heads, 2 panels of dims, tokens, 1}, boxes of {64, 1, 1, 128,
// 1} under the swizzle of 128 bytes.
inline constexpr uint32_t kLadderPanelDims = 64, kLadderBoxTokens = 128;
struct LadderMaps {
  TensorMap q, k, v;
};

}  // namespace fovea::abi
