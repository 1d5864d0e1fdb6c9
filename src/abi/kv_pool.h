// How the tokens of one KV pool are stored, for one layer. Filled by engine/cache and the public API; read by every
// attention and append kernel. Compiles under g++ and NVRTC.
#pragma once

#include "abi/plan.h"

namespace fovea::abi {

// Same values as fovea::DType, repeated here because device code includes no host header.
enum class KvDType : uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2, kF8E4M3 = 3, kI8 = 4, kI4 = 5 };

// One scale (and zero) for: nothing, a head of the pool, or a (token, head) of the pool.
enum class ScaleGranularity : uint8_t { kNone = 0, kHead = 1, kTokenHead = 2 };

// K and V share strides. Token t of page entry e and KV head h starts at element
//   (e / entries_per_page) * page_stride + ((e % entries_per_page) * entry_tokens + t) * token_stride + h *
//   head_stride.
struct KvPoolView {
  void* k;
  void* v;
  long long page_stride;   // elements
  long long token_stride;  // elements
  long long head_stride;   // elements
  int32_t num_pages;
  int32_t page_tokens;       // tokens a page
  int32_t entry_tokens;      // tokens a page-list entry names: page_tokens / entries_per_page
  int32_t entries_per_page;  // 1 unless units smaller than a page can be selected
  KvDType dtype;
  ScaleGranularity granularity;
  uint8_t rotated;  // K and V went through a Hadamard rotation before they were quantized
  uint8_t reserved;
  void* k_scale;  // float; see granularity
  void* v_scale;
  void* k_zero;
  void* v_zero;
};

}  // namespace fovea::abi
