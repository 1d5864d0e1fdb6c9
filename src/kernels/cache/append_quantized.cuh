// fovea_append for pools with a scale and zero a token and head (int8, int4, fp8): writes new K and V rows as
// abi/kv_pool.h defines it, bit for bit what the CPU backend writes. Launched by attention/cuda_paged_ops.h.
//
//   Grid: quantizing_ctas() of kAppendThreads threads, a row of one head of K or of V a thread. It reads the row twice,
//   the second time from the cache; rows of rotated pools once, into registers. No shared memory.
//
// Compiled for FOVEA_HEAD_DIM, FOVEA_Q_DTYPE (of k and v), FOVEA_KV_DTYPE (of the pool), FOVEA_VEC (append_vec()) and
// FOVEA_ROTATED.
#pragma once

#include "abi/append_args.h"
#include "kernels/ptx/vec.cuh"

namespace fovea::kernels {

template <uint32_t kHeadDim, KvDType kIn, KvDType kPool, uint32_t kVec, bool kRotated>
struct AppendQuantized {
  static constexpr bool kFp8 = kPool == KvDType::kF8E4M3;
  static constexpr bool kHalfBytes = kPool == KvDType::kI4;
  static constexpr int kBias = kHalfBytes ? abi::kI4Bias : abi::kI8Bias;
  static constexpr float kLargest = 65504.0f;
  static_assert(kHeadDim % 2 == 0 && kHeadDim % kVec == 0, "whole runs");
  static_assert(!kRotated || (!kFp8 && (kHeadDim & (kHeadDim - 1)) == 0), "integers are rotated");

  static __forceinline__ float clean(float x) {
    if (!(x == x)) return 0.0f;
    return x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
  }
  // At most 8 significant bits, not below x.
  static __forceinline__ uint32_t short_half_above(float x) {
    const uint32_t below = f16_pair(x, 0.0f) & 0xfff8u;
    return f16_low(below) < x ? below + 8 : below;
  }

  struct Rounding {
    float zero, inverse;
    __forceinline__ uint32_t operator()(float x) const {
      if constexpr (kFp8) return e4m3_bits(clean(x) * inverse);
      float y = (clean(x) - zero) * inverse;
      y = y < static_cast<float>(-kBias) ? static_cast<float>(-kBias) : y;
      y = y > static_cast<float>(kBias - 1) ? static_cast<float>(kBias - 1) : y;
      // An addition that leaves no bits for fractions: 1.5 * 2^23.
      return (float_as_bits(y + 12582912.0f) - float_as_bits(12582912.0f) + kBias) & (kHalfBytes ? 0xfu : 0xffu);
    }
  };

  // What a row of these extremes, clean ones, is stored by.
  struct Scaling {
    abi::KvScale stored;
    Rounding rounded;

    static __forceinline__ Scaling of(float min, float max) {
      const float most = max > -min ? max : -min;
      const uint32_t scale_bits =
          short_half_above(kFp8 ? most * (1.0f / 448.0f) : (max - min) * (1.0f / static_cast<float>(2 * kBias - 1)));
      const float by = f16_low(scale_bits);
      const float middle = kFp8 ? 0.0f : (max + min) * 0.5f + by * 0.5f;
      const float held = middle > kLargest ? kLargest : middle < -kLargest ? -kLargest : middle;
      const uint32_t zero_bits = f16_pair(held, 0.0f) & 0xffffu;
      return {{static_cast<uint16_t>(scale_bits), static_cast<uint16_t>(zero_bits)},
              {f16_low(zero_bits), by > 0.0f ? 1.0f / by : 0.0f}};
    }
  };

  // Elements of a row as they are quantized, run by run: in memory as they came, or rotated in registers.
  struct Row {
    const void* from;
    long long element;
    float rotated[kRotated ? kHeadDim : 1];

    __forceinline__ Row(const void* from_in, long long element_in) : from(from_in), element(element_in) {
      if constexpr (kRotated) {
#pragma unroll
        for (uint32_t d = 0; d < kHeadDim; d += kVec) {
          float x[kVec];
          unpack(load<kIn, kVec>(from, element + d), x);
#pragma unroll
          for (uint32_t i = 0; i < kVec; ++i) rotated[d + i] = x[i];
        }
        // In the order of the CPU backend (cpu/attention/quantized.h).
#pragma unroll
        for (uint32_t half = 1; half < kHeadDim; half *= 2) {
#pragma unroll
          for (uint32_t i = 0; i < kHeadDim; ++i) {
            if (i & half) continue;
            const float a = rotated[i], b = rotated[i + half];
            rotated[i] = a + b;
            rotated[i + half] = a - b;
          }
        }
        constexpr float kBy = inverse_root();
#pragma unroll
        for (uint32_t i = 0; i < kHeadDim; ++i) rotated[i] *= kBy;
      }
    }
    __forceinline__ void read(uint32_t d, float (&x)[kVec]) const {
      if constexpr (kRotated) {
#pragma unroll
        for (uint32_t i = 0; i < kVec; ++i) x[i] = rotated[d + i];
      } else {
        unpack(load<kIn, kVec>(from, element + d), x);
      }
    }
    // 1 / sqrt(kHeadDim), rounded twice as the CPU does.
    static constexpr float inverse_root() {
      uint32_t dim = kHeadDim;
      float root = 1.0f;
      for (; dim >= 4; dim /= 4) root *= 2.0f;
      if (dim == 2) root *= 1.41421356237309515f;
      return 1.0f / root;
    }
  };

