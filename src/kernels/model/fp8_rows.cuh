// fovea_fp8_rows: rows rounded to e4m3, each with a scale: activations of many rows, and weights as they are loaded.
// fovea_fp8_expand: such rows as numbers of 16 bits again. fovea_fp8_finish: scales and bias behind a product. Launched
// by device/cuda; arguments and grids in abi/fp8_args.h. cpu/ops/fp8_rows.h makes the same bits.
//
// Compiled for FOVEA_DTYPE (of what is not e4m3) and FOVEA_VEC (elements an access).
#pragma once

#include "abi/fp8_args.h"
#include "kernels/model/reduce.cuh"
#include "kernels/ptx/vec.cuh"

namespace fovea::kernels {

// A CTA a row, which is read twice: the second time from the cache.
template <KvDType kType, uint32_t kVec>
__forceinline__ void fp8_rows(const abi::Fp8RowsArgs& args, float* sums) {
  wait_for_inputs();
  const uint32_t row = blockIdx.x;
  const long long from = row * args.stride;
  float most = 0.0f;
  for (uint32_t i = threadIdx.x * kVec; i < args.width; i += blockDim.x * kVec) {
    float x[kVec];
    unpack(load<kType, kVec>(args.from, from + i), x);
#pragma unroll
    for (uint32_t e = 0; e < kVec; ++e) most = fmaxf(most, fabsf(x[e]));
  }
  most = warp_max(most);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = most;
  __syncthreads();
  most = warp_max(threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f);
  const float scale = abi::fp8_row_scale(most);
  const float inverse = 1.0f / scale;
  const long long to = static_cast<long long>(row) * args.width;
  for (uint32_t i = threadIdx.x * kVec; i < args.width; i += blockDim.x * kVec) {
    float x[kVec];
    unpack(load<kType, kVec>(args.from, from + i), x);
#pragma unroll
    for (uint32_t e = 0; e < kVec; ++e) x[e] = product(x[e], inverse);
    store(args.codes, to + i, pack<KvDType::kF8E4M3, kVec>(x));
  }
  if (threadIdx.x == 0) args.scales[row] = scale;
}

__forceinline__ float e4m3_value(uint32_t bits) {
  const float size = bits_as_float((bits & 0x7fu) << 20) * 0x1p120f;
  return (bits & 0x80u) != 0 ? -size : size;
}

template <KvDType kType, uint32_t kVec>
__forceinline__ void fp8_expand(const abi::Fp8ExpandArgs& args) {
  wait_for_inputs();
  const uint32_t runs = args.width / kVec;
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (thread >= static_cast<uint64_t>(args.rows) * runs) return;
  const uint32_t row = static_cast<uint32_t>(thread / runs);
  const long long at = static_cast<long long>(thread) * kVec;
  const auto packed = load<KvDType::kF8E4M3, kVec>(args.codes, at);
  const float scale = args.scales[row];
  constexpr uint32_t kInWord = decltype(packed)::kWordBytes;
  float x[kVec];
#pragma unroll
  for (uint32_t e = 0; e < kVec; ++e) {
    x[e] = e4m3_value(static_cast<uint32_t>(packed.words[e / kInWord]) >> (e % kInWord * 8)) * scale;
  }
  store(args.to, at, pack<kType, kVec>(x));
}

template <KvDType kType, uint32_t kVec>
__forceinline__ void fp8_finish(const abi::Fp8FinishArgs& args) {
  wait_for_inputs();
  const uint32_t runs = args.width / kVec;
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (thread >= static_cast<uint64_t>(args.rows) * runs) return;
  const uint32_t row = static_cast<uint32_t>(thread / runs);
  const uint32_t i = static_cast<uint32_t>(thread - static_cast<uint64_t>(row) * runs) * kVec;
  float x[kVec];
  unpack(load<kType, kVec>(args.y, row * args.stride + i), x);
  if (args.row_scales != nullptr) {
    const float scale = args.row_scales[row];
    float by[kVec];
    unpack(load<KvDType::kF32, kVec>(args.column_scales, i), by);
#pragma unroll
    for (uint32_t e = 0; e < kVec; ++e) x[e] *= scale * by[e];
  }
  if (args.bias != nullptr) {
    float bias[kVec];
    unpack(load<kType, kVec>(args.bias, i), bias);
#pragma unroll
    for (uint32_t e = 0; e < kVec; ++e) x[e] += bias[e];
  }
  store(args.y, row * args.stride + i, pack<kType, kVec>(x));
}

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_FP8_ROWS)
extern "C" __global__ void __launch_bounds__(fovea::abi::kOpThreads)
    fovea_fp8_rows(const __grid_constant__ fovea::abi::Fp8RowsArgs args) {
  __shared__ float sums[32];
  fovea::kernels::fp8_rows<static_cast<fovea::abi::KvDType>(FOVEA_DTYPE), FOVEA_VEC>(args, sums);
}
extern "C" __global__ void __launch_bounds__(fovea::abi::kOpThreads)
    fovea_fp8_expand(const __grid_constant__ fovea::abi::Fp8ExpandArgs args) {
  fovea::kernels::fp8_expand<static_cast<fovea::abi::KvDType>(FOVEA_DTYPE), FOVEA_VEC>(args);
}
extern "C" __global__ void __launch_bounds__(fovea::abi::kOpThreads)
    fovea_fp8_finish(const __grid_constant__ fovea::abi::Fp8FinishArgs args) {
  fovea::kernels::fp8_finish<static_cast<fovea::abi::KvDType>(FOVEA_DTYPE), FOVEA_VEC>(args);
}
#endif
