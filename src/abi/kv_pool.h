// How the tokens of one KV pool are stored, for one layer. Filled by engine/cache and the public API; read by every
// attention and append kernel. Compiles under g++ and NVRTC.
#pragma once

#include "abi/plan.h"

namespace fovea::abi {

// Same values as fovea::DType, repeated here because device code includes no host header.
enum class KvDType : uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2, kF8E4M3 = 3, kI8 = 4, kI4 = 5 };

// What stored numbers stand for, K and V each with numbers of their own:
//   kNone       element = stored; not for kI8 and kI4.
//   kHead       element = scale[head] * stored; kF8E4M3 only. float [heads].
//   kTokenHead  element = scale * stored + zero, a KvScale for each (page, head, token); kF8E4M3 (zero 0), kI8, kI4.
enum class ScaleGranularity : uint8_t { kNone = 0, kHead = 1, kTokenHead = 2 };

// The quantized types store numbers without a sign, `stored` is the number less a bias, so that devices unpack with one
// logical operation and one subtraction of halves:
//   kI8  a byte u, stored = u - 128.
//   kI4  half a byte u, stored = u - 8; element d is in byte d / 2 of its row, even d in the low half.
inline constexpr int kI8Bias = 128;
inline constexpr int kI4Bias = 8;

// Two halves (fp16 bits) of one token of one head. How append chooses them, over the head_dim elements x in fp32, after
// RoPE and, in rotated pools, after the rotation; NaN counts as 0, what is beyond +-65504 as that:
//   integers of N levels (256 or 16)   scale = (max - min) * float(1 / (N - 1)), rounded up as below;
//                                      zero = (max + min) / 2 + scale / 2, to the nearest fp16;
//                                      stored = (x - zero) * (1 / scale), to the nearest even, held to what fits
//   kF8E4M3                            scale = max |x| * float(1 / 448), rounded up as below; zero = 0;
//                                      stored = x * (1 / scale), to the nearest even
// Scales are rounded up to halves whose last three bits are 0: with 8 significant bits they are bf16 numbers too, so
// that the weight of a token that takes all is exact where weights times scales are rounded to bf16. A scale of 0
// stores 0. So |element - x| is at most scale / 2 and half a unit in the last place of zero.
struct KvScale {
  uint16_t scale;
  uint16_t zero;
};

// K and V share strides. Token t of page entry e and KV head h starts at element
//   (e / entries_per_page) * page_stride + ((e % entries_per_page) * entry_tokens + t) * token_stride + h *
//   head_stride.
// Strides are in elements; those of kI4 pools are even. The t-th token of entry e is token
// (e % entries_per_page) * entry_tokens + t of its page.
struct KvPoolView {
  void* k;
  void* v;
  long long page_stride;   // elements
  long long token_stride;  // elements
  long long head_stride;   // elements
  int32_t num_pages;
  int32_t page_tokens;       // tokens a page
  int32_t entry_tokens;      // tokens a page-list entry names; the last entry of a page may name fewer
  int32_t entries_per_page;  // 1 unless units smaller than a page can be selected
  KvDType dtype;
  ScaleGranularity granularity;
  // 1: K and V of each head were multiplied by H / sqrt(head_dim), H the Hadamard matrix in Sylvester's order, which is
  // its own inverse; head_dim is a power of two. Attention rotates queries alike and outputs back.
  uint8_t rotated;
  uint8_t reserved;
  void* k_scale;  // float or KvScale; see granularity
  void* v_scale;
  // kTokenHead: the KvScale of token t of page p and head h is number p * scale_page_stride + h * scale_head_stride +
  // t.
  long long scale_page_stride;
  long long scale_head_stride;
};

constexpr int kv_bits(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32: return 32;
    case KvDType::kF16:
    case KvDType::kBF16: return 16;
    case KvDType::kI4: return 4;
    default: return 8;
  }
}

// The same pool with its heads counted from `first` on: head first + i of the result is head i of the given one. For
// pools that hold KV heads [first, ..) of a layer only, in plans that name the layer's heads; the addresses of heads
// before `first` lie outside of the pool and are never read.
inline KvPoolView shift_heads(KvPoolView pool, int first) {
  const long long bytes = pool.head_stride * first * kv_bits(pool.dtype) / 8;
  const auto moved = [](void* p, long long by) {
    if (p == nullptr) return p;  // no scales
    return reinterpret_cast<void*>(reinterpret_cast<uint64_t>(p) - static_cast<uint64_t>(by));
  };
  pool.k = moved(pool.k, bytes);
  pool.v = moved(pool.v, bytes);
  if (pool.granularity != ScaleGranularity::kNone) {
    const bool each = pool.granularity == ScaleGranularity::kTokenHead;
    const long long by = each ? pool.scale_head_stride * first * static_cast<long long>(sizeof(KvScale))
                              : first * static_cast<long long>(sizeof(float));
    pool.k_scale = moved(pool.k_scale, by);
    pool.v_scale = moved(pool.v_scale, by);
  }
  return pool;
}

}  // namespace fovea::abi