  static __forceinline__ void write_row(const void* from, long long element, uint8_t* to, abi::KvScale* scale) {
    [[maybe_unused]] constexpr uint32_t kUnroll = kRotated ? kHeadDim : 4;
    const Row row(from, element);
    float min = kLargest, max = -kLargest;
#pragma unroll kUnroll
    for (uint32_t d = 0; d < kHeadDim; d += kVec) {
      float x[kVec];
      row.read(d, x);
#pragma unroll
      for (uint32_t i = 0; i < kVec; ++i) {
        const float y = clean(x[i]);
        min = y < min ? y : min;
        max = y > max ? y : max;
      }
    }
    const Scaling scaling = Scaling::of(min, max);
    const Rounding& rounded = scaling.rounded;
    *scale = scaling.stored;
    constexpr uint32_t kRun = kVec < 2 ? 2 : kVec;  // whole bytes
    constexpr uint32_t kBytes = kHalfBytes ? kRun / 2 : kRun;
#pragma unroll kUnroll
    for (uint32_t d = 0; d < kHeadDim; d += kRun) {
      float x[kRun];
#pragma unroll
      for (uint32_t part = 0; part < kRun; part += kVec) {
        float y[kVec];
        row.read(d + part, y);
#pragma unroll
        for (uint32_t i = 0; i < kVec; ++i) x[part + i] = y[i];
      }
      uint8_t bytes[kBytes];
#pragma unroll
      for (uint32_t i = 0; i < kBytes; ++i) {
        bytes[i] = static_cast<uint8_t>(kHalfBytes ? rounded(x[2 * i]) | rounded(x[2 * i + 1]) << 4 : rounded(x[i]));
      }
      uint8_t* at = to + (kHalfBytes ? d / 2 : d);
      if constexpr (kVec == 8) {  // then rows start at multiples of 8 elements
#pragma unroll
        for (uint32_t w = 0; w < kBytes / 4; ++w) {
          *reinterpret_cast<uint32_t*>(at + 4 * w) = bytes[4 * w] | bytes[4 * w + 1] << 8 | bytes[4 * w + 2] << 16 |
                                                     static_cast<uint32_t>(bytes[4 * w + 3]) << 24;
        }
      } else {
#pragma unroll
        for (uint32_t i = 0; i < kBytes; ++i) at[i] = bytes[i];
      }
    }
  }

  // What thread `thread` of the launch does.
  static __forceinline__ void run(const abi::AppendArgs& args, uint32_t thread) {
    const uint32_t per_row = 2 * args.num_kv_heads;
    if (per_row == 0 || thread >= args.rows * per_row) return;
    const uint32_t row = thread / per_row;
    const uint32_t head = (thread - row * per_row) / 2;
    const bool keys = thread % 2 == 0;
    const abi::AppendSlot slot = abi::append_slot(args, row);
    if (slot.target != abi::AppendTarget::kWrite) {
      if (slot.target == abi::AppendTarget::kOutOfRange && args.error != nullptr) keep_maximum(args.error, ~row);
      return;
    }
    const abi::KvPoolView& pool = args.pool;
    const long long to = slot.element + head * pool.head_stride;
    uint8_t* base = static_cast<uint8_t*>(keys ? pool.k : pool.v) + (kHalfBytes ? to / 2 : to);
    abi::KvScale* scales = static_cast<abi::KvScale*>(keys ? pool.k_scale : pool.v_scale);
    abi::KvScale* scale = scales + slot.scale + head * pool.scale_head_stride;
    if (keys) {
      write_row(args.k, row * args.k_row_stride + head * args.k_head_stride, base, scale);
    } else {
      write_row(args.v, row * args.v_row_stride + head * args.v_head_stride, base, scale);
    }
  }
};

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_HEAD_DIM)
extern "C" __global__ void __launch_bounds__(fovea::abi::kAppendThreads)
    fovea_append(const __grid_constant__ fovea::abi::AppendArgs args) {
  using fovea::abi::KvDType;
  fovea::kernels::wait_for_inputs();
  fovea::kernels::AppendQuantized<FOVEA_HEAD_DIM, static_cast<KvDType>(FOVEA_Q_DTYPE),
                                  static_cast<KvDType>(FOVEA_KV_DTYPE), FOVEA_VEC,
                                  FOVEA_ROTATED != 0>::run(args, blockIdx.x * blockDim.x + threadIdx.x);
}
#endif
