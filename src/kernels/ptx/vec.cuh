// Runs of elements between memory and registers: accesses of up to 16 bytes, and conversion between storage types and
// fp32. Used by the kernels of cache/ and model/, which are compiled for one run length and the types at hand.
#pragma once

#include "abi/kv_pool.h"
#include "kernels/ptx/instructions.cuh"

namespace fovea::kernels {

using abi::KvDType;

constexpr uint32_t element_bytes(KvDType type) { return type == KvDType::kF32 ? 4 : type == KvDType::kF8E4M3 ? 1 : 2; }

template <uint32_t kBytes>
struct Word {
  using Type = uint32_t;
};
template <>
struct Word<2> {
  using Type = uint16_t;
};
template <>
struct Word<1> {
  using Type = uint8_t;
};

// kCount elements as they lie in memory. 32 bytes (8 of fp32) are two accesses.
template <KvDType kType, uint32_t kCount>
struct alignas(element_bytes(kType) * kCount < 16 ? element_bytes(kType) * kCount : 16) Packed {
  static constexpr uint32_t kBytes = element_bytes(kType) * kCount;
  static constexpr uint32_t kWordBytes = kBytes < 4 ? kBytes : 4;
  typename Word<kWordBytes>::Type words[kBytes / kWordBytes];
};

template <KvDType kType, uint32_t kCount>
__forceinline__ Packed<kType, kCount> load(const void* base, long long element) {
  return *reinterpret_cast<const Packed<kType, kCount>*>(static_cast<const uint8_t*>(base) +
                                                         element * element_bytes(kType));
}

template <KvDType kType, uint32_t kCount>
__forceinline__ void store(void* base, long long element, const Packed<kType, kCount>& packed) {
  *reinterpret_cast<Packed<kType, kCount>*>(static_cast<uint8_t*>(base) + element * element_bytes(kType)) = packed;
}

// The e4m3 number nearest to x, ties to even; beyond 448: that; NaN: NaN. For architectures without an instruction.
__forceinline__ uint32_t e4m3_bits(float x) {
  const uint32_t bits = float_as_bits(x);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return sign | 0x7fu;
  if (size >= 0x43e00000u) return sign | 0x7eu;
  if (size < 0x3c800000u) {
    // Below 2^-6: multiples of 2^-9. Adding 2^14 puts the last bit of the sum there, so the addition rounds.
    return sign | (float_as_bits(bits_as_float(size) + 16384.0f) - 0x46800000u);
  }
  return sign | ((size + 0x7ffffu + (size >> 20 & 1u) - (120u << 23)) >> 20);
}

__forceinline__ uint32_t e4m3_pair(float low, float high) {
#if defined(FOVEA_HAS_E4M3_CONVERSION)
  return e4m3_pair_fast(low, high);
#else
  return e4m3_bits(low) | e4m3_bits(high) << 8;
#endif
}

template <KvDType kType, uint32_t kCount>
__forceinline__ void unpack(const Packed<kType, kCount>& packed, float (&x)[kCount]) {
  static_assert(kType != KvDType::kF8E4M3, "nothing here reads e4m3");
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    if constexpr (kType == KvDType::kF32) {
      x[i] = bits_as_float(packed.words[i]);
    } else {
      const uint32_t word = packed.words[i / 2];
      if constexpr (kType == KvDType::kF16) {
        x[i] = f16_low(i % 2 == 0 ? word : word >> 16);
      } else {
        x[i] = bits_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
      }
    }
  }
}

template <KvDType kType, uint32_t kCount>
__forceinline__ Packed<kType, kCount> pack(const float (&x)[kCount]) {
  using Result = Packed<kType, kCount>;
  constexpr uint32_t kInWord = Result::kWordBytes / element_bytes(kType);
  Result packed;
#pragma unroll
  for (uint32_t i = 0; i < kCount; i += kInWord) {
    const float next = kInWord > 1 ? x[i + (kInWord > 1)] : 0.0f;
    uint32_t word;
    if constexpr (kType == KvDType::kF32) {
      word = float_as_bits(x[i]);
    } else if constexpr (kType == KvDType::kF16) {
      word = f16_pair(x[i], next);
    } else if constexpr (kType == KvDType::kBF16) {
      word = bf16_pair(x[i], next);
    } else {
      word = e4m3_pair(x[i], next);
      if constexpr (kInWord == 4) word |= e4m3_pair(x[i + 2], x[i + 3]) << 16;
    }
    packed.words[i / kInWord] = static_cast<decltype(packed.words[0] + 0)>(word);
  }
  return packed;
}

}  // namespace fovea::kernels
