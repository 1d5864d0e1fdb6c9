// What device code takes for granted, for rewritten kernels (rewrite.h): CUDA's names for threads, warps and bits, on
// the lanes of the emulator. Included by generated sources alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "testing/simt/lane.h"
#include "testing/simt/ptx.h"

// NOLINTBEGIN
#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define threadIdx (::simt::thread_index())
#define blockIdx (::simt::block_index())
#define blockDim (::simt::block_size())
#define gridDim (::simt::grid_size())

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

template <typename T>
T __shfl_sync(unsigned mask, T x, int source, int width = 32) {
  const unsigned lane = ::simt::lane_index(), w = static_cast<unsigned>(width);
  const unsigned from = (lane & ~(w - 1)) | (static_cast<unsigned>(source) & (w - 1));
  const std::uint64_t bits = ::simt::shuffle(mask, ::simt::bits_of(x), from);
  T result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T x, int lanes) {
  return __shfl_sync(mask, x, static_cast<int>(::simt::lane_index() ^ static_cast<unsigned>(lanes)));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T x, unsigned by) {
  const unsigned lane = ::simt::lane_index();
  return __shfl_sync(mask, x, static_cast<int>(lane < by ? lane : lane - by));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T x, unsigned by) {
  const unsigned lane = ::simt::lane_index();
  return __shfl_sync(mask, x, static_cast<int>(lane + by > 31 ? lane : lane + by));
}
inline unsigned __ballot_sync(unsigned mask, int x) { return ::simt::ballot(mask, x != 0); }
inline int __any_sync(unsigned mask, int x) { return ::simt::ballot(mask, x != 0) != 0; }
inline int __all_sync(unsigned mask, int x) { return ::simt::ballot(mask, x != 0) == mask; }
inline unsigned __reduce_or_sync(unsigned mask, unsigned x) { return ::simt::reduce(mask, x, ::simt::Reduction::kOr); }
inline unsigned __reduce_add_sync(unsigned mask, unsigned x) {
  return ::simt::reduce(mask, x, ::simt::Reduction::kAdd);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned x) {
  return ::simt::reduce(mask, x, ::simt::Reduction::kMax);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned x) {
  return ::simt::reduce(mask, x, ::simt::Reduction::kMin);
}
// Numbers with a sign: in the order of those without, once the highest bit is another.
inline int __reduce_add_sync(unsigned mask, int x) { return __reduce_add_sync(mask, static_cast<unsigned>(x)); }
inline int __reduce_max_sync(unsigned mask, int x) {
  return static_cast<int>(__reduce_max_sync(mask, static_cast<unsigned>(x) ^ 0x80000000u) ^ 0x80000000u);
}
inline int __reduce_min_sync(unsigned mask, int x) {
  return static_cast<int>(__reduce_min_sync(mask, static_cast<unsigned>(x) ^ 0x80000000u) ^ 0x80000000u);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) { ::simt::sync_lanes(mask); }
inline void __syncthreads() { ::simt::sync_cta(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { ::simt::rest(); }
inline long long clock64() { return ::simt::clock(); }
inline void __trap() { ::simt::trap(); }

template <typename T>
T atomicAdd(T* at, T x) {
  ::simt::before_atomic(at, sizeof(T));
  const T old = *static_cast<volatile T*>(at);
  ::simt::store_quietly(at, static_cast<T>(old + x));
  return old;
}
template <typename T>
T __ldcg(const T* from) {
  return ::simt::load_global(from);
}
template <typename T>
T __ldg(const T* from) {
  return ::simt::load_global(from);
}

inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdividef(float x, float y) { return x / y; }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned which = selector >> 4 * i & 0xf;
    unsigned byte = bytes >> 8 * (which & 7) & 0xff;
    if (which & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}
inline std::size_t __cvta_generic_to_shared(const void* p) { return ::simt::shared_address(p); }

inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline long min(long a, long b) { return a < b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline unsigned long min(unsigned long a, unsigned long b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline long max(long a, long b) { return a > b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline unsigned long max(unsigned long a, unsigned long b) { return a > b ? a : b; }
// NOLINTEND

namespace simt {

// Calls a kernel with parameters by their addresses.
template <typename... Parameters>
__attribute__((no_sanitize("thread"))) void call(void (*kernel)(Parameters...), const void* const* params) {
  [&]<std::size_t... i>(std::index_sequence<i...>) __attribute__((no_sanitize("thread"))) {
    kernel(*static_cast<const Parameters*>(params[i])...);
  }
  (std::index_sequence_for<Parameters...>());
}

}  // namespace simt
